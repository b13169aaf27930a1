/// Punctuation that decides where sentences end.
enum Marks {
    static func set(_ marks: String) -> Set<Unicode.Scalar> { Set(marks.unicodeScalars) }

    static let fullStops = set(".．")
    static let dots = set(".．…")
    /// These end a sentence before white space, or before a Chinese or Japanese character.
    static let softStops = set(".．…!?‼⁇⁈⁉")
    /// These end a sentence anywhere: Chinese, Japanese, Hindi, Arabic, Urdu, Amharic, Khmer, Burmese.
    static let hardStops = set("\u{3002}\u{FF01}\u{FF1F}\u{FF61}\u{964}\u{965}\u{61F}\u{6D4}\u{1362}\u{17D4}\u{104B}")
    static let stops = softStops.union(hardStops)
    static let pairs: [Unicode.Scalar: Unicode.Scalar] = [
        "“": "”", "‘": "’", "«": "»", "「": "」", "『": "』", "《": "》", "〈": "〉",
        "(": ")", "[": "]", "{": "}", "（": "）", "【": "】", "〔": "〕", "［": "］",
    ]
    /// Marks that belong to the stop before them: ends of quotations and brackets, and Markdown's emphasis.
    static let closers = set("\"'*_~").union(pairs.values)
    /// Marks that may precede the first letter of a sentence.
    static let openers = set("\"'*_~¿¡").union(pairs.keys)
    /// Directly after a quotation, these continue the enclosing sentence.
    static let continuers = set("，、；：,;:—–-と")
    /// Quotations and brackets of up to this many characters are not split.
    static let longestWhole = 200

    private static let alwaysOpening = set("“‘«「『《〈（【〔［")
    private static let brackets = set("([{")
    private static let beforeFace = set(":;=-")
    private static let beforeQuotation = set("“‘«([{")
    private static let closing = set("”»」』》〉)]}）】〕］\"")

    /// Whether a quotation or bracket is open at the end of a text.
    static func leavesOpen(_ text: ArraySlice<Unicode.Scalar>) -> Bool {
        var awaited: [Unicode.Scalar] = []
        var before: Unicode.Scalar?
        for (at, char) in zip(text.indices, text) {
            defer { before = char }
            let opens = alwaysOpening.contains(char)
                || (brackets.contains(char) && !(before.map(beforeFace.contains) ?? false))  // :( opens nothing,
                || (char == "\"" && (before.map(mayPrecedeQuotation) ?? true))  // nor does the mark of 5" wide
            let next = text.index(after: at)
            let endsWord = next == text.endIndex || !text[next].isWordCharacter
            guard opens || closing.contains(char) || (char == "’" && endsWord) else { continue }
            if let partner = awaited.firstIndex(of: char) {
                awaited.removeSubrange(partner...)
            } else if opens {
                awaited.append(pairs[char] ?? char)
            }
        }
        return !awaited.isEmpty
    }

    private static func mayPrecedeQuotation(_ char: Unicode.Scalar) -> Bool {
        if char.isSpace || beforeQuotation.contains(char) || char.isChinese { return true }
        return (0x3000...0x303F).contains(char.value) || (0xFF01...0xFF60).contains(char.value)
    }

    /// -, *, #, 1. and similar at the start of a line.
    static func isListMarker(_ text: [Unicode.Scalar]) -> Bool {
        guard let first = text.first, let last = text.last else { return false }
        if text.count == 1, ["-", "*", "•", "–", "—"].contains(first) { return true }
        if text.count <= 6, text.allSatisfy({ $0 == "#" }) { return true }
        let digits = last == "." || last == ")" ? text.dropLast() : text[...]
        return (1...3).contains(digits.count) && digits.allSatisfy(\.isDecimal)
    }

    /// A number, a letter or a small Roman numeral, with preceding marks.
    static func isEnumeration(_ text: ArraySlice<Unicode.Scalar>) -> Bool {
        let said = text.drop { !$0.isWordCharacter }
        guard let first = said.first else { return false }
        if (1...3).contains(said.count), said.allSatisfy(\.isDecimal) { return true }
        if said.count == 1, first.isASCII, first.isLetter { return true }
        return said.allSatisfy { ["i", "v", "x", "I", "V", "X"].contains($0) }
    }

    /// Initials and letters with dots: J, U.S, p.m, Ph.D.
    static func isInitials(_ word: some Collection<Unicode.Scalar>) -> Bool {
        let parts = word.split(separator: ".", omittingEmptySubsequences: false)
        guard parts.allSatisfy({ (1...2).contains($0.count) && $0.allSatisfy(isEuropean) }) else { return false }
        return parts.count > 1 || word.count == 1
    }

    private static func isEuropean(_ char: Unicode.Scalar) -> Bool {
        switch char.value {
        case 65...90, 97...122, 0xC0...0x24F, 0x391...0x3C9, 0x410...0x44F: true
        default: false
        }
    }
}
