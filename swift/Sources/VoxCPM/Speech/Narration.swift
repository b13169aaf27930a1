// Speech, segment by segment. `speak` collects the samples, `stream` passes them on.
//
//     plan ─► segments ─► attempts ─► pieces

import Foundation

/// Samples of one patch, or a pause before the segment.
struct Piece: Sendable {
    let samples: [Float]
    let isPause: Bool
    let segment: Int
    let text: String
    /// What is suspicious about the segment so far.
    var suspicion: Suspicion?
    /// Of the segment, with its last patch.
    var words: [TimedWord] = []
}

/// The state of one speech.
struct Narration {
    let plan: Plan
    private let driver: Driver
    private let prefixes: Prefixes
    /// Whether to unload after prefill what only prefill needs.
    private let isTight: Bool
    /// The plan's voice, or the first segments.
    private var voice: Voice?
    /// Letters spoken in the voice's prompt; nil if a suspicious segment is part of it.
    private var promptLetters: Int?
    private var noise: (any NoiseSource)?
    /// Remaining patches.
    private var left: Int?
    private var index = 0
    /// Number of segments, if it is known.
    var total: Int?
    private let began = Date()
    private var spokenPatches = 0
    /// Samples so far, pauses included.
    private var spokenSamples = 0
    private var isPaused = false
    /// Unicode scalars of the text up to the end of the last segment.
    private var reached = 0
    private let text: [Unicode.Scalar]
    /// Whether `maxLen` was reached before the end of the text.
    private(set) var isUnfinished = false

    init(_ plan: Plan, _ loaded: LoadedBundle) throws {
        self.plan = plan
        driver = loaded.driver
        prefixes = loaded.prefixes
        isTight = loaded.isTight
        voice = plan.voice
        text = Array((plan.text ?? "").unicodeScalars)
        noise = plan.options.noise
        left = plan.maxPatches
        promptLetters = try plan.voice.map { try Self.letters(spokenIn: $0, plan) } ?? 0
    }

    private static func letters(spokenIn voice: Voice, _ plan: Plan) throws -> Int {
        let takesControl = plan.manifest.architecture.generation.takesReference
        let spoken = voice.turns.map { takesControl ? Control.withoutControl($0.text) : $0.text }.joined()
        return try VoxCPM.letters(in: plan.tokenizer.spelledTranscript(spoken))
    }

    /// Speak the next segment; nil if `maxLen` is reached.
    ///
    /// - Parameter emit: receives pieces as they are generated, without retries, since played audio cannot be revoked;
    ///   nil returns the samples of the best attempt.
    mutating func speak(
        _ segment: PlannedSegment, emit: ((Piece) async throws -> Void)?
    ) async throws -> (spoken: SpokenSegment, samples: [Float])? {
        if left == 0 {
            isUnfinished = true
            return nil
        }
        var samples: [Float] = []
        if let pause = segment.before ?? (isPaused ? plan.options.paragraphPause / plan.options.speed : nil) {
            samples = try await silence(pause, segment, emit)
        }
        let voice = segment.voice ?? self.voice
        let letters = try segment.voice.map { try Self.letters(spokenIn: $0, plan) } ?? promptLetters
        let start = Double(spokenSamples) / Double(plan.manifest.architecture.outputSampleRate)
        let utterance = try Utterance(
            plan, index, segment, voice, promptLetters: letters ?? 0, left: left, start: start,
            offset: offset(of: segment.text))
        let prefix: Prefix? = if let voice {
            try await prefixes(voice, tokens: segment.transcriptTokens, driver)
        } else {
            nil
        }
        let prefilled = try await driver.prefill(utterance.sequence, prefix, shared: utterance.shared)
        if isTight {
            for name in [StepModelName.baseLMStep, .residualLMStep] { await driver.models[name]?.unloadPrefill() }
        }
        let options = plan.options, isTriedAgain = options.retryBadcase && emit == nil
        let maximum = isTriedAgain ? max(1, options.retryBadcaseMaxTimes) : 1
        let index = index
        let outlet = emit.map { emit in
            Outlet(plays: index > 0) { samples, attempt in
                try await emit(Piece(
                    samples: samples, isPause: false, segment: index, text: segment.text,
                    suspicion: attempt.suspicion, words: attempt.words))
            }
        }
        let report = progress(index)
        var attempts: [Attempt] = []
        while attempts.last.map({ $0.suspicion != nil || $0.missed > 0 }) ?? true, attempts.count < maximum {
            var source: any NoiseSource = noise ?? plan.noise(segment: index, attempt: attempts.count)
            let made = try await utterance.attempt(
                attempts.count, plan, driver, prefilled, &source, report: report, outlet: outlet)
            if noise != nil { noise = source }
            attempts.append(made)
        }
        let best = Self.best(of: attempts, utterance.length)
        samples += best.samples
        let spoken = SpokenSegment(
            text: segment.text, sampleCount: best.samples.count, latents: best.latents,
            seed: noise == nil ? plan.seed(segment: index, attempt: best.number) : nil, attempts: attempts.count,
            stopped: best.stopped, suspicion: best.suspicion, expectedSeconds: utterance.length.seconds.map { $0 / segment.speed },
            endsParagraph: segment.endsParagraph, words: best.words, replaced: segment.replaced)
        if segment.after > 0 { samples += try await silence(segment.after, segment, emit) }
        finish(segment, spoken)
        return (spoken, samples)
    }

    /// A pause before or after a segment: its samples, or none if they are emitted, a second at a time.
    private mutating func silence(
        _ seconds: Double, _ segment: PlannedSegment, _ emit: ((Piece) async throws -> Void)?
    ) async throws -> [Float] {
        let rate = plan.manifest.architecture.outputSampleRate
        var left = Int((seconds * Double(rate)).rounded(.toNearestOrEven))
        spokenSamples += left
        guard let emit else { return [Float](repeating: 0, count: left) }
        while left > 0 {
            let samples = [Float](repeating: 0, count: min(left, rate))
            try await emit(Piece(samples: samples, isPause: true, segment: index, text: segment.text))
            left -= samples.count
        }
        return []
    }

    /// The Unicode scalars of the text before a segment; 0 in a session.
    private mutating func offset(of segment: String) -> Int {
        let segment = segment.unicodeScalars
        for place in reached..<max(reached, text.count) where text[place...].starts(with: segment) {
            reached = place + segment.count
            return plan.textStart + place
        }
        return 0
    }

    /// What reports the progress of a segment, by the attempt and its patches.
    private func progress(_ index: Int) -> ((Int, Int) -> Void)? {
        plan.options.onProgress.map { onProgress in
            let (before, began, total) = (spokenPatches, began, total)
            let seconds = plan.manifest.architecture.patchSeconds
            return { attempt, patches in
                onProgress(SpeechProgress(
                    patches: patches, audioSeconds: Double(before + patches) * seconds,
                    elapsedSeconds: Date().timeIntervalSince(began), attempt: attempt + 1, segment: index,
                    segments: total))
            }
        }
    }

    /// The good attempt, or the bad one with the fewest words missing or repeated, and closest to the expected length,
    /// preferably stopped by itself. Of equally bad attempts the last, as upstream.
    static func best(of attempts: [Attempt], _ length: ExpectedLength) -> Attempt {
        var best = attempts[attempts.count - 1]
        guard best.suspicion != nil || best.missed > 0 else { return best }
        func badness(_ attempt: Attempt) -> (Int, Int, Double) {
            let (ending, ratio) = length.badness(attempt.latents.count, stopped: attempt.stopped)
            return (attempt.missed, ending, ratio)
        }
        var least = badness(best)
        for attempt in attempts.dropLast().reversed() {
            let found = badness(attempt)
            if found < least { (best, least) = (attempt, found) }
        }
        return best
    }

    private mutating func finish(_ segment: PlannedSegment, _ spoken: SpokenSegment) {
        if segment.anchors {
            let architecture = plan.manifest.architecture, none = Rows(width: spoken.latents.width)
            voice = voice?.extended(segment.transcript, spoken.latents)
                ?? Voice(architecture, transcript: segment.transcript, prompt: spoken.latents, reference: none)
            promptLetters = spoken.suspicion == nil ? promptLetters.map { $0 + segment.letters } : nil
        }
        left = left.map { $0 - spoken.latents.count }
        spokenPatches += spoken.latents.count
        spokenSamples += spoken.sampleCount
        index += 1
        isPaused = segment.endsParagraph
    }
}

extension Narration {
    /// The speech of the whole text.
    static func whole(_ plan: Plan, _ loaded: LoadedBundle) async throws -> Speech {
        var narration = try Narration(plan, loaded), segments = try plan.segments()
        narration.total = segments.total
        var samples: [Float] = [], spoken: [SpokenSegment] = []
        while let segment = try segments.next(), let made = try await narration.speak(segment, emit: nil) {
            samples += made.samples
            spoken.append(made.spoken)
        }
        let seed = spoken.count == 1 ? spoken[0].seed : plan.options.noise == nil ? plan.seed : nil
        return Speech(
            samples: samples, sampleRate: plan.manifest.architecture.outputSampleRate, segments: spoken, seed: seed,
            isUnfinished: narration.isUnfinished)
    }

    /// The speech in chunks of `firstChunkPatches`, then `chunkPatches`; up to a second of a pause is part of the next
    /// patch's chunk.
    static func streamed(
        _ plan: Plan, _ loaded: LoadedBundle, to send: @escaping (Chunk) async throws -> Void
    ) async throws {
        var narration = try Narration(plan, loaded), segments = try plan.segments()
        narration.total = segments.total
        let rate = plan.manifest.architecture.outputSampleRate
        var gathered: [Float] = [], patches = 0, wanted = plan.options.firstChunkPatches, offset = 0
        var last: Piece?, words: [TimedWord] = []
        func chunk() -> Chunk { Chunk(gathered, sampleRate: rate, offset: offset, last, words: words) }
        while let segment = try segments.next() {
            let made = try await narration.speak(segment) { piece in
                gathered += piece.samples
                last = piece
                words += piece.words
                patches += piece.isPause ? 0 : 1
                // At another speed the first patch may give no samples yet.
                guard !gathered.isEmpty, patches >= wanted || (piece.isPause && gathered.count >= rate) else { return }
                try await send(chunk())
                offset += gathered.count
                if patches > 0 { wanted = plan.options.chunkPatches }
                (gathered, words, patches) = ([], [], 0)
            }
            guard made != nil else { break }
        }
        if !gathered.isEmpty { try await send(chunk()) }
    }
}
