// Cutting a long text into segments, each of which is spoken as one utterance; the rules are those of
// runtime/voxcpm_runtime/text/segments.py.

/// A part of a text that is spoken as one utterance.
struct Segment: Sendable, Equatable {
    let text: String
    /// Whether a blank line follows.
    let endsParagraph: Bool
}

private let edge = 0.2, sentenceEdge = 0.1
private let minBlock = 4000, blockCharacters = 20

/// The sentence as one segment; nil if there is nothing to say.
func oneSegment(_ sentence: String) -> Segment? {
    let scalars = Scalars(sentence)
    guard hasWords(scalars) else { return nil }
    let after = scalars.reversed().prefix(while: \.isSpace).filter { $0 == "\n" }.count
    return Segment(text: scalars.trimmed.text, endsParagraph: after > 1)
}

/// The text in segments of at most `target` tokens: whole sentences of one paragraph, of about equal length.
///
/// Only a sentence of more than `target` tokens is cut, or one next to which very little would be left: after a stop
/// within it or a clause, else between words, at last between two characters. A paragraph without a letter or digit is
/// left out.
func eachSegment(_ text: String, target: Int, _ count: (String) throws -> Int) throws -> [Segment] {
    var segments: [Segment] = []
    var said: Scalars = [], ends: [Int] = []
    func finish(_ closed: Bool) throws {
        guard hasWords(said) else { return }
        let parts = try fitted(said, ends, count, max(1, target)).filter(hasWords)
        for (index, part) in parts.enumerated() {
            segments.append(Segment(text: part.text, endsParagraph: closed && index == parts.count - 1))
        }
    }
    for sentence in sentences(text) {
        said += Scalars(sentence.text)
        ends.append(said.count)
        if sentence.endsParagraph || said.count >= max(minBlock, blockCharacters * target) {
            try Task.checkCancellation()
            try finish(sentence.endsParagraph)
            (said, ends) = ([], [])
        }
    }
    if !said.isEmpty { try finish(false) }
    return segments
}

/// The text in parts of at most `target` tokens, repeatedly cut in two. ends: indices where sentences end.
private func fitted(_ text: Scalars, _ ends: [Int], _ count: (String) throws -> Int, _ target: Int) throws -> [Scalars] {
    let said = text.trimmed
    let tokens = said.isEmpty ? 0 : try count(said.text)
    let parts = (tokens + target - 1) / target
    if parts > 1, let cut = cut(text, ends, Double(text.count * (parts / 2)) / Double(parts)) {
        let before = ends.filter { $0 < cut }, after = ends.filter { $0 >= cut }.map { $0 - cut }
        return try fitted(Array(text[..<cut]), before, count, target) + fitted(Array(text[cut...]), after, count, target)
    }
    return said.isEmpty ? [] : [said]
}

/// Index of the best cut near `wanted`; nil if the text cannot be cut in two.
private func cut(_ text: Scalars, _ ends: [Int], _ wanted: Double) -> Int? {
    let letters = text.indices.filter { text[$0].isAlphanumeric }
    let first = letters.first ?? 0, last = letters.last ?? 0
    func within(_ places: [Int]) -> [Int] { places.filter { first < $0 && $0 <= last } }
    func nearest(_ places: [Int]) -> Int? {
        var best: Int?
        for place in places where abs(Double(place) - wanted) < best.map({ abs(Double($0) - wanted) }) ?? .infinity {
            best = place
        }
        return best
    }
    func nearestInner(_ places: [Int], _ share: Double) -> Int? {
        let edge = Double(text.count) * share
        return nearest(places.filter { edge <= Double($0) && Double($0) <= Double(text.count) - edge })
    }
    let sentenceEnds = within(ends)
    if let inner = nearestInner(sentenceEnds, sentenceEdge) { return inner }
    var places: [Int] = []
    for (rank, find) in [afterStops, afterClauses, betweenWords].enumerated() {
        if rank == 2, !sentenceEnds.isEmpty { return nearest(sentenceEnds) }
        places += within(find(text))
        if let inner = nearestInner(places, edge) { return inner }
    }
    let characters = text.indices.dropFirst().filter { !isJoined(text[$0 - 1], text[$0]) }
    return nearest(places.isEmpty ? characters : places)
}

private let closers = Set(Scalars("\"'”’»」』》〉)]}）】〕］"))
private let hardStops = Set(Scalars("。！？｡।॥؟۔"))
private let softStops = Set(Scalars(".!?…"))
private let hardClauses = Set(Scalars("，、；：—"))
private let softClauses = Set(Scalars(",;:–-"))

/// Ends of stops in a quotation: Chinese ones anywhere, others before white space or a Chinese character.
private func afterStops(_ text: Scalars) -> [Int] {
    ends(text, hard: hardStops, soft: softStops, softRuns: true) { $0.isSpace || isWide($0) }
}

private func afterClauses(_ text: Scalars) -> [Int] {
    ends(text, hard: hardClauses, soft: softClauses, softRuns: false) { $0.isSpace }
}

/// Ends of marks with the closing marks after them. softRuns: soft marks count as a run, which begins after another
/// character; otherwise one by one.
private func ends(
    _ text: Scalars, hard: Set<Unicode.Scalar>, soft: Set<Unicode.Scalar>, softRuns: Bool,
    before: (Unicode.Scalar) -> Bool
) -> [Int] {
    var found: [Int] = [], index = 0
    while index < text.count {
        let isHard = hard.contains(text[index])
        guard isHard || soft.contains(text[index]) else {
            index += 1
            continue
        }
        let marks = isHard ? hard : soft, start = index
        var end = index + 1
        if isHard || softRuns { while end < text.count, marks.contains(text[end]) { end += 1 } }
        let afterMarks = end
        while end < text.count, closers.contains(text[end]) { end += 1 }
        if isHard || (end < text.count && before(text[end])) {
            found.append(end)
            index = end
        } else {
            index = softRuns ? afterMarks : start + 1
        }
    }
    return found
}

/// Ends of white space, and places next to a Chinese character.
private func betweenWords(_ text: Scalars) -> [Int] {
    var found: [Int] = []
    for index in text.indices.dropFirst() {
        let before = text[index - 1], scalar = text[index]
        let endsSpace = before.isSpace && !scalar.isSpace
        if endsSpace || (isWide(before) && scalar.isWordCharacter) || (before.isWordCharacter && isWide(scalar)) {
            found.append(index)
        }
    }
    if let last = text.last, last.isSpace { found.append(text.count) }
    return found
}

private func isWide(_ scalar: Unicode.Scalar) -> Bool {
    switch scalar.value {
    case 0x3040...0x30FF, 0x3400...0x4DBF, 0x4E00...0x9FFF, 0xF900...0xFAFF: true
    default: false
    }
}

/// Whether the two are one character to a reader: accents, joined emoji.
private func isJoined(_ before: Unicode.Scalar, _ scalar: Unicode.Scalar) -> Bool {
    before.value == 0x200D || scalar.value == 0x200D || scalar.isMark
}
