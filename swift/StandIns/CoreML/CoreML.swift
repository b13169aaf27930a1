// The part of Core ML that the package uses, to compile and run it without a Mac. A prediction is a request to
// tests/swift/stand_in.py, which runs the package on ONNX Runtime. New arrays are uninitialized and rows of results are
// padded, as Core ML may do. An instance with infrequent reshaping refuses a second shape, for which Core ML would
// optimize again, and one on the GPU predicts nothing in the background.

@_exported import Foundation
import StandInWire

public enum MLMultiArrayDataType: Int {
    case float32, float16, int32

    var width: Int { self == .float16 ? 2 : 4 }
}

public enum MLComputeUnits: Int, Sendable {
    case cpuOnly, cpuAndGPU, all, cpuAndNeuralEngine
}

public final class MLMultiArray {
    public let shape: [NSNumber]
    public let strides: [NSNumber]
    public let dataType: MLMultiArrayDataType
    let storage: UnsafeMutableRawBufferPointer

    init(shape: [Int], dataType: MLMultiArrayDataType, padding: Int) {
        var strides = [Int](repeating: 1, count: shape.count), size = 1
        for axis in shape.indices.reversed() {
            strides[axis] = size
            size *= shape[axis]
            if axis == shape.count - 1 { size += padding }
        }
        self.shape = shape.map { NSNumber(value: $0) }
        self.strides = strides.map { NSNumber(value: $0) }
        self.dataType = dataType
        storage = .allocate(byteCount: size * dataType.width, alignment: 16)
        _ = storage.initializeMemory(as: UInt8.self, repeating: 0x7F)
    }

    public convenience init(shape: [NSNumber], dataType: MLMultiArrayDataType) throws {
        self.init(shape: shape.map(\.intValue), dataType: dataType, padding: 0)
    }

    deinit { storage.deallocate() }

    public func withUnsafeBytes<R>(_ body: (UnsafeRawBufferPointer) throws -> R) rethrows -> R {
        try body(UnsafeRawBufferPointer(storage))
    }

    public func withUnsafeMutableBytes<R>(
        _ body: (UnsafeMutableRawBufferPointer, [Int]) throws -> R
    ) rethrows -> R {
        try body(storage, strides.map(\.intValue))
    }

    /// The bytes of each row along the last axis, in C order.
    var rows: [Range<Int>] {
        let shape = self.shape.map(\.intValue), strides = self.strides.map(\.intValue), width = dataType.width
        let columns = shape.last ?? 1
        return (0..<(columns == 0 ? 0 : shape.reduce(1, *) / columns)).map { row in
            var rest = row, offset = 0
            for axis in shape.indices.dropLast().reversed() {
                offset += (rest % shape[axis]) * strides[axis]
                rest /= shape[axis]
            }
            return (offset * width)..<((offset + columns) * width)
        }
    }
}

public final class MLMultiArrayConstraint {
    public let dataType: MLMultiArrayDataType

    init(_ dataType: MLMultiArrayDataType) { self.dataType = dataType }
}

public final class MLFeatureDescription {
    public let multiArrayConstraint: MLMultiArrayConstraint?

    init(_ dataType: MLMultiArrayDataType) { multiArrayConstraint = MLMultiArrayConstraint(dataType) }
}

public final class MLModelDescription {
    public internal(set) var inputDescriptionsByName: [String: MLFeatureDescription] = [:]
}

public final class MLFeatureValue {
    public let multiArrayValue: MLMultiArray?

    public init(multiArray value: MLMultiArray) { multiArrayValue = value }
}

public protocol MLFeatureProvider {
    var featureNames: Set<String> { get }

    func featureValue(for featureName: String) -> MLFeatureValue?
}

public final class MLDictionaryFeatureProvider: MLFeatureProvider {
    private let values: [String: MLFeatureValue]
    public var featureNames: Set<String> { Set(values.keys) }

    public init(dictionary: [String: Any]) throws { values = dictionary.compactMapValues { $0 as? MLFeatureValue } }

    public func featureValue(for featureName: String) -> MLFeatureValue? { values[featureName] }
}

public struct MLOptimizationHints {
    public enum ReshapeFrequency { case frequent, infrequent }

    public var reshapeFrequency = ReshapeFrequency.frequent
}

public final class MLModelConfiguration {
    public var computeUnits = MLComputeUnits.all
    public var optimizationHints = MLOptimizationHints()
    public var functionName: String?

    public init() {}
}

public final class MLState {
    let id = UUID().uuidString
    private let package: String
    private let function: String

    init(_ package: String, _ function: String) {
        self.package = package
        self.function = function
    }

    /// The server's buffer, read before `body` and written after it.
    public func withMultiArray<R>(for stateName: String, _ body: (MLMultiArray) throws -> R) rethrows -> R {
        var request: [String: Any] = ["state": id, "of": package, "function": function, "name": stateName]
        let answer = try! Wire.shared.answer(to: request, Data())
        let array = MLMultiArray(shape: answer.header["shape"] as! [Int], dataType: .float32, padding: 0)
        answer.data.copyBytes(to: array.storage)
        defer {
            request["written"] = true
            _ = try! Wire.shared.answer(to: request, Data(array.storage))
        }
        return try body(array)
    }
}

public struct MLPredictionOptions {
    public init() {}
}

public final class MLModel: @unchecked Sendable {
    /// For tests: whether the app is in the background of an iPhone.
    nonisolated(unsafe) public static var isInBackground = false

    public let modelDescription = MLModelDescription()
    private let package: String
    private let function: String
    private let isOnGPU: Bool
    private let isInfrequent: Bool
    private let lock = NSLock()
    private var shapes: [String: [Int]] = [:]

    public init(contentsOf url: URL, configuration: MLModelConfiguration) throws {
        package = try String(contentsOf: url.appendingPathComponent("package"), encoding: .utf8)
        function = configuration.functionName ?? ""
        isOnGPU = configuration.computeUnits == .cpuAndGPU
        isInfrequent = configuration.optimizationHints.reshapeFrequency == .infrequent
        let request = ["load": package, "function": function, "unit": "\(configuration.computeUnits)"]
        let types = try Wire.shared.answer(to: request, Data()).header["inputs"] as! [String: String]
        modelDescription.inputDescriptionsByName = types.mapValues { MLFeatureDescription(named($0)) }
    }

    public static func load(contentsOf url: URL, configuration: MLModelConfiguration) async throws -> MLModel {
        try MLModel(contentsOf: url, configuration: configuration)
    }

    public static func compileModel(at modelURL: URL) async throws -> URL {
        let compiled = FileManager.default.temporaryDirectory.appendingPathComponent("\(UUID().uuidString).mlmodelc")
        try FileManager.default.createDirectory(at: compiled, withIntermediateDirectories: true)
        let note = compiled.appendingPathComponent("package")
        try modelURL.path.write(to: note, atomically: true, encoding: .utf8)
        return compiled
    }

    public func makeState() -> MLState { MLState(package, function) }

    public func prediction(from input: any MLFeatureProvider) throws -> any MLFeatureProvider {
        try predicted(input, nil)
    }

    public func prediction(
        from input: any MLFeatureProvider, options: MLPredictionOptions
    ) async throws -> any MLFeatureProvider {
        try predicted(input, nil)
    }

    public func prediction(
        from input: any MLFeatureProvider, using state: MLState
    ) throws -> any MLFeatureProvider {
        try predicted(input, state)
    }

    public func prediction(
        from input: any MLFeatureProvider, using state: MLState, options: MLPredictionOptions = MLPredictionOptions()
    ) async throws -> any MLFeatureProvider {
        try predicted(input, state)
    }

    private func predicted(_ input: any MLFeatureProvider, _ state: MLState?) throws -> any MLFeatureProvider {
        var data = Data(), tensors: [[String: Any]] = []
        if isOnGPU, Self.isInBackground { throw failure("Unable to compute the prediction") }
        for name in input.featureNames.sorted() {
            let array = input.featureValue(for: name)!.multiArrayValue!, shape = array.shape.map(\.intValue)
            let known = lock.withLock { shapes.updateValue(shape, forKey: name) ?? shape }
            if isInfrequent, known != shape { throw failure("\(name) was \(known), and is \(shape): too frequent") }
            tensors.append(["name": name, "shape": shape, "type": "\(array.dataType)"])
            for row in array.rows { data.append(contentsOf: array.storage[row]) }
        }
        let request: [String: Any] = [
            "run": package, "function": function, "state": state?.id ?? "", "tensors": tensors,
        ]
        let answer = try Wire.shared.answer(to: request, data)
        var results: [String: MLFeatureValue] = [:], place = answer.data.startIndex
        for tensor in answer.header["tensors"] as! [[String: Any]] {
            let type = named(tensor["type"] as! String)
            let array = MLMultiArray(shape: tensor["shape"] as! [Int], dataType: type, padding: 3)
            for row in array.rows {
                let target = UnsafeMutableRawBufferPointer(rebasing: array.storage[row])
                answer.data.copyBytes(to: target, from: place..<(place + row.count))
                place += row.count
            }
            results[tensor["name"] as! String] = MLFeatureValue(multiArray: array)
        }
        return try MLDictionaryFeatureProvider(dictionary: results)
    }
}

private func failure(_ text: String) -> NSError {
    NSError(domain: "com.apple.CoreML", code: 0, userInfo: [NSLocalizedDescriptionKey: text])
}

private func named(_ type: String) -> MLMultiArrayDataType {
    type == "float16" ? .float16 : type == "int32" ? .int32 : .float32
}
