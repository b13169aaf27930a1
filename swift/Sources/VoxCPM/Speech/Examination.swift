import Foundation

/// Agreement of a step model's results with the bundle's test vectors, which were computed in float32.
///
/// Correlations are 1 - |v - r|² / (|v|² + |r|²), the minimum over several tensors.
public struct Examination: Sendable, Codable {
    /// The step model.
    public let model: StepModelName
    /// The compute unit.
    public let unit: ComputeUnit
    /// The precision of its weights, which determines the floor.
    public let precision: Manifest.Precision
    /// The correlation of each stream's outputs: `chain`, each longer length at the start of a KV cache, and each
    /// length at its end.
    public let streams: [String: Double]
    /// The correlation of the states after the streams; nil for a stateless step model, and if the framework hides
    /// states. Then the streams at the end of a cache are also omitted.
    public let state: Double?
    /// Median seconds of a call at the shortest length.
    public let seconds: Double
    /// The minimum accepted correlation.
    public let floor: Double

    /// Whether no correlation is below the floor.
    public var isCorrect: Bool { streams.values.allSatisfy { $0 >= floor } && (state ?? 1) >= floor }

    /// As in Python's doctor (doctor/worker.py).
    private static let floors: [Manifest.Precision: Double] = [.fp32: 0.9999, .fp16: 0.995, .int8: 0.965, .int4: 0.73]

    init(_ name: StepModelName, _ model: any StepFunction, _ unit: ComputeUnit, _ bundle: OpenBundle) async throws {
        let vectors = try TestVectors(bundle, name), declared = bundle.manifest.stepModel(name)
        let capacity = bundle.manifest.sizes.kvLength
        var found: [String: Double] = [:], times: [Double] = [], states: [Double] = []
        for stream in vectors.streams {
            let state = declared.state.isEmpty ? nil : try model.newState(), isLast = stream.name.hasPrefix("last_")
            if isLast, let state {
                guard try model.rows(0..<0, of: state) != nil else { continue }
                try model.write(vectors.filledCaches(declared.state, capacity), at: 0, into: state)
            }
            var worst = 1.0
            for call in 0..<stream.calls {
                try Task.checkCancellation()
                let inputs = try vectors.tensors(stream, "in", declared.inputs, call)
                let expected = try vectors.tensors(stream, "out", declared.outputs, call)
                let began = DispatchTime.now().uptimeNanoseconds
                let outputs = try await model(inputs, state)
                if stream.name == "chain" {
                    times.append(Double(DispatchTime.now().uptimeNanoseconds - began) / 1e9)
                }
                for (output, reference) in expected {
                    worst = min(worst, agreement(outputs[output]?.values ?? [], reference.values))
                }
            }
            found[stream.name] = worst
            guard let state else { continue }
            for tensor in declared.state {
                let expected = try vectors.state(stream.name, tensor)
                let length = expected.shape[2], start = isLast ? max(0, capacity - length) : 0
                if let left = try model.rows(start..<(start + length), of: state)?[tensor.name] {
                    states.append(agreement(left.values, expected.values))
                }
            }
        }
        self.model = name
        self.unit = unit
        precision = bundle.precision
        streams = found
        state = states.min()
        seconds = times.isEmpty ? 0 : times.sorted()[times.count / 2]
        floor = Self.floors[bundle.precision] ?? 1
    }
}

/// 1 - |v - r|² / (|v|² + |r|²); 0 for NaN, infinity and different lengths.
private func agreement(_ values: [Float], _ reference: [Float]) -> Double {
    guard values.count == reference.count, values.allSatisfy(\.isFinite) else { return 0 }
    var product = 0.0, power = 0.0
    for (value, wanted) in zip(values, reference) {
        let v = Double(value), r = Double(wanted)
        product += v * r
        power += v * v + r * r
    }
    return power == 0 ? 1 : 2 * product / power
}

/// The file of a step model's test vectors.
private struct TestVectors {
    struct Stream {
        let name: String
        let calls: Int
    }

    let file: TensorFile
    let path: String
    let streams: [Stream]

    init(_ bundle: OpenBundle, _ name: StepModelName) throws {
        path = "vectors/\(name.rawValue).safetensors"
        let url = bundle.folder.appendingPathComponent(path)
        guard let content = try? Data(contentsOf: url, options: .alwaysMapped) else {
            throw VoxCPMError.bundle(file: path, problem: "the bundle has no test vectors")
        }
        do {
            file = try TensorFile(content, needsDigest: false)
        } catch let problem as Problem {
            throw VoxCPMError.bundle(file: path, problem: problem.text)
        }
        guard let input = bundle.manifest.stepModel(name).inputs.first?.name else {
            throw VoxCPMError.bundle(file: path, problem: "the step model has no inputs")
        }
        streams = file.tensors.keys.sorted().compactMap { [file] key in
            let parts = key.split(separator: "/")
            guard parts.count == 3, parts[1] == "in", parts[2] == input,
                let calls = file.tensors[key]?.shape.first
            else { return nil }
            return Stream(name: String(parts[0]), calls: calls)
        }
    }

    /// A context, or the rows of a cache that a stream wrote.
    func state(_ stream: String, _ declared: Manifest.Tensor) throws -> Tensor {
        guard let stored = file.tensors["\(stream)/state/\(declared.name)"], stored.shape.count > 2,
            stored.shape.count == declared.shape.count
        else { throw VoxCPMError.bundle(file: path, problem: "the state \(declared.name) of \(stream) is missing") }
        return Tensor(shape: stored.shape, values: stored.floats)
    }

    /// Complete caches: row p is row p mod 12 after the stream `chain`.
    func filledCaches(_ caches: [Manifest.Tensor], _ capacity: Int) throws -> [String: Tensor] {
        var filled: [String: Tensor] = [:]
        for cache in caches {
            let rows = try state("chain", cache), width = rows.shape[3...].reduce(1, *)
            let heads = Rows(width: rows.shape[2] * width, values: rows.values)
            var values: [Float] = []
            for head in 0..<heads.count {  // Of all layers of the cache
                let row = heads[head]
                for place in 0..<(capacity * width) { values.append(row[place % row.count]) }
            }
            filled[cache.name] = Tensor(shape: rows.shape[..<2] + [capacity] + rows.shape[3...], values: values)
        }
        return filled
    }

    /// The tensors of one call, whose first axis is the call.
    func tensors(
        _ stream: Stream, _ kind: String, _ declared: [Manifest.Tensor], _ call: Int
    ) throws -> [String: Tensor] {
        var all: [String: Tensor] = [:]
        for tensor in declared {
            let stored = file.tensors["\(stream.name)/\(kind)/\(tensor.name)"]
            if stored == nil, tensor.isOptional { continue }
            guard let stored, call < stored.shape[0],
                stored.shape.count == tensor.shape.count + 1,
                zip(stored.shape.dropFirst(), tensor.shape).allSatisfy({ $1.lengths.contains($0) })
            else {
                throw VoxCPMError.bundle(
                    file: path, problem: "\(tensor.name) of \(stream.name) is missing or has another shape")
            }
            let shape = Array(stored.shape.dropFirst()), width = shape.reduce(1, *) * stored.dtype.width
            let first = stored.bytes.startIndex + call * width
            let part = TensorFile.Tensor(
                dtype: stored.dtype, shape: shape, bytes: stored.bytes.subdata(in: first..<(first + width)))
            all[tensor.name] = Tensor(shape: shape, values: part.floats)
        }
        return all
    }
}
