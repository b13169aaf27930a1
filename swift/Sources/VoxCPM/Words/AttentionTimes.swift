// Where the letters of a text are in its speech, from the attention of heads that follow the text as it is said, as in
// runtime/voxcpm_runtime/words/attention.py.

/// Tokens averaged on each side of the attention peak, sought from this many back to three times as many
/// ahead.
private let near = 6
/// Seconds of the shortest pause, and around it: a word that seems to begin there begins at its end.
private let shortestPause = 0.06, around = 0.05

/// The same as `pauseTimes`, for speech whose attention is known.
///
/// - Parameters:
///   - places: where the text's tokens begin in it.
///   - rows: attention of each head to them while each patch but the last is fed: (patches - 1, heads, tokens). It may
///     lack tokens at the text's beginning.
///   - shifts: of the heads, in seconds.
func attentionTimes(
    _ said: String, places: [Int], rows: [[[Float]]], shifts: [Double], patchSeconds: Double, _ silences: Silences
) -> [Double] {
    let text = Array(said.unicodeScalars), (begin, end) = silences.speech
    let count = min(places.count, rows[0][0].count)
    var byToken = [Double](repeating: 0, count: count) + [end]
    for (head, shift) in shifts.enumerated() {
        let fed = rows.indices.map { Double($0 + 1) * patchSeconds + shift }
        let reached = [0] + followed(rows.map { $0[head].suffix(count) }) + [Double(count)]
        for token in 0..<count {
            byToken[token] += interpolated(Double(token), reached, [begin] + fed + [end]) / Double(shifts.count)
        }
    }
    let knots = places.suffix(count).map(Double.init) + [Double(text.count)]
    var times = (0...text.count).map { min(max(interpolated(Double($0), knots, byToken), begin), end) }
    let reachedAt = times
    let starts = text.indices.filter { place in
        text[place].isWordCharacter && (place == 0 || !(text[place - 1].isWordCharacter || text[place - 1] == "'"))
    }
    // A space takes no time: the word after it begins when the head leaves the word before.
    for place in starts where place > 0 && text[place - 1].isSpace { times[place] = reachedAt[place - 1] }
    let isStart = Set(starts)
    for (first, last) in zip(silences.begins, silences.ends).dropFirst().dropLast()
    where last - first >= shortestPause {
        let within = text.indices.filter { times[$0] <= last + around && reachedAt[$0] >= first - around }
        for place in within {
            if isStart.contains(place) {
                times[place] = last
            } else if !text[place].isLetterOrNumber {
                times[place] = first
            }
        }
    }
    for place in 1..<times.count { times[place] = max(times[place], times[place - 1]) }
    return times
}

/// The position that one head has reached at each patch, which never falls. rows: (patches, tokens).
private func followed(_ rows: [ArraySlice<Float>]) -> [Double] {
    var reached = 0.0
    return rows.map { row in
        let row = Array(row), first = max(0, Int(reached) - near)
        let looked = first..<min(row.count, Int(reached) + 3 * near)
        var peak = first
        for place in looked where row[place] > row[peak] { peak = place }
        var sum = 0.0, weights = 0.0
        for place in max(0, peak - near)..<min(row.count, peak + near + 1) {
            let weight = Double(row[place] + 1e-9)
            sum += Double(place) * weight
            weights += weight
        }
        // A model may give NaN.
        if (sum / weights).isFinite { reached = max(reached, sum / weights) }
        return reached
    }
}
