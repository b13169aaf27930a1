/// A part of a text, spoken as one utterance.
public struct Segment: Sendable, Equatable {
    /// The text to speak. From `Segments` it is trimmed and has at least one letter or digit.
    public let text: String
    /// Whether a blank line follows.
    public let endsParagraph: Bool
    /// The part of a text with markup that it belongs to, and its Unicode scalars in what is said of that.
    var part: MarkupPart?, place = 0..<0
}

/// Splits a text into segments of at most `target` tokens: whole sentences of one paragraph, of similar length.
///
/// Only longer sentences are split, or ones that would leave very little: after a stop or clause, otherwise between
/// words, otherwise between characters. Paragraphs without words are skipped. The text is read lazily, by paragraph.
public struct Segments {
    private static let minBlock = 4000
    private static let blockCharacters = 20

    private let count: (String) throws -> Int
    private let target: Int
    private var rest: ArraySlice<Unicode.Scalar>
    private var cutter = SentenceCutter()
    private var waiting: ArraySlice<Sentence> = []
    private var ready: ArraySlice<Segment> = []

    /// - Parameters:
    ///   - target: maximum tokens per segment, from 1.
    ///   - count: the number of tokens of a text.
    public init(_ text: String, target: Int, count: @escaping (String) throws -> Int) {
        self.count = count
        self.target = min(max(target, 1), 1_000_000)
        rest = Array(text.unicodeScalars)[...]
    }

    /// The next segment; nil at the end. Throws the errors of `count`, and `CancellationError`.
    public mutating func next() throws -> Segment? {
        while ready.isEmpty {
            try Task.checkCancellation()
            guard let paragraph = paragraph() else { return nil }
            guard hasWords(paragraph.text) else { continue }
            var parts: [String] = []
            try fit(paragraph.text[...], paragraph.ends, &parts)
            parts.removeAll { !hasWords($0) }
            ready = parts.enumerated().map { index, part in
                Segment(text: part, endsParagraph: paragraph.isClosed && index == parts.count - 1)
            }[...]
        }
        return ready.popFirst()
    }

    private struct Paragraph {
        var text: [Unicode.Scalar] = []
        /// Indices where its sentences end.
        var ends: [Int] = []
        /// Whether a blank line follows.
        var isClosed = false
    }

    /// The next paragraph, or a part of one that is very long.
    private mutating func paragraph() -> Paragraph? {
        var paragraph = Paragraph()
        while let sentence = sentence() {
            paragraph.text += Array(sentence.text.unicodeScalars)
            paragraph.ends.append(paragraph.text.count)
            paragraph.isClosed = sentence.endsParagraph
            let maximum = max(Self.minBlock, Self.blockCharacters * target)
            if sentence.endsParagraph || paragraph.text.count >= maximum { break }
        }
        return paragraph.ends.isEmpty ? nil : paragraph
    }

    private mutating func sentence() -> Sentence? {
        while waiting.isEmpty, !rest.isEmpty {
            waiting = cutter.push(Array(rest.prefix(256)).string)[...]
            rest = rest.dropFirst(256)
            if rest.isEmpty { waiting += cutter.flush() }
        }
        return waiting.popFirst()
    }

    /// Append the text in parts of at most `target` tokens, by recursive bisection.
    private func fit(_ text: ArraySlice<Unicode.Scalar>, _ ends: [Int], _ parts: inout [String]) throws {
        let said = text.trimming(\.isSpace)
        guard !said.isEmpty else { return }
        let tokens = min(max(try count(said.string), 0), 1 << 30), pieces = (tokens + target - 1) / target
        let wanted = Double(text.count * (pieces / 2)) / Double(max(pieces, 1))
        guard pieces > 1, let cut = cutPoint(in: Array(text), ends, wanted) else {
            parts.append(said.string)
            return
        }
        let middle = text.startIndex + cut
        try fit(text[..<middle], ends.filter { $0 < cut }, &parts)
        try fit(text[middle...], ends.filter { $0 >= cut }.map { $0 - cut }, &parts)
    }
}

/// The sentence as one segment; empty if there is nothing to say.
public func oneSegment(_ sentence: String) -> [Segment] {
    let scalars = Array(sentence.unicodeScalars)
    guard hasWords(scalars) else { return [] }
    let lineEnds = scalars.reversed().prefix(while: \.isSpace).filter { $0 == "\n" }.count
    return [Segment(text: scalars.trimming(\.isSpace).string, endsParagraph: lineEnds > 1)]
}

/// Whether the text has anything to say: a letter or a digit.
public func hasWords(_ text: String) -> Bool { text.unicodeScalars.contains(where: \.isLetterOrNumber) }

private func hasWords(_ text: [Unicode.Scalar]) -> Bool { text.contains(where: \.isLetterOrNumber) }

/// Number of letters and digits of a text, for its expected duration.
public func letters(in text: String) -> Int { text.unicodeScalars.count(where: \.isLetterOrNumber) }
