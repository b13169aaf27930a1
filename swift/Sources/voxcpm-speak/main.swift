// Speaks a text into a WAV file: voxcpm-speak BUNDLE --text "…" -o out.wav

import Foundation
import VoxCPM
import VoxCPMCoreAI
import VoxCPMCoreML

private let usage = """
    usage: voxcpm-speak BUNDLE --text TEXT [-o out.wav] [--precision int8] [--voice FILE.voice]
                        [--prompt WAV --prompt-text TEXT] [--reference WAV] [--control TEXT] [--seed N] [--max-len N]

    BUNDLE is a folder, or a hub id (org/name).
    """

/// The parsed command line.
private struct Arguments {
    var bundle = "", text: String?, output = "out.wav", precision: Manifest.Precision?
    var voice: String?, prompt: String?, promptText: String?, reference: String?
    var options = Options()

    init(_ arguments: [String]) throws {
        var rest = arguments[...]
        while let word = rest.popFirst() {
            guard word.hasPrefix("-") else {
                guard bundle.isEmpty else { throw Misuse("expected one bundle, got \(bundle) and \(word)") }
                bundle = word
                continue
            }
            guard let value = rest.popFirst() else { throw Misuse("\(word) needs a value") }
            switch word {
            case "--text", "-t": text = value
            case "--output", "-o": output = value
            case "--voice", "-v": voice = value
            case "--prompt": prompt = value
            case "--prompt-text": promptText = value
            case "--reference": reference = value
            case "--control": options.control = value
            case "--seed": options.seed = try number(word, value)
            case "--max-len": options.maxLen = try number(word, value)
            case "--precision":
                guard let known = Manifest.Precision(rawValue: value) else {
                    throw Misuse("--precision: expected int8, int4, fp16 or fp32, got \(value)")
                }
                precision = known
            default: throw Misuse("unknown option \(word)")
            }
        }
        guard !bundle.isEmpty, text != nil else { throw Misuse("expected a bundle and --text") }
    }
}

private struct Misuse: Error {
    let text: String

    init(_ text: String) { self.text = text }
}

private func number<Number: FixedWidthInteger>(_ option: String, _ value: String) throws -> Number {
    guard let number = Number(value) else { throw Misuse("\(option): expected a whole number, got \(value)") }
    return number
}

private func note(_ text: String) { FileHandle.standardError.write(Data("\(text)\n".utf8)) }

/// The source of a bundle, a folder or a hub id, and a predictor for it. Bundles from a hub are for Core ML.
private func source(_ bundle: String) throws -> (BundleSource, any Predictor) {
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

private func run() async throws {
    let asked = try Arguments(Array(CommandLine.arguments.dropFirst()))
    let (source, predictor) = try source(asked.bundle)
    let tts = VoxCPM(source, Configuration(predictor: predictor, precision: asked.precision))
    for try await step in tts.prepare() {
        switch step {
        case .downloading(let share): note("downloading: \(Int(100 * share)) %")
        case .verifying: continue
        default: note("\(step)")
        }
    }
    var voice = try asked.voice.map { try Voice(contentsOf: URL(fileURLWithPath: $0)) }
    if asked.prompt != nil || asked.reference != nil {
        voice = try await tts.makeVoice(
            prompt: asked.prompt.map { try Recording(wav: URL(fileURLWithPath: $0)) }, transcript: asked.promptText,
            reference: asked.reference.map { try Recording(wav: URL(fileURLWithPath: $0)) })
    }
    let began = Date(), speech = try await tts.speak(asked.text ?? "", voice: voice, options: asked.options)
    let output = URL(fileURLWithPath: asked.output)
    try speech.write(to: output)
    let seconds = String(format: "%.2f s of speech in %.2f s", speech.duration, Date().timeIntervalSince(began))
    print("\(output.path): \(seconds), seed \(speech.seed.map(String.init) ?? "none")")
}

do {
    try await run()
} catch let misuse as Misuse {
    note("error: \(misuse.text)\n\(usage)")
    exit(2)
} catch {
    note("error: \((error as? VoxCPMError)?.description ?? error.localizedDescription)")
    exit(2)
}
