/// Cuts within this share of the text from either end rank below any cut in the middle.
private let edge = 0.2
/// The same for ends of sentences.
private let sentenceEdge = 0.1
private let closers = Marks.set("\"'”’»」』》〉)]}）】〕］")
private let hardStops = Marks.set("。！？｡।॥؟۔")
private let softStops = Marks.set(".!?…")
private let hardClauses = Marks.set("，、；：—")
private let softClauses = Marks.set(",;:–-")

/// Index of the best cut near `wanted`; nil if the text cannot be split.
///
/// - Parameter ends: indices where sentences end.
func cutPoint(in text: [Unicode.Scalar], _ ends: [Int], _ wanted: Double) -> Int? {
    let first = text.firstIndex(where: \.isLetterOrNumber) ?? 0, last = text.lastIndex(where: \.isLetterOrNumber) ?? 0

    /// The places with something to say on both sides.
    func within(_ places: [Int]) -> [Int] { places.filter { first < $0 && $0 <= last } }

    /// The place nearest to `wanted` that leaves this share of the text on both sides.
    func nearestInner(_ places: [Int], _ share: Double) -> Int? {
        let count = Double(text.count), margin = count * share
        return nearest(places.filter { margin <= Double($0) && Double($0) <= count - margin })
    }

    func nearest(_ places: [Int]) -> Int? {
        places.min { abs(Double($0) - wanted) < abs(Double($1) - wanted) }
    }

    let sentenceEnds = within(ends)
    if let inner = nearestInner(sentenceEnds, sentenceEdge) { return inner }
    // Best first: after a stop in a quotation, after a clause, between words.
    var places = within(stopEnds(text))
    if let inner = nearestInner(places, edge) { return inner }
    places += within(clauseEnds(text))
    if let inner = nearestInner(places, edge) { return inner }
    if !sentenceEnds.isEmpty { return nearest(sentenceEnds) }
    places += within(wordEnds(text))
    if let inner = nearestInner(places, edge) { return inner }
    if !places.isEmpty { return nearest(places) }
    return nearest(text.indices.dropFirst().filter { !isJoined(text[$0 - 1], text[$0]) })
}

private func stopEnds(_ text: [Unicode.Scalar]) -> [Int] {
    ends(text, { hardStops.contains($0) }, { softStops.contains($0) }, isRun: true) { $0.isSpace || $0.isWide }
}

private func clauseEnds(_ text: [Unicode.Scalar]) -> [Int] {
    ends(text, { hardClauses.contains($0) }, { softClauses.contains($0) }, isRun: false) { $0.isSpace }
}

/// Ends of marks with their closers: hard marks anywhere, soft ones before what `follows` accepts. isRun: whether
/// consecutive soft marks count as one.
private func ends(
    _ text: [Unicode.Scalar], _ isHard: (Unicode.Scalar) -> Bool, _ isSoft: (Unicode.Scalar) -> Bool, isRun: Bool,
    _ follows: (Unicode.Scalar) -> Bool
) -> [Int] {
    var ends: [Int] = [], at = 0
    while at < text.count {
        var end = at
        if isHard(text[at]) {
            while end < text.count, isHard(text[end]) { end += 1 }
            while end < text.count, closers.contains(text[end]) { end += 1 }
            ends.append(end)
        } else if isSoft(text[at]) {
            end += 1
            while isRun, end < text.count, isSoft(text[end]) { end += 1 }
            let stop = end
            while end < text.count, closers.contains(text[end]) { end += 1 }
            if end < text.count, follows(text[end]) { ends.append(end) } else { end = stop }
        } else {
            end += 1
        }
        at = end
    }
    return ends
}

private func wordEnds(_ text: [Unicode.Scalar]) -> [Int] {
    (1..<(text.count + 1)).filter { at in
        let before = text[at - 1]
        guard at < text.count else { return before.isSpace }
        let char = text[at]
        if before.isSpace { return !char.isSpace }
        return (before.isWide && char.isWordCharacter) || (before.isWordCharacter && char.isWide)
    }
}

/// Whether the two belong to one visible character: accents, joined emoji.
private func isJoined(_ before: Unicode.Scalar, _ char: Unicode.Scalar) -> Bool {
    before.value == 0x200D || char.value == 0x200D || char.isMark
}
