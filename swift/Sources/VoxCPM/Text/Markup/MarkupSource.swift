// Markup as XML, as in runtime/voxcpm_runtime/speech/markup/source.py: errors name the place in the text as it was
// written.

import Foundation

/// A text as XML: square brackets become elements. A text with a `<` is XML already.
struct MarkupSource {
    /// The element of a voice or rate in brackets, which applies from there on.
    static let here = "from-here"
    /// Tags in brackets; {} is their value.
    private static let elements = [
        "pause": "<break time={}/>", "voice": "<\(here) voice={}/>", "/voice": "<\(here) voice=''/>",
        "rate": "<\(here) rate={}/>", "/rate": "<\(here) rate='1'/>",
        "spell": "<say-as interpret-as='characters'>", "/spell": "</say-as>",
    ]
    private static let marks = Rule(
        #"(?s)<!--.*?-->|<!\[CDATA\[.*?\]\]>|<[^>]*>|\\([\[\]])"#
            + #"|\[(/?[a-z]+)(?:\s+([^\[\]]*[^\[\]\s]))?\s*\]|\[[^\[\]\n]{0,40}\]?"#, "")

    private(set) var xml = ""
    private let text: [Unicode.Scalar]
    /// Where pieces begin in the XML, and in the text.
    private var starts: [Int] = [], origins: [Int] = [], length = 0
    /// Where the open [spell] is.
    private var spelling: Int?

    /// Throws `VoxCPMError.text` for brackets that are not markup, and for a document type.
    init(_ written: String) throws {
        let plain = written.replacingOccurrences(of: "\r\n", with: "\n").replacingOccurrences(of: "\r", with: "\n")
        text = Array(plain.unicodeScalars)
        let begin = text.drop(while: \.isSpace).prefix(6).string
        let isXML = plain.contains("<"), isDocument = ["<speak", "<?", "<!"].contains { begin.hasPrefix($0) }
        var at = 0
        append(isDocument ? "" : "<speak>", 0)
        for mark in Self.marks?.matches(in: plain) ?? [] {
            append(isXML ? mark.before : Self.escaped(mark.before), at)
            at += mark.before.unicodeScalars.count
            append(try element(mark, at), at)
            at += mark.whole.unicodeScalars.count
        }
        if let spelling { throw error(at: spelling, "[spell] needs [/spell] after it") }
        let rest = text[at...].string
        append(isXML ? rest : Self.escaped(rest), at)
        append(isDocument ? "" : "</speak>", text.count)
    }

    private mutating func append(_ piece: String, _ origin: Int) {
        starts.append(length)
        origins.append(origin)
        length += piece.unicodeScalars.count
        xml += piece
    }

    private static func escaped(_ text: String) -> String {
        [("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("\"", "&quot;"), ("\n", "&#10;")].reduce(text) {
            $0.replacingOccurrences(of: $1.0, with: $1.1)
        }
    }

    private mutating func element(_ mark: Rule.Found, _ place: Int) throws -> String {
        let written = mark.whole, tag = mark[2], value = mark[3]
        // Of the declaration nothing is needed, and its encoding is not the one here.
        if written.hasPrefix("<?") { return "" }
        if written.hasPrefix("<!DOCTYPE") { throw error(at: 0, "expected no document type and no entities") }
        if written.hasPrefix("<") { return written }
        if !mark[1].isEmpty { return mark[1] }
        guard let element = Self.elements[tag], element.contains("{}") == !value.isEmpty else {
            throw error(
                at: place,
                "expected [pause 0.5s], [voice NAME], [rate 1.2] or [spell]…[/spell], got \(written); write \\[ for a "
                    + "bracket that is read")
        }
        if tag == "/spell", spelling == nil { throw error(at: place, "expected [spell] before [/spell]") }
        if tag != "/spell", spelling != nil {
            throw error(at: place, "expected text only from [spell] to [/spell], got \(written)")
        }
        spelling = tag == "spell" ? place : nil
        return element.replacingOccurrences(of: "{}", with: "\"\(Self.escaped(value))\"")
    }

    /// An error at the last of the marks up to a place of the XML, by line and column from 1.
    func error(line: Int, column: Int, last marks: Set<Unicode.Scalar>, _ problem: String) -> VoxCPMError {
        let xml = Array(xml.unicodeScalars)
        var at = 0
        for _ in 1..<max(line, 1) { at = (xml[at...].firstIndex(of: "\n") ?? at) + 1 }
        at = xml.prefix(at + column).lastIndex(where: marks.contains) ?? 0
        let piece = starts.lastIndex { $0 <= at } ?? 0
        return error(at: origins[piece] + at - starts[piece], problem)
    }

    private func error(at place: Int, _ problem: String) -> VoxCPMError {
        let before = text.prefix(place), line = before.count { $0 == "\n" } + 1
        let column = before.reversed().prefix { $0 != "\n" }.count + 1
        return .text("markup, line \(line), column \(column): \(problem)")
    }
}
