// Speaks a text: voxcpm-speak --help

import Foundation
import VoxCPM
import VoxCPMBuiltInVoice
import VoxCPMCoreAI
import VoxCPMCoreML
import VoxCPMPlayback

private func note(_ text: String) { FileHandle.standardError.write(Data("\(text)\n".utf8)) }

/// The source of a bundle, a folder or a hub id, and a predictor for it. Bundles from a hub are for Core ML.
private func source(_ bundle: String?) throws -> (BundleSource, any Predictor) {
    guard let bundle else { return (.builtInVoice, CoreMLPredictor()) }
    let folder = URL(fileURLWithPath: bundle)
    if !FileManager.default.fileExists(atPath: folder.path), bundle.split(separator: "/").count == 2 {
        return (.hub(bundle), CoreMLPredictor())
    }
    guard try OpenBundle(folder).manifest.target == .macOS27 else { return (.folder(folder), CoreMLPredictor()) }
    #if canImport(CoreAI)
    if #available(macOS 27, iOS 27, *) { return (.folder(folder), CoreAIPredictor()) }
    #endif
    throw VoxCPMError.unsupported("this bundle is for macOS 27; convert with --target macos14 or macos15")
}

/// Load the bundle, and say what takes how long.
private func prepare(_ tts: TextToSpeech) async throws {
    var shown = ""
    for try await step in tts.prepare() {
        let line = switch step {
        case .downloading(let share): "downloading: \(10 * Int(10 * share)) %"
        case .verifying(let share): "verifying: \(10 * Int(10 * share)) %"
        case .compiling(let model): "loading \(model.rawValue), for seconds to minutes the first time"
        case .fellBack(let model, let unit, let reason): "\(model.rawValue) does not load on \(unit.rawValue): \(reason)"
        case .warmingUp: "predicting a first patch"
        case .ready: ""
        }
        if line != shown, !line.isEmpty { note(line) }
        shown = line
    }
}

private func printJSON(_ value: some Encodable) throws {
    let encoder = JSONEncoder()
    encoder.outputFormatting = [.prettyPrinted, .sortedKeys]
    print(String(decoding: try encoder.encode(value), as: UTF8.self))
}

private func seconds(since began: ContinuousClock.Instant) -> Double { began.duration(to: .now) / .seconds(1) }

@MainActor
private func play(_ chunks: AsyncThrowingStream<Chunk, any Error>, _ output: String?) async throws {
    var samples: [Float] = [], sampleRate = 1
    try await SpeechPlayer().play(chunks) {
        samples += $0.samples
        sampleRate = $0.sampleRate
    }
    if let output { try wavFile(samples, sampleRate: sampleRate).write(to: URL(fileURLWithPath: output)) }
}

private struct Benchmark: Encodable {
    var prepareSeconds = 0.0, firstAudioSeconds = 0.0, audioSeconds = 0.0, realTimeFactor = 0.0, patchesPerSecond = 0.0
    var peakMemoryBytes = 0

    /// Speak as a stream, which is not retried.
    init(_ tts: TextToSpeech, prepared: Double, _ text: String, _ voice: Voice?, _ options: Options) async throws {
        prepareSeconds = prepared
        var options = options, patches = 0, samples = 0
        options.chunkPatches = 1
        let began = ContinuousClock.now
        for try await chunk in tts.stream(text, voice: voice, options: options) {
            if samples == 0 { firstAudioSeconds = seconds(since: began) }
            samples += chunk.samples.count
            patches += 1
            audioSeconds = Double(samples) / Double(chunk.sampleRate)
        }
        let elapsed = seconds(since: began)
        (realTimeFactor, patchesPerSecond) = (elapsed / audioSeconds, Double(patches) / elapsed)
        var used = rusage()
        getrusage(0, &used)  // RUSAGE_SELF, whose type differs between systems
        #if os(Linux)
        peakMemoryBytes = used.ru_maxrss * 1024
        #else
        peakMemoryBytes = used.ru_maxrss
        #endif
    }
}

private func run(_ asked: Arguments) async throws {
    let (source, predictor) = try source(asked.bundle), began = ContinuousClock.now
    let tts = TextToSpeech(source, Configuration(predictor: predictor, precision: asked.precision))
    try await prepare(tts)
    let prepared = seconds(since: began)
    if asked.task == .examine {
        let found = try await tts.examine()
        try printJSON(found)
        if !found.allSatisfy(\.isCorrect) { exit(1) }
        return
    }
    var voice = try asked.voice.map { try Voice(contentsOf: URL(fileURLWithPath: $0)) }
    if voice == nil, asked.bundle == nil { voice = try .builtIn() }
    if asked.prompt != nil || asked.reference != nil {
        voice = try await tts.makeVoice(
            prompt: asked.prompt.map { try Recording(contentsOf: URL(fileURLWithPath: $0)) },
            transcript: asked.promptText,
            reference: asked.reference.map { try Recording(contentsOf: URL(fileURLWithPath: $0)) })
    }
    let text = asked.text ?? "The river runs to the sea, and the sea is wide and deep and cold."
    if asked.task == .benchmark {
        return try printJSON(await Benchmark(tts, prepared: prepared, text, voice, asked.options))
    }
    if asked.plays {
        return try await play(tts.stream(text, voice: voice, options: asked.options), asked.output)
    }
    let spoken = ContinuousClock.now, speech = try await tts.speak(text, voice: voice, options: asked.options)
    let output = URL(fileURLWithPath: asked.output ?? "out.wav")
    try speech.write(to: output)
    let times = String(format: "%.2f s of speech in %.2f s", speech.duration, seconds(since: spoken))
    print("\(output.path): \(times), seed \(speech.seed.map(String.init) ?? "none")")
}

do {
    var asked = try Arguments(Array(CommandLine.arguments.dropFirst()))
    asked.options.findVoice = { try .builtIn($0) }
    if asked.task == .help { print(usage) } else { try await run(asked) }
} catch let misuse as Misuse {
    note("error: \(misuse.text)\n\(usage)")
    exit(2)
} catch {
    note("error: \((error as? VoxCPMError)?.description ?? error.localizedDescription)")
    exit(2)
}
