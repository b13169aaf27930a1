// A patch from noise: Euler steps with classifier-free guidance and CFG-zero*, in the order of
// runtime/voxcpm_runtime/model/flow_matching.py, so that results differ only in rounding.

import Foundation

/// The solver's options.
struct Solving: Sendable {
    let steps: Int
    let cfgValue: Float
    let swaySamplingCoef: Float
    let useCfgZeroStar: Bool
    /// Width of the DiT's time embeddings.
    let embeddingWidth: Int
    /// Whether the DiT receives the length of each step; otherwise zero.
    let meanMode: Bool
}

private let zeroVelocityFraction = 0.04
private let normFloor: Float = 1e-8
private let angleScale: Float = 1000
private let minFrequency = 1e-4

/// Times from 1 (noise) to 0 (data), steps + 1 of them, denser near the noise for a positive coefficient.
func timeSpan(_ steps: Int, _ swaySamplingCoef: Float) -> [Float] {
    let step = 1 / Float(steps)
    return (0...steps).map { index in
        // Both halves count from their own end, as torch.linspace does.
        let linear = 2 * index < steps + 1 ? 1 - step * Float(index) : step * Float(steps - index)
        return linear + swaySamplingCoef * (cos(Float(Double.pi / 2) * linear) - 1 + linear)
    }
}

/// Number of leading steps with zero velocity (CFG-zero*).
func zeroVelocitySteps(_ steps: Int) -> Int { max(1, Int(Double(steps + 1) * zeroVelocityFraction)) }

/// Time and length of each Euler step after the first `skipped`.
func eulerSteps(_ steps: Int, _ swaySamplingCoef: Float, skipping skipped: Int) -> [(time: Float, length: Float)] {
    let times = timeSpan(steps, swaySamplingCoef)
    var time = times[0], length = times[0] - times[1]
    var all: [(time: Float, length: Float)] = []
    for step in 1...steps {
        all.append((time, length))
        // Not times[step]: upstream subtracts, and the DiT's input includes the rounding of the time.
        time -= length
        if step < steps { length = time - times[step + 1] }
    }
    return Array(all.dropFirst(skipped))
}

/// Sines, then cosines, of 1000 · time at geometric frequencies from 1 to 1/10000.
func timeEmbedding(_ time: Float, width: Int) -> [Float] {
    let half = width / 2
    let decay = Float(log(minFrequency) / Double(half - 1))
    let angles = (0..<half).map { angleScale * time * exp(Float($0) * decay) }
    return angles.map { sin($0) } + angles.map { cos($0) }
}

/// The guided velocity. rows: the conditional velocity, then the unconditional one.
func guidedVelocity(_ rows: [Float], _ cfgValue: Float, useCfgZeroStar: Bool) -> [Float] {
    let count = rows.count / 2
    var scale: Float = 1
    if useCfgZeroStar {
        var product: Float = 0, norm: Float = 0
        for index in 0..<count {
            product += rows[index] * rows[count + index]
            norm += rows[count + index] * rows[count + index]
        }
        scale = product / (norm + normFloor)
    }
    return (0..<count).map { index in
        let unconditional = rows[count + index] * scale
        return unconditional + cfgValue * (rows[index] - unconditional)
    }
}

/// Turn noise (latent_dim, frames) into a patch of the same shape, with `locdit_step`.
///
/// mu: the language models' condition. cond: the previous patch, (latent_dim, frames).
func solve(
    _ dit: any StepFunction, noise: [Float], mu: [Float], cond: [Float], shape: [Int], _ solving: Solving
) async throws -> [Float] {
    let width = solving.embeddingWidth
    let mus = Tensor(shape: [2, mu.count], values: mu + [Float](repeating: 0, count: mu.count))
    let conds = Tensor(shape: [2] + shape, values: cond + cond)
    let skipped = solving.useCfgZeroStar ? zeroVelocitySteps(solving.steps) : 0
    var x = noise
    for step in eulerSteps(solving.steps, solving.swaySamplingCoef, skipping: skipped) {
        try Task.checkCancellation()
        let time = timeEmbedding(step.time, width: width)
        let length = timeEmbedding(solving.meanMode ? step.length : 0, width: width)
        let inputs = [
            "x": Tensor(shape: [2] + shape, values: x + x),
            "mu": mus,
            "t_embedding": Tensor(shape: [2, width], values: time + time),
            "cond": conds,
            "dt_embedding": Tensor(shape: [2, width], values: length + length),
        ]
        let rows = try await dit.output("velocity", 2 * x.count, of: "locdit_step", inputs)
        let velocity = guidedVelocity(rows, solving.cfgValue, useCfgZeroStar: solving.useCfgZeroStar)
        for index in x.indices { x[index] -= step.length * velocity[index] }
    }
    return x
}

/// `solve` with CFG-zero* in one call of `locdit_solve`, which must have the same number of steps.
func solveAtOnce(
    _ solver: any StepFunction, noise: [Float], mu: [Float], cond: [Float], shape: [Int], _ solving: Solving
) async throws -> [Float] {
    let steps = eulerSteps(
        solving.steps, solving.swaySamplingCoef, skipping: zeroVelocitySteps(solving.steps))
    let embeddings = steps.flatMap { timeEmbedding($0.time, width: solving.embeddingWidth) }
    try Task.checkCancellation()
    return try await solver.output("patch", noise.count, of: "locdit_solve", [
        "noise": Tensor(shape: [1] + shape, values: noise),
        "mu": Tensor(shape: [1, mu.count], values: mu),
        "cond": Tensor(shape: [1] + shape, values: cond),
        "t_embeddings": Tensor(shape: [steps.count, solving.embeddingWidth], values: embeddings),
        "step_lengths": Tensor(shape: [steps.count], values: steps.map(\.length)),
        "cfg_value": Tensor(shape: [1], values: [solving.cfgValue]),
    ])
}
