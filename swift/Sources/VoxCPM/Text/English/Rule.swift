import Foundation

/// A replacement for a pattern.
struct Rule: Sendable {
    private let pattern: NSRegularExpression
    private let said: @Sendable (Found) -> String

    /// A match in a text.
    struct Found {
        fileprivate let result: NSTextCheckingResult
        fileprivate let text: NSString
        /// Where the match before it ends.
        fileprivate let start: Int

        private func part(_ range: NSRange) -> String? {
            range.location == NSNotFound || NSMaxRange(range) > text.length ? nil : text.substring(with: range)
        }

        var whole: String { part(result.range) ?? "" }

        /// The text between the match before it, or the beginning, and this one.
        var before: String { part(NSRange(location: start, length: max(0, result.range.location - start))) ?? "" }

        /// A group, by number; empty if it is not in the match.
        subscript(index: Int) -> String { index < result.numberOfRanges ? part(result.range(at: index)) ?? "" : "" }

        /// A group of this pattern, by name; empty if it is not in the match.
        subscript(name: String) -> String { part(result.range(withName: name)) ?? "" }

        /// Up to 40 UTF-16 units after the match.
        var after: String {
            let end = NSMaxRange(result.range)
            return text.substring(with: NSRange(location: end, length: min(40, max(0, text.length - end))))
        }
    }

    /// Patterns are Python's, in ICU syntax; a test compiles them all.
    init?(_ pattern: String, _ said: @escaping @Sendable (Found) -> String) {
        // Unlike Python's, ICU's \w includes combining accents.
        let pythonic = pattern.replacingOccurrences(of: #"\w"#, with: #"[\p{L}\p{N}_]"#)
            .replacingOccurrences(of: #"\W"#, with: #"[^\p{L}\p{N}_]"#)
        guard let pattern = try? NSRegularExpression(pattern: pythonic) else { return nil }
        self.pattern = pattern
        self.said = said
    }

    init?(_ pattern: String, _ said: String) { self.init(pattern) { _ in said } }

    /// All matches in a text.
    func matches(in text: String) -> [Found] {
        let source = text as NSString
        var end = 0
        return pattern.matches(in: text, range: NSRange(location: 0, length: source.length)).map { result in
            defer { end = NSMaxRange(result.range) }
            return Found(result: result, text: source, start: end)
        }
    }

    func callAsFunction(_ text: String) -> String {
        let found = matches(in: text)
        guard let last = found.last else { return text }
        return found.map { $0.before + said($0) }.joined() + last.text.substring(from: NSMaxRange(last.result.range))
    }
}

extension [Rule] {
    /// The text after all rules in order; each works on the result of those before it.
    func callAsFunction(_ text: String) -> String { reduce(text) { $1($0) } }
}

/// A pattern of any of the words, the longest first.
func anyOf(_ words: some Sequence<String>) -> String {
    let sorted = words.sorted { ($1.count, $0) < ($0.count, $1) }
    return "(?:\(sorted.map(NSRegularExpression.escapedPattern(for:)).joined(separator: "|")))"
}
