/// Character properties as in Python. Texts are split and compared by Unicode scalars.
extension Unicode.Scalar {
    var isSpace: Bool {
        switch value {
        case 9...13, 28...32, 0x85, 0xA0, 0x1680, 0x2000...0x200A, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000: true
        default: false
        }
    }

    var isLetter: Bool {
        if isASCII { return (65...90).contains(value) || (97...122).contains(value) }
        return switch properties.generalCategory {
        case .uppercaseLetter, .lowercaseLetter, .titlecaseLetter, .modifierLetter, .otherLetter: true
        default: false
        }
    }

    /// A digit of a decimal system, such as 7 and ٧.
    var isDecimal: Bool {
        if isASCII { return (48...57).contains(value) }
        return properties.generalCategory == .decimalNumber
    }

    /// 0 to 9 for a digit of a decimal system.
    var decimalValue: Int? {
        guard isDecimal, let value = properties.numericValue, (0..<10).contains(value) else { return nil }
        return Int(value)
    }

    var isLetterOrNumber: Bool {
        if isASCII { return isLetter || isDecimal }
        return isLetter || properties.numericType != nil
    }

    /// `\w` of regular expressions.
    var isWordCharacter: Bool { isLetterOrNumber || self == "_" }

    var isSmall: Bool { isASCII ? (97...122).contains(value) : properties.isLowercase }

    var isCapital: Bool { isASCII ? (65...90).contains(value) : properties.isUppercase }

    var isMark: Bool {
        guard !isASCII else { return false }
        return switch properties.generalCategory {
        case .nonspacingMark, .spacingMark, .enclosingMark: true
        default: false
        }
    }

    /// An emoji or a part of one, such as a joiner; it belongs to the preceding sentence.
    var isEmoji: Bool {
        guard value > 0x2190 || value == 0x200D else { return false }
        if value == 0x200D { return true }
        return switch properties.generalCategory {
        case .otherSymbol, .modifierSymbol, .nonspacingMark, .enclosingMark, .format: true
        default: false
        }
    }

    /// Hiragana, katakana and Chinese characters.
    var isWide: Bool {
        switch value {
        case 0x3040...0x30FF, 0x3400...0x4DBF, 0x4E00...0x9FFF, 0xF900...0xFAFF: true
        default: false
        }
    }

    /// Chinese or Japanese, including repetition marks and rare characters.
    var isChinese: Bool { isWide || (0x3005...0x3007).contains(value) || (0x20000...0x3FFFF).contains(value) }
}

extension Collection<Unicode.Scalar> {
    var string: String {
        var scalars = String.UnicodeScalarView()
        scalars.append(contentsOf: self)
        return String(scalars)
    }
}

extension BidirectionalCollection<Unicode.Scalar> {
    /// Without leading and trailing characters for which `isOuter` is true.
    func trimming(_ isOuter: (Unicode.Scalar) -> Bool) -> SubSequence {
        guard let first = firstIndex(where: { !isOuter($0) }), let last = lastIndex(where: { !isOuter($0) }) else {
            return self[startIndex..<startIndex]
        }
        return self[first...last]
    }
}
