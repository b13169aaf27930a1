import Foundation

/// Normalizes English sentences to words.
///
/// *Spelled*, for a vocabulary of letters: everything in words. *Written*, for a vocabulary of words: numbers and
/// symbols in words; letters, names, abbreviations and punctuation stay as they are.
///
/// Numbers, years, ordinals, dates, times, money, percent, common units, titles, initials and acronyms are read as in
/// Python, which also reads addresses and file names, Roman numerals, most abbreviations, telephone numbers of other
/// countries, rare units and currencies, Greek letters, and acronyms in headings.
enum EnglishReader {
    private static let plain: [Unicode.Scalar: String] = [
        "’": "'", "‘": "'", "‚": "'", "‛": "'", "ʼ": "'", "´": "'", "`": "'", "′": "'", "“": "\"", "”": "\"", "„": "\"",
        "‟": "\"", "«": "\"", "»": "\"", "″": "\"", "‐": "-", "‑": "-", "‒": "–", "―": "—",
        "−": "-", "⁄": "/", "∕": "/",
        "™": "", "®": "", "℠": "", "\u{AD}": "", "\u{200B}": "", "\u{2060}": "", "\u{FEFF}": "",
    ]
    /// The same with letters and marks that a vocabulary of English letters lacks.
    private static let plainASCII: [Unicode.Scalar: String] = plain.merging([
        "Æ": "AE", "æ": "ae", "Ø": "O", "ø": "o", "Œ": "OE", "œ": "oe", "ß": "ss", "ẞ": "SS", "Ł": "L", "ł": "l",
        "Đ": "D", "đ": "d", "Ð": "D", "ð": "d", "Þ": "Th", "þ": "th", "ı": "i",
        "ħ": "h", "ŋ": "ng", "…": "...", "。": ".", "、": ",",
        "¿": "", "¡": "", "\u{200C}": "", "\u{200D}": "",
    ]) { $1 }
    private static let superscripts = Array("⁰¹²³⁴⁵⁶⁷⁸⁹⁻".unicodeScalars)
    private static let symbols: [Unicode.Scalar: String] = [
        "&": "and", "+": "plus", "=": "equals", "×": "times", "÷": "divided by", "≤": "less than or equal to",
        "≥": "greater than or equal to", "≠": "not equal to", "≈": "approximately", "±": "plus or minus",
        "√": "square root of", "∞": "infinity", "°": "degrees", "%": "percent", "‰": "per mille", "§": "section",
        "¶": "paragraph", "©": "copyright", "@": "at", "$": "dollar", "£": "pound", "€": "euro", "¥": "yen",
        "¢": "cent", "₹": "rupee", "№": "number", "∑": "sum", "∫": "integral", "∂": "partial", "∈": "in",
        "∝": "proportional to",
    ]

    // Numbers with context come first: 14:30 and $4.20 are words before other numbers are read.
    private static func numberRules(spelled: Bool) -> [Rule?] {
        listMarkers(spelled: spelled) + Dates.first(spelled: spelled) + Quantities.first(spelled: spelled)
            + numbered + (spelled ? titles : []) + Dates.alone + besideNumbers + Quantities.rest(spelled: spelled)
    }
    /// Before and after symbols become words.
    private static let spelledRules = (rules(numberRules(spelled: true)), rules(letters + marks))
    private static let writtenRules = (rules(numberRules(spelled: false)), rules(spaces))

    private static func rules(_ table: [Rule?]) -> [Rule] { table.compactMap(\.self) }

    /// All rules; nil for a pattern that does not compile.
    static var all: [Rule?] {
        numberRules(spelled: true) + numberRules(spelled: false) + letters + marks + spaces
    }

    /// The sentence in words, in mixed case; letters of other alphabets stay.
    static func readAloud(_ sentence: String, spelled: Bool = true) -> String {
        let (before, after) = spelled ? spelledRules : writtenRules
        let said = before(plainCharacters(sentence, asciiOnly: spelled)).unicodeScalars.map { char in
            "#*_/\\^|<>~".unicodeScalars.contains(char) ? " " : symbols[char].map { " \($0) " } ?? String(char)
        }
        return after(said.joined())
    }

    /// Compatibility characters as ASCII, plain quotes, no emoji or ornaments. ½ becomes 1/2, a superscript ^2.
    private static func plainCharacters(_ sentence: String, asciiOnly: Bool) -> String {
        if sentence.utf8.allSatisfy({ (32..<127).contains($0) && $0 != UInt8(ascii: "`") }) { return sentence }
        let plain = asciiOnly ? plainASCII : plain
        var text = "", isRaised = false
        var previous: Unicode.Scalar?
        for char in sentence.unicodeScalars {
            defer { previous = char }
            if let power = superscripts.firstIndex(of: char) {
                text += (isRaised ? "" : "^") + (power == 10 ? "-" : String(power))
                isRaised = true
                continue
            }
            isRaised = false
            let isFraction = (0xBC...0xBE).contains(char.value) || (0x2150...0x215E).contains(char.value)
            if isFraction, previous?.isDecimal == true { text += " " }
            if char.value < 32 || char.value == 127 { text += " " } else { text += plain[char] ?? String(char) }
        }
        // Compatibility mapping would turn an ellipsis into three dots.
        let parts = text.unicodeScalars.split(separator: "…", omittingEmptySubsequences: false)
        let compatible = parts.map { String($0).precomposedStringWithCompatibilityMapping }.joined(separator: "…")
        let replaced = compatible.unicodeScalars.map { plain[$0] ?? String($0) }.joined()
        return replaced.unicodeScalars.map(plainCharacter).joined()
    }

    private static func plainCharacter(_ char: Unicode.Scalar) -> String {
        if char.isASCII || symbols[char] != nil { return String(char) }
        if let value = char.decimalValue { return String(value) }
        return switch char.properties.generalCategory {
        case .otherSymbol, .control: " "
        case .format where char == "\u{200C}" || char == "\u{200D}": String(char)  // joins letters of Hindi and Persian
        case .modifierSymbol, .format, .enclosingMark, .privateUse, .unassigned, .surrogate: ""
        default: (0xFE00...0xFE0F).contains(char.value) ? "" : String(char)
        }
    }

    private static let smallRomans = ["i", "ii", "iii", "iv", "v", "vi", "vii", "viii", "ix", "x", "xi", "xii"]

    private static func listMarkers(spelled: Bool) -> [Rule?] { [
        Rule(#"^\s*\(?(?<mark>\d{1,2}|[A-Za-z](?=\))|[ivx]{2,5})(?<stop>\)|\.(?=\s+\w))\s*"#) { found in
            let mark = found["mark"], roman = smallRomans.firstIndex(of: mark).map { String($0 + 1) }
            let isNumber = mark.unicodeScalars.allSatisfy(\.isDecimal)
            let number = (isNumber ? mark : roman).map(NumberNames.cardinal)
            guard let said = number ?? (spelled ? NumberNames.letterByLetter(mark) : nil) else { return found.whole }
            return said + (found["stop"] == "." ? ". " : ", ")
        }
    ] }

    private static let titleNames = [
        "Mr": "mister", "Mrs": "missus", "Ms": "miz", "Messrs": "messrs", "Mme": "madame", "Dr": "doctor",
        "St": "saint",
        "Mt": "mount", "Ft": "fort", "Prof": "professor", "Gen": "general", "Col": "colonel", "Capt": "captain",
        "Cpt": "captain", "Maj": "major", "Lt": "lieutenant", "Sgt": "sergeant", "Cpl": "corporal", "Cmdr": "commander",
        "Adm": "admiral", "Rev": "reverend", "Hon": "honorable", "Gov": "governor", "Sen": "senator",
        "Rep": "representative", "Pres": "president", "Insp": "inspector", "Supt": "superintendent",
    ]

    private static let numbered: [Rule?] = [
        Rule(#"\bno\.\s?(?=\d)|\bN(?:o|O)\.\s?(?=\d)"#, "number "),
        Rule(#"(?<=\w\s)No\s(?=\d)"#, "number "),
    ]

    private static let titles: [Rule?] = [
        Rule(#"(?<=[a-z]\s)St\.(?!\s?[A-Z])|(?<=\w\s)St\.?(?=,|\s*$)"#, "street"),
        Rule(#"(?<=[a-z]\s)Dr\.(?!\s?[A-Z])|(?<=\w\s)Dr\.?(?=,|\s*$)"#, "drive"),
        Rule(#"\b(\#(anyOf(titleNames.keys)))\b(?:\.|(?=\s[A-Z][a-z]))"#) { titleNames[$0[1]] ?? $0.whole },
    ]

    private static let besideNumbers: [Rule?] = [
        Rule("[←-⇿➔-➾⟵-⟿]|<?[-=]{1,3}>", ", "),
        Rule(#"(?<=\s)<=(?=\s)"#, " less than or equal to "),
        Rule(#"(?<=\s)>=(?=\s)"#, " greater than or equal to "),
        Rule(#"(?<=\s)!=(?=\s)"#, " not equal to "),
        Rule(#"(?<=[\w)]\s)<(?=\s)|<(?=\d)"#, " less than "),
        Rule("(?<=[A-Za-z]{3}) > (?=[A-Za-z]{3})", ", "),
        Rule(#"(?<=[\w)]\s)>(?=\s)|(?<!\w)>(?=\d)"#, " greater than "),
        Rule(#"[~≈](?=\s?\d)"#, " about "),
        Rule(#"#(?=\d)"#, " number "),
        Rule(#"(?<=\w) \* (?=\w)|(?<=\d)\*(?=\d)"#, " times "),
        Rule("={2,}", "="),
    ]

    private static let letters: [Rule?] = [
        // Initials: U.S., J.R.R. Tolkien, George W. Bush.
        Rule(#"(?<![\w.'])(?:[A-Za-z]\.){2,20}(?:[A-Za-z](?![\w']))?"#) { NumberNames.letterByLetter($0.whole) },
        Rule(#"(?<![\w.'])([A-HJ-Z])\.(?=\s*[A-Z])"#) { "\(NumberNames.letterByLetter($0[1])) " },
        // iPhone, eBay
        Rule(#"(?<!\w)([ei])(?=[A-Z])"#) { "\(NumberNames.letterByLetter($0[1])) " },
        // A is an article before a word, and a letter elsewhere.
        Rule(#"(?<![\w'])A(?=-[a-z]|[^\w\s'-]|\s*$|\s(?:and|or|to)\s[B-HJ-Z]\b)"#, "ay"),
        Rule(#"(?:(?<=\b[Aa]n )|(?<=\b[Tt]he ))A(?![\w'.])"#, "ay"),
        Rule(#"(?<![\w'])[B-HJ-Zb-hj-z](?!\w|'(?!s\b)\w)"#) { NumberNames.letterByLetter($0.whole) },
        Rule(#"(?<![\w'])(?:[b-df-hj-np-tv-xz]{2,5}|[hmszrt]{6,20})(?![\w'])"#) {
            Acronyms.isSound($0.whole) ? $0.whole : NumberNames.letterByLetter($0.whole)
        },
        Rule(#"(?<![\w'])([A-Z]{2,})('?s|'S)?(?![\w]|'[a-rt-z])"#) { Acronyms.said($0[1], $0[2].lowercased()) },
    ]

    private static let marks: [Rule?] = [
        Rule(#"(?<!\w)'(?!\w)"#, " "),
        // 'a quotation', but not 'tis or the dogs' bowls.
        Rule(#"(?<!\w)'(?!(?:tis|twas|twere|em|til|cause|bout|round|n)\b)(?=\w)"#, ""),
        Rule(#"(?<![\Ws])'(?!\w)"#, ""),
        Rule(#"""#, ""),
        Rule(#"(?<!\.)\.{2,}(?=\s*[?!])"#, ""),
        Rule(#"\.{2,}(?=\s*\w)"#, ", "),
        Rule(#"(?:\s*\.){2,}"#, "."),
        Rule(#"\s-{1,3}(?=\s)|-{2,}"#, ", "),
        Rule(#"(?<!\w)-|-(?!\w)"#, " "),
    ]

    /// What replaced symbols and emoji leave in a text that keeps its punctuation.
    private static let spaces: [Rule?] = [
        Rule("•", " "),
        Rule(#"(?<![^\x00-\x7f])[\u200c\u200d]+"#, ""),
        Rule(#"\s+"#, " "),
        Rule(#" (?=[,.;:!?)\]](?!\w))"#, ""),
        Rule(#",(?=[\p{L}\p{N}])"#, ", "),
    ]
}
