/// A part of a text that is spoken as one utterance.
public struct Segment: Sendable, Equatable {
    /// What to say. From `Segments` it has no white space at its ends, and at least one letter or digit.
    public let text: String
    /// Whether a blank line follows.
    public let endsParagraph: Bool
}

/// A text in segments of at most so many tokens: whole sentences of one paragraph, of about equal length.
///
/// Only a sentence of more tokens is cut, or one next to which very little would be left: after a stop within it or a
/// clause, else between words, at last between two characters. A paragraph of marks alone is left out. The text is
/// read paragraph by paragraph, as the segments are taken.
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
    ///   - target: tokens of the longest segment; at least 1.
    ///   - count: the number of tokens of a text.
    public init(_ text: String, target: Int, count: @escaping (String) throws -> Int) {
        self.count = count
        self.target = min(max(target, 1), 1_000_000)
        rest = Array(text.unicodeScalars)[...]
    }

    /// The next segment; nil after the last one. Throws what `count` throws, and `CancellationError`.
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
            if sentence.endsParagraph || paragraph.text.count >= max(Self.minBlock, Self.blockCharacters * target) { break }
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

    /// Appends the text in parts of at most `target` tokens, repeatedly cut in two.
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

/// A list of the sentence as one segment; empty if there is nothing to say.
public func oneSegment(_ sentence: String) -> [Segment] {
    let scalars = Array(sentence.unicodeScalars)
    guard hasWords(scalars) else { return [] }
    let lineEnds = scalars.reversed().prefix(while: \.isSpace).filter { $0 == "\n" }.count
    return [Segment(text: scalars.trimming(\.isSpace).string, endsParagraph: lineEnds > 1)]
}

/// Whether the text has anything to say: a letter or a digit.
public func hasWords(_ text: String) -> Bool { text.unicodeScalars.contains(where: \.isLetterOrNumber) }

private func hasWords(_ text: [Unicode.Scalar]) -> Bool { text.contains(where: \.isLetterOrNumber) }

/// Number of letters and digits of a text, from which its expected time follows.
public func letters(in text: String) -> Int { text.unicodeScalars.count(where: \.isLetterOrNumber) }
