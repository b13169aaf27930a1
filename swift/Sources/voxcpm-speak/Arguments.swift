import Foundation
import VoxCPM

let usage = """
    usage: voxcpm-speak [BUNDLE] --text TEXT [-o WAV] [--play]
           voxcpm-speak [BUNDLE] --examine
           voxcpm-speak [BUNDLE] --benchmark [--text TEXT]

    BUNDLE is a folder or a hub id (org/name); without it, the built-in voice speaks.

      -t, --text TEXT      what to say
      -o, --output WAV     the file to write: out.wav, or none with --play
      --play               play the speech while it is generated
      --examine            print how the models agree with the bundle's test vectors, as JSON; exit code 1 if they do not
      --benchmark          print times and peak memory, as JSON
      --precision NAME     int8, int4, fp16 or fp32; without it, the bundle's smallest
      -v, --voice FILE     a .voice file
      --prompt WAV         a recording to continue, with --prompt-text TEXT, its transcript
      --reference WAV      a recording of the voice (VoxCPM2)
      --control TEXT       a voice or style in words (VoxCPM2)
      --markup             read [pause 0.5s], [voice NAME], [rate 1.2], [spell] and SSML; NAME is built in
      --speed X            how many times faster to speak, 0.25 to 4
      --lexicon FILE       lines of a word, a tab, and what is said for it
      --seed N             the same seed gives the same speech
      --max-len N          maximum number of patches
      -h, --help           print this
    """

/// The parsed command line.
struct Arguments {
    enum Task { case speak, examine, benchmark, help }

    var task = Task.speak, bundle: String?, text: String?, output: String?, plays = false
    var precision: Manifest.Precision?
    var voice: String?, prompt: String?, promptText: String?, reference: String?
    var options = Options()

    init(_ arguments: [String]) throws {
        var rest = arguments[...]
        while let word = rest.popFirst() {
            switch word {
            case "--help", "-h": task = .help
            case "--examine": task = .examine
            case "--benchmark": task = .benchmark
            case "--play": plays = true
            case "--markup": options.markup = true
            case _ where !word.hasPrefix("-"):
                if let bundle { throw Misuse("expected one bundle, got \(bundle) and \(word)") }
                bundle = word
            default:
                guard let value = rest.popFirst() else { throw Misuse("\(word) needs a value, or is unknown") }
                try set(word, value)
            }
            if task == .help { return }
        }
        guard task != .speak || text != nil else { throw Misuse("expected --text, --examine or --benchmark") }
    }

    private mutating func set(_ word: String, _ value: String) throws {
        switch word {
        case "--text", "-t": text = value
        case "--output", "-o": output = value
        case "--voice", "-v": voice = value
        case "--prompt": prompt = value
        case "--prompt-text": promptText = value
        case "--reference": reference = value
        case "--control": options.control = value
        case "--lexicon": options.lexicon.merge(try lexiconEntries(contentsOf: URL(fileURLWithPath: value))) { $1 }
        case "--seed": options.seed = try number(word, value)
        case "--speed": options.speed = try number(word, value)
        case "--max-len": options.maxLen = try number(word, value)
        case "--precision":
            guard let known = Manifest.Precision(rawValue: value) else {
                throw Misuse("--precision: expected int8, int4, fp16 or fp32, got \(value)")
            }
            precision = known
        default: throw Misuse("unknown option \(word)")
        }
    }
}

struct Misuse: Error {
    let text: String

    init(_ text: String) { self.text = text }
}

private func number<Number: LosslessStringConvertible>(_ option: String, _ value: String) throws -> Number {
    guard let number = Number(value) else { throw Misuse("\(option): expected \(Number.self == Double.self ? "a" : "a whole") number, got \(value)") }
    return number
}
