import Foundation
import XCTest

@testable import VoxCPM

/// The repository, for the built-in voice and its bundle.
let repository = URL(fileURLWithPath: #filePath).deletingLastPathComponent().deletingLastPathComponent()
    .deletingLastPathComponent().deletingLastPathComponent()
let builtInBundle = repository.appendingPathComponent("runtime/voxcpm_runtime/default_bundle")
let builtInVoices = repository.appendingPathComponent("runtime/voxcpm_runtime/voices/built_in_voices")

/// Returns outputs of the declared shapes, and counts calls.
final class FakePredictor: Predictor, @unchecked Sendable {
    private let lock = NSLock()
    private var count = 0
    private var alive = 0
    private var loads: [String] = []
    private var unloads = 0
    /// Called at each call with its number, and at each load with -1.
    let onCall: @Sendable (Int) async throws -> Void
    /// Units that reject all step models.
    let refused: Set<ComputeUnit>
    /// The step model that returns NaN.
    let broken: String?
    /// Whether the stop head stops as soon as possible.
    let stops: Bool

    init(
        refused: Set<ComputeUnit> = [], broken: String? = nil, stops: Bool = true,
        onCall: @escaping @Sendable (Int) async throws -> Void = { _ in }
    ) {
        self.refused = refused
        self.broken = broken
        self.stops = stops
        self.onCall = onCall
    }

    var calls: Int { lock.withLock { count } }
    var running: Int { lock.withLock { alive } }
    var loaded: [String] { lock.withLock { loads } }
    var unloadedPrefill: Int { lock.withLock { unloads } }

    func units(for model: StepModelName) -> [ComputeUnit] { [.cpuAndGPU, .cpu] }

    func load(_ package: StepPackage, on unit: ComputeUnit) async throws -> any StepFunction {
        lock.withLock { loads.append(package.declaration.name) }
        try await onCall(-1)
        guard !refused.contains(unit) else {
            throw VoxCPMError.loading(model: package.declaration.name, reason: "not on \(unit.rawValue)")
        }
        return FakeFunction(predictor: self, declaration: package.declaration)
    }

    fileprivate func begin() async throws {
        let number = lock.withLock {
            count += 1
            alive += 1
            return count
        }
        defer { lock.withLock { alive -= 1 } }
        try await onCall(number)
    }

    fileprivate func unload() { lock.withLock { unloads += 1 } }
}

private final class FakeState: StepState {}

private struct FakeFunction: StepFunction {
    let predictor: FakePredictor
    let declaration: Manifest.StepModel

    func newState() throws -> any StepState { FakeState() }

    func unloadPrefill() async { predictor.unload() }

    func callAsFunction(_ inputs: [String: Tensor], _ state: (any StepState)?) async throws -> [String: Tensor] {
        try await predictor.begin()
        let (tensor, axis) = declaration.chunkAxis, lengths = declaration.chunkLengths
        let length = inputs[tensor.name]?.shape[axis] ?? lengths[0]
        let index = lengths.firstIndex(of: length) ?? 0
        var outputs: [String: Tensor] = [:]
        for output in declaration.outputs {
            let shape = output.shape.map { $0.lengths.count > 1 ? $0.lengths[index] : $0.lengths[0] }
            var values = [Float](repeating: 0.01, count: shape.reduce(1, *))
            if predictor.broken == declaration.name { values[0] = .nan }
            if output.name == "stop_logits", predictor.stops {
                for place in values.indices { values[place] = place % 2 == 0 ? 0 : 1 }
            }
            outputs[output.name] = Tensor(shape: shape, values: values)
        }
        return outputs
    }
}
