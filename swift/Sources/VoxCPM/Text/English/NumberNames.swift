/// Numbers in American English words. Numbers are strings of ASCII digits, to keep leading zeros.
enum NumberNames {
    private static let small = [
        "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
        "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
    ]
    private static let tens = ["", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
    private static let scales = [
        "", " thousand", " million", " billion", " trillion", " quadrillion", " quintillion", " sextillion",
        " septillion", " octillion", " nonillion", " decillion",
    ]
    private static let ordinals = [
        "one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth", "nine": "ninth",
        "twelve": "twelfth",
    ]

    private static func digits(_ number: String) -> [Int] { number.unicodeScalars.compactMap(\.decimalValue) }

    /// The digits one by one: "nine one one".
    static func digitNames(_ number: String) -> String { digits(number).map { small[$0] }.joined(separator: " ") }

    /// The number in words: "one thousand two hundred thirty-four". Numbers with a leading zero or more than 36 digits
    /// are read digit by digit. Thousands may be separated by commas.
    static func cardinal(_ number: String) -> String {
        let digits = digits(number)
        return digits.count > 1 && digits.first == 0 ? digitNames(number) : name(digits)
    }

    private static func name(_ digits: [Int]) -> String {
        guard digits.count <= 3 * scales.count else { return digits.map { small[$0] }.joined(separator: " ") }
        var words: [String] = []
        for (scale, name) in scales.enumerated().reversed() where 3 * scale < digits.count {
            let group = digits.dropLast(3 * scale).suffix(3).reduce(0) { 10 * $0 + $1 }
            if group > 0 { words.append(hundreds(group) + name) }
        }
        return words.isEmpty ? small[0] : words.joined(separator: " ")
    }

    private static func hundreds(_ number: Int) -> String {
        let rest = number % 100
        let low = rest < 20 ? small[rest] : tens[rest / 10] + (rest % 10 > 0 ? "-\(small[rest % 10])" : "")
        guard number >= 100 else { return low }
        return "\(small[number / 100]) hundred" + (rest > 0 ? " \(low)" : "")
    }

    /// The ordinal number in words: "twenty-first".
    static func ordinal(_ number: String) -> String {
        let name = name(Array(digits(number).drop { $0 == 0 }))
        let start = name.lastIndex { $0 == " " || $0 == "-" }.map(name.index(after:)) ?? name.startIndex
        let last = String(name[start...])
        let ending = ordinals[last] ?? (last.hasSuffix("y") ? "\(last.dropLast())ieth" : "\(last)th")
        return name[..<start] + ending
    }

    /// A number with or without a decimal point: "three point one four".
    static func decimal(_ number: String) -> String {
        guard let point = number.firstIndex(of: ".") else { return cardinal(number) }
        let whole = String(number[..<point]), part = digitNames(String(number[point...]))
        return (whole.isEmpty ? "" : "\(cardinal(whole)) ") + "point \(part)"
    }

    /// Three or four digits in pairs, like years: "nineteen oh five", "ten eighty", "two thousand five".
    static func inPairs(_ number: String) -> String {
        let high = String(number.dropLast(2)), low = String(number.suffix(2))
        if high.hasSuffix("0"), low.hasPrefix("0") { return cardinal(number) }
        return "\(cardinal(high)) \(low == "00" ? "hundred" : minutes(low))"
    }

    /// Four digits as a year.
    static func year(_ number: String) -> String { (Int(number) ?? 0) >= 1010 ? inPairs(number) : cardinal(number) }

    /// Two digits as after an hour: "oh five", "thirty".
    static func minutes(_ number: String) -> String {
        number.hasPrefix("0") ? "oh \(cardinal(String(number.suffix(1))))" : cardinal(number)
    }

    /// "two thirds", "three quarters", "one over one hundred".
    static func fraction(_ upper: String, _ lower: String) -> String {
        if lower.count > 2 || (Int(lower) ?? 0) < 2 { return "\(cardinal(upper)) over \(cardinal(lower))" }
        let names = lower == "2" ? ("half", "halves") : lower == "4" ? ("quarter", "quarters")
            : (ordinal(lower), "\(ordinal(lower))s")
        return "\(cardinal(upper)) \(upper == "1" ? names.0 : names.1)"
    }

    /// The words with the last one in the plural, for decades and letters: "nineteen twenties".
    static func plural(_ words: String) -> String {
        if words.hasSuffix("y"), let before = words.dropLast().last, !"aeiou".contains(before) {
            return "\(words.dropLast())ies"
        }
        return ["s", "x", "z", "ch", "sh"].contains(where: words.hasSuffix) ? "\(words)es" : "\(words)s"
    }

    private static let letters: [Character: String] = [
        "a": "ay", "b": "bee", "c": "see", "d": "dee", "e": "ee", "f": "eff", "g": "jee", "h": "aitch", "i": "eye",
        "j": "jay", "k": "kay", "l": "ell", "m": "em", "n": "en", "o": "oh", "p": "pee", "q": "cue", "r": "are",
        "s": "ess", "t": "tee", "u": "you", "v": "vee", "w": "double you", "x": "ex", "y": "why", "z": "zee",
    ]

    /// The names of ASCII letters, with spaces: "eff bee eye".
    static func letterByLetter(_ word: String) -> String {
        word.lowercased().compactMap { letters[$0] }.joined(separator: " ")
    }
}
