// How long speech may be, given the room in the KV cache, and how long it should be for its text, as in
// runtime/voxcpm_runtime/speech/expected_length.py.
//
// With a speech.json (`SpeechProfile`) the expected duration follows from the number of letters and the voice's pace.
// Without one upstream's rule applies: speech is too long from a number of patches per text token on.

import Foundation

/// Why speech is suspicious.
public enum Suspicion: String, Sendable, Codable {
    /// Too long for its text: repetition, or endless noise.
    case long
    /// Too short for its text: words are missing.
    case short
    /// Cut off because the KV cache is full.
    case cut
}

/// The expected length of an utterance.
struct ExpectedLength: Sendable, Equatable {
    /// Nil without a speech.json.
    var seconds: Double?
    var patchSeconds: Double
    /// Patches from which the speech is suspiciously long.
    var longFrom: Double
    /// Patches below which stopped speech is suspiciously short.
    var shortBelow = 0.0
    /// Patches at which a hopeless attempt is cut off.
    var maximum = Double.infinity

    func suspicion(_ patches: Int, stopped: Bool) -> Suspicion? {
        if Double(patches) >= longFrom { return .long }
        return stopped && Double(patches) < shortBelow ? .short : nil
    }

    /// A sort key for bad attempts; equal for all without an expected length.
    ///
    /// Speech that the stop head has not ended is the worst, as its real length is unknown.
    func badness(_ patches: Int, stopped: Bool) -> (Int, Double) {
        guard let seconds else { return (0, 0) }
        return (stopped ? 0 : 1, abs(log(Double(patches) * patchSeconds / seconds)))
    }

    // Shares of the expected duration at which speech is suspicious, and at which an attempt is hopeless.
    private static let long = 1.4, short = 0.6, ended = 2.0
    /// Tolerance in seconds for any text: a word or two may be said slowly.
    private static let more = 0.8
    /// Speech is too long from `minLen` + 3 patches at the earliest; the shortest has `minLen` + 2.
    private static let moreThanMinLen = 3

    /// By a speech.json, for a number of letters. pace: see `pace`.
    init(_ profile: Manifest.SpeechProfile, letters: Int, pace: Double, patchSeconds: Double, minLen: Int) {
        let seconds = profile.expectedSeconds(max(letters, 1)) * pace
        let byTime = max(Self.long * seconds, seconds + Self.more) / patchSeconds
        self.seconds = seconds
        self.patchSeconds = patchSeconds
        longFrom = max(byTime, Double(minLen + Self.moreThanMinLen))
        shortBelow = Self.short * seconds / patchSeconds
        maximum = max((Self.ended * seconds + Self.more) / patchSeconds, longFrom).rounded(.up)
    }

    /// Upstream's rule, including `context` patches of a prompt.
    init(tokens: Int, ratio: Double, context: Int, patchSeconds: Double, minLen: Int) {
        self.patchSeconds = patchSeconds
        longFrom = max(Double(tokens) * ratio - Double(context), Double(minLen + Self.moreThanMinLen))
    }

    /// A prompt's duration relative to the expected one; 1 without letters.
    ///
    /// Clamped, against long silence and wrong transcripts.
    static func pace(_ profile: Manifest.SpeechProfile, letters: Int, seconds: Double) -> Double {
        letters == 0 ? 1 : min(max(seconds / profile.expectedSeconds(letters), 0.8), 1.5)
    }
}

/// The positions that a voice takes in the KV cache.
struct VoiceSize: Sendable, Equatable {
    var promptPatches = 0
    var referencePatches = 0

    init(_ voice: Voice?) {
        promptPatches = voice?.prompt.count ?? 0
        referencePatches = voice?.reference.count ?? 0
    }

    /// Positions before the first generated patch: text, audio start, and the voice's audio with its two markers.
    func positions(_ textTokens: Int) -> Int {
        textTokens + 1 + promptPatches + (referencePatches > 0 ? referencePatches + 2 : 0)
    }
}

/// Limits of length for a bundle and options.
struct Lengths: Sendable {
    let options: Options
    let capacity: Int
    let patchSeconds: Double
    let profile: Manifest.SpeechProfile?
    /// Upper estimate of a token's duration in slow speech, for the room that a text needs.
    let secondsPerToken: Double

    /// Text tokens that a segment may always have, even if the KV cache seems too short.
    static let minSegmentTokens = 8
    /// Default of `segmentTokens` for a checkpoint without a speech.json.
    private static let segmentTokens = 200
    /// Seconds of speech that suffice as the voice of a text, unlike a heading.
    private static let anchorSeconds = 5.0
    /// Patches of silence in addition to the text.
    private static let sparePatches = 10

    init(_ manifest: Manifest, _ options: Options, hasLettersOnly: Bool) {
        self.options = options
        capacity = manifest.sizes.kvLength
        patchSeconds = manifest.architecture.patchSeconds
        profile = manifest.speech
        secondsPerToken = hasLettersOnly ? 0.12 : 0.5
    }

    /// Text tokens whose speech suffices as the voice of a text.
    var minAnchor: Double { Self.anchorSeconds / secondsPerToken }

    /// Maximum number of patches for a text, ignoring the KV cache; unlike upstream's, never below `minPatches`.
    func patchBound(_ targetTokens: Int) -> Int {
        let byRatio = Int(min(Double(targetTokens) * options.retryBadcaseRatioThreshold + 10, 1e9))
        return max(min(byRatio, options.maxLen ?? Options.defaultMaxLen), options.minPatches)
    }

    /// Maximum number of patches if `taken` cache positions are in use.
    ///
    /// Throws `VoxCPMError.doesNotFit` if not even the shortest speech fits.
    func patchLimit(taken: Int, targetTokens: Int) throws -> Int {
        guard taken + options.minPatches <= capacity else {
            throw VoxCPMError.doesNotFit(needed: taken + options.minPatches, capacity: capacity)
        }
        return min(patchBound(targetTokens), capacity - taken)
    }

    /// Maximum number of text tokens in a segment, by `segmentTokens` and the room in the KV cache.
    ///
    /// - Parameters:
    ///   - transcriptTokens: of the voice.
    ///   - anchored: leave room for a previous segment of the same length, which this one continues.
    func longestSegment(_ voice: VoiceSize, transcriptTokens: Int, anchored: Bool) -> Int {
        let byPace = secondsPerToken / patchSeconds
        let positionsPerToken = 1 + min(byPace, options.retryBadcaseRatioThreshold)
        let room = capacity - voice.positions(transcriptTokens) - Self.sparePatches
        var fits = Double(room) / positionsPerToken
        if let maxLen = options.maxLen { fits = max(fits, Double(room - maxLen)) }
        let shortest = options.minPatches * (anchored ? 2 : 1)
        fits = min(fits, Double(room + Self.sparePatches - min(shortest, options.maxLen ?? shortest)))
        let wanted = options.segmentTokens ?? profile?.longestTokens ?? Self.segmentTokens
        return max(0, min(Int(anchored ? fits / 2 : fits), wanted))
    }
}
