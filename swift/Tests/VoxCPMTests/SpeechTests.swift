import Foundation
import XCTest

@testable import VoxCPM
@testable import VoxCPMCoreML

/// Speech that tests/swift/speech.py recorded, from Python's noise, on the same packages.
final class SpeechTests: XCTestCase {
    func testSpeaksAsPython() async throws {
        let cases = try Recorded.cases("speech").filter { $0.document["segments"] != nil }
        XCTAssertGreaterThan(cases.count, 5)
        for recorded in cases {
            let case_ = try Case(recorded), precision = recorded.string("precision")
            let loaded = try await bundle(recorded, case_.configuration)
            let plan = try Plan(
                loaded.bundle.manifest, loaded.tokenizer, text: recorded.string("text"), voice: case_.voice,
                options: case_.options)
            let made = try await speech(case_.planned, plan, loaded)
            let latents = relativeError(made.latents, try recorded.floats("latents"))
            let samples = relativeError(made.samples, try recorded.floats("samples"))
            print(recorded.name, "latents", latents, "samples", samples)
            let expected = case_.segments
            XCTAssertEqual(made.segments.count, expected.count, recorded.name)
            for (segment, wanted) in zip(made.segments, expected) {
                XCTAssertEqual(segment.text, wanted.text, recorded.name)
                XCTAssertEqual(segment.latents.count, wanted.patches, recorded.name)
                XCTAssertEqual(segment.attempts, wanted.attempts, recorded.name)
                XCTAssertEqual(segment.stopped, wanted.stopped, recorded.name)
                XCTAssertEqual(segment.suspicion?.rawValue ?? "", wanted.reason, recorded.name)
                XCTAssertEqual(segment.sampleCount, wanted.samples, recorded.name)
                XCTAssertEqual(segment.words.map(\.text), wanted.words.map(\.text), recorded.name)
                XCTAssertEqual(segment.words.map(\.method), wanted.words.map(\.method), recorded.name)
                XCTAssertEqual(segment.words.map(\.said), wanted.words.map(\.said), recorded.name)
                XCTAssertEqual(segment.words.map(\.place), wanted.words.map(\.place), recorded.name)
                if precision == "fp32" { XCTAssertLessThan(maxDifference(segment.words, wanted.words), 0.0015) }
                XCTAssertEqual(segment.expectedSeconds ?? -1, wanted.expected ?? -1, accuracy: 1e-9, recorded.name)
            }
            let isBuiltIn = recorded.name.hasPrefix("default_bundle")
            let maxError = try isBuiltIn ? maxErrorOfTrainedWeights : XCTUnwrap(maxErrors[precision])
            XCTAssertLessThan(latents, maxError, recorded.name)
            XCTAssertLessThan(samples, maxError, recorded.name)
        }
    }

    /// Segments and tokens of texts are equal.
    func testPlansAsPython() async throws {
        for recorded in try Recorded.cases("speech") where recorded.document["planned"] != nil {
            let case_ = try Case(recorded)
            let bundle = try OpenBundle(recorded.url("bundle"), precision: case_.configuration.precision)
            let tokenizer = try TextTokenizer(folder: bundle.folder.appendingPathComponent("tokenizer"))
            let plan = try Plan(
                bundle.manifest, tokenizer, text: recorded.string("text"), voice: case_.voice, options: case_.options)
            var segments = try plan.segments(), found: [PlannedSegment] = []
            while let segment = try segments.next() { found.append(segment) }
            XCTAssertEqual(found, case_.planned, recorded.name)
        }
    }

    /// Maximum tokens of a segment, without and with room for a voice to continue, without and with a voice.
    func testRoomForSegmentsIsPythons() throws {
        struct Room: Decodable {
            let ratio: Double
            let longest: [Int]
        }
        var compared = 0
        for recorded in try Recorded.cases("speech") where recorded.name.hasSuffix("-rooms") {
            let case_ = try Case(recorded), document = recorded.document["rooms"] ?? []
            let bundle = try OpenBundle(recorded.url("bundle"), precision: case_.configuration.precision)
            let tokenizer = try TextTokenizer(folder: bundle.folder.appendingPathComponent("tokenizer"))
            let rooms = try JSONDecoder().decode([Room].self, from: JSONSerialization.data(withJSONObject: document))
            for room in rooms {
                var options = Options(), found: [Int] = []
                options.retryBadcaseRatioThreshold = room.ratio
                for voice in [nil, case_.voice] {
                    let plan = try Plan(bundle.manifest, tokenizer, text: "a", voice: voice, options: options)
                    found += [try plan.longestSegment(anchored: false), try plan.longestSegment(anchored: true)]
                }
                XCTAssertEqual(found, room.longest, "\(recorded.name) \(room.ratio)")
                compared += found.count
            }
        }
        XCTAssertGreaterThan(compared, 100)
    }

    func testAControlCannotContinueAPrompt() throws {
        let recorded = try Recorded.first("speech", "-both")
        let case_ = try Case(recorded)
        let bundle = try OpenBundle(recorded.url("bundle"), precision: case_.configuration.precision)
        let tokenizer = try TextTokenizer(folder: bundle.folder.appendingPathComponent("tokenizer"))
        var options = case_.options
        options.control = "warm"
        XCTAssertThrowsError(
            try Plan(bundle.manifest, tokenizer, text: "Hello.", voice: case_.voice, options: options)
        ) { error in
            guard case VoxCPMError.argument(name: "control", _) = error else { return XCTFail("\(error)") }
        }
    }

    /// Streamed samples, in any chunks, equal offline speech bit for bit.
    func testStreamsAreTheWholeSpeech() async throws {
        var segments: [Int] = []
        for recorded in try Recorded.cases("speech") where recorded.name.hasSuffix("-segments") {
            let case_ = try Case(recorded), loaded = try await bundle(recorded, case_.configuration)
            var options = case_.options
            options.retryBadcase = false
            options.noise = nil
            options.seed = 11
            options.maxLen = 60
            let tts = TextToSpeech(.folder(recorded.url("bundle")), case_.configuration)
            let whole = try await tts.speak(recorded.string("text"), voice: case_.voice, options: options)
            options.chunkPatches = 4
            var samples: [Float] = [], words: [TimedWord] = []
            for try await chunk in tts.stream(recorded.string("text"), voice: case_.voice, options: options) {
                XCTAssertEqual(chunk.offset, samples.count)
                XCTAssertEqual(chunk.sampleRate, loaded.driver.architecture.outputSampleRate)
                samples += chunk.samples
                words += chunk.words
            }
            XCTAssertEqual(samples, whole.samples, recorded.name)
            XCTAssertEqual(words, whole.words, recorded.name)
            segments.append(whole.segments.count)
        }
        print("segments", segments)
        XCTAssertGreaterThan(segments.max() ?? 0, 1)
    }

    /// Python's session gives 16-bit samples.
    func testSessionsSpeakAsPython() async throws {
        for recorded in try Recorded.cases("speech") where recorded.name.hasSuffix("-session") {
            let precision = recorded.string("precision")
            guard ["fp16", "fp32"].contains(precision) else { continue }
            let case_ = try Case(recorded)
            let tts = TextToSpeech(.folder(recorded.url("bundle")), case_.configuration)
            let session = try await tts.session(voice: case_.voice, options: case_.options)
            for text in recorded.document["pushed"] as? [String] ?? [] { try session.push(text) }
            try session.finish()
            var samples: [Float] = []
            for try await chunk in session.chunks { samples += chunk.samples.map { min(max($0, -1), 1) } }
            XCTAssertLessThan(relativeError(samples, try recorded.floats("samples")), 0.014, recorded.name)
        }
    }

    /// Resident memory does not grow over VOXCPM_MINUTES (default: 0.5) of speech in a session.
    func testMemoryIsFlat() async throws {
        let recorded = try Recorded.first("speech", "-fp32-session")
        let case_ = try Case(recorded), tts = TextToSpeech(.folder(recorded.url("bundle")), case_.configuration)
        var options = case_.options
        (options.noise, options.seed) = (nil, 1)
        (options.minLen, options.maxLen, options.inferenceTimesteps) = (20, 20, 2)
        let session = try await tts.session(options: options), began = Date()
        let minutes = ProcessInfo.processInfo.environment["VOXCPM_MINUTES"].flatMap(Double.init) ?? 0.5
        let patchSeconds = try OpenBundle(recorded.url("bundle")).manifest.architecture.patchSeconds
        let writer = Task {
            let sentences = Int((60 * minutes / (20 * patchSeconds)).rounded(.up)) + 1
            for _ in 0..<sentences { try session.push("The river runs to the sea. ") }
            try session.finish()
        }
        var seconds = 0.0, resident: [Int] = []
        for try await chunk in session.chunks {
            seconds += Double(chunk.samples.count) / Double(chunk.sampleRate)
            // After 10 seconds, and then each tenth of the time.
            let due = resident.isEmpty ? 10 : Double(resident.count) * 6 * minutes
            if seconds > due { resident.append(residentKilobytes()) }
        }
        try await writer.value
        let elapsed = Date().timeIntervalSince(began)
        print("resident kB over", Int(seconds), "s of speech:", resident, "in", elapsed, "s")
        XCTAssertGreaterThanOrEqual(seconds, 60 * minutes)
        XCTAssertLessThan(residentKilobytes() - (resident.first ?? 0), 8_000)
    }

    private func residentKilobytes() -> Int {
        guard let status = try? String(contentsOfFile: "/proc/self/status", encoding: .utf8),
            let line = status.split(separator: "\n").first(where: { $0.hasPrefix("VmRSS:") })
        else { return 0 }
        return Int(line.filter(\.isNumber)) ?? 0
    }

    /// The step models on the stand-in agree with the bundle's own vectors.
    func testExaminationOfTheBuiltInVoice() async throws {
        var configuration = Configuration(cache: Recorded.cache)
        configuration.verifies = false
        _ = try Recorded.folder("speech")
        let found = try await TextToSpeech(.folder(builtInBundle), configuration).examine()
        XCTAssertEqual(found.count, 6)
        for one in found {
            print(one.model.rawValue, one.streams, one.state ?? "", one.seconds)
            XCTAssertTrue(one.isCorrect, one.model.rawValue)
            let hasState = ![.featEncoder, .locDiTStep].contains(one.model)
            XCTAssertEqual(one.state != nil, hasState)
            XCTAssertEqual(one.streams.keys.contains { $0.hasPrefix("last_") }, one.model.rawValue.contains("lm_"))
        }
    }

    private var loaders: [String: Loader] = [:]

    private func bundle(_ recorded: Recorded, _ configuration: Configuration) async throws -> LoadedBundle {
        let key = recorded.string("bundle") + recorded.string("precision")
        let loader = loaders[key] ?? Loader(.folder(recorded.url("bundle")), configuration)
        loaders[key] = loader
        return try await loader.bundle()
    }

    private func speech(
        _ planned: [PlannedSegment], _ plan: Plan, _ loaded: LoadedBundle
    ) async throws -> (segments: [SpokenSegment], latents: [Float], samples: [Float]) {
        var narration = try Narration(plan, loaded)
        var segments: [SpokenSegment] = [], samples: [Float] = []
        for segment in planned {
            guard let made = try await narration.speak(segment, emit: nil) else { break }
            segments.append(made.spoken)
            samples += made.samples
        }
        return (segments, segments.flatMap(\.latents.values), samples)
    }
}

/// A case of tests/swift/speech.py.
struct Case {
    struct Segment: Decodable {
        let text, reason: String
        let patches, attempts, samples: Int
        let stopped: Bool
        let expected: Double?
        let words: [TimedWord]
    }

    private struct Planned: Decodable {
        let text, said, transcript: String
        let tokens: [Int]
        let transcript_tokens: [Int]
        let target, letters: Int
        let anchors, followed, ends_paragraph: Bool
        let voice: String?
        let speed: Double
        let before: Double?
        let after: Double
    }

    let voice: Voice?
    let options: Options
    let configuration: Configuration
    let segments: [Segment]
    let planned: [PlannedSegment]

    init(_ recorded: Recorded) throws {
        let file = recorded.folder.appendingPathComponent("case.voice")
        voice = recorded.document["voiced"] as? Bool == true ? try Voice(contentsOf: file) : nil
        let precision = Manifest.Precision(rawValue: recorded.string("precision"))
        var configuration = Configuration(precision: precision, cache: Recorded.cache)
        configuration.verifies = false
        self.configuration = configuration
        let named = recorded.folder.appendingPathComponent("ada.voice")
        let ada = try? Voice(contentsOf: named)
        segments = try recorded.decoded("segments", [Segment].self)
        planned = try recorded.decoded("planned", [Planned].self).map {
            PlannedSegment(
                text: $0.text, said: $0.said, transcript: $0.transcript, tokens: $0.tokens,
                transcriptTokens: $0.transcript_tokens, targetTokens: $0.target, letters: $0.letters,
                endsParagraph: $0.ends_paragraph, anchors: $0.anchors, voice: $0.voice == nil ? nil : ada,
                speed: $0.speed, before: $0.before, after: $0.after, followed: $0.followed)
        }
        var options = Options()
        options.findVoice = { name in
            guard name == "ada", let ada else { throw VoxCPMError.voice("no voice \(name)") }
            return ada
        }
        let noise = try recorded.floats("noise")
        if !noise.isEmpty { options.noise = RecordedNoise(noise) }
        for (name, value) in recorded.document["options"] as? [String: Any] ?? [:] {
            let number = value as? NSNumber, double = number?.doubleValue ?? 0, whole = number?.intValue ?? 0
            switch name {
            case "max_len": options.maxLen = whole
            case "min_len": options.minLen = whole
            case "every_word": options.everyWord = whole != 0
            case "retry_badcase": options.retryBadcase = whole != 0
            case "retry_badcase_ratio_threshold": options.retryBadcaseRatioThreshold = double
            case "segment_tokens": options.segmentTokens = whole
            case "speed": options.speed = double
            case "paragraph_pause": options.paragraphPause = double
            case "cfg_value": options.cfgValue = Float(double)
            case "inference_timesteps": options.inferenceTimesteps = whole
            case "temperature": options.temperature = Float(double)
            case "use_cfg_zero_star": options.useCfgZeroStar = whole != 0
            case "sway_sampling_coef": options.swaySamplingCoef = Float(double)
            case "control": options.control = value as? String
            case "markup": options.markup = whole != 0
            case "lexicon": options.lexicon = value as? [String: String] ?? [:]
            case "normalize": options.normalize = whole != 0
            case "seed": options.seed = number?.uint64Value
            default: XCTFail("unknown option \(name)")
            }
        }
        self.options = options
    }
}

/// Python's recorded noise; drawing more is an error.
struct RecordedNoise: NoiseSource {
    private var numbers: ArraySlice<Float>

    init(_ numbers: [Float]) { self.numbers = numbers[...] }

    mutating func standardNormal(_ count: Int) -> [Float] {
        defer { numbers = numbers.dropFirst(count) }
        return Array(numbers.prefix(count))
    }
}
