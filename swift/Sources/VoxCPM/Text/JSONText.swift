import Foundation

/// A JSON document whose strings are compared by bytes.
///
/// Foundation's decoders use `String` keys, for which é and e with a combining accent are equal: a vocabulary with both
/// would lose one.
enum JSONText: Equatable, Sendable {
    case null
    case bool(Bool)
    case number(Double)
    case string(UTF8Text)
    case array([JSONText])
    case object([(key: UTF8Text, value: JSONText)])

    /// Throws a `Problem` for a damaged document.
    init(_ data: Data) throws {
        var parser = Parser(bytes: [UInt8](data))
        self = try parser.document()
    }

    /// The last value of a key, as in Python; nil for another kind of value and for null.
    subscript(key: String) -> JSONText? {
        guard case .object(let members) = self else { return nil }
        let key = UTF8Text(key)
        guard let found = members.last(where: { $0.key == key }), found.value != .null else { return nil }
        return found.value
    }

    var text: UTF8Text? { if case .string(let text) = self { text } else { nil } }

    var flag: Bool? { if case .bool(let flag) = self { flag } else { nil } }

    var list: [JSONText]? { if case .array(let list) = self { list } else { nil } }

    /// A whole number from 0 to 16,777,215, which is more than any vocabulary has.
    var id: Int? {
        guard case .number(let number) = self, number >= 0, number < 16_777_216 else { return nil }
        let id = Int(number)
        return Double(id) == number ? id : nil
    }

    static func == (a: JSONText, b: JSONText) -> Bool {
        switch (a, b) {
        case (.null, .null): true
        case (.bool(let x), .bool(let y)): x == y
        case (.number(let x), .number(let y)): x == y
        case (.string(let x), .string(let y)): x == y
        case (.array(let x), .array(let y)): x == y
        case (.object(let x), .object(let y)):
            x.count == y.count && x.allSatisfy { member in
                y.contains { $0.key == member.key && $0.value == member.value }
            }
        default: false
        }
    }
}

/// UTF-8 text, compared by bytes.
struct UTF8Text: Hashable, Sendable {
    let bytes: [UInt8]

    init(_ bytes: [UInt8]) { self.bytes = bytes }

    init(_ string: String) { bytes = Array(string.utf8) }

    init(_ scalars: some Sequence<Unicode.Scalar>) {
        var bytes: [UInt8] = []
        for scalar in scalars { bytes.append(contentsOf: UTF8.encode(scalar) ?? UTF8.encodedReplacementCharacter) }
        self.bytes = bytes
    }

    var string: String { String(decoding: bytes, as: UTF8.self) }

    var scalars: [Unicode.Scalar] { Array(string.unicodeScalars) }

    func hash(into hasher: inout Hasher) {
        bytes.withUnsafeBytes { hasher.combine(bytes: $0) }
    }
}

private struct Parser {
    let bytes: [UInt8]
    private var at = 0
    private static let maxDepth = 64

    init(bytes: [UInt8]) { self.bytes = bytes }

    mutating func document() throws -> JSONText {
        let value = try value(depth: 0)
        skipSpaces()
        guard at == bytes.count else { throw damaged("text after its end") }
        return value
    }

    private var next: UInt8? { at < bytes.count ? bytes[at] : nil }

    private func damaged(_ what: String) -> Problem { Problem("not JSON: \(what) at byte \(at)") }

    private mutating func skipSpaces() {
        while at < bytes.count, bytes[at] == 32 || bytes[at] == 10 || bytes[at] == 13 || bytes[at] == 9 { at += 1 }
    }

    /// Consume white space and this byte, if it is next.
    private mutating func takes(_ byte: UInt8) -> Bool {
        skipSpaces()
        guard next == byte else { return false }
        at += 1
        return true
    }

    private mutating func value(depth: Int) throws -> JSONText {
        guard depth < Self.maxDepth else { throw damaged("more than \(Self.maxDepth) levels") }
        skipSpaces()
        switch next {
        case UInt8(ascii: "\""): return .string(try string())
        case UInt8(ascii: "["): return try array(depth: depth)
        case UInt8(ascii: "{"): return try object(depth: depth)
        case UInt8(ascii: "t"): return try word("true", .bool(true))
        case UInt8(ascii: "f"): return try word("false", .bool(false))
        case UInt8(ascii: "n"): return try word("null", .null)
        default: return try number()
        }
    }

    private mutating func word(_ word: StaticString, _ value: JSONText) throws -> JSONText {
        let end = at + word.utf8CodeUnitCount
        guard end <= bytes.count, String(decoding: bytes[at..<end], as: UTF8.self) == word.description else {
            throw damaged("an unknown word")
        }
        at = end
        return value
    }

    private mutating func number() throws -> JSONText {
        let start = at
        while let byte = next, (48...57).contains(byte) || [43, 45, 46, 69, 101].contains(byte) { at += 1 }
        guard let number = Double(String(decoding: bytes[start..<at], as: UTF8.self)) else {
            throw damaged("no value")
        }
        return .number(number)
    }

    private mutating func array(depth: Int) throws -> JSONText {
        at += 1
        var values: [JSONText] = []
        if takes(UInt8(ascii: "]")) { return .array(values) }
        repeat { values.append(try value(depth: depth + 1)) } while takes(UInt8(ascii: ","))
        guard takes(UInt8(ascii: "]")) else { throw damaged("a list without an end") }
        return .array(values)
    }

    private mutating func object(depth: Int) throws -> JSONText {
        at += 1
        var members: [(key: UTF8Text, value: JSONText)] = []
        if takes(UInt8(ascii: "}")) { return .object(members) }
        repeat {
            skipSpaces()
            guard next == UInt8(ascii: "\"") else { throw damaged("no key") }
            let key = try string()
            guard takes(UInt8(ascii: ":")) else { throw damaged("a key without a value") }
            members.append((key, try value(depth: depth + 1)))
        } while takes(UInt8(ascii: ","))
        guard takes(UInt8(ascii: "}")) else { throw damaged("an object without an end") }
        return .object(members)
    }

    private mutating func string() throws -> UTF8Text {
        at += 1
        var text: [UInt8] = []
        while let byte = next {
            at += 1
            switch byte {
            case UInt8(ascii: "\""):
                guard String(validating: text, as: UTF8.self) != nil else {
                    throw damaged("a string that is not UTF-8")
                }
                return UTF8Text(text)
            case UInt8(ascii: "\\"): try escape(&text)
            case 0..<32: throw damaged("a control character")
            default: text.append(byte)
            }
        }
        throw damaged("a string without an end")
    }

    private mutating func escape(_ text: inout [UInt8]) throws {
        guard let byte = next else { throw damaged("a string without an end") }
        at += 1
        switch byte {
        case UInt8(ascii: "b"): text.append(8)
        case UInt8(ascii: "f"): text.append(12)
        case UInt8(ascii: "n"): text.append(10)
        case UInt8(ascii: "r"): text.append(13)
        case UInt8(ascii: "t"): text.append(9)
        case UInt8(ascii: "u"): text.append(contentsOf: UTF8Text([try escapedScalar()]).bytes)
        case UInt8(ascii: "\""), UInt8(ascii: "\\"), UInt8(ascii: "/"): text.append(byte)
        default: throw damaged("an unknown escape")
        }
    }

    private mutating func escapedScalar() throws -> Unicode.Scalar {
        var value = try hexadecimal()
        if (0xD800..<0xDC00).contains(value), next == UInt8(ascii: "\\") {
            at += 1
            guard next == UInt8(ascii: "u") else { throw damaged("a lone surrogate") }
            at += 1
            let low = try hexadecimal()
            guard (0xDC00..<0xE000).contains(low) else { throw damaged("a lone surrogate") }
            value = 0x10000 + (value - 0xD800) << 10 + (low - 0xDC00)
        }
        guard let scalar = Unicode.Scalar(value) else { throw damaged("a lone surrogate") }
        return scalar
    }

    private mutating func hexadecimal() throws -> UInt32 {
        guard at + 4 <= bytes.count else { throw damaged("a truncated escape") }
        var value: UInt32 = 0
        for byte in bytes[at..<(at + 4)] {
            guard let digit = Character(Unicode.Scalar(byte)).hexDigitValue else { throw damaged("an invalid escape") }
            value = value << 4 | UInt32(digit)
        }
        at += 4
        return value
    }
}
