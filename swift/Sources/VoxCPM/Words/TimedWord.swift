/// A word as it is written, with its punctuation, and when it is said. Of Chinese and Japanese, a character.
public struct TimedWord: Sendable, Equatable, Codable {
    /// How times were found.
    public enum Method: String, Sendable, Codable {
        /// Punctuation is matched to pauses: for every bundle.
        case pauses
        /// By the language model's attention, in bundles with alignment heads, such as the built-in voice's.
        case attention
    }

    /// As the caller wrote it, such as "$4.20," however it is read.
    public let text: String
    /// Seconds from the beginning of the speech, to the millisecond.
    public let start: Double
    /// Seconds from the beginning of the speech; equal to `start` for a word that is not said.
    public let end: Double
    /// How the times were found.
    public let method: Method
    /// Index of its first Unicode scalar in the text of the speech; in a session, of its segment.
    public internal(set) var place = 0
    /// How many times it is said: 0 if the speech lacks it, 2 if it is repeated; 1 in a bundle without alignment heads.
    public internal(set) var said = 1
}

/// The words of a text in order.
///
/// - Parameters:
///   - said: the text as it is said.
///   - times: when each character of that begins, and the last one ends (characters + 1).
///   - start: seconds before the first sample, which are added.
///   - counts: how many times each character of `said` is said; empty if unknown.
///   - offset: Unicode scalars before the text.
func timedWords(
    _ text: String, said: String, times: [Double], start: Double, method: TimedWord.Method, counts: [Int] = [],
    offset: Int = 0
) -> [TimedWord] {
    let characters = Array(said.unicodeScalars), written = Array(text.unicodeScalars)
    var place = 0, counts = wordCounts(text, said: said, counts)[...]
    func seconds(_ place: Int) -> Double { ((start + times[place]) * 1000).rounded(.toNearestOrEven) / 1000 }
    return saidSpans(text, said: said).map { word, span in
        let letters = characters[span].lastIndex(where: \.isLetterOrNumber).map { $0 + 1 } ?? span.lowerBound
        let own = Array(word.unicodeScalars)
        while !written[place...].starts(with: own) { place += 1 }
        defer { place += own.count }
        return TimedWord(
            text: word, start: seconds(span.lowerBound), end: seconds(letters), method: method, place: offset + place,
            said: counts.popFirst() ?? 1)
    }
}

/// The value at `x` of the piecewise linear function through the points, constant outside. xs ascend.
func interpolated(_ x: Double, _ xs: [Double], _ ys: [Double]) -> Double {
    guard let after = xs.firstIndex(where: { $0 > x }) else { return ys[ys.count - 1] }
    guard after > 0 else { return ys[0] }
    let before = after - 1
    if xs[before] == x { return ys[before] }
    return ys[before] + (ys[after] - ys[before]) / (xs[after] - xs[before]) * (x - xs[before])
}
