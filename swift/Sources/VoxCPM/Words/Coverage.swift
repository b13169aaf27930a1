// Which words of a text its speech says: once, not at all, or twice, from the attention of the alignment heads, as in
// runtime/voxcpm_runtime/words/coverage.py, which has the reasons of the thresholds.
//
// The most likely way through the text is followed while it is spoken (Viterbi): from patch to patch it stays or
// advances, or jumps at a cost. A jump back says words again, a jump ahead leaves words out, and speech that ends before
// the last word leaves out the rest.

import Foundation

/// Letters that a patch of fast speech advances, beyond which each costs 1, and the maximum in letters and in tokens.
private let usualAdvance = 6.0, maxAdvance = 10.0, maxTokens = 14
private let wideLetter = 3.0
/// Added to each share of attention; and the cost of a jump.
private let floor = 0.01, jumpCost = 9.0
/// Letters before the last one from which speech may end.
private let endLetters = 3.0
/// Patches without an advance after which the stop head is believed.
private let patience = 12
/// Patches before a jump from which each repair speaks again.
private let back = [2, 4, 6, 8]
/// Patches in which the last sound ends, after the head has reached the text's last token.
private let tail = 2

/// Follows the speech of one segment; patches are fed one after another.
struct Follower: Sendable {
    /// The best ways that end at each token, after one patch.
    private struct Row: Sendable {
        var scores: [Double]
        var origins: [Int]
        /// The patch of the last jump of each way; -1 for none.
        var jumps: [Int]
        /// The last patch at which the best way went ahead, and its furthest token so far.
        var advanced = 0
        var reached = 0

        var best: Int { scores.indices.max { scores[$0] < scores[$1] || (scores[$0] == scores[$1] && $0 > $1) } ?? 0 }
    }

    private let said: [Unicode.Scalar]
    private let places: [Int]
    private let positions: Range<Int>
    /// The letters before each token.
    private let at: [Double]
    private let end: Int
    private var rows: [Row] = []
    private var jumps: [(patch: Int, seen: Int)] = []
    private let minimum: Int
    /// The patch that ends the speech whatever the stop head says.
    private var final = -1

    /// - Parameters:
    ///   - said: the text as it is said.
    ///   - places: where its tokens begin in it.
    ///   - positions: those of the text in the sequence; it may have more tokens before those of `said`, or fewer.
    ///   - minimum: index of the first patch with which the speech may end.
    init(_ said: String, places: [Int], positions: Range<Int>, minimum: Int = 0) {
        self.minimum = minimum
        let text = Array(said.unicodeScalars), count = min(places.count, positions.count)
        self.said = text
        self.places = Array(places.suffix(count))
        self.positions = (positions.upperBound - count)..<positions.upperBound
        var letters = [0.0]
        for scalar in text { letters.append(letters[letters.count - 1] + (scalar.isWide ? wideLetter : 1)) }
        let at = self.places.map { letters[$0] }
        self.at = at
        let last = text.lastIndex(where: \.isLetterOrNumber) ?? 0
        var begin = last
        if last < text.count, !text[last].isWide {
            while begin > 0, !text[begin - 1].isSpace, !text[begin - 1].isWide { begin -= 1 }
        }
        let ends = max(letters[last] - endLetters, letters[begin])
        end = max((at.firstIndex { $0 > ends } ?? at.count) - 1, 0)
    }

    /// Whether the speech ends with the next patch. stops: whether the stop head says so. attention: of each head while
    /// the last patch was fed; nil before the first one.
    mutating func ends(_ stops: Bool, _ attention: Rows?) -> Bool {
        if let attention, attention.count > 0, !places.isEmpty {
            add(positions.map { position in
                (0..<attention.count).reduce(0.0) { $0 + Double(attention.values[$1 * attention.width + position]) }
                    / Double(attention.count)
            })
        }
        if rows.count == final { return true }
        guard stops, let last = rows.last else { return stops }
        return last.best >= end || rows.count - last.advanced > patience
    }

    /// Forget all but the first patches; the attention of the last of them comes again.
    mutating func rewind(_ patches: Int) {
        rows.removeSubrange(max(patches - 1, 0)...)
        jumps = []
    }

    /// The patch from which to speak again, if a jump was noticed before this one; nil if none can be repaired.
    ///
    /// If all was said before the jump, the speech ends with that patch or before.
    ///
    /// - Parameters:
    ///   - repairs: number of repairs so far.
    ///   - handedOut: number of patches that cannot be taken back.
    mutating func repair(from patch: Int, repairs: Int, handedOut: Int) -> Int? {
        guard let jump = jumps.first(where: { $0.seen == patch })?.patch else { return nil }
        let fixed = max(handedOut, minimum)
        if final < 0, jump >= fixed, let least = counts(jump).min(), least > 0 {
            let ended = way(jump).enumerated().filter { $1 == places.count - 1 }.dropFirst(tail).first?.offset ?? jump
            final = max(fixed, min(ended, jump))
            return final
        }
        guard repairs < back.count else { return nil }
        let again = max(jump - back[repairs], handedOut, 0)
        return again < max(jump, 1) ? again : nil
    }

    /// How many times each character of `said` is said, by the likeliest way; empty if unknown.
    var counts: [Int] { counts(rows.count) }

    /// The same of the first patches.
    private func counts(_ patches: Int) -> [Int] {
        let way = way(patches)
        guard let last = way.last else { return [] }
        let edges = places + [said.count]
        var counts = [Int](repeating: 0, count: said.count), begin = at[way[0]] - at[0] <= maxAdvance ? 0 : edges[way[0]]
        for (before, after) in zip(way, way.dropFirst()) where isJump(before, after) {
            for place in begin..<max(begin, edges[before + 1]) { counts[place] += 1 }
            begin = edges[after]
        }
        let stop = last >= end ? said.count : edges[last + 1]
        for place in begin..<max(begin, stop) { counts[place] += 1 }
        return counts
    }

    /// The token of each of the first patches, by the likeliest way.
    private func way(_ patches: Int) -> [Int] {
        let rows = rows.prefix(patches)
        guard let last = rows.last else { return [] }
        var way = [last.best]
        for row in rows.dropFirst().reversed() { way.append(row.origins[way[way.count - 1]]) }
        return way.reversed()
    }

    private mutating func add(_ row: [Double]) {
        let sum = max(row.reduce(0, +), 1e-9), likely = row.map { log($0 / sum + floor) }, index = rows.count
        guard let last = rows.last else {
            let scores = likely.indices.map { likely[$0] - (at[$0] - at[0] <= maxAdvance ? 0 : jumpCost) }
            let none = [Int](repeating: -1, count: row.count)
            rows.append(Row(scores: scores, origins: none, jumps: at.map { $0 - at[0] <= maxAdvance ? -1 : 0 }))
            return
        }
        let best = last.best, jumped = last.scores[best] - jumpCost
        var new = Row(scores: likely, origins: [], jumps: [], advanced: last.advanced, reached: last.reached)
        for token in row.indices {
            var score = -Double.infinity, origin = token
            for from in max(0, token - maxTokens)...token {
                let found = last.scores[from] - cost(from, token)
                if found > score { (score, origin) = (found, from) }
            }
            let jumps = jumped > score
            new.origins.append(jumps ? best : origin)
            new.jumps.append(jumps ? index : last.jumps[origin])
            new.scores[token] += jumps ? jumped : score
        }
        let now = new.best
        if now > last.reached { (new.advanced, new.reached) = (index, now) }
        rows.append(new)
        if new.jumps[now] > jumps.last?.patch ?? -1 {
            jumps.append((new.jumps[now], index + 1))
        }
    }

    /// The cost of an advance; infinite if it is a jump.
    private func cost(_ from: Int, _ to: Int) -> Double {
        if to == from + 1 { return 0 }  // However long the token is
        let step = at[to] - at[from]
        return step > maxAdvance ? .infinity : max(step - usualAdvance, 0)
    }

    private func isJump(_ before: Int, _ after: Int) -> Bool {
        after < before || after - before > maxTokens || cost(before, after) == .infinity
    }
}

/// How many times each word of the text is said: most of its letters; empty if unknown. counts: `Follower.counts`.
func wordCounts(_ text: String, said: String, _ counts: [Int]) -> [Int] {
    guard !counts.isEmpty else { return [] }
    let characters = Array(said.unicodeScalars)
    return saidSpans(text, said: said).map { _, span in
        let letters = span.filter { characters[$0].isLetterOrNumber }.map { counts[$0] }.sorted()
        return letters.isEmpty ? 1 : letters[letters.count / 2]
    }
}
