// What <say-as> says, in English words, as in runtime/voxcpm_runtime/speech/markup/parsing.py.

import Foundation

enum SayAs {
    private typealias Kind = (pattern: String, say: @Sendable (String, String?) throws -> String)

    private static let kinds: KeyValuePairs<String, Kind> = [
        "characters": (#"(?s).*\w.*"#, { text, _ in characters(text) }),
        "cardinal": (#"-?\d[\d,]{0,20}(?:\.\d{1,20})?"#, { text, _ in try cardinal(text) }),
        "ordinal": (#"\d[\d,]{0,20}(?:st|nd|rd|th)?"#, { text, _ in try ordinal(text) }),
        "date": (#"(?=.*\d)[\w\s./,'-]{1,40}"#, date),
        "telephone": (#"\+?(?=.*\d)[\d\s().\-–/]{1,40}"#, { text, _ in try telephone(text) }),
    ]
    private static let symbols: [Unicode.Scalar: String] = [
        "-": "dash", ".": "dot", "_": "underscore", "/": "slash", "@": "at", "+": "plus", "#": "hash", "*": "star",
    ]
    private static let months = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
    /// Where year, month and day are in a date.
    private static let orders: KeyValuePairs = ["mdy": [3, 1, 2], "dmy": [3, 2, 1], "ymd": [1, 2, 3]]

    /// What says a text as the attributes ask. Throws a `Problem` for values that are not known, as the reader does for
    /// a text that cannot be read so.
    static func reader(_ name: String, _ form: String?) throws -> (String) throws -> String {
        guard let kind = kinds.first(where: { $0.key == name })?.value else {
            let known = kinds.map(\.key).joined(separator: ", ")
            throw Problem("interpret-as: expected one of \(known), got \(quoted(name))")
        }
        if let form, name != "date" || !orders.contains(where: { $0.key == form }) {
            throw Problem("format: expected \(orders.map(\.key).joined(separator: ", ")), of a date, got \(quoted(form))")
        }
        return { text in
            guard fullMatch(kind.pattern, text) != nil else {
                throw Problem("expected text that can be read as \(name), got \(quoted(text))")
            }
            return try kind.say(text, form)
        }
    }

    private static func said(_ text: String) throws -> String { try TextTokenizer.normalized(text, isSpelled: false) }

    private static func characters(_ text: String) -> String {
        text.unicodeScalars.filter { !$0.isSpace }.map { symbols[$0] ?? $0.properties.uppercaseMapping }
            .joined(separator: ", ")
    }

    /// The digits in groups of three, without leading zeros.
    private static func grouped(_ digits: String) -> String {
        let plain = digits.unicodeScalars.compactMap(\.decimalValue).drop { $0 == 0 }.map(String.init)
        let groups = plain.enumerated().map { index, digit in
            index > 0 && (plain.count - index) % 3 == 0 ? ",\(digit)" : digit
        }
        return groups.isEmpty ? "0" : groups.joined()
    }

    private static func cardinal(_ text: String) throws -> String {
        let parts = text.split(separator: ".", maxSplits: 1).map(String.init), whole = grouped(parts[0])
        let sign = text.hasPrefix("-") && whole != "0" ? "-" : ""
        return try said(sign + whole + (parts.count > 1 ? ".\(parts[1])" : ""))
    }

    private static func ordinal(_ text: String) throws -> String {
        let number = grouped(text), digits = number.compactMap(\.wholeNumberValue).suffix(2)
        let isTeen = digits.count > 1 && digits.first == 1
        let ending = isTeen ? "th" : [1: "st", 2: "nd", 3: "rd"][digits.last ?? 0] ?? "th"
        return try said(number + ending)
    }

    private static func telephone(_ text: String) throws -> String {
        let groups = text.unicodeScalars.split { !$0.isDecimal }.map { $0.map(String.init).joined(separator: " ") }
        return (text.hasPrefix("+") ? "plus " : "") + (try groups.map(said)).joined(separator: ", ")
    }

    /// The text, or without a format also words such as "May 6". Throws a `Problem` for a date that does not exist.
    @Sendable private static func date(_ text: String, _ form: String?) throws -> String {
        let found = fullMatch(#"(\d+)[\s./-]+(\d+)[\s./-]+(\d+)"#, text)
        if found == nil, form == nil {
            func first(_ pattern: String) -> String? { Rule(pattern, "")?.matches(in: text.lowercased()).first?.whole }
            let month = first(#"\b(?:\#(months.joined(separator: "|")))"#), day = first(#"(?<!\d)\d\d?(?!\d)"#)
            guard let month, let day else { return try said(text) }
            let number = (months.firstIndex(of: month) ?? 0) + 1
            if exists(first(#"\d{4}"#) ?? "2000", String(number), day) { return try said(text) }
        }
        for (name, order) in orders {
            guard let found, form == nil || form == name else { continue }
            let (year, month, day) = (found[order[0]], found[order[1]], found[order[2]])
            if exists(year, month, day) { return try said(form == nil ? text : "\(month)/\(day)/\(year)") }
        }
        let forms = form ?? orders.map(\.key).joined(separator: ", ")
        throw Problem("expected a date that exists, in numbers as \(forms), got \(quoted(text))")
    }

    private static func exists(_ year: String, _ month: String, _ day: String) -> Bool {
        guard [2, 4].contains(year.count), let year = Int(year.count == 2 ? "20\(year)" : year), year > 0,
            let month = Int(month), let day = Int(day)
        else { return false }
        return DateComponents(calendar: Calendar(identifier: .gregorian), year: year, month: month, day: day).isValidDate
    }
}
