import Foundation

/// A voice: latent patches of its recordings and their transcript.
///
/// `data` equals the Python package's `.voice` file, byte for byte. It depends only on the AudioVAE, so it works with
/// every bundle of a generation, in any precision.
public struct Voice: Sendable, Equatable {
    /// One part of the prompt: its text, and its length in patches.
    public struct Turn: Sendable, Equatable {
        /// The transcript, with the space before the next turn.
        public let text: String
        /// Its length in patches.
        public let patches: Int
    }

    /// The voice's name; may be empty.
    public let name: String
    /// The generation of the checkpoint.
    public let generation: String
    /// Digest of the AudioVAE's configuration: equal if latents are compatible.
    public let latentSpace: String
    /// Hz of the recordings that were encoded.
    public let sampleRate: Int
    /// The recording, then appended speech; empty without a prompt.
    public let turns: [Turn]
    /// What this voice says for words as they are written.
    public let lexicon: [String: String]
    /// Origin of the voice: digests of the recordings, checkpoint, date, consent.
    public let provenance: [String: String]
    /// Latent frames in a patch, and width of a frame.
    public let patchShape: [Int]
    /// Patches to continue; each row is a patch, (frames · latent_dim). Empty without a prompt.
    public let prompt: Rows
    /// Patches of a reference recording (VoxCPM2); empty without one.
    public let reference: Rows
    /// The original metadata, to preserve the order of fields.
    private let document: String?

    static let format = 1

    init(
        name: String, generation: String, latentSpace: String, sampleRate: Int, turns: [Turn],
        lexicon: [String: String] = [:], provenance: [String: String] = [:], patchShape: [Int], prompt: Rows, reference: Rows, document: String? = nil
    ) {
        self.name = name
        self.generation = generation
        self.latentSpace = latentSpace
        self.sampleRate = sampleRate
        self.turns = turns
        self.lexicon = lexicon
        self.provenance = provenance
        self.patchShape = patchShape
        self.prompt = prompt
        self.reference = reference
        self.document = document
    }

    /// A voice from latents of this architecture.
    init(
        _ a: Manifest.Architecture, name: String = "", transcript: String, prompt: Rows, reference: Rows,
        lexicon: [String: String] = [:], provenance: [String: String] = [:]
    ) {
        self.init(
            name: name, generation: a.generation.rawValue, latentSpace: a.latentSpace, sampleRate: a.inputSampleRate,
            turns: prompt.count == 0 ? [] : [Turn(text: transcript, patches: prompt.count)], lexicon: lexicon,
            provenance: provenance, patchShape: [a.patchSize, a.featDim], prompt: prompt, reference: reference)
    }

    /// The prompt's transcript.
    public var transcript: String { turns.map(\.text).joined() }

    /// Whether both have the same latents and transcript; names are ignored.
    public static func == (a: Voice, b: Voice) -> Bool {
        a.latentSpace == b.latentSpace && Array(a.transcript.utf8) == Array(b.transcript.utf8)
            && a.prompt == b.prompt && a.reference == b.reference
    }

    /// The voice with one more turn in its prompt. Texts are concatenated, so end each with a space.
    func extended(_ text: String, _ patches: Rows) -> Voice {
        var prompt = prompt
        prompt.append(patches)
        return Voice(
            name: name, generation: generation, latentSpace: latentSpace, sampleRate: sampleRate,
            turns: turns + [Turn(text: text, patches: patches.count)], lexicon: lexicon, provenance: provenance,
            patchShape: patchShape, prompt: prompt, reference: reference)
    }

    /// Throws `VoxCPMError.voice` for another AudioVAE, and for a reference before VoxCPM2.
    func check(_ a: Manifest.Architecture) throws {
        guard latentSpace == a.latentSpace, patchShape == [a.patchSize, a.featDim] else {
            throw VoxCPMError.voice(
                "voice \(name) was made for another AudioVAE (\(generation), \(sampleRate) Hz) than this bundle's "
                    + "(\(a.generation.rawValue), \(a.inputSampleRate) Hz); make it again from its recording, or use "
                    + "another voice")
        }
        guard reference.count == 0 || a.generation.takesReference else {
            throw VoxCPMError.unsupported(
                "a reference voice needs VoxCPM2, but this bundle is an earlier VoxCPM; use a voice with a prompt")
        }
    }
}

// MARK: - Files

extension Voice {
    /// Read a `.voice` file. Throws `VoxCPMError.voice` for one that is missing, damaged or not a voice.
    public init(contentsOf file: URL) throws {
        guard let content = content(of: file) else {
            throw VoxCPMError.voice("voice \(file.path): no such file, or it is too large or cannot be read")
        }
        try self.init(content, name: "voice \(file.path)")
    }

    /// Read the content of a `.voice` file. Throws `VoxCPMError.voice`.
    public init(data: Data) throws { try self.init(data, name: "the voice") }

    private init(_ content: Data, name: String) throws {
        do {
            try self.init(file: TensorFile(content, needsDigest: true))
        } catch let problem as Problem {
            throw VoxCPMError.voice(
                "\(name): expected a voice file, but it cannot be read (\(problem.text)); make it again from its "
                    + "recording")
        }
    }

    /// Throws a `Problem`.
    private init(file: TensorFile) throws {
        let document = file.metadata["voice"] ?? ""
        let header: Header
        do {
            header = try decodedJSON(Header.self, from: Data(document.utf8))
        } catch let problem as Problem {
            throw problem
        } catch {
            throw Problem(reason(error))
        }
        guard header.format == Self.format else {
            throw Problem("expected format \(Self.format), found \(header.format)")
        }
        var patchShape: [Int] = [], parts: [String: Rows] = [:]
        for (name, tensor) in file.tensors {
            guard ["prompt", "reference"].contains(name) else {
                throw Problem("expected prompt and reference, got \(name.debugDescription)")
            }
            let values = tensor.floats
            guard tensor.dtype == .float32, tensor.shape.count == 3, !values.isEmpty, values.allSatisfy(\.isFinite),
                patchShape.isEmpty || patchShape == Array(tensor.shape[1...])
            else { throw Problem("\(name) is not finite float32 (patches, frames, latent_dim)") }
            patchShape = Array(tensor.shape[1...])
            parts[name] = Rows(width: values.count / tensor.shape[0], values: values)
        }
        let width = parts.values.first?.width ?? 0, none = Rows(width: width)
        let prompt = parts["prompt"] ?? none
        let said = header.turns.reduce(0.0) { $0 + Double($1.patches) }
        guard !parts.isEmpty, said == Double(prompt.count) else {
            throw Problem("its turns have \(said) patches, its prompt \(prompt.count)")
        }
        self.init(
            name: header.name, generation: header.generation, latentSpace: header.latent_space,
            sampleRate: header.sample_rate, turns: header.turns.map { Turn(text: $0.text, patches: $0.patches) },
            lexicon: header.lexicon, provenance: header.provenance, patchShape: patchShape, prompt: prompt,
            reference: parts["reference"] ?? none, document: document)
    }

    /// The content of a `.voice` file, which Python also reads.
    public var data: Data {
        var tensors: [String: TensorFile.Tensor] = [:]
        for (name, rows) in [("prompt", prompt), ("reference", reference)] where rows.count > 0 {
            tensors[name] = TensorFile.Tensor(shape: [rows.count] + patchShape, values: rows.values)
        }
        return TensorFile(tensors: tensors, metadata: ["voice": document ?? header]).content
    }

    /// Write the voice to a file, atomically. Throws `VoxCPMError.storage`.
    public func write(to file: URL) throws { try writeWhole(data, to: file) }

    private var header: String {
        let turns = turns.map { "{\"text\":\(pydanticJSON($0.text)),\"patches\":\($0.patches)}" }
        func object(_ texts: [String: String]) -> String {
            "{\(texts.sorted { $0.key < $1.key }.map { "\(pydanticJSON($0)):\(pydanticJSON($1))" }.joined(separator: ","))}"
        }
        let fields: [(String, String)] = [
            ("format", "\(Self.format)"), ("name", pydanticJSON(name)), ("generation", pydanticJSON(generation)),
            ("latent_space", pydanticJSON(latentSpace)), ("sample_rate", "\(sampleRate)"),
            ("turns", "[\(turns.joined(separator: ","))]"), ("lexicon", object(lexicon)),
            ("provenance", object(provenance)),
        ]
        return "{" + fields.map { "\"\($0)\":\($1)" }.joined(separator: ",") + "}"
    }

    private struct Header: Decodable {
        struct Turn: Decodable {
            let text: String
            let patches: Int

            init(from decoder: any Decoder) throws {
                try refuseOthers(decoder, ["text", "patches"])
                let container = try decoder.container(keyedBy: AnyKey.self)
                text = try container.decode(String.self, forKey: AnyKey(stringValue: "text"))
                patches = try container.decode(Int.self, forKey: AnyKey(stringValue: "patches"))
                guard patches >= 1 else { throw Problem("a turn has no patches") }
            }
        }

        let format: Int
        let name: String
        let generation: String
        let latent_space: String
        let sample_rate: Int
        let turns: [Turn]
        let lexicon: [String: String]
        let provenance: [String: String]

        private enum CodingKeys: String, CodingKey, CaseIterable {
            case format, name, generation, latent_space, sample_rate, turns, lexicon, provenance
        }

        init(from decoder: any Decoder) throws {
            try refuseOthers(decoder, CodingKeys.allCases.map(\.rawValue))
            let container = try decoder.container(keyedBy: CodingKeys.self)
            format = try container.decodeIfPresent(Int.self, forKey: .format) ?? Voice.format
            name = try container.decode(String.self, forKey: .name)
            generation = try container.decode(String.self, forKey: .generation)
            latent_space = try container.decode(String.self, forKey: .latent_space)
            sample_rate = try container.decode(Int.self, forKey: .sample_rate)
            turns = try container.decodeIfPresent([Turn].self, forKey: .turns) ?? []
            lexicon = try container.decodeIfPresent([String: String].self, forKey: .lexicon) ?? [:]
            provenance = try container.decodeIfPresent([String: String].self, forKey: .provenance) ?? [:]
            guard sample_rate > 0 else { throw Problem("sample_rate is out of range") }
        }
    }
}

private func refuseOthers(_ decoder: any Decoder, _ known: [String]) throws {
    for key in try decoder.container(keyedBy: AnyKey.self).allKeys where !known.contains(key.stringValue) {
        throw Problem("it has the unknown field \(key.stringValue.debugDescription)")
    }
}
