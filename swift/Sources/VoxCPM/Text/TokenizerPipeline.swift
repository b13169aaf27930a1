/// The steps before BPE: added tokens are matched, and the rest is normalized.
struct TokenizerPipeline: Sendable {
    enum Part {
        case token(Int)
        case text([Unicode.Scalar])
    }

    static let wordStart: Unicode.Scalar = "▁"

    /// The normalizer of published checkpoints, which transformers replaces with its own.
    static let llamaNormalizer: JSONText = {
        func text(_ text: String) -> JSONText { .string(UTF8Text(text)) }
        func object(_ members: [(String, JSONText)]) -> JSONText {
            .object(members.map { (key: UTF8Text($0.0), value: $0.1) })
        }
        let prepend = object([("type", text("Prepend")), ("prepend", text("▁"))])
        let pattern = object([("String", text(" "))])
        let replace = object([("type", text("Replace")), ("pattern", pattern), ("content", text("▁"))])
        return object([("type", text("Sequence")), ("normalizers", .array([prepend, replace]))])
    }()

    private enum Step: Sendable {
        case lowercase
        case prepend([Unicode.Scalar])
        case replace([Unicode.Scalar], [Unicode.Scalar])
    }

    /// How words are marked after normalization.
    private struct WordMarks: Sendable {
        enum Scheme: String { case always, first, never }
        var mark: Unicode.Scalar = wordStart
        var scheme = Scheme.always
        var splits = false
    }

    private let steps: [Step]
    private let marks: WordMarks?
    /// Added tokens that are matched in the original text, and in normalized text.
    private let plain: TokenSearch
    private let normal: TokenSearch
    let addedIDs: [UTF8Text: Int]

    /// Throws a `Problem` for steps that no VoxCPM has.
    init(_ document: JSONText, _ config: TokenizerConfig, isLlama: Bool, vocabulary: [UTF8Text: Int]) throws {
        let listed = try document["added_tokens"]?.list?.map { try AddedToken($0, id: nil) } ?? []
        var tokens: [AddedToken]
        if isLlama {
            steps = []
            let scheme: WordMarks.Scheme = config.addsPrefixSpace ? config.isLegacy ? .always : .first : .never
            marks = WordMarks(scheme: scheme)
            tokens = config.added ?? listed.enumerated()
                .sorted { ($0.element.id, $0.offset) < ($1.element.id, $1.offset) }
                .map(\.element)
            var known = Set(tokens.map(\.content))
            for name in config.named where known.insert(name).inserted { tokens.append(AddedToken(special: name)) }
        } else {
            steps = try Self.steps(document["normalizer"], depth: 0)
            marks = try Self.marks(document["pre_tokenizer"])
            tokens = listed
        }
        tokens.removeAll { $0.content.bytes.isEmpty }
        guard tokens.count <= 10_000 else {
            throw Problem("it has \(tokens.count) added tokens; expected at most 10000")
        }
        let size = vocabulary.count
        var ids: [UTF8Text: Int] = [:], newest = -1
        for token in tokens where ids[token.content] == nil {
            let id = vocabulary[token.content] ?? max(size, newest + 1)
            ids[token.content] = id
            newest = max(newest, id)
        }
        addedIDs = ids
        var plain: [(content: [Unicode.Scalar], id: Int)] = [], normal = plain
        for token in tokens where !(isLlama && config.splitsSpecialTokens && token.isSpecial) {
            guard let id = ids[token.content] else { continue }
            if token.isNormalized {
                normal.append((Self.apply(steps, to: token.content.scalars), id))
            } else {
                plain.append((token.content.scalars, id))
            }
        }
        self.plain = TokenSearch(plain)
        self.normal = TokenSearch(normal)
    }

    private static func steps(_ json: JSONText?, depth: Int) throws -> [Step] {
        guard let json else { return [] }
        guard depth < 8 else { throw Problem("its normalizer has more than 8 levels") }
        switch json["type"]?.text?.string {
        case "Sequence":
            let steps = try (json["normalizers"]?.list ?? []).flatMap { try Self.steps($0, depth: depth + 1) }
            guard steps.count <= 16 else { throw Problem("its normalizer has more than 16 steps") }
            return steps
        case "Lowercase": return [.lowercase]
        case "Prepend":
            guard let text = json["prepend"]?.text, (1...16).contains(text.bytes.count) else { break }
            return [.prepend(text.scalars)]
        case "Replace":
            guard let found = json["pattern"]?["String"]?.text, !found.bytes.isEmpty,
                let content = json["content"]?.text, content.bytes.count <= 4 * found.bytes.count
            else { break }
            return [.replace(found.scalars, content.scalars)]
        default: break
        }
        throw Problem("its normalizer has a step that no VoxCPM has; expected Sequence, Lowercase, Prepend and Replace")
    }

    private static func marks(_ json: JSONText?) throws -> WordMarks? {
        guard let json else { return nil }
        let mark = json["replacement"]?.text?.scalars ?? [wordStart]
        guard json["type"]?.text?.string == "Metaspace", let first = mark.first, mark.count == 1,
            let scheme = WordMarks.Scheme(rawValue: json["prepend_scheme"]?.text?.string ?? "always")
        else { throw Problem("its pre-tokenizer is one that no VoxCPM has; expected Metaspace, or none") }
        return WordMarks(mark: first, scheme: scheme, splits: json["split"]?.flag ?? true)
    }

    /// The text in parts: added tokens, and normalized text for BPE.
    func parts(of text: [Unicode.Scalar]) -> [Part] {
        var parts: [Part] = []
        plain.split(text) { text, isFirst in
            normal.split(Self.apply(steps, to: text)) { text, isFirstInside in
                parts += words(text, isFirst: isFirst && isFirstInside)
            } found: {
                parts.append(.token($0))
            }
        } found: {
            parts.append(.token($0))
        }
        return parts
    }

    /// The characters as they are looked up, without the prefix of a text.
    func normalized(_ text: [Unicode.Scalar]) -> [Unicode.Scalar] {
        Self.apply(steps.filter { if case .prepend = $0 { false } else { true } }, to: text)
    }

    private func words(_ text: [Unicode.Scalar], isFirst: Bool) -> [Part] {
        guard let marks else { return [.text(text)] }
        var text = text.map { $0 == " " ? marks.mark : $0 }
        if text.first != marks.mark, marks.scheme == .always || (marks.scheme == .first && isFirst) {
            text.insert(marks.mark, at: 0)
        }
        guard marks.splits else { return [.text(text)] }
        var words: [[Unicode.Scalar]] = []
        for character in text {
            if character == marks.mark || words.isEmpty { words.append([]) }
            words[words.count - 1].append(character)
        }
        return words.map(Part.text)
    }

    private static func apply(_ steps: [Step], to text: [Unicode.Scalar]) -> [Unicode.Scalar] {
        steps.reduce(text) { text, step in
            switch step {
            case .lowercase:
                return text.flatMap { char in
                    char.isASCII && !char.isCapital ? [char] : Array(char.properties.lowercaseMapping.unicodeScalars)
                }
            case .prepend(let start): return text.isEmpty ? text : start + text
            case .replace(let found, let content):
                var result: [Unicode.Scalar] = []
                TokenSearch([(found, 0)]).split(text) { rest, _ in result += rest } found: { _ in result += content }
                return result
            }
        }
    }
}

/// Finds the leftmost-longest tokens in a text.
struct TokenSearch: Sendable {
    private let tokens: [Unicode.Scalar: [(content: [Unicode.Scalar], id: Int)]]

    init(_ tokens: [(content: [Unicode.Scalar], id: Int)]) {
        var grouped: [Unicode.Scalar: [(content: [Unicode.Scalar], id: Int)]] = [:]
        for token in tokens {
            if let first = token.content.first { grouped[first, default: []].append(token) }
        }
        self.tokens = grouped.mapValues { group in
            let order = group.enumerated().sorted { a, b in
                (-a.element.content.count, a.offset) < (-b.element.content.count, b.offset)
            }
            return order.map(\.element)
        }
    }

    /// Call `rest` with each text between tokens and whether it begins the text, and `found` with each token, in order.
    func split(_ text: [Unicode.Scalar], rest: ([Unicode.Scalar], Bool) -> Void, found: (Int) -> Void) {
        var start = 0, at = 0
        while at < text.count {
            let token = tokens[text[at]]?.first { text[at...].starts(with: $0.content) }
            guard let token else {
                at += 1
                continue
            }
            if start < at { rest(Array(text[start..<at]), start == 0) }
            found(token.id)
            at += token.content.count
            start = at
        }
        if start < text.count { rest(start == 0 ? text : Array(text[start...]), start == 0) }
    }
}
