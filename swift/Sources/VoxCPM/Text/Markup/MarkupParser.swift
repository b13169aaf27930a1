// Marked-up text in parts, as in runtime/voxcpm_runtime/speech/markup/parsing.py.

import Foundation
#if canImport(FoundationXML)
import FoundationXML
#endif

/// A part of a text: what is spoken without a pause by markup, in one voice at one rate.
struct MarkupPart: Sendable, Equatable {
    /// What is written, and what is said for it.
    struct Piece: Sendable, Equatable {
        var written: [Unicode.Scalar]
        var said: [Unicode.Scalar]
        /// Whether it is said as it is written.
        let isPlain: Bool

        init(_ written: some Sequence<Unicode.Scalar>, said: some Sequence<Unicode.Scalar>) {
            (self.written, self.said) = (Array(written), Array(said))
            isPlain = self.written == self.said
        }
    }

    fileprivate(set) var pieces: [Piece]
    /// Nil for the voice of the call.
    let voice: Voice?
    /// How many times faster than the call's speed.
    let rate: Double
    /// Seconds of silence before it; nil if markup has no pause there.
    let pause: Double?
    /// Seconds of silence after it, at the end of the text.
    fileprivate(set) var after = 0.0

    /// The text as it is said.
    var said: [Unicode.Scalar] { pieces.flatMap(\.said) }

    /// What is written for these Unicode scalars of `said`.
    func written(_ range: Range<Int>) -> String {
        var found: [Unicode.Scalar] = [], at = 0
        for piece in pieces {
            let own = range.clamped(to: at..<(at + piece.said.count))
            if piece.isPlain {
                found += piece.said[(own.lowerBound - at)..<(own.upperBound - at)]
            } else if !own.isEmpty, own.lowerBound == at {
                found += piece.written
            }
            at += piece.said.count
        }
        return found.string
    }
}

/// The parts of a marked-up text. Without a document type, XML has no entities of its own and nothing external.
///
/// - Parameters:
///   - paragraphPause: seconds between <p>.
///   - speed: the call's, which rates multiply.
///   - findVoice: the voice of a name.
///
/// Throws `VoxCPMError.text`, with line and column, for invalid markup, and if no text is left.
func spokenParts(
    _ text: String, paragraphPause: Double, speed: Double = 1, findVoice: @escaping (String) throws -> Voice
) throws -> [MarkupPart] {
    let source = try MarkupSource(text), parser = XMLParser(data: Data(source.xml.utf8))
    let handler = MarkupHandler(paragraphPause, speed, findVoice)
    parser.shouldResolveExternalEntities = false
    parser.delegate = handler
    let isRead = parser.parse()
    if let fault = handler.fault {
        let marks = Marks.set(fault.isSyntax ? "<&" : "<")
        throw source.error(line: fault.line, column: fault.column, last: marks, fault.problem)
    }
    guard isRead, let last = handler.parts.indices.last else {
        throw VoxCPMError.text("the markup contains no text; expected words to speak")
    }
    handler.parts[last].after = handler.pause
    return handler.parts
}

private final class MarkupHandler: NSObject, XMLParserDelegate {
    /// The attributes of each element. A namespace may be declared anywhere.
    private static let attributes: KeyValuePairs = [
        "speak": ["version", "xml:lang"], "p": ["xml:lang"], "s": ["xml:lang"], "voice": ["name", "xml:lang"],
        "prosody": ["rate"], "break": ["strength", "time"], "sub": ["alias"], "say-as": ["format", "interpret-as"],
        MarkupSource.here: ["rate", "voice"],
    ]
    private static let required = ["voice": "name", "prosody": "rate", "sub": "alias", "say-as": "interpret-as"]
    // Microsoft's, as SSML names these without numbers.
    private static let strengths: KeyValuePairs = [
        "none": 0, "x-weak": 0.25, "weak": 0.5, "medium": 0.75, "strong": 1, "x-strong": 1.25,
    ]
    private static let rates: KeyValuePairs = [
        "x-slow": 0.5, "slow": 0.75, "medium": 1, "default": 1, "fast": 1.5, "x-fast": 2,
    ]
    private static let closers = Marks.set(" \t\n,.!?…。！？，、:;)]}”’»"), stops = Marks.set(".!?…。！？:;,")
    /// Errors of the parser by their codes.
    private static let syntax = [
        1: "more than 10 MB between two tags", 5: "no element found", 26: "undefined entity", 42: "duplicate attribute",
        76: "mismatched tag",
    ]

    var parts: [MarkupPart] = []
    private(set) var pause = 0.0
    /// The first error, and its place.
    private(set) var fault: (line: Int, column: Int, isSyntax: Bool, problem: String)?
    private let paragraphPause: Double, speed: Double, findVoice: (String) throws -> Voice
    /// Voice and rate of the elements around, and the rate of brackets.
    private var scopes: [(voice: Voice?, rate: Double, here: Double)] = [(nil, 1, 1)]
    /// Marks before the first word.
    private var lead: [MarkupPart.Piece] = []
    private var isParagraph = false
    /// The last mark or letter of the last part.
    private var lastMark: Unicode.Scalar?
    /// Text since the last tag.
    private var text: [Unicode.Scalar] = []
    /// What says the text within <sub> or <say-as>; nil elsewhere.
    private var say: ((String) throws -> String)?
    /// Line and column of the last tag that began.
    private var place = (line: 1, column: 1)

    init(_ paragraphPause: Double, _ speed: Double, _ findVoice: @escaping (String) throws -> Voice) {
        (self.paragraphPause, self.speed, self.findVoice) = (paragraphPause, speed, findVoice)
    }

    func parser(_ parser: XMLParser, foundCharacters string: String) { text += string.unicodeScalars }

    // Text ends at these, as in Python.
    func parser(_ parser: XMLParser, foundComment comment: String) { attempt {} }

    func parser(_ parser: XMLParser, foundCDATA data: Data) {
        attempt { text += String(decoding: data, as: UTF8.self).unicodeScalars }
        attempt {}
    }

    func parser(_ parser: XMLParser, parseErrorOccurred error: any Error) {
        let code = (error as NSError).code
        // A prefix need not be declared.
        guard fault == nil, !(200..<206).contains(code) else { return }
        fault = (
            parser.lineNumber, parser.columnNumber, true, "\(Self.syntax[code] ?? "not well-formed (invalid token)"); "
                + "XML needs each tag closed, and &lt; and &amp; for < and &")
    }

    func parser(
        _ parser: XMLParser, didStartElement name: String, namespaceURI: String?, qualifiedName: String?,
        attributes: [String: String]
    ) {
        place = (parser.lineNumber, parser.columnNumber)
        attempt {
            try start(name, attributes.filter { !$0.key.hasPrefix("xmlns") && !$0.key.hasPrefix("xsi:") })
        }
    }

    func parser(_ parser: XMLParser, didEndElement name: String, namespaceURI: String?, qualifiedName: String?) {
        attempt {
            scopes.removeLast()
            if let say, name == "sub" || name == "say-as" {
                let written = text.trimming(\.isSpace).string
                (self.say, text) = (nil, [])
                add(MarkupPart.Piece(written.unicodeScalars, said: try say(written).unicodeScalars))
            } else if name == "p" {
                isParagraph = !parts.isEmpty
            } else if name == "s", let lastMark {
                add(MarkupPart.Piece([" "], said: Self.stops.contains(lastMark) ? [" "] : [".", " "]))
            }
        }
    }

    /// Append the text before a tag, and read the tag.
    private func attempt(_ tag: () throws -> Void) {
        guard fault == nil else { return }
        if say == nil {
            // Line ends by themselves, as in Python.
            for (index, line) in text.split(separator: "\n", omittingEmptySubsequences: false).enumerated() {
                if index > 0 { add(MarkupPart.Piece(["\n"], said: ["\n"])) }
                if !line.isEmpty { add(MarkupPart.Piece(line, said: line)) }
            }
            text = []
        }
        do {
            try tag()
        } catch {
            fault = (place.line, place.column, false, (error as? Problem)?.text ?? reason(error))
        }
    }

    private func start(_ name: String, _ given: [String: String]) throws {
        try check(name, given)
        switch name {
        case "break": pause += try given["time"].map(seconds)
            ?? choice(given["strength"] ?? "medium", Self.strengths, "strength")
        case "sub": say = { _ in given["alias"] ?? "" }
        case "say-as": say = try SayAs.reader(given["interpret-as"] ?? "", given["format"])
        case "p": isParagraph = !parts.isEmpty
        default: break
        }
        var scope = scopes[scopes.count - 1]
        if let voice = given["name"] ?? given["voice"] { scope.voice = try found(voice) }
        if let rate = try given["rate"].map(rate) {
            scope = name == "prosody" ? (scope.voice, scope.rate * scope.here * rate, 1) : (scope.voice, scope.rate, rate)
        }
        let rate = scope.rate * scope.here
        guard Options.speeds.contains(rate * speed) else {
            let times = String(format: "a rate of %g times the call's speed of %g", rate, speed)
            throw Problem("expected a speed from 0.25 to 4 in all, got \(times)")
        }
        if name == MarkupSource.here { scopes[scopes.count - 1] = scope }
        scopes.append(scope)
    }

    private func check(_ name: String, _ given: [String: String]) throws {
        guard let known = Self.attributes.first(where: { $0.key == name })?.value, (name == "speak") == (scopes.count == 1)
        else {
            let names = Self.attributes.map(\.key).filter { $0 != MarkupSource.here }.map { "<\($0)>" }
            throw Problem("expected one of \(names.joined(separator: ", ")) (speak around all others), got <\(name)>")
        }
        guard say == nil else { throw Problem("expected text only within <sub>, <say-as> and [spell], got <\(name)>") }
        if let unknown = given.keys.filter({ !known.contains($0) }).min() {
            throw Problem("unknown attribute \(unknown) of <\(name)>; expected \(known.joined(separator: ", "))")
        }
        if let needed = Self.required[name], (given[needed] ?? "").unicodeScalars.allSatisfy(\.isSpace) {
            throw Problem("<\(name)> needs \(needed)")
        }
    }

    private func found(_ name: String) throws -> Voice? {
        if name.isEmpty || name == "default" { return nil }
        // Not a path, whatever finds it.
        guard fullMatch(#"\w(?:[\w .-]*[\w.-])?"#, name) != nil else {
            throw Problem("voice name: expected letters, digits, spaces, dots and dashes, got \(quoted(name))")
        }
        return try findVoice(name)
    }

    /// Append text to the part that is being read, or begin another one with it.
    private func add(_ piece: MarkupPart.Piece) {
        let scope = scopes[scopes.count - 1], rate = scope.rate * scope.here, last = parts.count - 1
        let isSame = last >= 0 && parts[last].voice == scope.voice && parts[last].rate == rate
        if !piece.said.contains(where: \.isLetterOrNumber) || (isSame && pause == 0 && !isParagraph) {
            if last >= 0 { append(piece, to: last) } else { lead.append(piece) }
        } else {
            // As in <voice …>Yes</voice>, she said.
            let closing = last >= 0 && piece.isPlain ? piece.said.prefix(while: Self.closers.contains) : []
            if last >= 0, piece.isPlain { append(MarkupPart.Piece(closing, said: closing), to: last) }
            let own = [piece.written, piece.said].map { $0.dropFirst(closing.count).drop(while: \.isSpace) }
            let before = pause > 0 ? pause : isParagraph ? paragraphPause : nil
            let first = MarkupPart.Piece(own[0], said: own[1])
            parts.append(MarkupPart(pieces: lead + [first], voice: scope.voice, rate: rate, pause: before))
            (pause, isParagraph, lead) = (0, false, [])
        }
        if !parts.isEmpty { lastMark = piece.said.last { !$0.isSpace } ?? lastMark }
    }

    private func append(_ piece: MarkupPart.Piece, to part: Int) {
        let last = parts[part].pieces.count - 1
        if piece.isPlain, parts[part].pieces[last].isPlain {
            parts[part].pieces[last].written += piece.written
            parts[part].pieces[last].said += piece.said
        } else {
            parts[part].pieces.append(piece)
        }
    }

    private func choice(_ value: String, _ table: KeyValuePairs<String, Double>, _ what: String) throws -> Double {
        if let found = table.first(where: { $0.key == value }) { return found.value }
        throw Problem("\(what): expected one of \(table.map(\.key).joined(separator: ", ")), got \(quoted(value))")
    }

    /// The factor of 1.2, 120%, +20% or a name.
    private func rate(_ value: String) throws -> Double {
        let value = Array(value.unicodeScalars).trimming(\.isSpace).string
        guard let found = fullMatch(#"([+-]?)(\d{0,4}\.?\d{1,6})(%?)"#, value), let number = Double(found[2]) else {
            return try choice(value, Self.rates, "rate")
        }
        let factor = number / (found[3].isEmpty ? 1 : 100)
        let rate = found[1].isEmpty ? factor : found[1] == "+" ? 1 + factor : 1 - factor
        if Options.speeds.contains(rate), found[1].isEmpty || !found[3].isEmpty { return rate }
        throw Problem("expected a rate from 0.25 to 4, such as 1.2, 120% or +20%, got \(quoted(value))")
    }

    private func seconds(_ value: String) throws -> Double {
        let found = fullMatch(#"\s*\+?(\d{0,6}\.?\d{1,6})(m?)s\s*"#, value)
        let seconds = found.flatMap { found in Double(found[1]).map { $0 / (found[2].isEmpty ? 1 : 1000) } }
        if let seconds, seconds <= 60 { return seconds }
        throw Problem("expected a pause such as 0.5s or 500ms, of at most 60 s, got \(quoted(value))")
    }
}

/// The match of a pattern with the whole text.
func fullMatch(_ pattern: String, _ text: String) -> Rule.Found? {
    Rule(#"\A(?:\#(pattern))\z"#, "")?.matches(in: text).first
}
