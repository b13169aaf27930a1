// Audio to latent patches and back. The state of the AudioVAE's step models is the convolutions' left context.

/// The side on which a recording is padded with zeros to whole patches.
enum Padding { case left, right }

extension Driver {
    /// Latent patches of a recording at the input sample rate: a prompt padded on the left, a reference on the right.
    func encode(_ samples: [Float], padding side: Padding) async throws -> Rows {
        let name = StepModelName.audioVAEEncoder
        let encoder = try model(name), state = try encoder.newState()
        let unit = architecture.patchInputSamples
        let missing = [Float](repeating: 0, count: (unit - samples.count % unit) % unit)
        let audio = side == .left ? missing + samples : samples + missing
        let sizes = manifest.stepModel(name).lengths(of: "audio", axis: 2).map { $0 / unit }
        var patches = Rows(width: patchValues)
        for chunk in try planChunks(audio.count / unit, sizes) {
            try Task.checkCancellation()
            var part = Array(audio[(chunk.start * unit)..<((chunk.start + chunk.length) * unit)])
            part += [Float](repeating: 0, count: chunk.size * unit - part.count)
            let latents = try await encoder.output(
                "latents", chunk.size * patchValues, of: name.rawValue,
                ["audio": Tensor(shape: [1, 1, part.count], values: part)], state)
            // (latent_dim, size · frames) to (size, frames · latent_dim)
            let frames = chunk.size * architecture.patchSize
            let rows = transposed(latents, rows: architecture.featDim, columns: frames)
            patches.append(Rows(width: patchValues, values: rows)[0..<chunk.length])
        }
        return patches
    }

    /// A decoder that has processed the end of the prompt.
    func patchDecoder(after sequence: InputSequence) async throws -> PatchDecoder {
        let decoder = PatchDecoder(driver: self, state: try model(.audioVAEDecoder).newState())
        let context = sequence.decoderContext(architecture.generation.decoderContextPatches)
        for row in 0..<context.count { _ = try await decoder(context[row]) }
        return decoder
    }
}

/// Decodes one patch (frames · latent_dim) after another to samples at the output sample rate.
///
/// A call always decodes one patch: longer chunks round differently, and streams must equal offline speech.
struct PatchDecoder: Sendable {
    let driver: Driver
    let state: any StepState

    func callAsFunction(_ patch: [Float]) async throws -> [Float] {
        let a = driver.architecture
        let latents = Tensor(
            shape: [1, a.featDim, a.patchSize],
            values: transposed(patch, rows: a.patchSize, columns: a.featDim))
        let name = StepModelName.audioVAEDecoder
        try Task.checkCancellation()
        return try await driver.model(name).output(
            "audio", a.patchOutputSamples, of: name.rawValue, ["latents": latents], state)
    }
}
