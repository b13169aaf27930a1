import Foundation

/// JSON whose strings are the bytes of their UTF-8.
///
/// A vocabulary has several spellings of some letters, which are one key to Swift's strings: "é" as one character and as
/// two. Foundation's readers would merge them.
indirect enum ByteJSON {
    case null
    case bool(Bool)
    case number(Double)
    case string([UInt8])
    case array([ByteJSON])
    case object([(key: [UInt8], value: ByteJSON)])

    /// Throws a `Problem` for anything but one document of JSON.
    init(_ data: Data) throws {
        self = try data.withUnsafeBytes { bytes in
            var reader = Reader(bytes: bytes.bindMemory(to: UInt8.self))
            let value = try reader.value(depth: 0)
            reader.skipSpace()
            guard reader.place == bytes.count else { throw Problem("there is something after its end") }
            return value
        }
    }

    /// The last value of that key; nil for another kind of value.
    subscript(_ key: String) -> ByteJSON? {
        guard case .object(let members) = self else { return nil }
        let bytes = Array(key.utf8)
        return members.last { $0.key == bytes }?.value
    }

    var bytes: [UInt8]? {
        if case .string(let bytes) = self { return bytes }
        return nil
    }

    var text: String? { bytes.map { String(decoding: $0, as: UTF8.self) } }

    var elements: [ByteJSON]? {
        if case .array(let elements) = self { return elements }
        return nil
    }

    var integer: Int? {
        guard case .number(let number) = self, abs(number) < 1e9 else { return nil }
        return Int(exactly: number)
    }

    var isTrue: Bool {
        if case .bool(let value) = self { return value }
        return false
    }

    var isNull: Bool {
        if case .null = self { return true }
        return false
    }

    private struct Reader {
        let bytes: UnsafeBufferPointer<UInt8>
        var place = 0

        var next: UInt8? { place < bytes.count ? bytes[place] : nil }

        mutating func skipSpace() {
            while let byte = next, byte == 0x20 || byte == 0x0A || byte == 0x0D || byte == 0x09 { place += 1 }
        }

        mutating func value(depth: Int) throws -> ByteJSON {
            guard depth < 64 else { throw Problem("it is nested too deeply") }
            skipSpace()
            switch next {
            case UInt8(ascii: "{"): return try object(depth)
            case UInt8(ascii: "["): return try array(depth)
            case UInt8(ascii: "\""): return .string(try string())
            case UInt8(ascii: "t"): return try literal("true", .bool(true))
            case UInt8(ascii: "f"): return try literal("false", .bool(false))
            case UInt8(ascii: "n"): return try literal("null", .null)
            default: return try number()
            }
        }

        private mutating func literal(_ word: StaticString, _ value: ByteJSON) throws -> ByteJSON {
            let count = word.utf8CodeUnitCount
            guard place + count <= bytes.count,
                (0..<count).allSatisfy({ bytes[place + $0] == word.utf8Start[$0] })
            else { throw Problem("it is not JSON") }
            place += count
            return value
        }

        private mutating func number() throws -> ByteJSON {
            let start = place
            while let byte = next, "+-.eE0123456789".utf8.contains(byte) { place += 1 }
            guard let found = Double(String(decoding: bytes[start..<place], as: UTF8.self)), found.isFinite else {
                throw Problem("it is not JSON")
            }
            return .number(found)
        }

        private mutating func object(_ depth: Int) throws -> ByteJSON {
            var members: [(key: [UInt8], value: ByteJSON)] = []
            try list(until: UInt8(ascii: "}")) { reader in
                reader.skipSpace()
                guard reader.next == UInt8(ascii: "\"") else { throw Problem("it is not JSON") }
                let key = try reader.string()
                reader.skipSpace()
                guard reader.next == UInt8(ascii: ":") else { throw Problem("it is not JSON") }
                reader.place += 1
                members.append((key, try reader.value(depth: depth + 1)))
            }
            return .object(members)
        }

        private mutating func array(_ depth: Int) throws -> ByteJSON {
            var elements: [ByteJSON] = []
            try list(until: UInt8(ascii: "]")) { elements.append(try $0.value(depth: depth + 1)) }
            return .array(elements)
        }

        private mutating func list(until end: UInt8, _ read: (inout Reader) throws -> Void) throws {
            place += 1
            skipSpace()
            if next == end {
                place += 1
                return
            }
            while true {
                try read(&self)
                skipSpace()
                guard let byte = next, byte == end || byte == UInt8(ascii: ",") else { throw Problem("it is torn") }
                place += 1
                if byte == end { return }
            }
        }

        private mutating func string() throws -> [UInt8] {
            place += 1
            var content: [UInt8] = []
            while let byte = next {
                place += 1
                switch byte {
                case UInt8(ascii: "\""):
                    guard String(validating: content, as: UTF8.self) != nil else { throw Problem("it is not UTF-8") }
                    return content
                case UInt8(ascii: "\\"): content += try escaped()
                case 0..<0x20: throw Problem("it has a control character in a string")
                default: content.append(byte)
                }
            }
            throw Problem("it is torn")
        }

        private mutating func escaped() throws -> [UInt8] {
            guard let kind = next else { throw Problem("it is torn") }
            place += 1
            switch kind {
            case UInt8(ascii: "n"): return [0x0A]
            case UInt8(ascii: "t"): return [0x09]
            case UInt8(ascii: "r"): return [0x0D]
            case UInt8(ascii: "b"): return [0x08]
            case UInt8(ascii: "f"): return [0x0C]
            case UInt8(ascii: "\""), UInt8(ascii: "\\"), UInt8(ascii: "/"): return [kind]
            case UInt8(ascii: "u"): break
            default: throw Problem("it has an escape that does not exist")
            }
            var code = try unit()
            if (0xD800...0xDBFF).contains(code) {
                guard next == UInt8(ascii: "\\") else { throw Problem("it has half of a surrogate pair") }
                place += 1
                guard next == UInt8(ascii: "u") else { throw Problem("it has half of a surrogate pair") }
                place += 1
                let low = try unit()
                guard (0xDC00...0xDFFF).contains(low) else { throw Problem("it has half of a surrogate pair") }
                code = 0x10000 + (code - 0xD800) << 10 + (low - 0xDC00)
            }
            guard let scalar = Unicode.Scalar(code) else { throw Problem("it has half of a surrogate pair") }
            return Array(String(scalar).utf8)
        }

        private mutating func unit() throws -> UInt32 {
            guard place + 4 <= bytes.count else { throw Problem("it is torn") }
            let digits = bytes[place..<(place + 4)]
            guard digits.allSatisfy({ $0 != UInt8(ascii: "+") && $0 != UInt8(ascii: "-") }),
                let code = UInt32(String(decoding: digits, as: UTF8.self), radix: 16)
            else { throw Problem("it has an escape that does not exist") }
            place += 4
            return code
        }
    }
}
