// The part of Core AI that the package uses, as documented by Apple, to compile and run it without a Mac. A run is a
// request to tests/swift/stand_in.py, which uses Core AI's runtime for Linux.

@_exported import Foundation
import StandInWire

public typealias Float16 = Half

/// Swift has no Float16 on Intel.
public struct Half: ExpressibleByIntegerLiteral {
    public init(integerLiteral value: Int) {}
}

extension Float {
    public init(_ half: Half) { self = 0 }
}

public struct NDArray {
    public enum ScalarType: Sendable { case float32, float16, int32 }

    public let shape: [Int]
    public let scalarType: ScalarType
    /// Identifies a state, whose values the server keeps.
    let id = UUID().uuidString
    let numbers: [Float]

    public init(scalars: [Float], shape: [Int]) { self.init(scalars, shape, .float32) }

    public init(scalars: [Int32], shape: [Int]) { self.init(scalars.map(Float.init), shape, .int32) }

    public init(scalars: [Half], shape: [Int]) { self.init([], shape, .float16) }

    init(_ numbers: [Float], _ shape: [Int], _ type: ScalarType) {
        self.numbers = numbers
        self.shape = shape
        scalarType = type
    }

    public func view<Element>(as type: Element.Type) -> View<Element> { View(numbers: numbers as? [Element] ?? []) }

    public struct View<Element> {
        let numbers: [Element]

        public func withUnsafePointer<R>(_ body: (UnsafePointer<Element>, [Int], [Int]) throws -> R) rethrows -> R {
            try numbers.withUnsafeBufferPointer { try body($0.baseAddress!, [], []) }
        }
    }
}

public struct NDArrayDescriptor: Sendable {
    public let shape: [Int]
    public let scalarType: NDArray.ScalarType
}

public struct InferenceValue {
    public let ndArray: NDArray?

    public enum Descriptor: Sendable { case ndArray(NDArrayDescriptor), image }
}

public struct InferenceFunctionDescriptor: Sendable {
    public let stateNames: [String]
    let states: [String: NDArrayDescriptor]

    public func stateDescriptor(of name: String) -> InferenceValue.Descriptor? { states[name].map { .ndArray($0) } }
}

public struct InferenceFunction: Sendable {
    public let descriptor: InferenceFunctionDescriptor
    let program: String
    let name: String

    public struct MutableViews {
        var ids: [String] = []

        public init() {}

        public mutating func insert(_ value: inout NDArray, for name: String) { ids.append(value.id) }
    }

    public struct Outputs {
        var values: [String: NDArray]

        public mutating func remove(_ name: String) -> InferenceValue? {
            values.removeValue(forKey: name).map { InferenceValue(ndArray: $0) }
        }
    }

    public func run(
        inputs: [String: NDArray], states: consuming MutableViews = MutableViews()
    ) async throws -> Outputs {
        guard states.ids.count == descriptor.stateNames.count else {
            throw NSError(domain: "CoreAI", code: 0, userInfo: [NSLocalizedDescriptionKey: "a state has no view"])
        }
        var data = Data(), tensors: [[String: Any]] = []
        for (name, array) in inputs.sorted(by: { $0.key < $1.key }) {
            tensors.append(["name": name, "shape": array.shape, "type": "\(array.scalarType)"])
            for number in array.numbers {
                if array.scalarType == .int32 {
                    withUnsafeBytes(of: Int32(number)) { data.append(contentsOf: $0) }
                } else {
                    withUnsafeBytes(of: number) { data.append(contentsOf: $0) }
                }
            }
        }
        let request: [String: Any] = [
            "run": program, "function": name, "state": states.ids.first ?? "", "tensors": tensors,
        ]
        let answer = try Wire.shared.answer(to: request, data)
        var values: [String: NDArray] = [:], place = 0
        for tensor in answer.header["tensors"] as! [[String: Any]] {
            let shape = tensor["shape"] as! [Int], count = shape.reduce(1, *)
            let numbers = answer.data.withUnsafeBytes { bytes in
                (0..<count).map { bytes.loadUnaligned(fromByteOffset: place + 4 * $0, as: Float.self) }
            }
            place += 4 * count
            values[tensor["name"] as! String] = NDArray(numbers, shape, .float32)
        }
        return Outputs(values: values)
    }
}

public struct SpecializationOptions: Sendable {
    public enum ComputeUnitKind: Sendable { case cpu, gpu, neuralEngine }

    public static let cpuOnly = SpecializationOptions(preferredComputeUnitKind: .cpu)
    let kind: ComputeUnitKind

    public init(preferredComputeUnitKind: ComputeUnitKind) { kind = preferredComputeUnitKind }
}

public final class AIModel: Sendable {
    private let program: String
    private let unit: String

    public init(contentsOf url: URL, options: SpecializationOptions) async throws {
        program = url.path
        unit = "\(options.kind)"
    }

    public func loadFunction(named name: String) throws -> InferenceFunction? {
        let request = ["load": program, "function": name, "unit": unit]
        let states = try Wire.shared.answer(to: request, Data()).header["states"] as! [String: [String: Any]]
        let descriptors = states.mapValues { state in
            NDArrayDescriptor(
                shape: state["shape"] as! [Int],
                scalarType: state["type"] as! String == "float32" ? .float32 : .float16)
        }
        let descriptor = InferenceFunctionDescriptor(stateNames: states.keys.sorted(), states: descriptors)
        return InferenceFunction(descriptor: descriptor, program: program, name: name)
    }
}
