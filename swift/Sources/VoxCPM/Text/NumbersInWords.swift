// The numbers and signs of English in words, for a voice whose vocabulary is letters.

import Foundation

private let ones = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen",
    "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
]
private let tens = ["", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
private let scales = [(1_000_000_000, "billion"), (1_000_000, "million"), (1_000, "thousand"), (100, "hundred")]
private let ordinals = [
    "one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth", "nine": "ninth",
    "twelve": "twelfth",
]

/// Digits as a number in words: "one thousand two hundred thirty-four". More than twelve are read one by one.
func cardinal(_ digits: String) -> String {
    guard digits.count <= 12, digits.first != "0" || digits == "0", let number = Int(digits) else {
        return digits.compactMap { $0.wholeNumberValue.map { ones[$0] } }.joined(separator: " ")
    }
    return inWords(number)
}

private func inWords(_ number: Int) -> String {
    if number < 20 { return ones[number] }
    if number < 100 { return tens[number / 10] + (number % 10 == 0 ? "" : "-\(ones[number % 10])") }
    for (scale, name) in scales where number >= scale {
        return "\(inWords(number / scale)) \(name)" + (number % scale == 0 ? "" : " \(inWords(number % scale))")
    }
    return ones[0]
}

/// "twenty-first" for 21.
func ordinal(_ digits: String) -> String {
    let words = cardinal(digits)
    let start = words.lastIndex { $0 == " " || $0 == "-" }.map(words.index(after:)) ?? words.startIndex
    let last = String(words[start...])
    let said = ordinals[last] ?? (last.hasSuffix("y") ? "\(last.dropLast())ieth" : "\(last)th")
    return words[..<start] + said
}

/// Four digits as a year: "nineteen eighty-four".
func year(_ digits: String) -> String {
    guard let number = Int(digits), number >= 1010 else { return cardinal(digits) }
    let (century, rest) = (number / 100, number % 100)
    if number % 1000 < 10 { return inWords(number) }
    if rest == 0 { return "\(inWords(century)) hundred" }
    return "\(inWords(century)) \(rest < 10 ? "oh \(ones[rest])" : inWords(rest))"
}

/// The text with numbers and the commonest signs in words. The rules apply in order, each to what those before it left.
func readAloud(_ text: String) -> String {
    let plain = Scalars(text).map { plainQuotes[$0] ?? $0 }.text.replacingOccurrences(of: "…", with: ".")
    return rules.reduce(plain) { text, rule in rule(text) }
}

private let plainQuotes: [Unicode.Scalar: Unicode.Scalar] = ["’": "'", "‘": "'", "“": "\"", "”": "\""]

private typealias Rule = @Sendable (String) -> String

private func rule(_ pattern: String, _ say: @escaping @Sendable ([String]) -> String) -> Rule {
    let expression = try? NSRegularExpression(pattern: pattern)
    return { text in
        guard let expression else { return text }
        let whole = text as NSString
        var said = "", end = 0
        for match in expression.matches(in: text, range: NSRange(location: 0, length: whole.length)) {
            said += whole.substring(with: NSRange(location: end, length: match.range.location - end))
            said += say((0..<match.numberOfRanges).map { index in
                let range = match.range(at: index)
                return range.location == NSNotFound ? "" : whole.substring(with: range)
            })
            end = match.range.location + match.range.length
        }
        return said + whole.substring(from: end)
    }
}

private let number = #"\d{1,3}(?:,\d{3}){1,3}(?!\d)|\d{1,12}"#
private let lone = #"(?<![\w.,/:$£€^'-])"#
private let titles = [
    "Mr": "mister", "Mrs": "missus", "Ms": "miz", "Dr": "doctor", "Prof": "professor", "St": "saint",
]

private func whole(_ digits: String) -> String { cardinal(digits.replacingOccurrences(of: ",", with: "")) }

private func decimal(_ digits: String) -> String {
    let parts = digits.split(separator: ".", omittingEmptySubsequences: false).map(String.init)
    guard parts.count == 2 else { return whole(digits) }
    let fraction = parts[1].compactMap { $0.wholeNumberValue.map { ones[$0] } }.joined(separator: " ")
    return "\(whole(parts[0].isEmpty ? "0" : parts[0])) point \(fraction)"
}

private func dollars(_ amount: String, _ cents: String) -> String {
    let said = "\(whole(amount)) \(amount == "1" ? "dollar" : "dollars")"
    guard let count = Int(cents), count > 0 else { return said }
    return "\(said) and \(inWords(count)) \(count == 1 ? "cent" : "cents")"
}

private let rules: [Rule] = [
    rule(#"\b(Mr|Mrs|Ms|Dr|Prof|St)\.(?=\s?[A-Z])"#) { titles[$0[1]] ?? $0[0] },
    rule(#"(?<![\w:.,])([01]?\d|2[0-4]):([0-5]\d)(?![\w:]|[.,]\d)"#) { found in
        let hour = cardinal(String(Int(found[1]) ?? 0)), minute = Int(found[2]) ?? 0
        if minute == 0 { return (1...12).contains(Int(found[1]) ?? 0) ? "\(hour) o'clock" : "\(hour) hundred" }
        return minute < 10 ? "\(hour) oh \(ones[minute])" : "\(hour) \(inWords(minute))"
    },
    rule(#"(?<![\w.])\$(\#(number))(?:\.(\d\d))?(?![\w]|[.,]\d)"#) { dollars($0[1], $0[2]) },
    rule(#"(?<![\w.,])((?:\#(number))(?:\.\d{1,12})?)\s?%"#) { "\(decimal($0[1])) percent" },
    rule(#"(?<![\w.,])(\d{1,12})(?:st|nd|rd|th)\b"#) { ordinal($0[1]) },
    rule(#"\#(lone)(1\d{3}|20\d\d)(?![\w%]|[.,:/-]\d)(?!\s(?:people|[a-z]{4,20}s)\b)"#) { year($0[1]) },
    rule(#"(?<![\w.])[-−](?=\d)"#) { _ in "minus " },
    rule(#"(?<![\w.,])((?:\#(number))(?:\.\d{1,12})?)(?!\w)"#) { decimal($0[1]) },
    rule(#"\d+"#) { " \(cardinal($0[0])) " },
    rule("&") { _ in " and " },
    rule(#"\+"#) { _ in " plus " },
    rule("=") { _ in " equals " },
    rule("%") { _ in " percent " },
]
