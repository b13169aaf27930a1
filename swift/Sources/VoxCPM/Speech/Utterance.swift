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
    /// Unicode scalars of the text before it.
    let offset: Int

    /// - Parameters:
    ///   - promptLetters: letters spoken in the voice's prompt; 0 if its pace is unknown.
    ///   - left: remaining patches of the speech; nil for no limit.
    ///   - start: seconds of the speech before it.
    ///   - offset: Unicode scalars of the text before it.
    ///
    /// Throws `VoxCPMError.doesNotFit`.
    init(
        _ plan: Plan, _ index: Int, _ segment: PlannedSegment, _ voice: Voice?, promptLetters: Int, left: Int?,
        start: Double, offset: Int = 0
    ) throws {
        let a = plan.manifest.architecture, none = Rows(width: a.patchSize * a.featDim)
        let options = plan.options, lengths = plan.lengths
        self.index = index
        self.start = start
        self.offset = offset
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
    /// Number of samples before each patch.
    var offsets: [Int] = []
    /// How many times each character of what is said is said; empty if unknown, and until the last patch.
    var counts: [Int] = []

    /// The number of words that it lacks or repeats.
    var missed: Int { words.filter { $0.said != 1 }.count }

    /// Forget all but the first patches.
    mutating func rewind(_ patches: Int) {
        samples.removeSubrange(offsets[patches]...)
        offsets.removeSubrange(patches...)
        latents = latents[0..<patches]
        attention.removeSubrange(min(patches, attention.count)...)
    }
}

/// Where patches go as they are generated. Some are held back for a while, so that they can still be repaired.
final class Outlet {
    /// Patches of a segment that are handed out at once, and that are then held back.
    private static let atOnce = 5, maxHeld = 5
    private let emit: ([Float], Attempt) async throws -> Void
    /// Whether an earlier segment plays, whose patches were held back: then those of the next are from its beginning.
    private let plays: Bool
    private var held: [([Float], Attempt)] = []

    init(plays: Bool, _ emit: @escaping ([Float], Attempt) async throws -> Void) { (self.plays, self.emit) = (plays, emit) }

    var count: Int { held.count }

    /// last: whether the segment ends with this patch.
    func add(_ samples: [Float], _ attempt: Attempt, isHeld: Bool, isLast: Bool) async throws {
        held.append((samples, attempt))
        let count = attempt.latents.count, kept = min(plays ? count : max(count - Self.atOnce, 0) / 2, Self.maxHeld)
        let keep = isLast || !isHeld ? 0 : kept
        while held.count > keep {
            let (samples, attempt) = held.removeFirst()
            try await emit(samples, attempt)
        }
    }

    func takeBack(after patches: Int) { held.removeAll { $0.1.latents.count > patches } }
}

extension Utterance {
    /// One attempt, patch by patch; a patch is decoded while the next one is predicted.
    ///
    /// - Parameters:
    ///   - number: of the attempt, from 0.
    ///   - report: receives the number of the attempt and of its patches.
    ///   - outlet: receives the samples of each patch, and the attempt so far; nil for whole speech.
    ///
    /// Both concurrent calls are children of this task: cancelling it ends them within one Euler step.
    func attempt(
        _ number: Int, _ plan: Plan, _ driver: Driver, _ prefilled: Prefilled, _ noise: inout any NoiseSource,
        report: ((Int, Int) -> Void)? = nil, outlet: Outlet? = nil
    ) async throws -> Attempt {
        let options = plan.options, width = driver.patchValues
        let solving = Solving(
            steps: options.inferenceTimesteps, cfgValue: options.cfgValue, swaySamplingCoef: options.swaySamplingCoef,
            useCfgZeroStar: options.useCfgZeroStar, embeddingWidth: driver.architecture.ditWidth,
            meanMode: driver.architecture.meanMode)
        var decoder = try await driver.patchDecoder(after: sequence), follower = try follower(plan)
        var earlier: [Conditions] = [], repairs = 0, index = 0
        var attempt = Attempt(number: number, latents: Rows(width: width))
        let rate = driver.architecture.outputSampleRate
        var stretch = Stretching(speed: segment.speed, sampleRate: rate)
        var conditions = prefilled.next
        let first = try drawn(&noise, width, options.temperature)
        var patch = try await driver.predict(conditions, noise: first, solving)
        while index < limit {
            guard patch.allSatisfy(\.isFinite) else { throw VoxCPMError.notFinite(patch: index) }
            let wants = index > options.minLen && conditions.stops
            let stops = follower?.ends(wants, conditions.attention) ?? wants, isLast = stops || index + 1 == limit
            let handedOut = outlet.map { index - $0.count } ?? 0
            if let again = follower?.repair(from: index, repairs: repairs, handedOut: handedOut) {
                // From the last patch in order on: the KV caches are written only from there on.
                repairs += 1
                follower?.rewind(again)
                attempt.rewind(again)
                outlet?.takeBack(after: again)
                conditions = earlier[again]
                earlier.removeSubrange(again...)
                decoder = try await driver.patchDecoder(after: sequence)
                stretch = Stretching(speed: segment.speed, sampleRate: rate)
                for kept in 0..<again { _ = sound(try await decoder(attempt.latents[kept]), kept, false, rate, &stretch) }
                if options.noise == nil { noise = plan.noise(segment: self.index, attempt: number, repair: repairs) }
                patch = try await driver.predict(conditions, noise: try drawn(&noise, width, options.temperature), solving)
                index = again
                continue
            }
            earlier.append(conditions)
            attempt.latents.append(patch)
            attempt.stopped = stops
            attempt.suspicion = suspicion(index + 1, stopped: stops, isJudged: options.retryBadcase)
            report?(number, index + 1)
            if isLast {
                attempt.counts = follower?.counts ?? []
                try await hear(patch, index, stops, plan, decoder, &stretch, &attempt, outlet)
                break
            }
            // Draw noise only for patches that are needed.
            let drawn = try drawn(&noise, width, options.temperature), (now, at) = (patch, index)
            async let following = driver.following(prefilled, index: at, patch: now, noise: drawn, solving)
            try await hear(patch, index, stops, plan, decoder, &stretch, &attempt, outlet)
            (patch, conditions) = try await following
            if let attention = conditions.attention { attempt.attention.append(toText(attention)) }
            index += 1
        }
        return attempt
    }

    /// What follows the text while it is spoken; nil without alignment heads, and if `Options.everyWord` is off.
    private func follower(_ plan: Plan) throws -> Follower? {
        guard plan.followsText, let places = try plan.tokenizer.placed(segment.said).places else { return nil }
        return Follower(segment.said, places: places, positions: textPositions, minimum: plan.options.minLen + 1)
    }

    private func hear(
        _ patch: [Float], _ index: Int, _ stops: Bool, _ plan: Plan, _ decoder: PatchDecoder, _ stretch: inout Stretching,
        _ attempt: inout Attempt, _ outlet: Outlet?
    ) async throws {
        let decoded = try await decoder(patch)
        guard decoded.allSatisfy(\.isFinite) else {
            throw VoxCPMError.prediction(
                model: StepModelName.audioVAEDecoder.rawValue, reason: "samples of patch \(index) are not finite")
        }
        let samples = sound(decoded, index, stops, plan.manifest.architecture.outputSampleRate, &stretch)
        attempt.offsets.append(attempt.samples.count)
        attempt.samples += samples
        let isLast = stops || index + 1 == limit
        if isLast { attempt.words = try words(attempt, plan) }
        try await outlet?.add(samples, attempt, isHeld: plan.followsText, isLast: isLast)
    }

    /// The words of a complete attempt, with their times in the whole speech.
    ///
    /// If a limit ended it, and there is no attention to tell its last word, only those that fit.
    private func words(_ attempt: Attempt, _ plan: Plan) throws -> [TimedWord] {
        let a = plan.manifest.architecture, said = segment.said, heads = plan.manifest.sizes.alignment
        let silences = Silences(attempt.samples, sampleRate: a.outputSampleRate)
        let seconds = Double(attempt.samples.count) / Double(a.outputSampleRate)
        let letters = said.unicodeScalars, isKnown = attempt.stopped || !attempt.counts.isEmpty
        let expected = isKnown ? nil : length.seconds.map { $0 / segment.speed }
        let share = expected.map { min(1, seconds / $0) } ?? 1
        let reached = Int((Double(letters.count) * share).rounded(.toNearestOrEven)), rest = letters.count - reached
        var times = pauseTimes(String(String.UnicodeScalarView(letters.prefix(reached))), silences)
        var method = TimedWord.Method.pauses
        times += [Double](repeating: seconds, count: rest)
        if !attempt.attention.isEmpty, let places = try plan.tokenizer.placed(said).places {
            times = attentionTimes(
                said, places: places, rows: attempt.attention, shifts: heads.map { $0.shift / segment.speed },
                patchSeconds: a.patchSeconds / segment.speed, silences)
            method = .attention
        }
        let fitting = [Int](repeating: 1, count: reached) + [Int](repeating: 0, count: rest)
        return timedWords(
            segment.text, said: said, times: times, start: start, method: method,
            counts: expected == nil ? attempt.counts : fitting, offset: offset
        ).filter { $0.said > 0 || expected == nil }
    }

    /// The part of the attention that is to the text's tokens, not to the transcript before or to audio.
    private func toText(_ attention: Rows) -> [[Float]] {
        (0..<attention.count).map { Array(attention[$0][textPositions]) }
    }

    /// The positions of the text's tokens in the sequence.
    private var textPositions: Range<Int> {
        let end = sequence.isAudio.lastIndex(of: false) ?? 0  // the token between text and audio
        return max(0, end - segment.targetTokens)..<end
    }

    /// A patch's samples at the segment's speed, faded where its segment is joined to another one.
    ///
    /// The last patch is known as such when it is generated, so streams equal offline speech.
    private func sound(
        _ samples: [Float], _ index: Int, _ stops: Bool, _ rate: Int, _ stretch: inout Stretching
    ) -> [Float] {
        let isLast = stops || index + 1 == limit
        let begun = self.index > 0 && index == 0 ? fadedIn(samples, sampleRate: rate) : samples
        let samples = stretch(begun, isLast: isLast)
        // In a session it is unknown whether a sentence follows; there, only speech that a limit ended is faded.
        return isLast && segment.followed ?? !stops ? fadedOut(samples, sampleRate: rate) : samples
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
