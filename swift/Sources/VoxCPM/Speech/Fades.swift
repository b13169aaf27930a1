// Fades where audio is joined: a step there is audible as a click.

import Foundation

/// Long enough to remove the step, too short to be audible.
private let fadeSeconds = 0.005
/// A peak of -50 dBFS.
private let silence = Float(pow(10.0, -50.0 / 20.0))

/// The samples with their first 5 ms faded in; unchanged if these are silent.
func fadedIn(_ samples: [Float], sampleRate: Int) -> [Float] {
    fadedOut(samples.reversed(), sampleRate: sampleRate).reversed()
}

/// The samples with their last 5 ms faded out; unchanged if these are silent.
///
/// The fade is half a period of a cosine, so it has no corner at either end.
func fadedOut(_ samples: [Float], sampleRate: Int) -> [Float] {
    let wanted = Int((fadeSeconds * Double(sampleRate)).rounded(.toNearestOrEven))
    let count = min(samples.count, wanted), start = samples.count - count
    guard samples[start...].contains(where: { abs($0) >= silence }) else { return samples }
    var faded = samples
    for index in 0..<count {
        let angle = Double.pi * Double(index + 1) / Double(count)
        faded[start + index] = Float(Double(samples[start + index]) * (0.5 + 0.5 * cos(angle)))
    }
    return faded
}
