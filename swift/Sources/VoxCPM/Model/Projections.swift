// The DiT's condition and the residual LM's input, whose arithmetic depends on the generation.
//
//     voxcpm     lm_to_dit(hidden) + res_to_dit(residual)     hidden + embedding
//     voxcpm2    both, concatenated                           fusion(hidden, embedding)

/// x · wᵀ + b, with w (out, in) and b (out,) of the bundle's constants.
struct Projection: Sendable {
    private let weight: [Float]
    private let bias: [Float]

    init(_ constants: Constants, _ stem: String, inputs: Int) throws {
        weight = try constants.array("\(stem)_w").values
        bias = try constants.array("\(stem)_b").values
        guard !bias.isEmpty, weight.count == bias.count * inputs else {
            throw VoxCPMError.bundle(file: "constants/\(stem)_w.npy", problem: "its shape is not the manifest's")
        }
    }

    var outputs: Int { bias.count }

    func callAsFunction(_ x: [Float]) -> [Float] {
        let width = weight.count / bias.count
        return weight.withUnsafeBufferPointer { weight in
            x.withUnsafeBufferPointer { x in
                bias.indices.map { bias[$0] + dot(weight.baseAddress! + $0 * width, x.baseAddress!, width) }
            }
        }
    }
}

/// The dot product of two rows, in sixteen sums: the compiler may not vectorise one.
private func dot(_ a: UnsafePointer<Float>, _ b: UnsafePointer<Float>, _ count: Int) -> Float {
    var sums = SIMD16<Float>(repeating: 0), index = 0
    while index + 16 <= count {
        let left = UnsafeRawPointer(a + index).loadUnaligned(as: SIMD16<Float>.self)
        let right = UnsafeRawPointer(b + index).loadUnaligned(as: SIMD16<Float>.self)
        sums += left * right
        index += 16
    }
    var sum = sums.sum()
    while index < count {
        sum += a[index] * b[index]
        index += 1
    }
    return sum
}

/// The projections of a bundle.
struct Projections: Sendable {
    private let lmToDiT: Projection
    private let residualToDiT: Projection
    private let fusion: Projection?

    init(_ constants: Constants, _ architecture: Manifest.Architecture) throws {
        let hidden = architecture.hidden
        lmToDiT = try Projection(constants, "lm_to_dit_proj", inputs: hidden)
        residualToDiT = try Projection(constants, "res_to_dit_proj", inputs: hidden)
        fusion = try architecture.generation == .voxcpm2
            ? Projection(constants, "fusion_concat_proj", inputs: 2 * hidden) : nil
        let muWidth = (fusion == nil ? 1 : 2) * architecture.ditWidth
        guard lmToDiT.outputs == architecture.ditWidth, residualToDiT.outputs == lmToDiT.outputs, muWidth > 0,
            fusion.map({ $0.outputs == hidden }) ?? true
        else { throw VoxCPMError.bundle(file: "constants", problem: "its projections do not match the manifest") }
    }

    /// The DiT's condition.
    func condition(_ hidden: [Float], _ residualHidden: [Float]) -> [Float] {
        let first = lmToDiT(hidden), second = residualToDiT(residualHidden)
        return fusion == nil ? zip(first, second).map(+) : first + second
    }

    /// The residual LM's input. The embedding is zero at text positions.
    func residualInput(_ hidden: [Float], _ embedding: [Float]) -> [Float] {
        fusion.map { $0(hidden + embedding) } ?? zip(hidden, embedding).map(+)
    }
}
