import Foundation

private let frame = 2048
/// Samples between the starts of two frames, at any sample rate.
private let hop = 512
/// A frame that is 35 dB below the loudest one is silence.
private let quiet = pow(10, -35.0 / 20)
private let keptMilliseconds = 200

/// The samples from 200 ms before the first sound to 200 ms after the last one; unchanged if all are zero.
///
/// Like upstream's `_trim_audio_silence_vad` (model/voxcpm2.py) over librosa 0.11.
func withoutSilence(_ samples: [Float], sampleRate: Int) -> [Float] {
    let peak = Double(samples.reduce(0) { max($0, abs($1)) }), edge = [Float](repeating: 0, count: frame / 2)
    let centered = levels(edge + samples + edge).map { max($0, 1e-5) }, loud = (centered.max() ?? 0) * quiet
    guard peak > 0, let first = centered.firstIndex(where: { $0 > loud }),
        let last = centered.lastIndex(where: { $0 > loud })
    else { return samples }
    var end = (last + 1) * hop
    // Noise after speech is above that threshold, but not relative to the highest peak.
    if let voiced = levels(samples).lastIndex(where: { $0 >= peak * quiet }) { end = min(end, voiced * hop + frame) }
    let kept = keptMilliseconds * sampleRate / 1000, stop = min(samples.count, end + kept)
    return Array(samples[min(stop, max(0, first * hop - kept))..<stop])
}

/// Root mean square of every whole frame.
private func levels(_ samples: [Float]) -> [Double] {
    stride(from: 0, through: samples.count - frame, by: hop).map { start in
        let power = samples[start..<(start + frame)].reduce(0.0) { $0 + Double($1) * Double($1) }
        return (power / Double(frame)).squareRoot()
    }
}
