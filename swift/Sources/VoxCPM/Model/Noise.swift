import Foundation

/// Numbers from the standard normal distribution, drawn once a patch.
public protocol NoiseSource: Sendable {
    /// The next `count` numbers.
    mutating func standardNormal(_ count: Int) -> [Float]
}

/// The numbers of `numpy.random.default_rng(seed)`: PCG64, and Marsaglia and Tsang's ziggurat.
///
/// numpy's tables are computed here, to 1e-13, so one number in a million differs from numpy's in its last bit.
public struct NumPyNoise: NoiseSource {
    private var state: UInt128Parts
    private let increment: UInt128Parts

    /// - Parameter seed: any number.
    public init(seed: UInt64) { self.init(seeds: [seed]) }

    init(seeds: [UInt64]) {
        let words = SeedSequence(seeds).words(8)
        let pairs = (0..<4).map { UInt64(words[2 * $0 + 1]) << 32 | UInt64(words[2 * $0]) }
        increment = UInt128Parts(high: pairs[2] << 1 | pairs[3] >> 63, low: pairs[3] << 1 | 1)
        state = increment &+ UInt128Parts(high: pairs[0], low: pairs[1])
        advance()
    }

    /// The next `count` numbers.
    public mutating func standardNormal(_ count: Int) -> [Float] { (0..<count).map { _ in Float(next()) } }

    private mutating func advance() {
        state = state &* UInt128Parts(high: 0x2360_ED05_1FC6_5DA4, low: 0x4385_DF64_9FCC_F645) &+ increment
    }

    private mutating func bits() -> UInt64 {
        advance()
        let mixed = state.high ^ state.low, turn = state.high >> 58
        return mixed >> turn | mixed << ((64 - turn) & 63)
    }

    /// In [0, 1).
    private mutating func uniform() -> Double { Double(bits() >> 11) * 0x1p-53 }

    private mutating func next() -> Double {
        while true {
            let drawn = bits(), layer = Int(drawn & 0xFF), height = drawn >> 9 & 0xF_FFFF_FFFF_FFFF
            let x = Double(height) * Ziggurat.widths[layer] * (drawn & 0x100 == 0 ? 1 : -1)
            if height < Ziggurat.inner[layer] { return x }
            guard layer == 0 else {
                let (below, above) = (Ziggurat.heights[layer], Ziggurat.heights[layer - 1])
                if (above - below) * uniform() + below < exp(-0.5 * x * x) { return x }
                continue
            }
            while true {
                let x = -log1p(-uniform()) / Ziggurat.tail, y = -log1p(-uniform())
                if 2 * y > x * x { return (Ziggurat.tail + x) * (height & 0x100 == 0 ? 1 : -1) }
            }
        }
    }
}

/// 256 layers of equal area under exp(-x² / 2).
private enum Ziggurat {
    /// Where the tail begins.
    static let tail = 3.6541528853610088
    private static let area = 0.004928673233974655
    private static let edges: [Double] = {
        var edges = [Double](repeating: tail, count: 256)
        for layer in (1..<255).reversed() {
            let above = edges[layer + 1]
            edges[layer] = (-2 * log(area / above + exp(-0.5 * above * above))).squareRoot()
        }
        edges[0] = area / exp(-0.5 * tail * tail)
        return edges
    }()
    static let widths = edges.map { $0 * 0x1p-52 }
    static let heights = [1] + edges.dropFirst().map { exp(-0.5 * $0 * $0) }
    /// Below these, a number lies within the layer above as well.
    static let inner = [UInt64(tail / edges[0] * 0x1p52), 0]
        + (2..<256).map { UInt64(edges[$0 - 1] / edges[$0] * 0x1p52) }
}

/// numpy's `SeedSequence`: well mixed words from seeds.
struct SeedSequence {
    private let pool: [UInt32]

    init(_ seeds: [UInt64]) {
        let entropy = seeds.flatMap { seed in
            [UInt32(truncatingIfNeeded: seed)] + (seed >> 32 == 0 ? [] : [UInt32(seed >> 32)])
        }
        var factor: UInt32 = 0x43B0_D7E5, pool: [UInt32] = []
        func hashed(_ word: UInt32) -> UInt32 { Self.hashed(word, &factor, 0x931E_8875) }
        func mix(_ word: UInt32, into place: Int) {
            let mixed = 0xCA01_F9DD &* pool[place] &- 0x4973_F715 &* hashed(word)
            pool[place] = mixed ^ mixed >> 16
        }
        for place in 0..<4 { pool.append(hashed(place < entropy.count ? entropy[place] : 0)) }
        for source in 0..<4 {
            for place in 0..<4 where place != source { mix(pool[source], into: place) }
        }
        for word in entropy.dropFirst(4) {
            for place in 0..<4 { mix(word, into: place) }
        }
        self.pool = pool
    }

    func words(_ count: Int) -> [UInt32] {
        var factor: UInt32 = 0x8B51_F9DD
        return (0..<count).map { Self.hashed(pool[$0 % 4], &factor, 0x58F3_8DED) }
    }

    private static func hashed(_ word: UInt32, _ factor: inout UInt32, _ multiplier: UInt32) -> UInt32 {
        let word = word ^ factor
        factor &*= multiplier
        let mixed = word &* factor
        return mixed ^ mixed >> 16
    }
}

/// 128 bits; Swift has `UInt128` from macOS 15 on.
private struct UInt128Parts {
    var high: UInt64
    var low: UInt64

    static func &+ (a: Self, b: Self) -> Self {
        let (low, carries) = a.low.addingReportingOverflow(b.low)
        return Self(high: a.high &+ b.high &+ (carries ? 1 : 0), low: low)
    }

    static func &* (a: Self, b: Self) -> Self {
        let (high, low) = a.low.multipliedFullWidth(by: b.low)
        return Self(high: high &+ a.high &* b.low &+ a.low &* b.high, low: low)
    }
}
