// Written from Apple's documentation of the beta. On Linux it is compiled and run with a stand-in; it has never been
// compiled against Apple's framework. It is a separate product, so that apps without it always build.

#if canImport(CoreAI)
import CoreAI
import Foundation
import VoxCPM

/// Loads the `.aimodel` programs of a bundle for macOS 27 and iOS 27.
@available(macOS 27, iOS 27, *)
public struct CoreAIPredictor: Predictor {
    /// The system specialises programs and caches the result.
    public init() {}

    /// Programs are built for the GPU: the Neural Engine computes blockwise weights incorrectly (docs/bundle.md).
    public func units(for model: StepModelName) -> [ComputeUnit] { [.cpuAndGPU, .cpu] }

    /// Load a program and its functions. Throws `VoxCPMError.loading`.
    public func load(_ package: StepPackage, on unit: ComputeUnit) async throws -> any StepFunction {
        let name = package.declaration.name
        guard package.stateForm == .native || package.declaration.state.isEmpty else {
            throw VoxCPMError.unsupported("Core AI programs of --kv-cache rows are not supported; convert without it")
        }
        do {
            let options = unit == .cpu
                ? SpecializationOptions.cpuOnly : SpecializationOptions(preferredComputeUnitKind: .gpu)
            let program = try await AIModel(contentsOf: package.folder, options: options)
            var functions: [InferenceFunction] = []
            for function in package.functions {
                guard let loaded = try program.loadFunction(named: function ?? "main") else {
                    throw VoxCPMError.loading(model: name, reason: "it has no function \(function ?? "main")")
                }
                functions.append(loaded)
            }
            return CoreAIStepFunction(package, unit, program, functions)
        } catch let error as VoxCPMError {
            throw error
        } catch {
            throw VoxCPMError.loading(model: name, reason: (error as NSError).localizedDescription)
        }
    }
}

/// The states of one stream, passed to every call and updated in place.
///
/// Unchecked: `StepFunction` allows one call per state at a time.
@available(macOS 27, iOS 27, *)
private final class CoreAIState: StepState, @unchecked Sendable {
    var arrays: [(name: String, array: NDArray)] = []
}

@available(macOS 27, iOS 27, *)
final class CoreAIStepFunction: StepFunction, @unchecked Sendable {
    private let package: StepPackage
    private let unit: ComputeUnit
    /// Keeps the functions valid: those of a freed program return garbage.
    private let program: AIModel
    private let functions: [InferenceFunction]

    init(_ package: StepPackage, _ unit: ComputeUnit, _ program: AIModel, _ functions: [InferenceFunction]) {
        self.package = package
        self.unit = unit
        self.program = program
        self.functions = functions
    }

    func newState() throws -> any StepState {
        let state = CoreAIState(), descriptor = functions[0].descriptor
        for name in descriptor.stateNames {
            guard case .ndArray(let array)? = descriptor.stateDescriptor(of: name) else {
                throw failed("\(name) is not an array")
            }
            // A new NDArray of a descriptor is uninitialized.
            let count = array.shape.reduce(1, *)
            if array.scalarType == .float32 {
                state.arrays.append((name, NDArray(scalars: [Float](repeating: 0, count: count), shape: array.shape)))
            } else {
                state.arrays.append((name, NDArray(scalars: [Float16](repeating: 0, count: count), shape: array.shape)))
            }
        }
        return state
    }

    func callAsFunction(_ inputs: [String: Tensor], _ state: (any StepState)?) async throws -> [String: Tensor] {
        var arrays: [String: NDArray] = [:]
        for tensor in package.declaration.inputs {
            guard let given = inputs[tensor.name] else { throw failed("the input \(tensor.name) is missing") }
            arrays[tensor.name] = tensor.dtype == "int32"
                ? NDArray(scalars: given.values.map { Int32($0) }, shape: given.shape)
                : NDArray(scalars: given.values, shape: given.shape)
        }
        do {
            var outputs = try await run(
                try function(inputs), arrays, (state as? CoreAIState), 0, InferenceFunction.MutableViews())
            var results: [String: Tensor] = [:]
            for tensor in package.declaration.outputs {
                guard let array = outputs.remove(tensor.name)?.ndArray else {
                    if tensor.isOptional { continue }
                    throw failed("the output \(tensor.name) is missing")
                }
                results[tensor.name] = Tensor(shape: array.shape, values: floats(array))
            }
            return results
        } catch let error as VoxCPMError {
            throw error
        } catch {
            throw failed(unit.reason((error as NSError).localizedDescription))
        }
    }

    /// Run with a view of each state. A view must not outlive its array, so each frame of the recursion owns one.
    private func run(
        _ function: InferenceFunction, _ inputs: [String: NDArray], _ state: CoreAIState?, _ index: Int,
        _ views: consuming InferenceFunction.MutableViews
    ) async throws -> InferenceFunction.Outputs {
        guard let state, index < state.arrays.count else {
            return try await function.run(inputs: inputs, states: views)
        }
        var (name, array) = state.arrays[index]
        var views = views
        views.insert(&array, for: name)
        let outputs = try await run(function, inputs, state, index + 1, views)
        state.arrays[index] = (name, array)
        return outputs
    }

    private func function(_ inputs: [String: Tensor]) throws -> InferenceFunction {
        guard functions.count > 1 else { return functions[0] }
        let (tensor, axis) = package.declaration.chunkAxis, lengths = package.declaration.chunkLengths
        guard let length = inputs[tensor.name]?.shape[axis], let index = lengths.firstIndex(of: length) else {
            throw failed("expected one of the lengths \(lengths)")
        }
        return functions[index]
    }

    /// Outputs are contiguous in C order, according to Apple's documentation.
    private func floats(_ array: borrowing NDArray) -> [Float] {
        let count = array.shape.reduce(1, *)
        if array.scalarType == .float32 {
            return array.view(as: Float.self).withUnsafePointer { pointer, _, _ in
                Array(UnsafeBufferPointer(start: pointer, count: count))
            }
        }
        return array.view(as: Float16.self).withUnsafePointer { pointer, _, _ in
            UnsafeBufferPointer(start: pointer, count: count).map { Float($0) }
        }
    }

    private func failed(_ reason: String) -> VoxCPMError {
        .prediction(model: package.declaration.name, reason: reason)
    }
}
#endif
