import Foundation

/// Text-to-speech with a bundle.
///
///     let tts = TextToSpeech(.folder(url), Configuration(predictor: CoreMLPredictor()))
///     let speech = try await tts.speak("The river runs to the sea.")
///
/// Calls may run concurrently; each has its own caches. Cancelling a call's task stops it within one Euler step.
public actor TextToSpeech {
    private let loader: Loader
    private let configuration: Configuration

    /// The bundle is not read before the first call.
    public init(_ source: BundleSource, _ configuration: Configuration) {
        self.configuration = configuration
        loader = Loader(source, configuration)
    }

    /// Verify, compile and load the bundle, predict one patch, and report progress. Other calls load silently.
    ///
    /// Throws `VoxCPMError.bundle` for a missing or altered file, and `VoxCPMError.loading` for a step model that no
    /// compute unit loads. Compiling takes seconds to minutes, once per device.
    public nonisolated func prepare() -> AsyncThrowingStream<Preparation, any Error> {
        let loader = loader
        return Production(capacity: .max) { channel in
            let loaded = try await loader.bundle { if $0 != .ready { channel.put($0) } }
            channel.put(.warmingUp)
            try await loaded.warmUp()
            channel.put(.ready)
        }.stream
    }

    /// Speak a text of any length, in segments. Segments that are suspiciously long or short for their text are
    /// retried.
    ///
    /// - Parameters:
    ///   - voice: nil for the checkpoint's own; then later segments continue the first ones.
    ///
    /// Throws a `VoxCPMError`, and `CancellationError`.
    public nonisolated func speak(
        _ text: String, voice: Voice? = nil, options: Options = Options()
    ) async throws -> Speech {
        try options.check()
        let loaded = try await loader.bundle()
        let plan = try Plan(loaded.bundle.manifest, loaded.tokenizer, text: text, voice: voice, options: options)
        return try await Narration.whole(plan, loaded)
    }

    /// The speech of `speak` in chunks as they are generated, without retries, since played audio cannot be revoked.
    ///
    /// Generation starts with the call, pauses while four chunks are unread, and stops when the stream is dropped or
    /// its reader is cancelled.
    public nonisolated func stream(
        _ text: String, voice: Voice? = nil, options: Options = Options()
    ) -> AsyncThrowingStream<Chunk, any Error> {
        let loader = loader
        return Production(capacity: 4) { channel in
            try options.check()
            let loaded = try await loader.bundle()
            let plan = try Plan(loaded.bundle.manifest, loaded.tokenizer, text: text, voice: voice, options: options)
            try await Narration.streamed(plan, loaded) { try await channel.send($0) }
        }.stream
    }

    /// A session that speaks text as it is written.
    ///
    /// Throws a `VoxCPMError` for a voice of another AudioVAE, or options out of range.
    public nonisolated func session(voice: Voice? = nil, options: Options = Options()) async throws -> Session {
        let loaded = try await loader.bundle()
        let plan = try Plan(loaded.bundle.manifest, loaded.tokenizer, text: nil, voice: voice, options: options)
        return Session(plan, loaded)
    }

    /// Make a voice from recordings; save it with `Voice.write(to:)`.
    ///
    /// - Parameters:
    ///   - name: stored in the voice.
    ///   - prompt: a recording to continue, with a transcript.
    ///   - transcript: of the prompt, word for word.
    ///   - reference: a recording of the voice (VoxCPM2).
    ///   - trimsSilence: whether to cut silence from both ends of the recordings, down to 200 ms.
    ///   - lexicon: what the voice says for words as they are written.
    ///   - provenance: stored in the voice, such as the speaker's consent.
    ///
    /// Throws `VoxCPMError.voice` for recordings that are missing, too short or silent, and `VoxCPMError.unsupported`
    /// for a reference before VoxCPM2.
    public nonisolated func makeVoice(
        name: String = "", prompt: Recording? = nil, transcript: String? = nil, reference: Recording? = nil,
        trimsSilence: Bool = false, lexicon: [String: String] = [:], provenance: [String: String] = [:]
    ) async throws -> Voice {
        guard (prompt == nil) == (transcript == nil) else {
            throw VoxCPMError.voice("a prompt needs both a recording and its transcript")
        }
        guard prompt != nil || reference != nil else {
            throw VoxCPMError.voice("a voice needs a recording: a prompt with its transcript, or a reference")
        }
        if let transcript { try checkText(transcript) }
        let lexicon = try checkedLexicon(lexicon)
        let loaded = try await loader.bundle(), a = loaded.bundle.manifest.architecture
        guard reference == nil || a.generation.takesReference else {
            throw VoxCPMError.unsupported(
                "a reference voice needs VoxCPM2, but this bundle is an earlier VoxCPM; give a prompt")
        }
        let (rate, minimum) = (a.inputSampleRate, a.patchInputSamples)
        let samples = try prompt?.resampled(to: rate, minimum: minimum, trimmed: trimsSilence)
        let referenced = try reference?.resampled(to: rate, minimum: minimum, trimmed: trimsSilence)
        var driver = loaded.driver
        if driver.models[.audioVAEEncoder] == nil {
            let (encoder, _) = try await loadedModel(.audioVAEEncoder, of: loaded.bundle, configuration) { _ in }
            driver.models[.audioVAEEncoder] = encoder
        }
        let none = Rows(width: driver.patchValues)
        var parts: [Rows] = []
        for (recording, side) in [(samples, Padding.left), (referenced, .right)] {
            guard let recording else {
                parts.append(none)
                continue
            }
            let rows = try await driver.encode(recording, padding: side)
            guard rows.values.allSatisfy(\.isFinite) else {
                throw VoxCPMError.prediction(
                    model: StepModelName.audioVAEEncoder.rawValue, reason: "latents of the recording are not finite")
            }
            parts.append(rows)
        }
        var origin = provenance
        if let digest = prompt?.digest { origin["prompt_sha256"] = digest }
        if let digest = reference?.digest { origin["reference_sha256"] = digest }
        return Voice(
            a, name: name, transcript: transcript ?? "", prompt: parts[0], reference: parts[1], lexicon: lexicon,
            provenance: origin)
    }

    /// Agreement of the step models with the bundle's test vectors on this device, to attach to an issue as JSON.
    ///
    /// Throws `VoxCPMError.bundle` if the bundle has no test vectors, or they are damaged.
    public nonisolated func examine() async throws -> [Examination] {
        let loaded = try await loader.bundle()
        var all: [Examination] = []
        for name in loaded.bundle.manifest.names {
            try Task.checkCancellation()
            var (model, unit) = (loaded.driver.models[name], loaded.units[name])
            if model == nil { (model, unit) = try await loadedModel(name, of: loaded.bundle, configuration) { _ in } }
            guard let model, let unit else { continue }
            all.append(try await Examination(name, model, unit, loaded.bundle))
        }
        return all
    }

    /// Free the step models. The next call loads them again; running calls keep theirs.
    public func unload() async { await loader.unload() }
}
