// What is said for words as they are written, such as names, as in runtime/voxcpm_runtime/text/lexicon.py.

import Foundation

/// What is said, by what is written, for `Options.lexicon`, from a file with UTF-8 lines `written<TAB>said`.
///
/// Blank lines are skipped, and lines that begin with # and have no tab. Throws `VoxCPMError.argument`, with the line.
public func lexiconEntries(contentsOf file: URL) throws -> [String: String] {
    let name = "lexicon \(file.path)"
    guard let text = content(of: file).flatMap({ String(data: $0, encoding: .utf8) }) else {
        throw VoxCPMError.argument(name: name, problem: "cannot be read (expected UTF-8 text)")
    }
    let ends = Marks.set("\n\r\u{B}\u{C}\u{1C}\u{1D}\u{1E}\u{85}\u{2028}\u{2029}")
    let scalars = text.replacingOccurrences(of: "\r\n", with: "\n").unicodeScalars.drop { $0 == "\u{FEFF}" }
    var entries: [String: String] = [:]
    for (index, line) in scalars.split(omittingEmptySubsequences: false, whereSeparator: ends.contains).enumerated() {
        let parts = line.split(separator: "\t", maxSplits: 1, omittingEmptySubsequences: false).map(String.init)
        if parts.count == 1, line.first == "#" || line.allSatisfy(\.isSpace) { continue }
        let entry = [parts[0]: parts.count > 1 ? parts[1] : ""]
        entries.merge(try checkedLexicon(entry, "\(name), line \(index + 1)")) { $1 }
    }
    return entries
}

/// The entries in one form, with single spaces. Throws `VoxCPMError.argument` for a blank text.
func checkedLexicon(_ entries: [String: String], _ name: String = "lexicon") throws -> [String: String] {
    let tidied = try entries.map { written, said in
        let entry = [written, said].map { Array(saidText($0).unicodeScalars).trimming(\.isSpace).string }
        guard !entry.contains("") else {
            throw VoxCPMError.argument(
                name: name, problem: "expected WRITTEN, a tab, SAID, got \(quoted(written)) and \(quoted(said))")
        }
        return (same(entry[0]), entry[1])
    }
    return Dictionary(tidied) { $1 }
}

/// A text in quotation marks, for a message.
func quoted(_ text: String) -> String { "'\(text.replacingOccurrences(of: "\n", with: "\\n"))'" }

/// A token in one form: white space, apostrophes, and letters with accents have several.
private func same(_ token: String) -> String {
    if token.unicodeScalars.allSatisfy(\.isSpace) { return " " }
    return token.precomposedStringWithCanonicalMapping.replacingOccurrences(of: "’", with: "'")
}

/// Says a text as a lexicon does: whole words, the longest entry first.
///
/// An entry in small letters applies to any case, any other one to its own case only.
struct Pronunciation: Sendable {
    private static let wide = #"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"#
    private static let letter = #"[^\W\#(wide)]"#
    /// VoxCPM's own input in braces is left alone, and Chinese and Japanese have no spaces between words.
    private static let token = Rule(
        #"\s+|\{[^{}]*\}|[\#(wide)]|(?:\#(letter)[\u0300-\u036f]*)+|[^\w\s]"#, "")
    /// What belongs to a word before or after an entry: not U in U.S., 5 in $5.00, 1-5 and 5%, can in can't, or ada in
    /// ada@x.org; but in Ada's and Ada-like.
    private static let joins = [
        Rule(#"(?:\#(letter)[.@'’]|\d[,:]|[@#$€£¥₹&+=~^\\])\#(letter)\z|[-−–/]\d\z"#, ""),
        Rule(
            #"\A\#(letter)(?:[.@]\#(letter)|[,:]\d|['’](?!(?:s|ll|d|ve|re|m)\b)[^\W\d]|[@#%°&+=~^\\])"#
                + #"|\A\d[-−–/]|\A[.'’]\#(letter)"#, ""),
    ].compactMap(\.self)
    private var said: [[String]: String] = [:]
    /// Numbers of tokens of the entries that begin with a token, the most first.
    private var counts: [String: [Int]] = [:]

    init(_ lexicon: [String: String]) {
        for (written, said) in lexicon {
            let tokens = Self.token?.matches(in: written).map { same($0.whole) } ?? []
            self.said[tokens] = said
            counts[tokens.first?.pythonLowercased ?? "", default: []].append(tokens.count)
        }
        counts = counts.mapValues { Set($0).sorted(by: >) }
    }

    func callAsFunction(_ text: String) -> String {
        guard !said.isEmpty, let found = Self.token?.matches(in: text) else { return text }
        let tokens = found.map { same($0.whole) }, small = tokens.map(\.pythonLowercased)
        var parts: [String] = [], index = 0
        while index < found.count {
            var part = found[index].whole, used = 1
            for count in counts[small[index]] ?? [] where index + count <= found.count {
                let range = index..<(index + count)
                guard let said = said[Array(tokens[range])] ?? said[Array(small[range])], Self.isFree(found, range) else {
                    continue
                }
                (part, used) = (said, count)
                break
            }
            parts.append(part)
            index += used
        }
        return parts.joined()
    }

    /// Whether an entry is written between spaces and punctuation.
    private static func isFree(_ found: [Rule.Found], _ range: Range<Int>) -> Bool {
        func around(_ indices: Range<Int>) -> [Unicode.Scalar] {
            found[indices.clamped(to: found.indices)].flatMap { Array($0.whole.unicodeScalars) }
        }
        let before = around((range.lowerBound - 2)..<range.lowerBound).string + around(range).prefix(1).string
        let after = around(range).suffix(1).string + around(range.upperBound..<(range.upperBound + 3)).string
        return zip(joins, [before, after]).allSatisfy { $0.matches(in: $1).isEmpty }
    }
}
