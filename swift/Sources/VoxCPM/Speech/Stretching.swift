// The speed of speech, as in runtime/voxcpm_runtime/audio/stretching.py.

import Foundation

/// Speeds up streamed audio without changing its pitch; the samples do not depend on how the stream is split.
///
/// WSOLA (Verhelst and Roelands, 1993): the output advances by one overlap at a time, the input by `speed` overlaps. Each
/// window is shifted to where the input is most similar to the continuation of the previous window.
struct Stretching {
    private let speed: Double, hop: Int, search: Int
    /// The first half of a Hann window.
    private let rise: [Double]
    /// From sample `start` on.
    private var input: [Float] = [], start = 0
    private var received = 0, returned = 0
    /// Where the last window would continue.
    private var continued: Int?

    init(speed: Double, sampleRate: Int) {
        self.speed = speed
        let hop = Int((0.015 * Double(sampleRate)).rounded(.toNearestOrEven))
        // In either direction: with the overlap one period of a 40 Hz voice.
        search = Int((0.0125 * Double(sampleRate)).rounded(.toNearestOrEven))
        rise = (0..<hop).map { 0.5 - 0.5 * cos(.pi * (Double($0) + 0.5) / Double(hop)) }
        self.hop = hop
    }

    /// The next samples of the output. isLast: whether this is the last piece of the input.
    mutating func callAsFunction(_ samples: [Float], isLast: Bool) -> [Float] {
        if speed == 1 { return samples }
        received += samples.count
        input += samples
        let total = Int((Double(received) / speed).rounded(.toNearestOrEven))
        var output: [Float] = []
        while returned < total {
            var place = Int((Double(returned) * speed).rounded(.toNearestOrEven))
            let before = continued ?? place, lacking = max(place + search, before) + 2 * hop - received
            if !isLast, lacking > 0 || returned + hop > total { break }
            let window = self[before, 2 * hop]
            if lacking <= 0, before != place {
                let first = max(0, place - search)
                place = first + mostSimilar(self[first, place + search - first + 2 * hop], to: window)
            }
            let next = self[place, hop]
            output += (0..<hop).map { (at: Int) -> Float in
                let old = Double(window[at]), new = Double(next[at])
                return Float(old + rise[at] * (new - old))
            }
            returned += hop
            continued = place + hop
            let needed = min(place + hop, Int((Double(returned) * speed).rounded(.toNearestOrEven)) - search)
            let dropped = min(max(0, needed - start), input.count)
            input.removeFirst(dropped)
            start += dropped
        }
        return isLast && returned > total ? output.dropLast(returned - total) : output
    }

    /// Samples of the input, zero-padded after its end.
    private subscript(at: Int, count: Int) -> [Float] {
        let found = input.dropFirst(at - start).prefix(count)
        return found + [Float](repeating: 0, count: count - found.count)
    }
}

/// Offset of the samples with the maximum normalised cross-correlation with the window.
private func mostSimilar(_ samples: [Float], to window: [Float]) -> Int {
    var best = 0, most = -Double.infinity, energy = window.indices.reduce(0.0) { $0 + Double(samples[$1] * samples[$1]) }
    samples.withUnsafeBufferPointer { samples in
        window.withUnsafeBufferPointer { window in
            for offset in 0...(samples.count - window.count) {
                // Sixteen sums, so that it is computed by vectors.
                var sums = SIMD16<Float>(), at = 0
                while at + 16 <= window.count {
                    for lane in 0..<16 { sums[lane] += samples[offset + at + lane] * window[at + lane] }
                    at += 16
                }
                let rest = (at..<window.count).reduce(Float(0)) { $0 + samples[offset + $1] * window[$1] }
                let likeness = Double(sums.sum() + rest) / (energy + 1e-6).squareRoot()
                if likeness > most { (best, most) = (offset, likeness) }
                let end = offset + window.count
                guard end < samples.count else { break }
                energy += Double(samples[end] * samples[end]) - Double(samples[offset] * samples[offset])
            }
        }
    }
    return best
}
