import Foundation

/// The text with each run of white space replaced with one space, as upstream.
public func saidText(_ text: String) -> String {
    var said = String.UnicodeScalarView(), isGap = false
    for char in text.unicodeScalars {
        if !char.isSpace { said.append(char) } else if !isGap { said.append(" ") }
        isGap = char.isSpace
    }
    return String(said)
}

/// English text normalization for vocabularies of letters, such as the built-in voice's. For published vocabularies,
/// text is unchanged.
///
/// Numbers, decimals, years, ordinals, dates, times, money, percent, common units, titles and acronyms are read as in
/// Python. Web addresses, file names, Roman numerals, most abbreviations, Greek letters and rare units are not; write
/// those in words.
extension TextTokenizer {
    /// The text in words, in lower case and with the vocabulary's marks; unchanged if the vocabulary has digits. Not
    /// idempotent: in lower case, the name Max is an abbreviation.
    ///
    /// Letters of other alphabets are transliterated, or left out if nothing is known for them.
    ///
    /// Throws `VoxCPMError.text` if nothing is left to speak, and for letters of other alphabets if `strict`.
    public func spelled(_ text: String, strict: Bool = false) throws -> String {
        try spelledAndForeign(text, strict: strict).said
    }

    /// `spelled`, and the letters of other alphabets in it, each once.
    func spelledAndForeign(_ text: String, strict: Bool) throws -> (said: String, foreign: String) {
        guard hasLettersOnly else { return (text, "") }
        // By sentence, so that a stop after an abbreviation can also end a sentence.
        var said = sentences(text).map { EnglishReader.readAloud($0.text).pythonLowercased }
        var replacements: [Unicode.Scalar: String] = [:], foreign = ""
        for char in unknownCharacters(said.joined()).unicodeScalars where replacements[char] == nil {
            replacements[char] = Self.replacement(char)
            guard let plain = replacements[char], !unknownCharacters(plain).isEmpty else { continue }
            foreign.unicodeScalars.append(char)
            replacements[char] = transliterated(char)
        }
        guard foreign.isEmpty || !strict else {
            let shown = foreign.unicodeScalars.prefix(10).map { "'\($0)'" }.joined(separator: ", ")
            throw VoxCPMError.text(
                "this voice has only the letters a to z, and cannot say \(shown); write it in English letters, or leave "
                    + "out strict to transliterate it")
        }
        if !replacements.isEmpty {
            said = said.map { part in part.unicodeScalars.map { replacements[$0] ?? String($0) }.joined() }
        }
        let whole = said.map(Self.tidy).filter { !$0.isEmpty }.joined(separator: " ")
        guard !whole.isEmpty else {
            let shown = text.prefix(60).debugDescription
            throw VoxCPMError.text("nothing to say in \(shown): this voice knows letters only")
        }
        return (whole, foreign)
    }

    /// A letter of another alphabet in those of the vocabulary: zhong for 中; empty if none is known.
    private func transliterated(_ char: Unicode.Scalar) -> String {
        let latin = String(char).applyingTransform(.toLatin, reverse: false)?
            .applyingTransform(.stripDiacritics, reverse: false)?.pythonLowercased ?? ""
        let unknown = Set(unknownCharacters(latin).unicodeScalars)
        let known = latin.unicodeScalars.filter { !unknown.contains($0) }.map(String.init).joined()
        // A Chinese character is a syllable, and a word of its own here.
        return (0x4E00...0x9FFF).contains(char.value) ? " \(known) " : known
    }

    /// The text with numbers, dates, money and symbols in words, and without markup, as Python's `normalize` reads
    /// English; for a vocabulary of letters only without markup, since `spelled` reads it.
    ///
    /// Throws `VoxCPMError.unsupported` for a text with a Chinese character, and `VoxCPMError.text` if nothing is left.
    public func normalized(_ text: String) throws -> String { try Self.normalized(text, isSpelled: hasLettersOnly) }

    /// - Parameter isSpelled: whether English is left to `spelled`.
    static func normalized(_ text: String, isSpelled: Bool) throws -> String {
        guard !text.unicodeScalars.contains(where: { (0x4E00...0x9FFF).contains($0.value) }) else {
            throw VoxCPMError.unsupported("normalize reads English only: leave it out for a text in Chinese")
        }
        var said = "", end = text.startIndex
        // VoxCPM's own input, such as {ni3}, is left alone.
        for own in text.matches(of: #/\s*\{[^{}]*\}\s*/#) {
            said += written(text[end..<own.range.lowerBound], isSpelled: isSpelled) + own.output
            end = own.range.upperBound
        }
        said += written(text[end...], isSpelled: isSpelled)
        guard said.unicodeScalars.contains(where: { !$0.isSpace }) else {
            throw VoxCPMError.text("only emoji, code or markup in the text; expected words to speak")
        }
        return said
    }

    private static func written(_ text: Substring, isSpelled: Bool) -> String {
        let plain = Array(markup(String(text)).unicodeScalars).trimming(\.isSpace).string
        let read = sentences(plain).map { isSpelled ? $0.text : EnglishReader.readAloud($0.text, spelled: false) }
        return Array(read.joined().unicodeScalars).trimming(\.isSpace).string
    }

    /// Markdown and HTML. Code is removed first, whatever is in it.
    static let markupRules: [Rule?] = [
        Rule("(?s)```.*?```", ""),
        Rule("`[^`]*`", ""),
        Rule(#"!\[[^]]*]\([^)]+\)"#, ""),
        Rule(#"\[([^]]+)]\([^)]+\)"#) { $0[1] },
        Rule(#"(?m)^(\s*)-\s+"#) { $0[1] },
        Rule(#"<(?!\s|https?:|mailto:)[^>]+>"#, ""),
        Rule(#"(?m)^#{1,6}\s+"#, ""),
        Rule(#"\\(?![\w\s])"#, ""),
    ]
    private static let markup = markupRules.compactMap(\.self)

    /// The normalized transcript and a space; empty if it is empty.
    public func spelledTranscript(_ transcript: String, strict: Bool = false) throws -> String {
        transcript.isEmpty || !hasLettersOnly ? transcript : "\(try spelled(transcript, strict: strict)) "
    }

    /// The transcript of a text that other segments continue, before `spelled`; transcripts are concatenated.
    ///
    /// For vocabularies of letters a blank line ends the sentence; for others a space follows, if the script uses
    /// spaces.
    public func continuedTranscript(_ said: String) -> String {
        if hasLettersOnly { return "\(said)\n\n" }
        guard let last = said.unicodeScalars.last, !last.isSpace, !last.isFullWidth else { return said }
        return "\(said) "
    }

    /// The replacement of an unknown character: a comma for a long dash, e for é.
    private static func replacement(_ char: Unicode.Scalar) -> String {
        if Marks.set(";:()[]{}–—").contains(char) { return "," }
        guard char.isLetter else { return " " }
        let parts = String(char).decomposedStringWithCompatibilityMapping.unicodeScalars
        return parts.filter { $0.properties.canonicalCombiningClass == .notReordered }.map(String.init).joined()
    }

    private static let tidying: [Rule] = [
        // Replacements leave spaces before marks, and commas next to other marks.
        Rule(#"[ ,]+(?=[,.!?])"#, ""),
        Rule(#"(?<=[.!?])[ ,]*,"#, ""),
        Rule(#"\.+"#, "."),
        Rule(#"\.(?=[!?])|(?<=[!?])\."#, ""),
        Rule(#",(?=[^\W_])"#, ", "),
        Rule(#"(?<=[.!?])(?=[^\W_])"#, " "),
    ].compactMap(\.self)

    /// The sentence with one space between words and one mark between clauses; empty if it has no word.
    private static func tidy(_ text: String) -> String {
        let ends = Marks.set(" ,")
        var tidy = Array(tidying(saidText(text)).unicodeScalars).trimming(ends.contains)
        guard tidy.contains(where: \.isLetter) else { return "" }
        if let first = tidy.first, Marks.set(".!?,-").contains(first) {
            tidy = tidy.drop(while: Marks.set(" ,.!?-'").contains)
        }
        return tidy.string + (tidy.last.map(Marks.set(".!?").contains) ?? false ? "" : ".")
    }
}

extension Unicode.Scalar {
    /// East Asian wide and full-width characters, after which no space is written.
    var isFullWidth: Bool {
        switch value {
        case 0x1100...0x115F, 0x2E80...0x303E, 0x3041...0xA4CF, 0xA960...0xA97C, 0xAC00...0xD7A3, 0xF900...0xFAFF,
            0xFE30...0xFE6B, 0xFF01...0xFF60, 0xFFE0...0xFFE6, 0x1F200...0x1F265, 0x20000...0x3FFFD:
            true
        default: properties.isEmojiPresentation && !(0x1F1E6...0x1F1FF).contains(value)
        }
    }
}
