// One segment in one voice: its sequence, and the attempts at speaking it.

import Foundation

/// The sequence to prefill, and how many patches may follow.
struct Utterance: Sendable {
    /// Index of the segment in the speech, from 0.
    let index: Int
    let segment: PlannedSegment
    let sequence: InputSequence
    /// Number of leading positions that depend only on the voice.
    let shared: Int
    /// Maximum number of patches: upstream's, or less if the KV cache is too short, more would be hopeless, or `maxLen`
    /// leaves less.
    let limit: Int
    /// Whether the KV cache reduces `limit`.
    let isLimitedByCache: Bool
    /// The expected length.
    let length: ExpectedLength
    /// Seconds of the speech before it, pauses included.
    let start: Double

    /// - Parameters:
    ///   - promptLetters: letters spoken in the voice's prompt; 0 if its pace is unknown.
    ///   - left: remaining patches of the speech; nil for no limit.
    ///   - start: seconds of the speech before it.
    ///
    /// Throws `VoxCPMError.doesNotFit`.
    init(
        _ plan: Plan, _ index: Int, _ segment: PlannedSegment, _ voice: Voice?, promptLetters: Int, left: Int?,
        start: Double
    ) throws {
        let a = plan.manifest.architecture, none = Rows(width: a.patchSize * a.featDim)
        let options = plan.options, lengths = plan.lengths
        self.index = index
        self.start = start
        self.segment = segment
        sequence = InputSequence(
            text: segment.tokens, prompt: voice?.prompt ?? none, reference: voice?.reference ?? none)
        // The transcript's last token may merge with the text.
        let known = zip(segment.tokens, segment.transcriptTokens).prefix { $0 == $1 }.count
        shared = known + ((voice?.reference.count).map { $0 > 0 ? $0 + 2 : 0 } ?? 0)
        if let profile = lengths.profile, options.retryBadcaseRatioThreshold == Options.upstreamRatio {
            var pace = 1.0
            // The pace of a word or two does not predict the rest.
            if let voice, Double(segment.transcriptTokens.count) >= lengths.minAnchor {
                let seconds = Double(voice.prompt.count) * a.patchSeconds
                pace = ExpectedLength.pace(profile, letters: promptLetters, seconds: seconds)
            }
            length = ExpectedLength(
                profile, letters: segment.letters, pace: pace, patchSeconds: a.patchSeconds, minLen: options.minLen)
        } else {
            // By generation, upstream's rule counts the decoder's context as speech or not.
            let context = a.generation.contextCountsAsSpeech
                ? sequence.decoderContext(a.generation.decoderContextPatches).count : 0
            length = ExpectedLength(
                tokens: segment.targetTokens, ratio: options.retryBadcaseRatioThreshold, context: context,
                patchSeconds: a.patchSeconds, minLen: options.minLen)
        }
        let fitting = try plan.limit(segment, voice)
        // A caller's maximum for a single segment is kept, and unjudged speech is never hopeless.
        let isGuessed = options.maxLen == nil || index > 0 || segment.followed == true
        let maximum = options.retryBadcase && isGuessed ? length.maximum : .infinity
        let room = left ?? Int.max
        let bound = min(Double(lengths.patchBound(segment.targetTokens)), maximum)
        limit = min(fitting, room, maximum < 1e9 ? Int(maximum) : Int.max)
        isLimitedByCache = fitting <= room && Double(fitting) < bound
    }

    /// What is suspicious about an attempt with this number of patches.
    func suspicion(_ patches: Int, stopped: Bool, isJudged: Bool) -> Suspicion? {
        if isJudged, let suspicion = length.suspicion(patches, stopped: stopped) { return suspicion }
        return isLimitedByCache && !stopped && patches == limit ? .cut : nil
    }
}

/// One attempt at an utterance.
struct Attempt: Sendable {
    let number: Int
    var samples: [Float] = []
    var latents: Rows
    var stopped = false
    var suspicion: Suspicion?
    /// Attention of each alignment head to the text's tokens, while each patch but the last was fed.
    var attention: [[[Float]]] = []
    /// Empty until the last patch.
    var words: [TimedWord] = []
}

extension Utterance {
    /// One attempt, patch by patch; a patch is decoded while the next one is predicted.
    ///
    /// - Parameters:
    ///   - number: of the attempt, from 0.
    ///   - report: receives the number of the attempt and of its patches.
    ///   - emit: receives the samples of each patch, and the attempt so far.
    ///
    /// Both concurrent calls are children of this task: cancelling it ends them within one Euler step.
    func attempt(
        _ number: Int, _ plan: Plan, _ driver: Driver, _ prefilled: Prefilled, _ noise: inout any NoiseSource,
        report: ((Int, Int) -> Void)? = nil, emit: (([Float], Attempt) async throws -> Void)?
    ) async throws -> Attempt {
        let options = plan.options, width = driver.patchValues
        let solving = Solving(
            steps: options.inferenceTimesteps, cfgValue: options.cfgValue, swaySamplingCoef: options.swaySamplingCoef,
            useCfgZeroStar: options.useCfgZeroStar, embeddingWidth: driver.architecture.ditWidth,
            meanMode: driver.architecture.meanMode)
        let decoder = try await driver.patchDecoder(after: sequence)
        var attempt = Attempt(number: number, latents: Rows(width: width))
        var conditions = prefilled.next
        let first = try drawn(&noise, width, options.temperature)
        var patch = try await driver.predict(conditions, noise: first, solving)
        for index in 0..<limit {
            guard patch.allSatisfy(\.isFinite) else { throw VoxCPMError.notFinite(patch: index) }
            let stops = index > options.minLen && conditions.stops, isLast = stops || index + 1 == limit
            attempt.latents.append(patch)
            attempt.stopped = stops
            attempt.suspicion = suspicion(index + 1, stopped: stops, isJudged: options.retryBadcase)
            report?(number, index + 1)
            if isLast {
                try await hear(patch, index, stops, plan, decoder, &attempt, emit)
                break
            }
            // Draw noise only for patches that are needed.
            let drawn = try drawn(&noise, width, options.temperature), now = patch
            async let following = driver.following(prefilled, index: index, patch: now, noise: drawn, solving)
            try await hear(patch, index, stops, plan, decoder, &attempt, emit)
            (patch, conditions) = try await following
            if let attention = conditions.attention { attempt.attention.append(toText(attention)) }
        }
        return attempt
    }

    private func hear(
        _ patch: [Float], _ index: Int, _ stops: Bool, _ plan: Plan, _ decoder: PatchDecoder, _ attempt: inout Attempt,
        _ emit: (([Float], Attempt) async throws -> Void)?
    ) async throws {
        let decoded = try await decoder(patch)
        guard decoded.allSatisfy(\.isFinite) else {
            throw VoxCPMError.prediction(
                model: StepModelName.audioVAEDecoder.rawValue, reason: "samples of patch \(index) are not finite")
        }
        let samples = joining(decoded, index, stops, rate: plan.manifest.architecture.outputSampleRate)
        attempt.samples += samples
        if stops || index + 1 == limit { attempt.words = try words(attempt, plan) }
        try await emit?(samples, attempt)
    }

    /// The words of a complete attempt, with their times in the whole speech.
    private func words(_ attempt: Attempt, _ plan: Plan) throws -> [TimedWord] {
        let a = plan.manifest.architecture, said = segment.said, heads = plan.manifest.sizes.alignment
        let silences = Silences(attempt.samples, sampleRate: a.outputSampleRate)
        var times = pauseTimes(said, silences), method = TimedWord.Method.pauses
        if !attempt.attention.isEmpty, let places = try plan.tokenizer.placed(said).places {
            times = attentionTimes(
                said, places: places, rows: attempt.attention, shifts: heads.map(\.shift),
                patchSeconds: a.patchSeconds, silences)
            method = .attention
        }
        return timedWords(segment.text, said: said, times: times, start: start, method: method)
    }

    /// The part of the attention that is to the text's tokens, not to the transcript before or to audio.
    private func toText(_ attention: Rows) -> [[Float]] {
        let end = sequence.isAudio.lastIndex(of: false) ?? 0  // the token between text and audio
        let tokens = max(0, end - segment.targetTokens)..<end
        return (0..<attention.count).map { Array(attention[$0][tokens]) }
    }

    /// A patch's samples, faded where its segment is joined to another one.
    ///
    /// The last patch is known as such when it is generated, so streams equal offline speech.
    private func joining(_ samples: [Float], _ index: Int, _ stops: Bool, rate: Int) -> [Float] {
        let samples = self.index > 0 && index == 0 ? fadedIn(samples, sampleRate: rate) : samples
        // In a session it is unknown whether a sentence follows; there, only speech that a limit ended is faded.
        let joins = segment.followed ?? !stops
        return joins && (stops || index + 1 == limit) ? fadedOut(samples, sampleRate: rate) : samples
    }
}

extension Driver {
    /// The next patch, and its conditions.
    fileprivate func following(
        _ prefilled: Prefilled, index: Int, patch: [Float], noise: [Float], _ solving: Solving
    ) async throws -> ([Float], Conditions) {
        let conditions = try await advance(prefilled, index: index, patch: patch)
        let next = try await predict(conditions, noise: noise, solving)
        return (next, conditions)
    }
}

/// Noise of one patch, times the temperature.
private func drawn(_ noise: inout any NoiseSource, _ count: Int, _ temperature: Float) throws -> [Float] {
    let numbers = noise.standardNormal(count)
    guard numbers.count == count, numbers.allSatisfy(\.isFinite) else {
        throw VoxCPMError.argument(name: "noise", problem: "expected \(count) finite numbers per patch")
    }
    return numbers.map { $0 * temperature }
}
