import Foundation

/// A bundle's folder in one precision, with its checked manifest.
public struct OpenBundle: Sendable {
    /// The folder of manifest.json.
    public let folder: URL
    /// Read and checked.
    public let manifest: Manifest
    /// The selected precision.
    public let precision: Manifest.Precision

    /// - Parameters:
    ///   - folder: the folder of manifest.json.
    ///   - precision: one of the bundle's; nil for the smallest.
    ///
    /// Throws `VoxCPMError.bundle` for a file that is missing or has another size.
    public init(_ folder: URL, precision: Manifest.Precision? = nil) throws {
        guard let document = try? Data(contentsOf: folder.appendingPathComponent("manifest.json")) else {
            throw VoxCPMError.bundle(file: "manifest.json", problem: "there is none in \(folder.path)")
        }
        let digest = folder.appendingPathComponent("manifest.sha256")
        if let line = try? String(contentsOf: digest, encoding: .utf8),
            line.prefix(while: { $0 != " " }) != SHA256.hex(document)
        {
            throw VoxCPMError.bundle(file: "manifest.json", problem: "its content differs from manifest.sha256")
        }
        let manifest = try Manifest(json: document)
        // A download has one precision of those that the manifest lists.
        let present = manifest.precisions.filter {
            FileManager.default.fileExists(atPath: folder.appendingPathComponent($0.rawValue).path)
        }
        let chosen = try manifest.chosen(precision, of: present)
        self.folder = folder
        self.manifest = manifest
        self.precision = chosen
        try checkSizes()
    }

    /// The packages of a step model: one, or the parts of a base LM that is too large for one.
    func packages(of name: StepModelName) -> [StepPackage] {
        let model = manifest.stepModel(name), suffix = manifest.target == .macOS27 ? "aimodel" : "mlpackage"
        let form: StepPackage.StateForm = if model.hasCaches && manifest.kvCache == .rows {
            .rows
        } else if manifest.target == .macOS27 || (model.hasCaches && manifest.target == .macOS15) {
            .native
        } else {
            .passed
        }
        return model.parts(name == .baseLMStep ? manifest.sizes.baseLMParts : 1).map { part in
            let path = "\(precision.rawValue)/\(part.name).\(suffix)"
            return StepPackage(
                folder: folder.appendingPathComponent(path), declaration: part, target: manifest.target,
                stateForm: form, contentKey: manifest.contentKey(path))
        }
    }

    /// Another name once the manifest, or the size, date or inode of a file, has changed.
    var mark: String {
        var hash = SHA256()
        for path in ["manifest.json"] + manifest.files(of: precision).keys.sorted() {
            let file = folder.appendingPathComponent(path).resolvingSymlinksInPath()
            let found = (try? FileManager.default.attributesOfItem(atPath: file.path)) ?? [:]
            let date = (found[.modificationDate] as? Date)?.timeIntervalSince1970 ?? 0
            hash.update(Data("\(path) \(found[.size] ?? 0) \(date) \(found[.systemFileNumber] ?? 0)\n".utf8))
        }
        return hash.hex()
    }

    /// Compare the digests of the precision's files with the manifest. Takes about a second per gigabyte.
    public func verify(_ progress: (Double) -> Void = { _ in }) throws {
        let files = manifest.files(of: precision).sorted { $0.key < $1.key }
        let total = max(1, files.reduce(0) { $0 + $1.value.bytes })
        var done = 0
        for (path, record) in files {
            try Task.checkCancellation()
            let found = try? SHA256.hex(of: folder.appendingPathComponent(path))
            guard found == record.sha256 else {
                throw VoxCPMError.bundle(file: path, problem: "its content differs from the manifest's digest")
            }
            done += record.bytes
            progress(Double(done) / Double(total))
        }
    }

    private func checkSizes() throws {
        for (path, record) in manifest.files(of: precision).sorted(by: { $0.key < $1.key }) {
            let attributes = try? FileManager.default.attributesOfItem(
                atPath: folder.appendingPathComponent(path).resolvingSymlinksInPath().path)
            guard let bytes = (attributes?[.size] as? NSNumber)?.intValue else {
                throw VoxCPMError.bundle(file: path, problem: "missing (the manifest lists it)")
            }
            guard bytes == record.bytes else {
                throw VoxCPMError.bundle(file: path, problem: "expected \(record.bytes) bytes, found \(bytes)")
            }
        }
    }
}

extension Manifest {
    /// The given precision, or the first of int8, int4, fp16 and fp32 that is present.
    func chosen(_ precision: Precision?, of present: [Precision]) throws -> Precision {
        let order: [Precision] = [.int8, .int4, .fp16, .fp32]
        guard let found = order.first(where: { present.contains($0) && [nil, $0].contains(precision) }) else {
            let present = present.map(\.rawValue).joined(separator: ", ")
            throw VoxCPMError.argument(
                name: "precision", problem: "the bundle has \(present), not \(precision?.rawValue ?? "any")")
        }
        return found
    }
}

extension Manifest.StepModel {
    /// The parts of this step model, each in its own package, to be called in order.
    func parts(_ count: Int) -> [Manifest.StepModel] {
        guard count > 1 else { return [self] }
        let layers = state.count / 2
        return (0..<count).map { index in
            let own = state[(2 * (index * layers / count))..<(2 * ((index + 1) * layers / count))]
            let passedOn = Manifest.Tensor(name: "hidden_states", shape: inputs[0].shape, dtype: "float32")
            let given = index + 1 == count ? outputs : [passedOn] + outputs.filter(\.isOptional)
            return Manifest.StepModel(
                name: "\(name)_\(index + 1)", inputs: inputs, outputs: given, state: Array(own))
        }
    }
}

/// A step model in several packages, each of which takes the previous one's hidden states.
struct JoinedStepFunction: StepFunction {
    let parts: [any StepFunction]

    private final class JoinedState: StepState {
        let parts: [any StepState]

        init(_ parts: [any StepState]) { self.parts = parts }
    }

    func newState() throws -> any StepState { JoinedState(try parts.map { try $0.newState() }) }

    func callAsFunction(_ inputs: [String: Tensor], _ state: (any StepState)?) async throws -> [String: Tensor] {
        var inputs = inputs, outputs: [String: Tensor] = [:], rows: [Float] = []
        for (index, part) in parts.enumerated() {
            outputs = try await part(inputs, (state as? JoinedState)?.parts[index])
            inputs["embeddings"] = outputs["hidden_states"]
            rows += outputs[Manifest.Tensor.attention]?.values ?? []
        }
        // The heads of all parts, in order.
        outputs[Manifest.Tensor.attention] = rows.isEmpty ? nil : Tensor(shape: [rows.count], values: rows)
        return outputs
    }

    func rows(_ positions: Range<Int>, of state: any StepState) throws -> [String: Tensor]? {
        var all: [String: Tensor] = [:]
        for (part, state) in zip(parts, (state as? JoinedState)?.parts ?? []) {
            guard let rows = try part.rows(positions, of: state) else { return nil }
            all.merge(rows) { $1 }
        }
        return all
    }

    func write(_ rows: [String: Tensor], at position: Int, into state: any StepState) throws {
        for (part, state) in zip(parts, (state as? JoinedState)?.parts ?? []) {
            try part.write(rows, at: position, into: state)
        }
    }

    func unloadPrefill() async {
        for part in parts { await part.unloadPrefill() }
    }
}
