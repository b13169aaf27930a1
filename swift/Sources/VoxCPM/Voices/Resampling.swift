import Foundation

/// Zero crossings of the sinc on either side.
private let crossings = 32
/// Entries of the kernel's table between two zero crossings.
private let density = 512
/// For the Kaiser window: 100 dB of attenuation.
private let beta = 10.06
/// Share of the lower rate's band that is passed.
private let passband = 0.95

/// Resample with a windowed sinc: a low pass at the lower of both rates, without phase shift.
///
/// - Parameters:
///   - rate: of the samples, in Hz.
///   - wanted: of the result, in Hz.
func windowedSinc(_ samples: [Float], from rate: Int, to wanted: Int) -> [Float] {
    let ratio = Double(wanted) / Double(rate)
    let cutoff = min(1, ratio) * passband
    let reach = Double(crossings) / cutoff
    let count = Int((Double(samples.count) * ratio).rounded(.up))
    let table = kernel()
    return samples.withUnsafeBufferPointer { source in
        (0..<count).map { index in
            let center = Double(index) / ratio
            let first = max(0, Int((center - reach).rounded(.up)))
            let last = min(source.count - 1, Int((center + reach).rounded(.down)))
            var sum = 0.0
            guard first <= last else { return 0 }
            for place in first...last {
                let position = abs(Double(place) - center) * cutoff * Double(density)
                let cell = Int(position), share = position - Double(cell)
                guard cell + 1 < table.count else { continue }
                let weight = table[cell] + share * (table[cell + 1] - table[cell])
                sum += Double(source[place]) * weight
            }
            return Float(sum * cutoff)
        }
    }
}

/// The right half of a sinc under a Kaiser window.
private func kernel() -> [Double] {
    let end = crossings * density
    return (0...end).map { index in
        let x = Double(index) / Double(density), edge = Double(index) / Double(end)
        let window = bessel(beta * (1 - edge * edge).squareRoot()) / bessel(beta)
        let angle = Double.pi * x
        return index == 0 ? 1 : sin(angle) / angle * window
    }
}

/// The modified Bessel function of order zero.
private func bessel(_ x: Double) -> Double {
    var sum = 1.0, term = 1.0, k = 1.0
    while term > sum * 1e-12 {
        term *= (x / (2 * k)) * (x / (2 * k))
        sum += term
        k += 1
    }
    return sum
}
