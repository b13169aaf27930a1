// The positions before generation: text tokens, and audio patches of a reference voice or a prompt.
//
//     zero-shot       text 101
//     continuation    text 101 prompt               (text: the prompt's transcript and the target, tokenised as one)
//     reference       103 reference 104 text 101    (VoxCPM2)
//     both            103 reference 104 text 101 prompt

/// The sequence with which both language models are prefilled.
struct InputSequence: Sendable {
    static let audioStart = 101, referenceStart = 103, referenceEnd = 104

    /// Token ids, 0 at audio positions.
    private(set) var tokens: [Int] = []
    private(set) var isAudio: [Bool] = []
    /// The patches of the audio positions in order; each row is (frames · latent_dim).
    private(set) var patches: Rows

    /// - Parameters:
    ///   - text: ids of the transcript and the text, tokenised as one, without audio start.
    ///   - prompt: patches to continue; empty for zero-shot.
    ///   - reference: patches of a reference voice, or empty.
    ///   - startsAudio: false for a voice's prefix, which has no text to speak.
    init(text: [Int], prompt: Rows, reference: Rows, startsAudio: Bool = true) {
        patches = Rows(width: prompt.width)
        if reference.count > 0 {
            append([Self.referenceStart])
            append(reference)
            append([Self.referenceEnd])
        }
        append(text + (startsAudio ? [Self.audioStart] : []))
        append(prompt)
    }

    var count: Int { tokens.count }

    /// Whether the last position is audio, so that the speech continues a prompt.
    var continuesAudio: Bool { isAudio.last ?? false }

    /// The first DiT's `cond`: the prompt's last patch, or zeros after text.
    var lastPatch: [Float] {
        continuesAudio ? patches[patches.count - 1] : [Float](repeating: 0, count: patches.width)
    }

    /// The part from `position` on.
    func after(_ position: Int) -> InputSequence {
        var rest = self
        rest.tokens = Array(tokens.dropFirst(position))
        rest.isAudio = Array(isAudio.dropFirst(position))
        rest.patches = patches[isAudio.prefix(position).count { $0 }..<patches.count]
        return rest
    }

    /// Up to `count` last patches of the prompt, which the decoder processes first; empty after text.
    func decoderContext(_ count: Int) -> Rows {
        let context = continuesAudio ? min(count, patches.count) : 0
        return patches[(patches.count - context)..<patches.count]
    }

    private mutating func append(_ ids: [Int]) {
        tokens += ids
        isAudio += ids.map { _ in false }
    }

    private mutating func append(_ audio: Rows) {
        tokens += [Int](repeating: 0, count: audio.count)
        isAudio += [Bool](repeating: true, count: audio.count)
        patches.append(audio)
    }
}

/// Items start ..< start + length, padded at the end to `size` items.
struct CallChunk: Equatable, Sendable {
    let start: Int
    let length: Int
    let size: Int
}

/// The cost of reading all weights for a call, in items of arithmetic.
private let callCost = 8

/// The cheapest way to run `count` items in chunks of `sizes`; only the last chunk may be padded.
///
/// - Parameters:
///   - position: of the first item in the KV cache.
///   - capacity: positions in the cache. Padding must fit, too.
func planChunks(_ count: Int, _ sizes: [Int], position: Int = 0, capacity: Int? = nil) throws -> [CallChunk] {
    let end = position + count
    /// Cost, and size of the first chunk, for the last `index` items.
    var best: [(cost: Int, size: Int)] = [(0, 0)]
    for left in stride(from: 1, through: count, by: 1) {
        var chosen: (cost: Int, size: Int)?
        for size in sizes {
            if let capacity, size > left, end - left + size > capacity { continue }
            let cost = callCost + size + best[max(0, left - size)].cost
            if let known = chosen, (known.cost, -known.size) <= (cost, -size) { continue }
            chosen = (cost, size)
        }
        guard let chosen else { throw VoxCPMError.doesNotFit(needed: end, capacity: capacity ?? end) }
        best.append(chosen)
    }
    var chunks: [CallChunk] = [], start = 0
    while start < count {
        let size = best[count - start].size
        chunks.append(CallChunk(start: start, length: min(size, count - start), size: size))
        start += size
    }
    return chunks
}
