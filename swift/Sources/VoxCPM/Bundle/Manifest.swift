import Foundation

/// The six step models, and the optional solver.
public enum StepModelName: String, Sendable, CaseIterable, Codable {
    case audioVAEEncoder = "audio_vae_encoder"
    case audioVAEDecoder = "audio_vae_decoder"
    case featEncoder = "feat_encoder"
    case baseLMStep = "base_lm_step"
    case residualLMStep = "residual_lm_step"
    case locDiTStep = "locdit_step"
    /// All Euler steps in one call; only in bundles converted with --solver-steps.
    case locDiTSolve = "locdit_solve"
}

/// A bundle's manifest.json, as far as the loop needs it.
public struct Manifest: Sendable, Decodable {
    static let schema = 1

    /// The minimum macOS version, which determines the bundle's form; iOS 17, 18 and 27 correspond.
    public enum Target: String, Sendable, Decodable {
        case macOS14, macOS15, macOS27
    }

    /// How weights are stored; all but fp32 compute in float16.
    public enum Precision: String, Sendable, Codable, CaseIterable {
        case int8, int4, fp16, fp32
    }

    enum KVCache: String, Sendable, Decodable {
        case scatter, rows, stacked
    }

    enum Generation: String, Sendable, Decodable {
        case voxcpm, voxcpm2

        /// Prompt patches that the decoder processes before the generated ones.
        var decoderContextPatches: Int { self == .voxcpm ? 2 : 3 }
        /// Whether it supports reference recordings and controls.
        var takesReference: Bool { self == .voxcpm2 }
        /// Whether upstream counts the decoder's context when it judges whether speech is too long.
        var contextCountsAsSpeech: Bool { self == .voxcpm }
    }

    /// The allowed lengths of a tensor's axis.
    public struct Axis: Sendable, Decodable, Equatable {
        /// At least one.
        public let lengths: [Int]

        /// Reads a length, or a list of lengths.
        public init(from decoder: any Decoder) throws {
            let container = try decoder.singleValueContainer()
            if let length = try? container.decode(Int.self) {
                lengths = [length]
            } else {
                lengths = try container.decode([Int].self)
            }
        }
    }

    /// An input, an output or a state of a step model.
    public struct Tensor: Sendable, Decodable, Equatable {
        /// In the step model.
        public let name: String
        /// Its axes, the last one contiguous.
        public let shape: [Axis]
        /// float32, int32, or compute: float32 in fp32 packages, float16 in others.
        public let dtype: String

        /// The output of decode steps that has the rows of alignment heads, of the parts that have such heads.
        static let attention = "attention"

        /// Whether some functions of a package do not have it.
        public var isOptional: Bool { name == Self.attention }
    }

    /// An attention head of the base LM that follows the text as it is said.
    struct AlignmentHead: Sendable, Decodable {
        /// Seconds from the end of the fed patch until the attended token is spoken.
        let shift: Double

        /// Reads a list of layer, head, shift and score.
        init(from decoder: any Decoder) throws {
            var list = try decoder.unkeyedContainer()
            _ = try (list.decode(Int.self), list.decode(Int.self))
            shift = try list.decode(Double.self)
        }
    }

    /// The interface of a step model.
    public struct StepModel: Sendable, Decodable, Equatable {
        /// Such as "base_lm_step", or for a part "base_lm_step_1".
        public let name: String
        /// Of each call, without state.
        public let inputs: [Tensor]
        /// Of each call, without state.
        public let outputs: [Tensor]
        /// KV caches, keys and values alternating, each of one or several layers, or contexts of convolutions; empty for a
        /// stateless model.
        public let state: [Tensor]

        /// The first input with an enumerated axis, and that axis; otherwise the first input and axis 1.
        public var chunkAxis: (tensor: Tensor, axis: Int) {
            for tensor in inputs {
                if let axis = tensor.shape.firstIndex(where: { $0.lengths.count > 1 }) { return (tensor, axis) }
            }
            return (inputs[0], 1)
        }

        /// The lengths of that axis, each of which may be a function of its own.
        public var chunkLengths: [Int] { chunkAxis.tensor.shape[chunkAxis.axis].lengths }

        /// Whether its state is KV caches rather than contexts of convolutions.
        public var hasCaches: Bool { state.contains { $0.name.hasPrefix("k_cache") } }

        /// The allowed lengths of an input's axis; `check` has verified that it exists.
        func lengths(of input: String, axis: Int) -> [Int] {
            inputs.first { $0.name == input }?.shape[axis].lengths ?? []
        }
    }

    struct Sizes: Sendable, Decodable {
        /// Positions in a KV cache.
        let kvLength: Int
        /// Packages of the base LM.
        let baseLMParts: Int
        /// Euler steps of `locdit_solve`; 0 without it.
        let solverSteps: Int
        /// The heads whose attention the base LM's decode step gives; empty for a bundle without it.
        let alignment: [AlignmentHead]

        private enum CodingKeys: String, CodingKey {
            case kvLength = "kv_length", baseLMParts = "base_lm_parts", solverSteps = "solver_steps", alignment
        }

        init(from decoder: any Decoder) throws {
            let container = try decoder.container(keyedBy: CodingKeys.self)
            kvLength = try container.decode(Int.self, forKey: .kvLength)
            baseLMParts = try container.decodeIfPresent(Int.self, forKey: .baseLMParts) ?? 1
            solverSteps = try container.decodeIfPresent(Int.self, forKey: .solverSteps) ?? 0
            alignment = try container.decodeIfPresent([AlignmentHead].self, forKey: .alignment) ?? []
        }
    }

    /// The checkpoint's configuration, as far as the loop needs it.
    struct Architecture: Sendable, Decodable {
        let generation: Generation
        /// Latent frames in a patch.
        let patchSize: Int
        /// Width of a latent frame.
        let featDim: Int
        /// Width of the language models.
        let hidden: Int
        /// Width of the DiT and of its time embeddings.
        let ditWidth: Int
        let textEmbeddingScale: Float
        /// Whether the DiT receives the length of a step.
        let meanMode: Bool
        /// In Hz.
        let inputSampleRate: Int
        let outputSampleRate: Int
        /// Samples of a patch at each of them.
        let patchInputSamples: Int
        let patchOutputSamples: Int
        let audioVAE: AudioVAEConfiguration

        var patchSeconds: Double { Double(patchInputSamples) / Double(inputSampleRate) }

        private struct Document: Decodable {
            struct LanguageModel: Decodable {
                let hidden_size: Int
                let use_mup: Bool
                let scale_emb: Float
            }
            struct DiT: Decodable {
                let hidden_dim: Int
                let dit_mean_mode: Bool?
            }
            struct AudioVAE: Decodable {
                let sample_rate: Int
                let out_sample_rate: Int?
                let encoder_rates: [Int]
                let decoder_rates: [Int]
            }
            let architecture: Generation
            let patch_size: Int
            let feat_dim: Int
            let dit_mean_mode: Bool?
            let lm_config: LanguageModel
            let dit_config: DiT
            let audio_vae_config: AudioVAE
        }

        init(from decoder: any Decoder) throws {
            struct VAE: Decodable { let audio_vae_config: AudioVAEConfiguration }
            let document = try Document(from: decoder)
            audioVAE = try VAE(from: decoder).audio_vae_config
            let lm = document.lm_config, vae = document.audio_vae_config
            generation = document.architecture
            patchSize = document.patch_size
            featDim = document.feat_dim
            hidden = lm.hidden_size
            ditWidth = document.dit_config.hidden_dim
            textEmbeddingScale = lm.use_mup ? lm.scale_emb : 1
            meanMode = (generation == .voxcpm2 ? document.dit_config.dit_mean_mode : document.dit_mean_mode) ?? false
            inputSampleRate = vae.sample_rate
            outputSampleRate = vae.out_sample_rate ?? vae.sample_rate
            patchInputSamples = try product([document.patch_size] + vae.encoder_rates)
            patchOutputSamples = try product([document.patch_size] + vae.decoder_rates)
        }
    }

    /// The checkpoint's speech.json, by which text is split into segments and the length of speech is judged.
    struct SpeechProfile: Sendable, Codable, Equatable {
        let longestSeconds: Double
        let longestTokens: Int
        let secondsPerLetter: Double
        let secondsBeside: Double
        let language: String?

        private enum CodingKeys: String, CodingKey {
            case longestSeconds = "longest_seconds", longestTokens = "longest_tokens"
            case secondsPerLetter = "seconds_per_letter", secondsBeside = "seconds_beside", language
        }

        /// Expected seconds of a text with this many letters and digits.
        func expectedSeconds(_ letters: Int) -> Double { secondsBeside + secondsPerLetter * Double(letters) }
    }

    struct FileRecord: Sendable, Decodable, Equatable {
        let bytes: Int
        let sha256: String
    }

    let schemaVersion: Int
    let architecture: Architecture
    let sizes: Sizes
    let stepModels: [String: StepModel]
    /// The precisions that the bundle was published with.
    public let precisions: [Precision]
    /// The system that it was converted for.
    public let target: Target
    let kvCache: KVCache
    let speech: SpeechProfile?
    /// Every file in a folder of the bundle, by path relative to it.
    let files: [String: FileRecord]

    private enum CodingKeys: String, CodingKey {
        case schemaVersion = "schema_version", architecture, sizes, stepModels = "step_models", precisions, target
        case kvCache = "kv_cache", speech, files
    }

    /// Decodes without checks; use `init(json:)`.
    public init(from decoder: any Decoder) throws {
        let container = try decoder.container(keyedBy: CodingKeys.self)
        schemaVersion = try container.decode(Int.self, forKey: .schemaVersion)
        architecture = try container.decode(Architecture.self, forKey: .architecture)
        sizes = try container.decode(Sizes.self, forKey: .sizes)
        stepModels = try container.decode([String: StepModel].self, forKey: .stepModels)
        precisions = try container.decode([Precision].self, forKey: .precisions)
        target = try container.decode(Target.self, forKey: .target)
        kvCache = try container.decode(KVCache.self, forKey: .kvCache)
        speech = try container.decodeIfPresent(SpeechProfile.self, forKey: .speech)
        files = try container.decode([String: FileRecord].self, forKey: .files)
    }

    /// Read and check a manifest. Throws `VoxCPMError.bundle`, or `.unsupported` for one of another schema.
    public init(json data: Data) throws {
        struct Version: Decodable { let schema_version: Int }
        let file = "manifest.json"
        do {
            let version = try decodedJSON(Version.self, from: data).schema_version
            guard version == Self.schema else {
                throw VoxCPMError.unsupported(
                    "\(file): expected schema version \(Self.schema), found \(version); convert again, or use the "
                        + "release that made this bundle")
            }
            self = try decodedJSON(Manifest.self, from: data)
            try check()
        } catch let error as VoxCPMError {
            throw error
        } catch let problem as Problem {
            throw VoxCPMError.bundle(file: file, problem: problem.text)
        } catch {
            throw VoxCPMError.bundle(file: file, problem: "not a bundle's manifest (\(reason(error)))")
        }
    }

    /// The declaration of a step model; `check` has verified that it exists.
    func stepModel(_ name: StepModelName) -> StepModel { stepModels[name.rawValue]! }

    /// The step models of this bundle.
    var names: [StepModelName] { StepModelName.allCases.filter { $0 != .locDiTSolve || sizes.solverSteps > 0 } }

    /// The files of one precision: constants, tokenizer and step models.
    func files(of precision: Precision) -> [String: FileRecord] {
        files.filter { path, _ in
            ["constants", "tokenizer", precision.rawValue].contains { path.hasPrefix("\($0)/") }
        }
    }

    /// A digest of a package's content.
    func contentKey(_ folder: String) -> String {
        let records = files.filter { $0.key.hasPrefix("\(folder)/") }.map { "\($0.key) \($0.value.sha256)" }
        return SHA256.hex(Data(records.sorted().joined(separator: "\n").utf8))
    }
}

/// The product of the numbers. Throws a `Problem` if it cannot be the length of a patch.
private func product(_ numbers: [Int]) throws -> Int {
    try numbers.reduce(1) { result, number in
        guard (1...1_000_000).contains(number), result * number <= 100_000_000 else {
            throw Problem("a patch of \(numbers) is out of range")
        }
        return result * number
    }
}

/// A one-line description of an error from Foundation.
func reason(_ error: any Error) -> String {
    if case DecodingError.keyNotFound(let key, _) = error { return "the field \(key.stringValue) is missing" }
    if case DecodingError.typeMismatch(_, let context) = error { return "wrong type at \(path(context))" }
    if case DecodingError.valueNotFound(_, let context) = error { return "no value at \(path(context))" }
    if case DecodingError.dataCorrupted(let context) = error { return "damaged at \(path(context))" }
    return (error as NSError).localizedDescription
}

private func path(_ context: DecodingError.Context) -> String {
    let keys = context.codingPath.map(\.stringValue).joined(separator: ".")
    return keys.isEmpty ? "its beginning" : keys
}

// MARK: - Checks

extension Manifest {
    /// Throws a `Problem` for a manifest whose numbers would make the loop fail later.
    private func check() throws {
        let a = architecture, positive = 1...1_000_000
        let widths = [a.patchSize, a.featDim, a.hidden, a.inputSampleRate, a.outputSampleRate]
        guard widths.allSatisfy(positive.contains), positive.contains(sizes.kvLength), a.ditWidth >= 4,
            positive.contains(a.ditWidth), (1...64).contains(sizes.baseLMParts),
            (0...1000).contains(sizes.solverSteps), a.textEmbeddingScale.isFinite, sizes.alignment.count <= 64,
            sizes.alignment.allSatisfy({ abs($0.shift) < 10 })
        else { throw Problem("a size is out of range") }
        if let speech {
            let numbers = [speech.longestSeconds, speech.secondsPerLetter]
            guard numbers.allSatisfy({ $0 > 0 && $0.isFinite }), (0...10).contains(speech.secondsBeside),
                (8...100_000).contains(speech.longestTokens)
            else { throw Problem("a value of speech is out of range") }
        }
        for name in names { try check(name) }
        for (path, record) in files {
            let parts = path.split(separator: "/", omittingEmptySubsequences: false)
            guard parts.count > 1, !parts.contains(where: { ["", ".", ".."].contains($0) }),
                !path.contains(where: { "\\:\0".contains($0) }), record.bytes >= 0
            else { throw Problem("\(path.debugDescription) is not a path within the bundle") }
        }
    }

    private func check(_ name: StepModelName) throws {
        guard let model = stepModels[name.rawValue], model.name == name.rawValue else {
            throw Problem("it does not declare \(name.rawValue)")
        }
        let tensors = model.inputs + model.outputs + model.state
        let lengths = tensors.flatMap { $0.shape.flatMap(\.lengths) }
        let fits = tensors.allSatisfy { tensor in
            tensor.shape.count <= 6 && tensor.shape.allSatisfy { !$0.lengths.isEmpty && $0.lengths.count <= 16 }
                && tensor.shape.reduce(1.0) { $0 * Double($1.lengths.max() ?? 0) } <= 1e9
        }
        let a = architecture
        let expected: [String: [Int?]] = switch name {
        case .audioVAEEncoder: ["audio": [1, 1, nil]]
        case .audioVAEDecoder: ["latents": [1, a.featDim, a.patchSize]]
        case .featEncoder: ["patches": [1, nil, a.patchSize, a.featDim]]
        case .baseLMStep, .residualLMStep: ["embeddings": [1, nil, a.hidden], "position": [1]]
        case .locDiTStep: ["x": [2, a.featDim, a.patchSize], "t_embedding": [2, a.ditWidth]]
        case .locDiTSolve: ["noise": [1, a.featDim, a.patchSize], "t_embeddings": [nil, a.ditWidth]]
        }
        guard !model.inputs.isEmpty, fits, lengths.allSatisfy({ (1...100_000_000).contains($0) }),
            model.inputs[0].shape.count > 1 || model.chunkAxis.axis == 0
        else { throw Problem("a tensor of \(name.rawValue) has an invalid shape") }
        for (input, shape) in expected {
            guard let tensor = model.inputs.first(where: { $0.name == input }), tensor.shape.count == shape.count,
                zip(tensor.shape, shape).allSatisfy({ axis, length in length.map { axis.lengths == [$0] } ?? true })
            else { throw Problem("\(input) of \(name.rawValue) has a shape that this release does not support") }
        }
        let unit = a.patchInputSamples
        if name == .audioVAEEncoder, model.lengths(of: "audio", axis: 2).contains(where: { $0 % unit != 0 }) {
            throw Problem("the audio encoder has lengths that are not whole patches")
        }
    }
}
