import Foundation

/// Numbers from the standard normal distribution, drawn once a patch.
public protocol NoiseSource: Sendable {
    /// The next `count` numbers.
    mutating func standardNormal(_ count: Int) -> [Float]
}

/// SplitMix64 with the Box–Muller transform. A seed reproduces speech, but the noise is not numpy's.
public struct GaussianNoise: NoiseSource {
    private var state: UInt64

    /// - Parameter seed: any number.
    public init(seed: UInt64) { state = seed }

    /// The next `count` numbers.
    public mutating func standardNormal(_ count: Int) -> [Float] {
        (0..<count).map { _ in Float((-2 * log(uniform())).squareRoot() * cos(2 * Double.pi * uniform())) }
    }

    /// In (0, 1].
    private mutating func uniform() -> Double {
        state &+= 0x9E37_79B9_7F4A_7C15
        var z = state
        z = (z ^ (z >> 30)) &* 0xBF58_476D_1CE4_E5B9
        z = (z ^ (z >> 27)) &* 0x94D0_49BB_1331_11EB
        return Double((z ^ (z >> 31)) >> 11 + 1) * 0x1p-53
    }
}
