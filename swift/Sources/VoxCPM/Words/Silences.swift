import Foundation

/// Begin and end of each silence in seconds, with those before and after the speech.
struct Silences {
    /// Seconds of a frame whose energy is measured.
    static let frame = 0.01
    /// Decibels below the loud frames, from which a frame is silent.
    private static let quiet = 32.0
    /// Frames.
    private static let minLength = 5
    /// The longest ones, which bounds the work.
    private static let maxCount = 40

    let begins: [Double]
    let ends: [Double]

    /// Where the speech begins and ends.
    var speech: (begin: Double, end: Double) { (ends[0], begins[begins.count - 1]) }

    /// - Parameter samples: the speech, in [-1, 1], from beginning to end.
    init(_ samples: [Float], sampleRate: Int) {
        let size = max(1, Int((Double(sampleRate) * Self.frame).rounded(.toNearestOrEven)))
        var energy = (0..<(samples.count / size)).map { frame in
            samples[(frame * size)..<((frame + 1) * size)].reduce(0.0) { $0 + Double($1) * Double($1) } / Double(size)
        }
        if energy.isEmpty { energy = [0] }
        let power = energy.indices.map { index in
            0.5 * energy[index] + 0.25 * (index > 0 ? energy[index - 1] : 0)
                + 0.25 * (index + 1 < energy.count ? energy[index + 1] : 0)
        }
        let sorted = power.sorted(), rank = 0.95 * Double(power.count - 1), low = Int(rank)
        let loud = sorted[low] + (sorted[min(low + 1, power.count - 1)] - sorted[low]) * (rank - Double(low))
        let threshold = loud * pow(10, -Self.quiet / 10)
        let silent = [true] + power.map { $0 <= threshold } + [true]
        guard !silent.allSatisfy({ $0 }) else {
            let duration = Double(samples.count) / Double(sampleRate)
            (begins, ends) = ([0, duration], [0, duration])
            return
        }
        let edges = (0..<(silent.count - 1)).filter { silent[$0] != silent[$0 + 1] }
        let starts = [0] + edges.enumerated().filter { $0.offset % 2 == 1 }.map(\.element)
        let stops = edges.enumerated().filter { $0.offset % 2 == 0 }.map(\.element) + [power.count]
        let inner = (1..<max(1, starts.count - 1)).sorted { a, b in
            let x = stops[a] - starts[a], y = stops[b] - starts[b]
            return x == y ? a < b : x > y
        }
        let longest = inner.prefix(Self.maxCount).filter { stops[$0] - starts[$0] >= Self.minLength }.sorted()
        let kept = [0] + longest + [starts.count - 1]
        begins = kept.map { Double(starts[$0]) * Self.frame }
        ends = kept.map { Double(stops[$0]) * Self.frame }
    }
}
