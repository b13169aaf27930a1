// Characters are Unicode scalars, as in Python, and never Swift's `Character`, which joins an accent to its letter: texts
// must be cut and tokenised as the reference implementation does it.

typealias Scalars = [Unicode.Scalar]

extension Unicode.Scalar {
    /// White space, and the separators that Python counts among it.
    var isSpace: Bool { properties.isWhitespace || (0x1C...0x1F).contains(value) }

    var isLetter: Bool {
        switch properties.generalCategory {
        case .uppercaseLetter, .lowercaseLetter, .titlecaseLetter, .modifierLetter, .otherLetter: true
        default: false
        }
    }

    /// A letter, or a number of any kind.
    var isAlphanumeric: Bool { isLetter || properties.numericType != nil }

    /// What `\w` matches.
    var isWordCharacter: Bool { isAlphanumeric || self == "_" }

    var isDecimalDigit: Bool { properties.numericType == .decimal }

    var isMark: Bool {
        switch properties.generalCategory {
        case .nonspacingMark, .spacingMark, .enclosingMark: true
        default: false
        }
    }

    /// Chinese or Japanese, with the marks that repeat a character.
    var isChineseOrJapanese: Bool {
        switch value {
        case 0x3005...0x3007, 0x3040...0x30FF, 0x3400...0x4DBF, 0x4E00...0x9FFF, 0xF900...0xFAFF, 0x20000...0x3FFFF:
            true
        default: false
        }
    }
}

extension Array where Element == Unicode.Scalar {
    init(_ text: String) { self = Array(text.unicodeScalars) }

    var text: String {
        var view = String.UnicodeScalarView()
        view.append(contentsOf: self)
        return String(view)
    }

    /// Without white space at both ends.
    var trimmed: Scalars {
        guard let first = firstIndex(where: { !$0.isSpace }), let last = lastIndex(where: { !$0.isSpace }) else {
            return []
        }
        return Array(self[first...last])
    }

    var lowercased: Scalars { flatMap { Array($0.properties.lowercaseMapping.unicodeScalars) } }
}

/// Number of letters and digits of a text, from which its expected time follows.
func lettersIn(_ text: String) -> Int { text.unicodeScalars.reduce(0) { $0 + ($1.isAlphanumeric ? 1 : 0) } }

/// Whether the text has anything to say: a letter or a digit.
func hasWords(_ text: Scalars) -> Bool { text.contains(where: \.isAlphanumeric) }
