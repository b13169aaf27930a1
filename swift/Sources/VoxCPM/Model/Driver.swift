// The loop of the reference driver, runtime/voxcpm_runtime/model/driver.py: prefill both language models; then, for
// each patch, DiT, feat encoder and language models.
//
//     embed ─► base LM ─► hidden (text) or fsq_hidden (audio) ─┬─► DiT condition ◄── residual LM
//                                                              └─► residual input ──────┘

/// Both caches after a sequence, and the conditions of the next patch. Generation writes only from `position` on, so it
/// can restart from here.
struct Prefilled: Sendable {
    let baseState: any StepState
    let residualState: any StepState
    let position: Int
    let next: Conditions
}

/// The part of a prefill that depends only on the voice.
struct Prefix: Sendable {
    /// Positions of the reference with its markers, and of the transcript.
    let positions: Int
    /// The language models' keys and values of these positions; nil if the framework hides its states.
    let base: [String: Tensor]?
    let residual: [String: Tensor]?
    /// Embeddings of the patches of reference and prompt.
    let reference: Rows
    let prompt: Rows
}

/// The prefixes of the most recent voices.
actor Prefixes {
    private static let kept = 4
    private var known: [(voice: Voice, prefix: Prefix)] = []

    /// The voice's prefix, computed on a cache miss. tokens: of its transcript.
    func callAsFunction(_ voice: Voice, tokens: [Int], _ driver: Driver) async throws -> Prefix {
        if let index = known.firstIndex(where: { $0.voice == voice }) {
            known.append(known.remove(at: index))
            return known[known.count - 1].prefix
        }
        let made = try await driver.prefix(voice, tokens: tokens)
        known = known.suffix(Self.kept - 1) + [(voice, made)]
        return made
    }
}

/// The inputs of the DiT and the stop head for the next patch.
struct Conditions: Sendable {
    /// Last hidden state of the base LM: raw after text, quantised after audio.
    let hidden: [Float]
    let residualHidden: [Float]
    /// Logits of the stop head: continue, stop.
    let stopLogits: [Float]
    /// The previous patch, (frames · latent_dim); zeros after text.
    let lastPatch: [Float]
    /// Attention of each alignment head to the positions of the KV cache, while the previous patch was fed; empty after
    /// text, and for a bundle without such heads.
    var attention: Rows?

    var stops: Bool { stopLogits[1] > stopLogits[0] }
}

/// A bundle's constants and step models as functions on arrays, without state between calls.
struct Driver: Sendable {
    let manifest: Manifest
    let constants: Constants
    let projections: Projections
    var models: [StepModelName: any StepFunction]

    init(manifest: Manifest, constants: Constants, models: [StepModelName: any StepFunction]) throws {
        self.manifest = manifest
        self.constants = constants
        self.models = models
        projections = try Projections(constants, manifest.architecture)
    }

    var architecture: Manifest.Architecture { manifest.architecture }

    /// Values in a patch.
    var patchValues: Int { architecture.patchSize * architecture.featDim }

    func model(_ name: StepModelName) throws -> any StepFunction {
        guard let model = models[name] else { throw VoxCPMError.loading(model: name.rawValue, reason: "not loaded") }
        return model
    }

    /// The prefix of a voice. tokens: of its transcript.
    func prefix(_ voice: Voice, tokens: [Int]) async throws -> Prefix {
        let lead = InputSequence(
            text: tokens, prompt: Rows(width: patchValues), reference: voice.reference, startsAudio: false)
        let reference = try await embed(voice.reference), prompt = try await embed(voice.prompt)
        let base = try model(.baseLMStep), residual = try model(.residualLMStep)
        let states = (base: try base.newState(), residual: try residual.newState())
        if lead.count > 0 { _ = try await run(lead, reference, states.base, states.residual, at: 0) }
        return Prefix(
            positions: lead.count, base: try base.rows(0..<lead.count, of: states.base),
            residual: try residual.rows(0..<lead.count, of: states.residual), reference: reference, prompt: prompt)
    }

    /// Run a sequence, which must fit the caches, through both language models.
    ///
    /// - Parameters:
    ///   - prefix: the voice's; nil without a voice.
    ///   - shared: number of leading positions that the sequence shares with the prefix.
    func prefill(_ sequence: InputSequence, _ prefix: Prefix? = nil, shared: Int = 0) async throws -> Prefilled {
        let base = try model(.baseLMStep), residual = try model(.residualLMStep)
        let states = (base: try base.newState(), residual: try residual.newState())
        var start = 0, spoken = Rows(width: architecture.hidden)
        if let prefix {
            if let first = prefix.base, let second = prefix.residual, shared > 0 {
                start = min(shared, prefix.positions)
                try base.write(first, at: 0, into: states.base)
                try residual.write(second, at: 0, into: states.residual)
            }
            if start == 0 { spoken.append(prefix.reference) }
            spoken.append(prefix.prompt)
        } else {
            spoken = try await embed(sequence.patches)
        }
        let next = try await run(sequence.after(start), spoken, states.base, states.residual, at: start)
        return Prefilled(baseState: states.base, residualState: states.residual, position: sequence.count, next: next)
    }

    /// Run both language models from a cache position. spoken: the embeddings of the sequence's patches.
    private func run(
        _ sequence: InputSequence, _ spoken: Rows, _ base: any StepState, _ residual: any StepState, at position: Int
    ) async throws -> Conditions {
        let hidden = architecture.hidden, silent = [Float](repeating: 0, count: hidden)
        var embeddings = Rows(width: hidden), audio = Rows(width: hidden), heard = 0
        for (token, isAudio) in zip(sequence.tokens, sequence.isAudio) {
            audio.append(isAudio ? spoken[heard] : silent)
            embeddings.append(isAudio ? spoken[heard] : try constants.embedding(of: token))
            heard += isAudio ? 1 : 0
        }
        let outputs = try await baseStep(embeddings, base, at: position)
        var joined = Rows(width: hidden), last: [Float] = []
        for (index, isAudio) in sequence.isAudio.enumerated() {
            last = isAudio ? outputs.quantised[index] : outputs.hidden[index]
            joined.append(projections.residualInput(last, audio[index]))
        }
        return Conditions(
            hidden: last, residualHidden: try await residualStep(joined, residual, at: position),
            stopLogits: outputs.stopLogits, lastPatch: sequence.lastPatch)
    }

    /// The next patch, (frames · latent_dim). noise: standard normal, times the temperature.
    func predict(_ conditions: Conditions, noise: [Float], _ solving: Solving) async throws -> [Float] {
        let frames = architecture.patchSize, width = architecture.featDim
        let mu = projections.condition(conditions.hidden, conditions.residualHidden)
        let cond = transposed(conditions.lastPatch, rows: frames, columns: width)
        let atOnce = solving.useCfgZeroStar && solving.steps == manifest.sizes.solverSteps
        let x = if atOnce {
            try await solveAtOnce(
                model(.locDiTSolve), noise: noise, mu: mu, cond: cond, shape: [width, frames], solving)
        } else {
            try await solve(model(.locDiTStep), noise: noise, mu: mu, cond: cond, shape: [width, frames], solving)
        }
        return transposed(x, rows: width, columns: frames)
    }

    /// One step of both language models after patch `index` of the speech.
    func advance(_ prefilled: Prefilled, index: Int, patch: [Float]) async throws -> Conditions {
        let embedding = try await embed(Rows(width: patchValues, values: patch))
        let position = prefilled.position + index
        let outputs = try await baseStep(embedding, prefilled.baseState, at: position)
        let hidden = outputs.quantised[0]
        let joined = Rows(width: architecture.hidden, values: projections.residualInput(hidden, embedding[0]))
        let residualHidden = try await residualStep(joined, prefilled.residualState, at: position)
        return Conditions(
            hidden: hidden, residualHidden: residualHidden, stopLogits: outputs.stopLogits, lastPatch: patch,
            attention: outputs.attention)
    }

    /// An embedding for each patch.
    func embed(_ patches: Rows) async throws -> Rows {
        let name = StepModelName.featEncoder, hidden = architecture.hidden
        var embeddings = Rows(width: hidden)
        for chunk in try planChunks(patches.count, manifest.stepModel(name).lengths(of: "patches", axis: 1)) {
            try Task.checkCancellation()
            let values = patches[chunk.start..<(chunk.start + chunk.length)].padded(to: chunk.size)
            let shape = [1, chunk.size, architecture.patchSize, architecture.featDim]
            let found = try await model(name).output(
                "embeddings", chunk.size * hidden, of: name.rawValue,
                ["patches": Tensor(shape: shape, values: values)])
            embeddings.append(Rows(width: hidden, values: found)[0..<chunk.length])
        }
        return embeddings
    }

    private struct BaseOutputs {
        var hidden: Rows
        var quantised: Rows
        var stopLogits: [Float] = []
        var attention: Rows?
    }

    private func baseStep(_ rows: Rows, _ state: any StepState, at position: Int) async throws -> BaseOutputs {
        let name = StepModelName.baseLMStep
        var all = BaseOutputs(hidden: Rows(width: rows.width), quantised: Rows(width: rows.width))
        for (outputs, chunk) in try await languageModel(name, rows, state, at: position) {
            let count = chunk.size * rows.width
            let hidden = try checked(outputs, "hidden", count, of: name.rawValue)
            let quantised = try checked(outputs, "fsq_hidden", count, of: name.rawValue)
            let stop = try checked(outputs, "stop_logits", 2 * chunk.size, of: name.rawValue)
            all.hidden.append(Rows(width: rows.width, values: hidden)[0..<chunk.length])
            all.quantised.append(Rows(width: rows.width, values: quantised)[0..<chunk.length])
            all.stopLogits = Rows(width: 2, values: stop)[chunk.length - 1]
            let heads = manifest.sizes.alignment.count, positions = manifest.sizes.kvLength
            if heads > 0, outputs[Manifest.Tensor.attention] != nil {
                let rows = try checked(outputs, Manifest.Tensor.attention, heads * positions, of: name.rawValue)
                all.attention = Rows(width: positions, values: rows)
            }
        }
        return all
    }

    /// The last hidden state of the residual LM.
    private func residualStep(_ rows: Rows, _ state: any StepState, at position: Int) async throws -> [Float] {
        let name = StepModelName.residualLMStep
        var last: [Float] = []
        for (outputs, chunk) in try await languageModel(name, rows, state, at: position) {
            let hidden = try checked(outputs, "hidden", chunk.size * rows.width, of: name.rawValue)
            last = Rows(width: rows.width, values: hidden)[chunk.length - 1]
        }
        return last
    }

    /// Run a language model over rows from a cache position; returns the outputs of each call.
    private func languageModel(
        _ name: StepModelName, _ rows: Rows, _ state: any StepState, at position: Int
    ) async throws -> [(outputs: [String: Tensor], chunk: CallChunk)] {
        let lengths = manifest.stepModel(name).lengths(of: "embeddings", axis: 1), model = try model(name)
        var all: [(outputs: [String: Tensor], chunk: CallChunk)] = []
        for chunk in try planChunks(rows.count, lengths, position: position, capacity: manifest.sizes.kvLength) {
            try Task.checkCancellation()
            let values = rows[chunk.start..<(chunk.start + chunk.length)].padded(to: chunk.size)
            let inputs = [
                "embeddings": Tensor(shape: [1, chunk.size, rows.width], values: values),
                "position": Tensor(shape: [1], values: [Float(position + chunk.start)]),
            ]
            let outputs = try await model(inputs, state)
            all.append((outputs, chunk))
        }
        return all
    }
}
