import Foundation
import XCTest

@testable import VoxCPM
import VoxCPMCoreML

/// The actor with a fake predictor: loading, cancellation, errors, memory.
final class ActorTests: XCTestCase {
    private let text = "the river runs to the sea"

    private func tts(_ predictor: FakePredictor, _ change: (inout Configuration) -> Void = { _ in }) -> TextToSpeech {
        var configuration = Configuration(predictor: predictor)
        configuration.memoryLimit = 1 << 40
        configuration.verifies = false
        configuration.verified = FileManager.default.temporaryDirectory.appendingPathComponent(UUID().uuidString)
        change(&configuration)
        return TextToSpeech(.folder(builtInBundle), configuration)
    }

    private func options(_ patches: Int) -> Options {
        var options = Options()
        options.maxLen = patches
        options.minLen = patches
        options.retryBadcase = false
        options.seed = 1
        return options
    }

    func testPreparationReportsProgress() async throws {
        let predictor = FakePredictor(refused: [.cpuAndGPU])
        let tts = tts(predictor) { $0.verifies = true }
        var events: [Preparation] = []
        for try await event in tts.prepare() { events.append(event) }
        XCTAssertEqual(events.suffix(2), [.warmingUp, .ready])
        XCTAssertTrue(events.contains(.verifying(1)))
        XCTAssertGreaterThan(predictor.calls, 10, "one patch")
        for name in StepModelName.allCases where name != .locDiTSolve {
            XCTAssertTrue(events.contains(.compiling(name)))
            XCTAssertTrue(events.contains(.fellBack(name, .cpuAndGPU, reason: "not on cpuAndGPU")))
        }
        let loads = predictor.loaded.count
        _ = try await tts.speak(text, options: options(3))
        XCTAssertEqual(predictor.loaded.count, loads, "loaded once")
        await tts.unload()
        _ = try await tts.speak(text, options: options(3))
        XCTAssertEqual(predictor.loaded.count, 2 * loads, "loaded again")
    }

    /// Seconds of a patch besides the step models, printed for tests/swift/test_swift_package.py.
    func testTimeOfTheLoop() async throws {
        let tts = tts(FakePredictor(stops: false)), text = text
        _ = try await tts.speak(text, options: options(10))
        var seconds: [Double] = []
        for _ in 0..<5 {
            let began = Date()
            _ = try await tts.speak(text, options: options(200))
            seconds.append(Date().timeIntervalSince(began) / 200)
        }
        print("loop", seconds.sorted()[2])
    }

    func testARefusedModelIsAnError() async throws {
        let tts = tts(FakePredictor(refused: Set(ComputeUnit.allCases)))
        do {
            _ = try await tts.speak(text)
            XCTFail("it spoke")
        } catch VoxCPMError.loading(let model, let reason) {
            XCTAssertEqual(model, "audio_vae_encoder")
            XCTAssertEqual(reason, "cpuAndGPU: not on cpuAndGPU; cpu: not on cpu")
        }
    }

    func testArgumentsThatDoNotFitTheBundle() async throws {
        let tts = tts(FakePredictor()), text = text, few = options(3)
        let sound = try Recording(samples: (0..<24000).map { sin(Float($0)) / 2 }, sampleRate: 24000)
        let prompt = Rows(width: 8, values: [Float](repeating: 0.5, count: 16))
        let foreign = Voice(
            name: "a", generation: "voxcpm", latentSpace: "0", sampleRate: 16000,
            turns: [.init(text: "b ", patches: 2)], patchShape: [2, 4], prompt: prompt, reference: Rows(width: 8))
        func expects(
            _ what: String, _ call: () async throws -> Void, _ isExpected: (VoxCPMError) -> Bool
        ) async {
            do {
                try await call()
                XCTFail("\(what): no error")
            } catch {
                XCTAssertTrue((error as? VoxCPMError).map(isExpected) ?? false, "\(what): \(error)")
            }
        }
        func isVoice(_ error: VoxCPMError) -> Bool { if case .voice = error { true } else { false } }
        func isText(_ error: VoxCPMError) -> Bool { if case .text = error { true } else { false } }
        func isUnsupported(_ error: VoxCPMError) -> Bool { if case .unsupported = error { true } else { false } }
        await expects("foreign voice", { _ = try await tts.speak(text, voice: foreign, options: few) }, isVoice)
        await expects("foreign voice", { _ = try await tts.session(voice: foreign) }, isVoice)
        await expects("prompt alone", { _ = try await tts.makeVoice(prompt: sound) }, isVoice)
        await expects("reference", { _ = try await tts.makeVoice(reference: sound) }, isUnsupported)
        var strict = few
        strict.strict = true
        await expects("blank", { _ = try await tts.speak(" \n") }, isText)
        await expects("Cyrillic", { [strict] in _ = try await tts.speak("Привет", options: strict) }, isText)
        let spoken = try await tts.speak("Say Привет.", options: few)
        XCTAssertEqual(spoken.replaced, "привет")
        var styled = few
        styled.control = "warm"
        await expects("control", { [styled] in _ = try await tts.speak(text, options: styled) }, isUnsupported)
    }

    func testNaNFromAnyModelIsAnError() async throws {
        for name in StepModelName.allCases where ![.locDiTSolve, .audioVAEEncoder].contains(name) {
            let tts = tts(FakePredictor(broken: name.rawValue))
            do {
                _ = try await tts.speak(text, options: options(5))
                // The fake DiT ignores its condition.
                XCTAssertTrue([.featEncoder, .baseLMStep, .residualLMStep].contains(name), name.rawValue)
            } catch VoxCPMError.notFinite {
                XCTAssertEqual(name, .locDiTStep)
            } catch VoxCPMError.prediction(let model, _) {
                XCTAssertEqual(model, name.rawValue)
                XCTAssertEqual(name, .audioVAEDecoder)
            }
        }
        let tts = tts(FakePredictor(broken: "audio_vae_encoder"))
        let noise = (0..<24000).map { sin(Float($0)) / 2 }
        do {
            _ = try await tts.makeVoice(prompt: Recording(samples: noise, sampleRate: 24000), transcript: "a b c")
            XCTFail("it made a voice")
        } catch VoxCPMError.prediction {}
    }

    func testMissingAndAlteredFiles() async throws {
        let files = FileManager.default
        let folder = files.temporaryDirectory.appendingPathComponent(UUID().uuidString)
        try files.copyItem(at: builtInBundle, to: folder)
        defer { try? files.removeItem(at: folder) }
        var configuration = Configuration(predictor: FakePredictor())
        configuration.verified = folder.appendingPathComponent("verified")
        func prepared() async throws -> [Preparation] {
            var events: [Preparation] = []
            for try await event in TextToSpeech(.folder(folder), configuration).prepare() { events.append(event) }
            return events
        }
        let isVerified = { (event: Preparation) in if case .verifying = event { true } else { false } }
        let first = try await prepared(), second = try await prepared()
        XCTAssertTrue(first.contains(where: isVerified))
        XCTAssertFalse(second.contains(where: isVerified), "verified once")
        func expectsBundleError(_ name: String) async {
            do {
                let tts = TextToSpeech(.folder(folder), configuration)
                _ = try await tts.speak(text, options: options(3))
                XCTFail("\(name): it spoke")
            } catch VoxCPMError.bundle {} catch { XCTFail("\(name): \(error)") }
        }
        let paths = ["constants/embed_tokens.npy", "tokenizer/tokenizer.json", "manifest.json"]
        for path in paths {
            let file = folder.appendingPathComponent(path), good = try Data(contentsOf: file)
            var altered = good
            altered[good.count / 2] ^= 1
            for content in [altered, good.dropLast(7), Data()] {
                try content.write(to: file)
                await expectsBundleError(path)
            }
            try files.removeItem(at: file)
            await expectsBundleError(path)
            try good.write(to: file)
        }
        _ = try await TextToSpeech(.folder(folder), configuration).speak(text, options: options(3))
    }

    func testSpeechInTheBackgroundLeavesOutTheGPU() async throws {
        let found = try await tts(FakePredictor(refused: [.cpuAndGPU])) { $0.speaksInBackground = true }.examine()
        XCTAssertEqual(Set(found.map(\.unit)), [.cpu])
        var configuration = Configuration(predictor: CoreMLPredictor())
        configuration.speaksInBackground = true
        configuration.computeUnits = [.residualLMStep: [.cpuAndGPU]]
        for name in StepModelName.allCases {
            XCTAssertFalse(configuration.units(for: name).contains(.cpuAndGPU))
            XCTAssertEqual(configuration.units(for: name).last, .cpu)
        }
    }

    func testCancellationAtAnyCall() async throws {
        // The number of calls in one speech.
        let whole = FakePredictor()
        _ = try await tts(whole).speak(text, options: options(4))
        let calls = whole.calls
        XCTAssertGreaterThan(calls, 20)
        for number in 1...calls {
            let holder = Holder()
            let predictor = FakePredictor { if $0 == number { await holder.cancel() } }
            let tts = tts(predictor), text = text, options = options(4)
            let task = Task { try await tts.speak(text, options: options) }
            await holder.hold(task)
            do {
                _ = try await task.value
                // The last call has no check after it.
                XCTAssertEqual(number, calls)
            } catch is CancellationError {}
            // A patch is decoded while the next one is predicted.
            XCTAssertLessThanOrEqual(predictor.calls, number + 2, "after call \(number)")
            XCTAssertEqual(predictor.running, 0)
        }
    }

    func testCancellationWhileLoading() async throws {
        let predictor = FakePredictor { if $0 == -1 { try await Task.sleep(nanoseconds: 50_000_000) } }
        let tts = tts(predictor), text = text, options = options(3)
        let first = Task { try await tts.speak(text, options: options) }
        let second = Task { try await tts.speak(text, options: options) }
        try await Task.sleep(nanoseconds: 60_000_000)
        first.cancel()
        do {
            _ = try await first.value
            XCTFail("it was not cancelled")
        } catch is CancellationError {}
        XCTAssertLessThan(predictor.loaded.count, 6, "the first one returned while the other one waits")
        let speech = try await second.value
        XCTAssertEqual(speech.segments.count, 1)
        XCTAssertEqual(predictor.loaded.count, 6)
        await tts.unload()
        let third = Task { try await tts.speak(text, options: options) }
        try await Task.sleep(nanoseconds: 60_000_000)
        third.cancel()
        _ = try await tts.speak(text, options: options)
    }

    func testConcurrentCallsEqualSequentialOnes() async throws {
        let tts = tts(FakePredictor()), text = text, options = options(6)
        let alone = try await tts.speak(text, options: options)
        async let first = tts.speak(text, options: options)
        async let second = tts.speak(text, options: options)
        let both = try await [first.samples, second.samples]
        XCTAssertEqual(both, [alone.samples, alone.samples])
    }

    func testADroppedStreamEnds() async throws {
        let predictor = FakePredictor(stops: false), tts = tts(predictor)
        var options = options(400)
        options.chunkPatches = 1
        do {
            for try await chunk in tts.stream(text, options: options) {
                XCTAssertEqual(chunk.offset, 0)
                break
            }
        }
        let calls = try await callsAtRest(predictor)
        XCTAssertLessThan(calls, 400)
        XCTAssertEqual(predictor.running, 0)
    }

    /// The number of a predictor's calls, once it no longer changes.
    private func callsAtRest(_ predictor: FakePredictor) async throws -> Int {
        var calls = -1
        while calls < 1 || predictor.calls != calls {
            calls = predictor.calls
            try await Task.sleep(nanoseconds: 500_000_000)
        }
        return calls
    }

    func testTheStopHeadIsReadAfterMinLen() async throws {
        var options = Options()
        // The predictor's attention follows nothing: the stop head waits for the last word, as long as it may.
        let waiting = try await tts(FakePredictor()).speak(text, options: options)
        XCTAssertEqual(waiting.latents.count, 14)
        XCTAssertFalse(waiting.unsaid.isEmpty)
        options.everyWord = false
        for minLen in [0, 4] {
            options.minLen = minLen
            let speech = try await tts(FakePredictor()).speak(text, options: options)
            XCTAssertEqual(speech.latents.count, minLen + 2)
            XCTAssertTrue(speech.stopped)
        }
    }

    func testRetriesUseTheNextSeedAndStreamsReportSuspicion() async throws {
        let tts = tts(FakePredictor(stops: false))
        var options = Options()
        options.seed = 7
        let spoken = try await tts.speak(text, options: options).segments[0]
        XCTAssertEqual(spoken.attempts, 3)
        XCTAssertEqual(spoken.seed, 9)
        XCTAssertEqual(spoken.suspicion, .long)
        var suspicions: [Suspicion?] = []
        let progress = try await progress(of: text, tts, options)
        XCTAssertEqual(progress.last?.attempt, 3)
        XCTAssertEqual(progress.last?.segments, 1)
        XCTAssertEqual(progress.prefix { $0.attempt == 1 }.map(\.patches), Array(1...spoken.latents.count))
        for try await chunk in tts.stream(text, options: options) { suspicions.append(chunk.suspicion) }
        XCTAssertEqual(suspicions.first, .some(nil))
        XCTAssertEqual(suspicions.last, .some(.long))
    }

    private func progress(of text: String, _ tts: TextToSpeech, _ options: Options) async throws -> [SpeechProgress] {
        let reports = Channel<SpeechProgress>()
        var options = options, progress: [SpeechProgress] = []
        options.onProgress = { reports.put($0) }
        _ = try await tts.speak(text, options: options)
        reports.finish()
        while let report = try await reports.next() { progress.append(report) }
        return progress
    }

    func testPausesBetweenParagraphs() async throws {
        let tts = tts(FakePredictor()), text = "The river runs to the sea.\n\nThe sea is far."
        var options = Options()
        (options.seed, options.segmentTokens, options.paragraphPause) = (1, 30, 0.5)
        let whole = try await tts.speak(text, options: options)
        XCTAssertEqual(whole.segments.map(\.endsParagraph), [true, false])
        let spoken = whole.segments.reduce(0) { $0 + $1.sampleCount }
        XCTAssertEqual(whole.samples.count, spoken + whole.sampleRate / 2)
        let progress = try await progress(of: text, tts, options)
        XCTAssertEqual(progress.last?.audioSeconds ?? 0, Double(spoken) / Double(whole.sampleRate), accuracy: 1e-9)
        let first = progress.filter { $0.attempt == 1 }.map(\.patches)
        XCTAssertEqual(first, whole.segments.flatMap { Array(1...$0.latents.count) })
        XCTAssertEqual(progress.last?.segments, 2)
        var samples: [Float] = []
        for try await chunk in tts.stream(text, options: options) { samples += chunk.samples }
        XCTAssertEqual(samples.count, whole.samples.count)
    }

    func testAStreamWaitsForItsReader() async throws {
        let predictor = FakePredictor(stops: false), tts = tts(predictor)
        var options = options(300)
        options.chunkPatches = 1
        let stream = tts.stream(text, options: options)
        let calls = try await callsAtRest(predictor)
        XCTAssertLessThan(calls, 300, "it waits")
        var samples: [Float] = []
        for try await chunk in stream {
            XCTAssertEqual(chunk.offset, samples.count)
            samples += chunk.samples
        }
        let whole = try await tts.speak(text, options: options)
        XCTAssertEqual(samples, whole.samples)
    }

    func testTightMemory() async throws {
        let predictor = FakePredictor(), tts = tts(predictor) { $0.memoryLimit = 1000 }
        _ = try await tts.speak(text, options: options(3))
        XCTAssertFalse(predictor.loaded.contains("audio_vae_encoder"))
        XCTAssertGreaterThanOrEqual(predictor.unloadedPrefill, 2)
        let sound = try Recording(samples: (0..<24000).map { sin(Float($0)) / 2 }, sampleRate: 24000)
        let voice = try await tts.makeVoice(name: "a", prompt: sound, transcript: "a b c")
        XCTAssertGreaterThan(voice.prompt.count, 3)
        XCTAssertTrue(predictor.loaded.contains("audio_vae_encoder"))
        _ = try await tts.speak(text, voice: Voice(data: voice.data), options: options(3))
    }

    func testSessionSpeaksWhatIsPushed() async throws {
        let tts = tts(FakePredictor())
        var options = Options()
        options.seed = 3
        let session = try await tts.session(options: options)
        try session.push("The river runs. The sea is ")
        try session.push("far. And")
        try session.finish()
        XCTAssertThrowsError(try session.push("more"))
        var texts: [String] = [], offset = 0
        for try await chunk in session.chunks {
            XCTAssertEqual(chunk.offset, offset)
            offset += chunk.samples.count
            if texts.last != chunk.text { texts.append(chunk.text) }
        }
        XCTAssertEqual(texts, ["The river runs.", "The sea is far.", "And"])
        let cancelled = try await tts.session()
        try cancelled.push("The river runs. The sea.")
        cancelled.cancel()
        XCTAssertThrowsError(try cancelled.push("more")) { XCTAssertEqual($0 as? VoxCPMError, .closed) }
        do {
            for try await _ in cancelled.chunks { XCTFail("it speaks") }
            XCTFail("it ended")
        } catch is CancellationError {}
    }

    func testExamination() async throws {
        let found = try await tts(FakePredictor()).examine()
        XCTAssertEqual(found.count, 6)
        XCTAssertFalse(found.contains(where: \.isCorrect))
        _ = try JSONEncoder().encode(found)
    }
}

/// A task that is cancelled by one of its own calls.
private actor Holder {
    private var task: Task<Speech, any Error>?
    private var isCancelled = false

    func hold(_ task: Task<Speech, any Error>) {
        self.task = task
        if isCancelled { task.cancel() }
    }

    func cancel() {
        isCancelled = true
        task?.cancel()
    }
}
