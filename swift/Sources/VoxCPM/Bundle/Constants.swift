import Foundation

/// The arrays in a bundle's folder `constants`, which all precisions share.
struct Constants: Sendable {
    private let folder: URL
    private let embedTokens: NumpyArray
    private let hidden: Int
    private let scale: Float

    init(_ bundle: URL, _ architecture: Manifest.Architecture) throws {
        folder = bundle.appendingPathComponent("constants")
        embedTokens = try NumpyArray(folder.appendingPathComponent("embed_tokens.npy"))
        hidden = architecture.hidden
        scale = architecture.textEmbeddingScale
        guard embedTokens.shape.count == 2, embedTokens.shape[1] == hidden else {
            throw VoxCPMError.bundle(file: "constants/embed_tokens.npy", problem: "its shape is not the manifest's")
        }
    }

    func array(_ name: String) throws -> NumpyArray {
        try NumpyArray(folder.appendingPathComponent("\(name).npy"))
    }

    /// The embedding of a text token.
    func embedding(of token: Int) throws -> [Float] {
        guard 0 <= token, token < embedTokens.shape[0] else {
            throw VoxCPMError.text(
                "the text has a token of id \(token), but the vocabulary ends at \(embedTokens.shape[0] - 1)")
        }
        let row = embedTokens[(token * hidden)..<((token + 1) * hidden)]
        guard row.allSatisfy(\.isFinite) else {
            throw VoxCPMError.bundle(file: "constants/embed_tokens.npy", problem: "it has infinities or NaN")
        }
        return scale == 1 ? row : row.map { $0 * scale }
    }
}
