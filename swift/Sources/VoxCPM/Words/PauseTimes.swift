// Where the letters of a text are in its speech, from punctuation and pauses alone, as in
// runtime/voxcpm_runtime/words/pauses.py.
//
// Pauses are matched to marks, or at some cost to the spaces between words, by dynamic programming: the letters between
// two pauses must take about as long as the others. Between pauses letters are spread by their usual durations.

import Foundation

/// The seconds at which each character begins, and the last one ends (characters + 1).
///
/// A pause belongs to the marks and spaces at which it is made.
func pauseTimes(_ said: String, _ silences: Silences) -> [Double] {
    let text = Array(said.unicodeScalars), begins = silences.begins, ends = silences.ends, speech = silences.speech
    var position = [0.0]
    for duration in durations(text) { position.append(position[position.count - 1] + duration) }
    let words = words(of: text)
    guard !words.isEmpty, position[text.count] > 0 else {
        return (0...text.count).map { place in
            speech.begin + (speech.end - speech.begin) * Double(place) / Double(max(text.count, 1))
        }
    }
    let starts = [0] + words.dropFirst().map(\.lowerBound) + [text.count]
    let inner = starts.dropFirst().dropLast().map { start in
        cost(after: text[..<start].last { !$0.isSpace })
    }
    let costs = [(pause: 0.0, none: 0.0)] + inner + [(pause: 0.0, none: 0.0)]
    let lengths = zip(begins, ends).map { $1 - $0 }
    // At first every long silence counts as a pause.
    var paused = lengths.dropFirst().dropLast().filter { $0 > closure }.reduce(0, +), pairs = [(0, 0)]
    for _ in 0..<2 {
        let pace = max(speech.end - speech.begin - paused, Silences.frame) / position[text.count]
        pairs = matched(begins, ends, starts.map { position[$0] * pace }, costs)
        paused = pairs.dropFirst().dropLast().map { lengths[$0.0] }.reduce(0, +)
    }
    var times = [Double](repeating: speech.end, count: text.count + 1)
    for (one, next) in zip(pairs, pairs.dropFirst()) {
        let part = starts[one.1]..<starts[next.1], span = [position[part.lowerBound], position[part.upperBound]]
        for place in part { times[place] = interpolated(position[place], span, [ends[one.0], begins[next.0]]) }
    }
    return times
}

/// Costs of a pause at a place, and of none.
private typealias Cost = (pause: Double, none: Double)

private func cost(after mark: Unicode.Scalar?) -> Cost {
    guard let mark else { return (0, 4) }
    if ".!?…。！？".unicodeScalars.contains(mark) { return (0, 4) }
    return ",;:—–，、；：".unicodeScalars.contains(mark) ? (0, 1.5) : (3.5, 0)
}

/// Seconds of silence that is no pause; stops such as p and t have up to 130 ms of it.
private let closure = 0.13
/// Cost of a second of such silence beyond.
private let unmatchedCost = 25.0
/// Variance of a duration: constant (s²), and for each expected second.
private let variance = 0.003, variancePerSecond = 0.0095
private let unstressed = Set(
    """
    a am an and are as at be been but by can could did do for from had has have he her his i if in into is it its my \
    no not of on or our out she should so than that the their them then there they this to up was we were which who \
    will with would you your
    """.split(separator: " ").map(String.init))

/// Relative durations of the characters, fitted to 64 recordings of English; 1 of a letter such as l, m, n and r.
private func durations(_ text: [Unicode.Scalar]) -> [Double] {
    func isVowel(_ char: Unicode.Scalar) -> Bool { "aeiouy".unicodeScalars.contains(char) }
    let small = text.map { $0.properties.lowercaseMapping.unicodeScalars.first ?? $0 }
    var durations = zip(text, small).map { char, small in
        !char.isLetterOrNumber ? 0 : isVowel(small) ? 1.15 : "bcdfghjkpqstvxz".unicodeScalars.contains(small) ? 0.8 : 1
    }
    for word in words(of: text) {
        guard !text[word.lowerBound].isWide else {
            durations[word.lowerBound] = 3
            continue
        }
        let letters = small[word], last = word.upperBound - 1
        if word.count > 3, small[last] == "e", !isVowel(small[last - 1]) { durations[last] *= 0.5 }
        if unstressed.contains(letters.string) { for place in word { durations[place] *= 0.5 } }
        durations[word.lowerBound] += 0.85
    }
    let end = (text.lastIndex { !$0.isSpace } ?? -1) + 1
    for place in text.indices where text[place].isLetterOrNumber {
        let next = place + 1 < end ? text[place + 1] : nil
        if next.map({ !$0.isWordCharacter && !$0.isSpace && $0 != "'" && $0 != "-" }) ?? true { durations[place] += 2.8 }
    }
    return durations
}

/// Runs of letters and digits, with apostrophes inside; of Chinese and Japanese, the characters.
private func words(of text: [Unicode.Scalar]) -> [Range<Int>] {
    var found: [Range<Int>] = [], at = 0
    while at < text.count {
        let start = at
        at += 1
        if text[start].isWide {
            found.append(start..<at)
        } else if text[start].isLetterOrNumber {
            while at < text.count {
                if text[at].isLetterOrNumber, !text[at].isWide {
                    at += 1
                } else if text[at] == "'", at + 1 < text.count, text[at + 1].isLetterOrNumber {
                    at += 2
                } else {
                    break
                }
            }
            found.append(start..<at)
        }
    }
    return found
}

/// The best pairs of silence and place in order, from the first of both to the last of both.
///
/// places: where a pause may be, in seconds of speech without pauses.
private func matched(
    _ begins: [Double], _ ends: [Double], _ places: [Double], _ costs: [Cost]
) -> [(Int, Int)] {
    let count = places.count, silences = begins.count
    var missed: [Double] = [], unmatched: [Double] = []
    for cost in costs { missed.append((missed.last ?? 0) + cost.none) }
    for (begin, end) in zip(begins, ends) {
        unmatched.append((unmatched.last ?? 0) + unmatchedCost * max(end - begin - closure, 0))
    }
    var total = [[Double]](repeating: [Double](repeating: .infinity, count: count), count: silences)
    var origin = [[(Int, Int)]](repeating: [(Int, Int)](repeating: (0, 0), count: count), count: silences)
    total[0][0] = 0
    for at in 1..<max(silences, 1) {
        for place in 1..<count {
            var best = Double.infinity, from = (0, 0)
            for before in 0..<at {
                let spoken = begins[at] - ends[before], skipped = unmatched[at - 1] - unmatched[before]
                for first in 0..<place where total[before][first] < .infinity {
                    let expected = places[place] - places[first]
                    guard expected > 0 else { continue }
                    let spread = 2 * (variance + variancePerSecond * expected), error = spoken - expected
                    let cost = total[before][first] + error * error / spread
                        + (missed[place] - costs[place].none - missed[first]) + skipped
                    if cost < best { (best, from) = (cost, (before, first)) }
                }
            }
            total[at][place] = place + 1 == count && at + 1 < silences ? .infinity : best + costs[place].pause
            origin[at][place] = from
        }
    }
    var pairs = [(silences - 1, count - 1)]
    while let last = pairs.last, last.0 > 0 { pairs.append(origin[last.0][last.1]) }
    return pairs.reversed()
}
