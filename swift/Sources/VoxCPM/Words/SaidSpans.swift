// The words of a text as it is written, and what each of them is read as, as in runtime/voxcpm_runtime/words/written.py.

/// The words of a text in order, each with the characters of `said` that it is read as; empty for one that is not said.
///
/// Words that are said as they are written are matched first. The others are read one by one; where their context reads
/// them differently, they share what is said.
func saidSpans(_ text: String, said: String) -> [(word: String, span: Range<Int>)] {
    let text = Array(text.unicodeScalars), said = Array(said.unicodeScalars)
    let written = words(of: text), heard = words(of: said)
    let own = written.map { letters(text[$0]) }, others = heard.map { letters(said[$0]) }
    var owners: [Int] = []  // Index of the written word of each said one
    for part in matchedParts(own, others) {
        if part.isEqual {
            owners += part.first
        } else if part.first.count < 2 {
            let owner = part.first.isEmpty ? max(part.first.lowerBound - 1, 0) : part.first.lowerBound
            owners += part.second.map { _ in owner }
        } else {
            let alone = written[part.first].map { readAlone(text[$0]) }
            owners += shared(alone, Array(others[part.second])).map { part.first.lowerBound + $0 }
        }
    }
    var spans: [(word: String, span: Range<Int>)] = [], reached = 0, at = 0
    for (index, range) in written.enumerated() {
        let first = at
        while at < owners.count, owners[at] == index { at += 1 }
        let begin = at > first ? heard[first].lowerBound : reached
        if at > first { reached = heard[at - 1].upperBound }
        spans.append((text[range].string, begin..<max(begin, reached)))
    }
    return spans
}

/// The index of the word that each heard one belongs to. alone: what each word is read as by itself.
private func shared(_ alone: [[String]], _ heard: [String]) -> [Int] {
    var origins = alone.enumerated().flatMap { index, read in read.map { _ in index } }
    if origins.isEmpty { origins = [0] }
    return matchedParts(alone.flatMap { $0 }, heard).flatMap { part in
        part.second.indices.map { index in
            let share = Double(part.first.count) / Double(part.second.count)
            let at = Double(index - part.second.lowerBound)
            let nearest = part.first.isEmpty
                ? max(part.first.lowerBound - 1, 0) : part.first.lowerBound + Int(at * share)
            return origins[min(nearest, origins.count - 1)]
        }
    }
}

/// Start and end of each word. Marks without a letter or digit belong to the word before them, or the first one.
private func words(of text: [Unicode.Scalar]) -> [Range<Int>] {
    var found: [Range<Int>] = [], begin: Int?, at = 0
    while at < text.count {
        let start = at
        at = endOfPart(text, start)
        if text[start].isSpace { continue }
        if text[start..<at].contains(where: \.isLetterOrNumber) {
            found.append((begin ?? start)..<at)
            begin = nil
        } else if let last = found.popLast() {
            found.append(last.lowerBound..<at)
        } else {
            begin = begin ?? start
        }
    }
    return found
}

/// Chinese and Japanese marks that end a word without a space, and what may close a quotation after them.
private let marks = Set("、。！？；".unicodeScalars), closers = Set("」』）】》〉”’".unicodeScalars)

/// The end of the part of a word that begins at a place: a wide character, or up to a space, a wide one or a mark.
private func endOfPart(_ text: [Unicode.Scalar], _ start: Int) -> Int {
    // Not 5：30.
    func ends(_ at: Int) -> Bool {
        let isBeforeDigit = at + 1 < text.count && text[at + 1].properties.numericType == .decimal
        return marks.contains(text[at]) || ((text[at] == "，" || text[at] == "：") && !isBeforeDigit)
    }
    if text[start].isSpace || text[start].isWide { return start + 1 }
    var at = start
    while at < text.count, !text[at].isSpace, !text[at].isWide, !ends(at) { at += 1 }
    guard at < text.count, ends(at) else { return at }
    while at < text.count, ends(at) { at += 1 }
    while at < text.count, closers.contains(text[at]) { at += 1 }
    return at
}

private func letters(_ word: ArraySlice<Unicode.Scalar>) -> String {
    word.string.pythonLowercased.unicodeScalars.filter(\.isLetterOrNumber).map(String.init).joined()
}

private func readAlone(_ word: ArraySlice<Unicode.Scalar>) -> [String] {
    let said = Array(EnglishReader.readAloud(word.string).unicodeScalars)
    return words(of: said).map { letters(said[$0]) }
}

/// A part of two sequences: equal, or different.
private struct MatchedPart {
    let isEqual: Bool
    let first: Range<Int>
    let second: Range<Int>
}

/// Both sequences in parts, around their longest common runs, as Python's difflib finds them.
private func matchedParts(_ first: [String], _ second: [String]) -> [MatchedPart] {
    var places: [String: [Int]] = [:]
    for (index, word) in second.enumerated() { places[word, default: []].append(index) }

    func longest(_ a: Range<Int>, _ b: Range<Int>) -> (Int, Int, Int) {
        var best = (a.lowerBound, b.lowerBound, 0), lengths: [Int: Int] = [:]
        for i in a {
            var now: [Int: Int] = [:]
            for j in places[first[i]] ?? [] where b.contains(j) {
                let length = (lengths[j - 1] ?? 0) + 1
                now[j] = length
                if length > best.2 { best = (i - length + 1, j - length + 1, length) }
            }
            lengths = now
        }
        return best
    }

    var runs: [(Int, Int, Int)] = [], open = [(first.indices, second.indices)]
    while let (a, b) = open.popLast() {
        let run = longest(a, b)
        guard run.2 > 0 else { continue }
        runs.append(run)
        open.append((a.lowerBound..<run.0, b.lowerBound..<run.1))
        open.append(((run.0 + run.2)..<a.upperBound, (run.1 + run.2)..<b.upperBound))
    }
    var parts: [MatchedPart] = [], i = 0, j = 0
    for run in runs.sorted(by: { $0.0 < $1.0 }) + [(first.count, second.count, 0)] {
        if i < run.0 || j < run.1 { parts.append(MatchedPart(isEqual: false, first: i..<run.0, second: j..<run.1)) }
        (i, j) = (run.0 + run.2, run.1 + run.2)
        if run.2 > 0 { parts.append(MatchedPart(isEqual: true, first: run.0..<i, second: run.1..<j)) }
    }
    return parts
}
