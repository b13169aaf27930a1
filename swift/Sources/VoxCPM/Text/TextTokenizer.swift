import Foundation

/// A function from a text to its token ids, equal to those of the reference implementation.
struct TextTokenizer: Sendable {
    private let vocabulary: [[UInt8]: Int]
    private let merges: [Pair: Merge]
    /// Tokens that are cut out of a text before BPE: those found in the text as it is, and those found after the steps.
    private let cutFirst: [[UInt8]: Int]
    private let cutLater: [[UInt8]: Int]
    private let steps: Steps
    private let unknown: Int?
    private let unknownName: [UInt8]
    private let fusesUnknown: Bool
    private let bytes: [Int?]
    /// Tokens of several Chinese characters, and those characters' own.
    private let chinese: [Int: [Int]]
    /// Whether the vocabulary is letters and a few marks, without digits.
    let hasLettersOnly: Bool

    private struct Pair: Hashable { let left: Int, right: Int }
    private struct Merge { let rank: Int, merged: Int }
    private struct Steps: Sendable {
        let all: [TokenizerFile.Step]
        let wordStart: TokenizerFile.WordStart?
    }

    private static let start = Array("\u{2581}".utf8)

    /// folder: with tokenizer.json and tokenizer_config.json. Throws `VoxCPMError.bundle`.
    init(_ folder: URL) throws {
        let file = try TokenizerFile(folder)
        vocabulary = file.vocabulary
        var merges: [Pair: Merge] = [:]
        for (rank, merge) in file.merges.enumerated() {
            guard let left = vocabulary[merge.0], let right = vocabulary[merge.1],
                let merged = vocabulary[merge.0 + merge.1]
            else { throw VoxCPMError.bundle(file: "tokenizer/tokenizer.json", problem: "a merge names no token") }
            merges[Pair(left: left, right: right)] = Merge(rank: rank, merged: merged)
        }
        self.merges = merges
        var cutFirst: [[UInt8]: Int] = [:], cutLater: [[UInt8]: Int] = [:], following = vocabulary.count
        for token in file.added {
            let known = vocabulary[token.content] ?? cutFirst[token.content] ?? cutLater[token.content]
            let id = known ?? following
            if known == nil { following += 1 }
            if token.isSpecial, !file.cutsSpecial { continue }
            if token.isNormalized { cutLater[token.content] = id } else { cutFirst[token.content] = id }
        }
        steps = Steps(all: file.steps, wordStart: file.wordStart)
        self.cutFirst = cutFirst
        self.cutLater = cutLater
        unknown = file.unknown.flatMap { file.vocabulary[$0] }
        unknownName = file.unknownName
        fusesUnknown = file.fusesUnknown
        bytes = (0..<256).map { byte in
            file.fallsBackToBytes ? file.vocabulary[Array(String(format: "<0x%02X>", byte).utf8)] : nil
        }
        let known = file.vocabulary
        var chinese: [Int: [Int]] = [:]
        let named = known[file.unknownName] ?? cutFirst[file.unknownName]
        for (token, id) in known {
            let bare = Array(String(decoding: token, as: UTF8.self).unicodeScalars.filter { $0 != "\u{2581}" })
            guard bare.count > 1, bare.allSatisfy({ (0x4E00...0x9FFF).contains($0.value) }),
                known[Array(bare.text.utf8)] != nil
            else { continue }
            chinese[id] = bare.compactMap { known[Array(String($0).utf8)] ?? named }
        }
        self.chinese = chinese
        hasLettersOnly = !file.fallsBackToBytes && "0123456789".utf8.contains { known[[$0]] == nil }
    }

    /// Token ids of a text, without a beginning of sequence. A token of several Chinese characters becomes these.
    ///
    /// Throws `CancellationError`: a text may be long.
    func callAsFunction(_ text: String) throws -> [Int] {
        try Task.checkCancellation()
        var ids: [Int] = [], isFirst = true
        for part in cut(Array(text.utf8), cutFirst) {
            switch part {
            case .token(let id): ids.append(id)
            case .text(let bytes):
                for part in cut(normalized(bytes), cutLater) {
                    switch part {
                    case .token(let id): ids.append(id)
                    case .text(let bytes): ids += encoded(startingWord(bytes, isFirst: isFirst))
                    }
                    isFirst = false
                }
            }
            isFirst = false
        }
        return ids.flatMap { chinese[$0] ?? [$0] }
    }

    /// Characters of a text, each once, that no token represents, so that they would not be spoken.
    func unknownCharacters(_ text: String) -> String {
        var lost: Scalars = []
        for part in cut(Array(text.utf8), cutFirst) {
            switch part {
            // The token of unknown characters, spelled out.
            case .token(let id): lost += cutFirst[unknownName] == id ? Scalars(String(decoding: unknownName, as: UTF8.self)) : []
            case .text(let bytes): lost += String(decoding: bytes, as: UTF8.self).unicodeScalars.filter { !isKnown($0) }
            }
        }
        var seen: Set<Unicode.Scalar> = []
        return lost.filter { !$0.isSpace && seen.insert($0).inserted }.text
    }

    private func isKnown(_ scalar: Unicode.Scalar) -> Bool {
        if scalar == "\u{2581}" { return false }
        let lowers = steps.all.contains { if case .lowercase = $0 { true } else { false } }
        return (lowers ? [scalar].lowercased : [scalar]).allSatisfy { part in
            let bytes = Array(String(part).utf8)
            return vocabulary[bytes].map { $0 != unknown } ?? bytes.allSatisfy { self.bytes[Int($0)] != nil }
        }
    }

    // MARK: - Steps

    private enum Part {
        case token(Int)
        case text([UInt8])
    }

    /// The text cut at added tokens: of those at one place the longest.
    private func cut(_ text: [UInt8], _ tokens: [[UInt8]: Int]) -> [Part] {
        let firsts = Set(tokens.keys.compactMap(\.first))
        guard !firsts.isEmpty else { return text.isEmpty ? [] : [.text(text)] }
        var parts: [Part] = [], begun = 0, place = 0
        while place < text.count {
            let found = firsts.contains(text[place])
                ? tokens.filter { text[place...].starts(with: $0.key) }.max { $0.key.count < $1.key.count } : nil
            guard let found else {
                place += 1
                continue
            }
            if begun < place { parts.append(.text(Array(text[begun..<place]))) }
            parts.append(.token(found.value))
            place += found.key.count
            begun = place
        }
        if begun < text.count { parts.append(.text(Array(text[begun...]))) }
        return parts
    }

    private func normalized(_ text: [UInt8]) -> [UInt8] {
        var text = text
        for step in steps.all {
            switch step {
            case .lowercase: text = Array(Scalars(String(decoding: text, as: UTF8.self)).lowercased.text.utf8)
            case .prepend(let start): text = text.isEmpty ? text : start + text
            case .replace(let pattern, let content): text = replaced(text, pattern, content)
            }
        }
        return text
    }

    /// Llama's word starts: for each space, and before the text.
    private func startingWord(_ text: [UInt8], isFirst: Bool) -> [UInt8] {
        guard let wordStart = steps.wordStart else { return text }
        let text = replaced(text, [0x20], Self.start)
        let prepends = wordStart == .always || (wordStart == .first && isFirst)
        return prepends && !text.starts(with: Self.start) ? Self.start + text : text
    }

    private func replaced(_ text: [UInt8], _ pattern: [UInt8], _ content: [UInt8]) -> [UInt8] {
        var result: [UInt8] = [], place = 0
        while place < text.count {
            if text[place] == pattern[0], text[place...].starts(with: pattern) {
                result += content
                place += pattern.count
            } else {
                result.append(text[place])
                place += 1
            }
        }
        return result
    }

    // MARK: - Byte-pair encoding

    private func encoded(_ text: [UInt8]) -> [Int] {
        var ids: [Int] = []
        for scalar in String(decoding: text, as: UTF8.self).unicodeScalars {
            let own = Array(String(scalar).utf8)
            let spelled = own.compactMap { bytes[Int($0)] }
            if let id = vocabulary[own] {
                ids.append(id)
            } else if spelled.count == own.count {
                ids += spelled
            } else if let unknown, !(fusesUnknown && ids.last == unknown) {
                ids.append(unknown)
            }
        }
        return merges.isEmpty ? ids : merged(ids)
    }

    /// Merges pairs by rank, of equal ones the first, until none is left. Neighbours are linked, and pairs wait in a heap,
    /// so that the time does not grow with the square of the text.
    private func merged(_ ids: [Int]) -> [Int] {
        var ids: [Int?] = ids, next = Array(1..<(ids.count + 1)), before = Array(-1..<(ids.count - 1))
        var waiting = Heap()
        func push(_ place: Int) {
            guard place >= 0, next[place] < ids.count, let left = ids[place], let right = ids[next[place]],
                let merge = merges[Pair(left: left, right: right)]
            else { return }
            waiting.push(Heap.Entry(rank: merge.rank, place: place, left: left, right: right, merged: merge.merged))
        }
        if ids.isEmpty { return [] }
        for place in ids.indices { push(place) }
        while let entry = waiting.pop() {
            let following = next[entry.place]
            // Neighbours that have merged otherwise since.
            guard ids[entry.place] == entry.left, following < ids.count, ids[following] == entry.right else { continue }
            ids[entry.place] = entry.merged
            ids[following] = nil
            next[entry.place] = next[following]
            if next[following] < ids.count { before[next[following]] = entry.place }
            push(before[entry.place])
            push(entry.place)
        }
        return ids.compactMap(\.self)
    }
}

/// Pairs to merge, the lowest rank first, of equal ranks the first place.
private struct Heap {
    struct Entry {
        let rank: Int
        let place: Int
        let left: Int
        let right: Int
        let merged: Int

        static func < (a: Entry, b: Entry) -> Bool { (a.rank, a.place) < (b.rank, b.place) }
    }

    private var entries: [Entry] = []

    mutating func push(_ entry: Entry) {
        entries.append(entry)
        var index = entries.count - 1
        while index > 0, entries[index] < entries[(index - 1) / 2] {
            entries.swapAt(index, (index - 1) / 2)
            index = (index - 1) / 2
        }
    }

    mutating func pop() -> Entry? {
        guard let first = entries.first, let last = entries.popLast() else { return nil }
        guard !entries.isEmpty else { return first }
        entries[0] = last
        var index = 0
        while true {
            var least = index
            for child in [2 * index + 1, 2 * index + 2] where child < entries.count && entries[child] < entries[least] {
                least = child
            }
            if least == index { return first }
            entries.swapAt(index, least)
            index = least
        }
    }
}
