@preconcurrency import CoreML
import Foundation
import VoxCPM

/// The state of one stream: arrays passed as inputs, or a Core ML state.
///
/// Unchecked: `StepFunction` allows one call per state at a time.
private final class CoreMLState: StepState, @unchecked Sendable {
    var arrays: [String: MLMultiArray] = [:]
    /// An MLState, a type of macOS 15.
    var native: Any?
}

/// One package: a model per function, or for one function with several lengths a model for the shortest and one for the
/// others. Core ML's predictions may run concurrently.
final class CoreMLStepFunction: StepFunction, @unchecked Sendable {
    private let package: StepPackage
    private let unit: ComputeUnit
    /// Loads a model by its index.
    private let load: @Sendable (Int) async throws -> MLModel
    /// The model of the shortest length, for decoding and creating states. It stays loaded.
    private let first: MLModel
    /// The other models, by index; only prefill needs them, so they may be unloaded.
    private let others = Models()

    private let count: Int

    init(
        _ package: StepPackage, _ unit: ComputeUnit, load: @escaping @Sendable (Int) async throws -> MLModel
    ) async throws {
        self.package = package
        self.unit = unit
        self.load = load
        count = max(package.functions.count, min(2, package.declaration.chunkLengths.count))
        first = try await load(0)
        for index in 1..<max(count, 1) { others[index] = try await load(index) }
    }

    func unloadPrefill() async { others.removeAll() }

    func newState() throws -> any StepState {
        let state = CoreMLState()
        if package.stateForm == .native {
            // One state for all functions, created by the default one, which is the first.
            if #available(macOS 15, iOS 18, *) { state.native = first.makeState() }
            return state
        }
        let inputs = first.modelDescription.inputDescriptionsByName
        for tensor in package.declaration.state {
            let type = inputs[tensor.name]?.multiArrayConstraint?.dataType ?? .float16
            state.arrays[tensor.name] = try zeros(tensor.shape.map { $0.lengths[0] }, type)
        }
        return state
    }

    func callAsFunction(_ inputs: [String: Tensor], _ state: (any StepState)?) async throws -> [String: Tensor] {
        let declared = package.declaration, state = state as? CoreMLState
        var features: [String: MLFeatureValue] = [:]
        for (name, array) in state?.arrays ?? [:] { features[name] = MLFeatureValue(multiArray: array) }
        for tensor in declared.inputs {
            guard let given = inputs[tensor.name] else { throw failed("the input \(tensor.name) is missing") }
            features[tensor.name] = MLFeatureValue(multiArray: try array(given, isInteger: tensor.dtype == "int32"))
        }
        let provider = try MLDictionaryFeatureProvider(dictionary: features)
        let model = try await function(inputs)
        let results: any MLFeatureProvider
        do {
            if #available(macOS 15, iOS 18, *), let native = state?.native as? MLState {
                results = try await model.prediction(from: provider, using: native, options: MLPredictionOptions())
            } else {
                results = try await model.prediction(from: provider, options: MLPredictionOptions())
            }
        } catch {
            throw failed(unit.reason((error as NSError).localizedDescription))
        }
        if let state { try update(state, results, position: inputs["position"]?.values.first ?? 0) }
        var outputs: [String: Tensor] = [:]
        for tensor in declared.outputs {
            guard let array = results.featureValue(for: tensor.name)?.multiArrayValue else {
                if tensor.isOptional { continue }
                throw failed("the output \(tensor.name) is missing")
            }
            outputs[tensor.name] = try floats(array)
        }
        return outputs
    }

    private func update(_ state: CoreMLState, _ results: any MLFeatureProvider, position: Float) throws {
        for name in state.arrays.keys {
            switch package.stateForm {
            case .native: break
            case .passed:
                guard let after = results.featureValue(for: "\(name)_out")?.multiArrayValue else {
                    throw failed("the output \(name)_out is missing")
                }
                state.arrays[name] = after
            case .rows:
                guard let rows = results.featureValue(for: "\(name)_rows")?.multiArrayValue,
                    let cache = state.arrays[name]
                else { throw failed("the output \(name)_rows is missing") }
                try store(try floats(rows), into: cache, at: Int(exactly: position) ?? -1)
            }
        }
    }

    func rows(_ positions: Range<Int>, of state: any StepState) throws -> [String: Tensor]? {
        var rows: [String: Tensor] = [:]
        try forEachArray(of: state) { rows[$0] = try floats($1, positions) }
        return rows
    }

    func write(_ rows: [String: Tensor], at position: Int, into state: any StepState) throws {
        try forEachArray(of: state) { name, array in
            if let tensor = rows[name] { try store(tensor, into: array, at: position) }
        }
    }

    private func forEachArray(of state: any StepState, _ body: (String, MLMultiArray) throws -> Void) throws {
        guard let state = state as? CoreMLState else { return }
        for (name, array) in state.arrays { try body(name, array) }
        if #available(macOS 15, iOS 18, *), let native = state.native as? MLState {
            for tensor in package.declaration.state {
                try native.withMultiArray(for: tensor.name) { try body(tensor.name, $0) }
            }
        }
    }

    private func function(_ inputs: [String: Tensor]) async throws -> MLModel {
        guard count > 1 else { return first }
        let (tensor, axis) = package.declaration.chunkAxis, lengths = package.declaration.chunkLengths
        guard let length = inputs[tensor.name]?.shape[axis], let place = lengths.firstIndex(of: length) else {
            throw failed("expected one of the lengths \(lengths)")
        }
        guard place > 0 else { return first }
        let index = min(place, count - 1)
        if let loaded = others[index] { return loaded }
        let loaded = try await load(index)
        others[index] = loaded
        return loaded
    }

    private func failed(_ reason: String) -> VoxCPMError {
        .prediction(model: package.declaration.name, reason: reason)
    }

    // MARK: - Arrays

    private func zeros(_ shape: [Int], _ type: MLMultiArrayDataType) throws -> MLMultiArray {
        let array = try MLMultiArray(shape: shape.map { NSNumber(value: $0) }, dataType: type)
        array.withUnsafeMutableBytes { bytes, _ in _ = bytes.initializeMemory(as: UInt8.self, repeating: 0) }
        return array
    }

    private func array(_ tensor: Tensor, isInteger: Bool) throws -> MLMultiArray {
        let shape = tensor.shape.map { NSNumber(value: $0) }
        let array = try MLMultiArray(shape: shape, dataType: isInteger ? .int32 : .float32)
        try store(tensor, into: array)
        return array
    }

    /// The values of an output in C order, read through its strides: Core ML may pad rows.
    ///
    /// - Parameter positions: of axis 2; nil for all.
    private func floats(_ array: MLMultiArray, _ positions: Range<Int>? = nil) throws -> Tensor {
        var shape = array.shape.map(\.intValue), start = 0
        let strides = array.strides.map(\.intValue), type = array.dataType
        guard type == .float32 || type == .float16 else { throw failed("an output is neither float32 nor float16") }
        if let positions, shape.count > 2 {
            let part = positions.clamped(to: 0..<shape[2])
            (shape[2], start) = (part.count, part.lowerBound * strides[2])
        }
        var values = [Float](repeating: 0, count: shape.reduce(1, *))
        array.withUnsafeBytes { bytes in
            forEachOffset(shape, strides) { index, offset in
                values[index] = type == .float32
                    ? bytes.loadUnaligned(fromByteOffset: 4 * (start + offset), as: Float.self)
                    : float(half: bytes.loadUnaligned(fromByteOffset: 2 * (start + offset), as: UInt16.self))
            }
        }
        return Tensor(shape: shape, values: values)
    }

    /// Write values in C order into an array, from `position` of axis 2 on.
    private func store(_ tensor: Tensor, into array: MLMultiArray, at position: Int = 0) throws {
        let shape = array.shape.map(\.intValue), type = array.dataType
        let fits = zip(tensor.shape, shape).enumerated().allSatisfy { axis, lengths in
            axis == 2 ? (0...lengths.1).contains(position) && position + lengths.0 <= lengths.1 : lengths.0 == lengths.1
        }
        guard tensor.shape.count == shape.count, fits else {
            throw failed("\(tensor.shape) does not fit into \(shape)")
        }
        array.withUnsafeMutableBytes { bytes, strides in
            let start = shape.count > 2 ? position * strides[2] : 0
            forEachOffset(tensor.shape, strides) { index, offset in
                let value = tensor.values[index], place = start + offset
                switch type {
                case .int32: bytes.storeBytes(of: Int32(exactly: value) ?? 0, toByteOffset: 4 * place, as: Int32.self)
                case .float16: bytes.storeBytes(of: half(value), toByteOffset: 2 * place, as: UInt16.self)
                default: bytes.storeBytes(of: value, toByteOffset: 4 * place, as: Float.self)
                }
            }
        }
    }
}

/// Models by index.
///
/// Unchecked: a lock guards all state.
private final class Models: @unchecked Sendable {
    private let lock = NSLock()
    private var models: [Int: MLModel] = [:]

    subscript(index: Int) -> MLModel? {
        get { lock.withLock { models[index] } }
        set { lock.withLock { models[index] = newValue } }
    }

    func removeAll() { lock.withLock { models = [:] } }
}

/// Call `body(index in C order, offset in elements)` for each element of an array with these strides.
private func forEachOffset(_ shape: [Int], _ strides: [Int], _ body: (Int, Int) -> Void) {
    let width = shape.last ?? 1, step = strides.last ?? 1
    guard width > 0 else { return }
    for row in 0..<(shape.reduce(1, *) / width) {
        var rest = row, start = 0
        for axis in stride(from: shape.count - 2, through: 0, by: -1) {
            start += (rest % shape[axis]) * strides[axis]
            rest /= shape[axis]
        }
        for column in 0..<width { body(row * width + column, start + column * step) }
    }
}
