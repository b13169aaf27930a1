import Foundation

/// KV caches or convolution contexts of one stream, updated by calls of the step model that created it.
public protocol StepState: AnyObject, Sendable {}

/// A step model: (inputs, state) → outputs, with the names of its declaration in the manifest.
public protocol StepFunction: Sendable {
    /// The state at the start of a stream: zeros.
    func newState() throws -> any StepState

    /// One step. The state is updated in place; concurrent calls must not share a state.
    func callAsFunction(_ inputs: [String: Tensor], _ state: (any StepState)?) async throws -> [String: Tensor]

    /// Positions of the state's KV caches, (layers, kv_heads, positions, head_dim), or of its contexts, (1, channels,
    /// samples), by name; nil if the framework hides its states. Positions beyond the end are omitted.
    func rows(_ positions: Range<Int>, of state: any StepState) throws -> [String: Tensor]?

    /// Write the result of `rows` into the state, from `position` on. Unknown names are ignored.
    func write(_ rows: [String: Tensor], at position: Int, into state: any StepState) throws

    /// Free what only prefill needs, until the next prefill.
    func unloadPrefill() async
}

extension StepFunction {
    /// Frees nothing.
    public func unloadPrefill() async {}

    /// Hides the state.
    public func rows(_ positions: Range<Int>, of state: any StepState) throws -> [String: Tensor]? { nil }

    /// Writes nothing.
    public func write(_ rows: [String: Tensor], at position: Int, into state: any StepState) throws {}

    /// The output with this name, which must have `count` values.
    func output(
        _ name: String, _ count: Int, of model: String, _ inputs: [String: Tensor], _ state: (any StepState)? = nil
    ) async throws -> [Float] {
        try checked(try await self(inputs, state), name, count, of: model)
    }
}

/// The values of an output. Throws unless there are `count`.
func checked(_ outputs: [String: Tensor], _ name: String, _ count: Int, of model: String) throws -> [Float] {
    guard let output = outputs[name], output.values.count == count else {
        let found = outputs[name].map { "the shape \($0.shape)" } ?? "no such output"
        throw VoxCPMError.prediction(model: model, reason: "expected \(count) values in \(name), got \(found)")
    }
    return output.values
}

/// Where a step model computes.
public enum ComputeUnit: String, Sendable, Codable, CaseIterable {
    case cpu, cpuAndGPU, cpuAndNeuralEngine

    /// The reason of a failed prediction on this unit, with what to do in the background, where frameworks say little.
    package func reason(_ failure: String) -> String {
        guard self == .cpuAndGPU else { return failure }
        return "\(failure) (iOS forbids the GPU in the background: set Configuration.speaksInBackground to speak there)"
    }
}

/// Loads step models, as `CoreMLPredictor` does with Core ML.
public protocol Predictor: Sendable {
    /// Load one package of a bundle on a compute unit. The first compilation takes seconds to minutes.
    func load(_ package: StepPackage, on unit: ComputeUnit) async throws -> any StepFunction

    /// The compute units to try for a step model, best first.
    func units(for model: StepModelName) -> [ComputeUnit]
}

/// One package of a bundle, with what a predictor needs to know about it.
public struct StepPackage: Sendable {
    /// The folder `NAME.mlpackage` or `NAME.aimodel`.
    public let folder: URL
    /// Its interface.
    public let declaration: Manifest.StepModel
    /// The system that it was converted for.
    public let target: Manifest.Target
    /// How it passes its state.
    public let stateForm: StateForm
    /// A digest of the package's content: the cache key of its compiled model.
    public let contentKey: String

    /// How a package passes its state.
    public enum StateForm: Sendable {
        /// Inputs `name`, and outputs `name_out` that are the next call's inputs.
        case passed
        /// Inputs `name`; the outputs `name_rows` are the rows to write into them from `position` on.
        case rows
        /// A state of Core ML or Core AI.
        case native
    }

    /// The package's functions, one per length of the chunk axis; nil for a single function.
    public var functions: [String?] {
        let lengths = declaration.chunkLengths
        let byLength = target == .macOS27 || (target == .macOS15 && declaration.hasCaches)
        guard byLength, lengths.count > 1 else { return [nil] }
        guard declaration.hasCaches else { return lengths.map { "\(declaration.chunkAxis.tensor.name)_\($0)" } }
        return lengths.map { $0 == 1 ? "decode" : "prefill_\($0)" }
    }
}
