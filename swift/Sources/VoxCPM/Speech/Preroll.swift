/// How much speech to buffer before playback, so that speech generated slower than real time plays without gaps.
///
/// At a real-time factor of `r`, a speech of `d` seconds plays without gaps once `d · (1 - 1 / r)` seconds are
/// buffered.
public struct Preroll: Sendable {
    /// Minimum buffer in seconds, against single slow chunks.
    public static let margin = 0.15

    /// The real-time factor of the chunks so far, or the given one; nil if unknown.
    public private(set) var realTimeFactor: Double?
    private let expectedSeconds: Double
    private var firstSeconds = 0.0
    private var madeSeconds = 0.0
    private var workSeconds = 0.0

    /// - Parameters:
    ///   - expectedSeconds: expected seconds of speech.
    ///   - realTimeFactor: of earlier speech on this device; nil if unknown.
    public init(expectedSeconds: Double = 10, realTimeFactor: Double? = nil) {
        self.expectedSeconds = expectedSeconds
        self.realTimeFactor = realTimeFactor
    }

    /// Record a chunk of `seconds` that took `work` seconds; returns whether to start playback.
    public mutating func begins(afterChunkOf seconds: Double, work: Double) -> Bool {
        if madeSeconds == 0 {
            // The first chunk's work includes the prefill, so it does not count.
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
