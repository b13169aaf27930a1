/// How much speech to hold back before playing, so that speech that is made slower than it plays has no gaps.
///
/// If a second of speech takes `r` seconds to make (the real-time factor), a speech of `d` seconds plays without a gap
/// once `d · (1 - 1 / r)` of them are there.
public struct Preroll: Sendable {
    /// Seconds that are always held back, against single slow chunks.
    public static let margin = 0.15

    /// The real-time factor by the chunks so far, or as it was given; nil while unknown.
    public private(set) var realTimeFactor: Double?
    private let expectedSeconds: Double
    private var firstSeconds = 0.0
    private var madeSeconds = 0.0
    private var workSeconds = 0.0

    /// - Parameters:
    ///   - expectedSeconds: seconds of speech that are expected.
    ///   - realTimeFactor: of earlier speech on this device; nil if unknown.
    public init(expectedSeconds: Double = 10, realTimeFactor: Double? = nil) {
        self.expectedSeconds = expectedSeconds
        self.realTimeFactor = realTimeFactor
    }

    /// Note a chunk of `seconds` that took `work` seconds to make, and say whether to begin playing.
    public mutating func begins(afterChunkOf seconds: Double, work: Double) -> Bool {
        if madeSeconds == 0 {
            // The first chunk's work includes the prefill, which is not repeated, so it shows no pace.
            firstSeconds = seconds
        } else {
            workSeconds += work
            realTimeFactor = workSeconds / (madeSeconds + seconds - firstSeconds)
        }
        madeSeconds += seconds
        guard let factor = realTimeFactor else { return false }
        let held = factor > 1 ? max(expectedSeconds, madeSeconds) * (1 - 1 / factor) : 0
        return madeSeconds >= held + Self.margin
    }
}
