/// Byte pair encoding as in the library `tokenizers`, with the vocabulary and merges of a tokenizer.json.
struct BytePairEncoding: Sendable {
    private(set) var ids: [UTF8Text: Int]
    private let characters: [Unicode.Scalar: Int]
    /// A pair of ids → its merge; smaller ranks first.
    private let merges: [UInt64: Merge]
    /// Ids of <0x00> to <0xFF>, for characters without a token; nil for bytes without one.
    private let bytes: [Int?]
    private let unknown: Int?
    private let fusesUnknown: Bool
    private let ignoresMerges: Bool

    private struct Merge: Sendable {
        let rank: Int32
        let id: Int32
    }

    /// - Parameters:
    ///   - model: of tokenizer.json.
    ///   - isLlama: whether to use Llama's settings instead of the declared ones.
    ///
    /// Throws a `Problem` for another kind of model, and for merges of unknown tokens.
    init(_ model: JSONText, isLlama: Bool) throws {
        guard model["type"].map({ $0.text == UTF8Text("BPE") }) ?? true,
            case .object(let entries)? = model["vocab"]
        else { throw Problem("expected a BPE tokenizer, like VoxCPM's") }
        if case .number(let dropout)? = model["dropout"], dropout != 0 {
            throw Problem("expected a BPE tokenizer without dropout, which is random")
        }
        let hasAffix = ["continuing_subword_prefix", "end_of_word_suffix"].contains { key in
            !(model[key]?.text?.bytes.isEmpty ?? true)
        }
        guard isLlama || !hasAffix else { throw Problem("its tokens have prefixes or suffixes, which no VoxCPM has") }
        var ids: [UTF8Text: Int] = [:], characters: [Unicode.Scalar: Int] = [:]
        ids.reserveCapacity(entries.count)
        for (token, value) in entries {
            guard let id = value.id else { throw Problem("the id of \(token.string.debugDescription) is not a number") }
            ids[token] = id
            let scalars = token.string.unicodeScalars
            if let first = scalars.first, token.bytes.count <= 4, scalars.count == 1 { characters[first] = id }
        }
        self.ids = ids
        self.characters = characters
        merges = try Self.merges(model["merges"]?.list ?? [], ids)
        let fallsBack = isLlama || (model["byte_fallback"]?.flag ?? false)
        bytes = (0..<256).map { byte in
            guard fallsBack else { return nil }
            let digits = String(byte, radix: 16, uppercase: true)
            return ids[UTF8Text("<0x\(byte < 16 ? "0" : "")\(digits)>")]
        }
        if !isLlama, let token = model["unk_token"]?.text {
            guard let id = ids[token] else { throw Problem("its unknown token is not in the vocabulary") }
            unknown = id
        } else {
            unknown = nil
        }
        fusesUnknown = isLlama || (model["fuse_unk"]?.flag ?? false)
        ignoresMerges = !isLlama && (model["ignore_merges"]?.flag ?? false)
    }

    private static func merges(_ list: [JSONText], _ ids: [UTF8Text: Int]) throws -> [UInt64: Merge] {
        var merges: [UInt64: Merge] = [:]
        merges.reserveCapacity(list.count)
        for (rank, entry) in list.enumerated() {
            let parts: [[UInt8]] = if let line = entry.text {
                line.bytes.split(separator: 32, omittingEmptySubsequences: false).map(Array.init)
            } else {
                (entry.list ?? []).compactMap { $0.text?.bytes }
            }
            guard parts.count == 2, let left = ids[UTF8Text(parts[0])], let right = ids[UTF8Text(parts[1])],
                let whole = ids[UTF8Text(parts[0] + parts[1])], let rank = Int32(exactly: rank)
            else { throw Problem("merge \(rank + 1) is not of two tokens of the vocabulary") }
            merges[pair(left, right)] = Merge(rank: rank, id: Int32(whole))
        }
        return merges
    }

    private static func pair(_ left: Int, _ right: Int) -> UInt64 { UInt64(left) << 32 | UInt64(right) }

    /// Whether the character has a token, or its bytes have.
    func knows(_ character: Unicode.Scalar) -> Bool {
        characters[character].map { $0 != unknown } ?? (byteIDs(character) != nil)
    }

    private func byteIDs(_ character: Unicode.Scalar) -> [Int]? {
        let found = UTF8Text([character]).bytes.compactMap { bytes[Int($0)] }
        return found.count == UTF8.width(character) ? found : nil
    }

    /// A token, and its place in the text where it begins.
    struct Token {
        let id: Int
        let place: Int
    }

    /// The tokens of a text without added tokens, in O(n log n).
    func encode(_ text: ArraySlice<Unicode.Scalar>) -> [Token] {
        if ignoresMerges, let id = self.ids[UTF8Text(text)] { return [Token(id: id, place: 0)] }
        return merged(symbols(text))
    }

    private func symbols(_ text: ArraySlice<Unicode.Scalar>) -> [Token] {
        var symbols: [Token] = [], pending: Int?
        symbols.reserveCapacity(text.count)
        func end() {
            if let place = pending, let unknown { symbols.append(Token(id: unknown, place: place)) }
        }
        for (place, character) in text.enumerated() {
            if let id = characters[character] {
                end()
                pending = nil
                symbols.append(Token(id: id, place: place))
            } else if let found = byteIDs(character) {
                // As in the library, a pending unknown token follows them.
                symbols.append(contentsOf: found.map { Token(id: $0, place: place) })
            } else if unknown != nil {
                if !fusesUnknown { end() }
                pending = fusesUnknown ? pending ?? place : place
            }
        }
        end()
        return symbols
    }

    /// The symbols after all merges: smallest rank first, then leftmost.
    private func merged(_ start: [Token]) -> [Token] {
        let count = start.count
        guard count > 1, !merges.isEmpty else { return start }
        var symbols = start.map(\.id)
        var following = Array(1...count), before = Array(-1..<(count - 1))  // a linked list; `count` ends it
        var isAlive = [Bool](repeating: true, count: count)
        var queue = Heap()

        func offer(_ left: Int) {
            guard left >= 0, following[left] < count else { return }
            if let merge = merges[Self.pair(symbols[left], symbols[following[left]])] {
                queue.push(UInt64(merge.rank) << 32 | UInt64(left), merge.id)
            }
        }
        for left in 0..<(count - 1) { offer(left) }
        while let (key, id) = queue.pop() {
            let left = Int(key & 0xFFFF_FFFF), right = following[left]
            guard isAlive[left], right < count else { continue }
            // The pair may have changed since it was offered.
            guard merges[Self.pair(symbols[left], symbols[right])]?.id == id else { continue }
            symbols[left] = Int(id)
            isAlive[right] = false
            following[left] = following[right]
            if following[left] < count { before[following[left]] = left }
            offer(before[left])
            offer(left)
        }
        return symbols.indices.filter { isAlive[$0] }.map { Token(id: symbols[$0], place: start[$0].place) }
    }
}

/// A binary min-heap.
private struct Heap {
    private var items: [(key: UInt64, id: Int32)] = []

    mutating func push(_ key: UInt64, _ id: Int32) {
        items.append((key, id))
        var child = items.count - 1
        while child > 0, items[child].key < items[(child - 1) / 2].key {
            items.swapAt(child, (child - 1) / 2)
            child = (child - 1) / 2
        }
    }

    mutating func pop() -> (UInt64, Int32)? {
        guard let first = items.first, let last = items.popLast() else { return nil }
        guard !items.isEmpty else { return first }
        items[0] = last
        var parent = 0
        while true {
            var smallest = parent
            for child in [2 * parent + 1, 2 * parent + 2]
            where child < items.count && items[child].key < items[smallest].key {
                smallest = child
            }
            guard smallest != parent else { return first }
            items.swapAt(smallest, parent)
            parent = smallest
        }
    }
}
