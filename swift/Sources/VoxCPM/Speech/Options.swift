import Foundation

/// Options of one speech; names and defaults are those of Python's `GenerationOptions`.
public struct Options: Sendable {
    /// Strength of classifier-free guidance, 0 to 10; 1 disables it.
    public var cfgValue: Float = 2
    /// Euler steps for each patch, 1 to 200; with CFG-zero* the first 4 % have zero velocity.
    public var inferenceTimesteps = 10
    /// Standard deviation of the initial noise of a patch, 0 to 10.
    public var temperature: Float = 1
    /// How much denser the Euler steps are near the noise, -1 to 1.75; 0 means evenly spaced.
    public var swaySamplingCoef: Float = 1
    /// CFG-zero*: zero velocity in the first steps, and projected guidance (arXiv 2503.18886).
    public var useCfgZeroStar = true
    /// Minimum length: each segment has at least `minLen` + 2 patches, 0 to 100,000.
    public var minLen = 2
    /// Maximum number of patches of the whole speech, in a session of each segment, 1 to 100,000; nil for no limit.
    public var maxLen: Int?
    /// Whether `speak` retries with the next seed if the speech is suspiciously long or short for its text.
    public var retryBadcase = true
    /// Maximum number of attempts, 0 to 100; 0 means 1.
    public var retryBadcaseMaxTimes = 3
    /// Patches per text token from which speech is suspicious, if this is not 6 or the checkpoint has no `speech.json`;
    /// it also limits the length. 0.1 to 1000.
    public var retryBadcaseRatioThreshold = 6.0
    /// Whether speech does not stop before the last word, and skipped or repeated words are repaired: with bundles that
    /// have alignment heads.
    public var everyWord = true
    /// Maximum number of text tokens per segment, 8 to 100,000; nil for what the checkpoint was made for.
    public var segmentTokens: Int?
    /// How many times faster to speak, without changing the pitch, 0.25 to 4; pauses become shorter, too.
    public var speed = 1.0
    /// Silence between the paragraphs of a text that is spoken in segments, 0 to 60 seconds.
    public var paragraphPause = 0.6
    /// Voice or style in words, such as "warm, slow" (VoxCPM2).
    public var control: String?
    /// Read [pause 0.5s], [voice NAME], [rate 1.2], [spell] and SSML in the text; not in sessions.
    public var markup = false
    /// The voice of a name in markup. Nil knows `default` only, the voice of the call.
    public var findVoice: (@Sendable (String) throws -> Voice)?
    /// What is said for words as they are written, such as names, in addition to the voice's own.
    public var lexicon: [String: String] = [:]
    /// Write numbers, dates and symbols of English text in words; the built-in voice always does.
    public var normalize = false
    /// Whether characters that the voice cannot say are an error, instead of being transliterated or left out.
    public var strict = false
    /// The seed of the first attempt; nil for a random one. Python draws the same noise from it.
    public var seed: UInt64?
    /// A noise source instead of a seed, for all attempts and segments.
    public var noise: (any NoiseSource)?
    /// Patches per streamed chunk, from 1.
    public var chunkPatches = 5
    /// Patches in the first chunk, from 1; fewer start sooner.
    public var firstChunkPatches = 1
    /// Called after each patch.
    public var onProgress: (@Sendable (SpeechProgress) -> Void)?

    /// The defaults.
    public init() {}

    /// Upstream's default of `maxLen` for a segment.
    static let defaultMaxLen = 4096
    static let upstreamRatio = 6.0
    static let speeds = 0.25...4.0

    /// Patches of the shortest segment: upstream first reads the stop head at index `minLen` + 1.
    var minPatches: Int { min(minLen + 2, maxLen ?? minLen + 2) }

    /// Throws `VoxCPMError.argument` for a value out of range.
    func check() throws {
        try Self.check("cfgValue", cfgValue, 0...10)
        try Self.check("inferenceTimesteps", inferenceTimesteps, 1...200)
        try Self.check("temperature", temperature, 0...10)
        // Beyond these bounds time would run backwards somewhere.
        try Self.check("swaySamplingCoef", swaySamplingCoef, -1...1.75)
        try Self.check("minLen", minLen, 0...100_000)
        if let maxLen {
            try Self.check("maxLen", maxLen, 1...100_000)
            guard maxLen >= minLen else {
                throw VoxCPMError.argument(name: "maxLen", problem: "\(maxLen) is less than minLen (\(minLen))")
            }
        }
        try Self.check("retryBadcaseMaxTimes", retryBadcaseMaxTimes, 0...100)
        try Self.check("retryBadcaseRatioThreshold", retryBadcaseRatioThreshold, 0.1...1000)
        if let segmentTokens { try Self.check("segmentTokens", segmentTokens, 8...100_000) }
        try Self.check("speed", speed, Self.speeds)
        try Self.check("paragraphPause", paragraphPause, 0...60)
        try Self.check("chunkPatches", chunkPatches, 1...100_000)
        try Self.check("firstChunkPatches", firstChunkPatches, 1...100_000)
        guard seed == nil || noise == nil else {
            throw VoxCPMError.argument(name: "seed", problem: "give a seed or a noise source, not both")
        }
    }

    private static func check<Number: Comparable & Sendable>(
        _ name: String, _ value: Number, _ range: ClosedRange<Number>
    ) throws {
        guard range.contains(value) else {
            throw VoxCPMError.argument(
                name: name, problem: "expected \(range.lowerBound) to \(range.upperBound), got \(value)")
        }
    }
}
