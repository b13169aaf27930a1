import Foundation

/// Text → token ids, equal to Python's and upstream's, for the BPE vocabularies of published checkpoints and the
/// built-in voice's vocabulary of letters.
public struct TextTokenizer: Sendable {
    private let model: BytePairEncoding
    private let pipeline: TokenizerPipeline
    /// Id of a token with several Chinese characters → their ids (upstream's `model/utils.py`).
    private let characters: [Int: [Int]]

    /// Whether the vocabulary has no digits, so text must be normalized with `spelled`.
    public private(set) var hasLettersOnly = false

    /// The longest text, in Unicode scalars.
    static let maxCharacters = 64 << 20

    /// - Parameter folder: with tokenizer.json and tokenizer_config.json, such as a bundle's `tokenizer`.
    ///
    /// Throws `VoxCPMError.bundle` for files that are missing, damaged or for another kind of tokenizer.
    public init(folder: URL) throws {
        let files = try ["tokenizer.json", "tokenizer_config.json"].map { name in
            guard let data = try? Data(contentsOf: folder.appendingPathComponent(name)) else {
                throw VoxCPMError.bundle(file: "tokenizer/\(name)", problem: "it is missing or cannot be read")
            }
            return data
        }
        try self.init(tokenizer: files[0], config: files[1])
    }

    /// - Parameters:
    ///   - tokenizer: the content of tokenizer.json.
    ///   - config: the content of tokenizer_config.json.
    ///
    /// Throws `VoxCPMError.bundle`.
    init(tokenizer: Data, config: Data) throws {
        let settings = try Self.read("tokenizer_config.json") { try TokenizerConfig(JSONText(config)) }
        self = try Self.read("tokenizer.json") { try Self(document: JSONText(tokenizer), settings) }
    }

    private static func read<T>(_ file: String, _ body: () throws -> T) throws -> T {
        do {
            return try body()
        } catch let problem as Problem {
            throw VoxCPMError.bundle(file: "tokenizer/\(file)", problem: problem.text)
        }
    }

    /// Throws a `Problem`.
    private init(document: JSONText, _ config: TokenizerConfig) throws {
        guard let json = document["model"] else { throw Problem("expected a BPE tokenizer, like VoxCPM's") }
        let isLlama = document["normalizer"] == TokenizerPipeline.llamaNormalizer
        model = try BytePairEncoding(json, isLlama: isLlama)
        pipeline = try TokenizerPipeline(document, config, isLlama: isLlama, vocabulary: model.ids)
        let ids = pipeline.addedIDs.merging(model.ids) { added, _ in added }
        let unknown = ids[UTF8Text(config.unknown)]
        var characters: [Int: [Int]] = [:]
        for (token, id) in ids where token.bytes.count >= 6 && token.bytes.contains(where: { $0 >= 0xE4 }) {
            let bare = token.scalars.filter { $0 != TokenizerPipeline.wordStart }
            guard bare.count > 1, bare.allSatisfy({ (0x4E00...0x9FFF).contains($0.value) }), ids[UTF8Text(bare)] != nil
            else { continue }
            characters[id] = bare.compactMap { ids[UTF8Text([$0])] ?? unknown }
        }
        self.characters = characters
        hasLettersOnly = !unknownCharacters("0123456789").isEmpty
    }

    /// Token ids of a text, without BOS, in O(n log n).
    ///
    /// Throws `VoxCPMError.text` for a text of more than 67 million characters.
    public func callAsFunction(_ text: String) throws -> [Int] {
        try placed(text).ids
    }

    /// Token ids, and the place in the text where each token begins, after a space; no places if the text has added
    /// tokens, or characters that the vocabulary spells otherwise.
    func placed(_ text: String) throws -> (ids: [Int], places: [Int]?) {
        let scalars = Array(text.unicodeScalars)
        guard scalars.count <= Self.maxCharacters else {
            throw VoxCPMError.text(
                "the text has \(scalars.count) characters; expected at most \(Self.maxCharacters)")
        }
        var tokens: [BytePairEncoding.Token] = [], length = 0, isPlaced = true, hasPrefix = false
        for part in pipeline.parts(of: scalars) {
            switch part {
            case .token(let id):
                tokens.append(.init(id: id, place: length))
                isPlaced = false
            case .text(let text):
                if length == 0 { hasPrefix = text.first == TokenizerPipeline.wordStart && scalars.first != " " }
                tokens += model.encode(text[...]).map { .init(id: $0.id, place: length + $0.place) }
                length += text.count
            }
        }
        isPlaced = isPlaced && length == scalars.count + (hasPrefix ? 1 : 0)
        var ids: [Int] = [], places: [Int] = []
        for (index, token) in tokens.enumerated() {
            let start = max(token.place - (hasPrefix ? 1 : 0), 0)
            guard let split = characters[token.id] else {
                let end = (index + 1 < tokens.count ? tokens[index + 1].place : length) - (hasPrefix ? 1 : 0)
                ids.append(token.id)
                places.append(isPlaced && end - start > 1 && scalars[start].isSpace ? start + 1 : start)
                continue
            }
            let end = (index + 1 < tokens.count ? tokens[index + 1].place : length) - (hasPrefix ? 1 : 0)
            ids += split
            places += split.indices.map { max(end - split.count + $0, 0) }
        }
        return (ids, isPlaced ? places : nil)
    }

    /// The distinct characters of a text that have no token and would not be spoken.
    public func unknownCharacters(_ text: String) -> String {
        var seen: Set<Unicode.Scalar> = []
        let unknown = text.unicodeScalars.filter { character in
            guard !character.isSpace, seen.insert(character).inserted else { return false }
            let said = pipeline.normalized([character])
            return character == TokenizerPipeline.wordStart || !said.contains(where: model.knows)
        }
        return Array(unknown).string
    }
}

/// The used fields of tokenizer_config.json, with the defaults of transformers.
struct TokenizerConfig {
    let unknown: String
    /// Named special tokens, in the order in which transformers adds them.
    let named: [UTF8Text]
    /// Tokens that are matched before BPE, by id; nil if tokenizer.json lists them.
    let added: [AddedToken]?
    let addsPrefixSpace: Bool
    let isLegacy: Bool
    let splitsSpecialTokens: Bool

    /// Throws a `Problem`.
    init(_ json: JSONText) throws {
        guard case .object(let members) = json else { throw Problem("expected a JSON object") }

        func named(_ value: JSONText) throws -> UTF8Text {
            guard let text = value.text ?? value["content"]?.text else {
                throw Problem("a special token is not a string")
            }
            return text
        }
        func token(_ key: String, default name: String?) throws -> UTF8Text? {
            guard members.contains(where: { $0.key == UTF8Text(key) }) else { return name.map(UTF8Text.init) }
            return try json[key].map(named)
        }
        func flag(_ key: String) throws -> Bool? {
            guard let value = json[key] else { return nil }
            guard let flag = value.flag else { throw Problem("\(key) is neither true nor false") }
            return flag
        }
        let unknown = try token("unk_token", default: "<unk>")
        self.unknown = unknown.flatMap { $0.bytes.isEmpty ? nil : $0.string } ?? "<unk>"
        var names = [try token("bos_token", default: "<s>"), try token("eos_token", default: "</s>"), unknown]
        for key in ["sep_token", "pad_token", "cls_token", "mask_token"] { names.append(try token(key, default: nil)) }
        for key in ["extra_special_tokens", "additional_special_tokens"] {
            let values: [JSONText] = switch json[key] {
            case .object(let members)?: members.map(\.value)
            case .array(let list)?: list
            default: []
            }
            guard !values.isEmpty else { continue }
            names += try values.map(named)
            break
        }
        self.named = names.compactMap(\.self)
        if case .object(let records)? = json["added_tokens_decoder"] {
            added = try records.map { key, value in
                guard let id = Int(key.string) else { throw Problem("an id of added_tokens_decoder is not a number") }
                return try AddedToken(value, id: id)
            }.sorted { $0.id < $1.id }
        } else {
            added = nil
        }
        addsPrefixSpace = try flag("add_prefix_space") ?? true
        isLegacy = try flag("legacy") ?? false
        splitsSpecialTokens = try flag("split_special_tokens") ?? false
    }
}

/// A token that is matched before BPE.
struct AddedToken {
    let id: Int
    let content: UTF8Text
    let isNormalized: Bool
    let isSpecial: Bool

    init(special content: UTF8Text) {
        self.content = content
        id = 0
        isNormalized = false
        isSpecial = true
    }

    /// Throws a `Problem`.
    init(_ json: JSONText, id: Int?) throws {
        guard let id = id ?? json["id"]?.id, let content = json["content"]?.text else {
            throw Problem("an added token has no id or no content")
        }
        guard !["single_word", "lstrip", "rstrip"].contains(where: { json[$0]?.flag ?? false }) else {
            let shown = content.string.debugDescription
            throw Problem("the added token \(shown) has single_word, lstrip or rstrip, which no VoxCPM uses")
        }
        self.id = id
        self.content = content
        isSpecial = json["special"]?.flag ?? false
        isNormalized = json["normalized"]?.flag ?? !isSpecial
    }
}
