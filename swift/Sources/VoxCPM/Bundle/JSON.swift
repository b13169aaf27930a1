import Foundation

/// Decode untrusted JSON.
///
/// Foundation's decoder traps on keys that are not valid Unicode, by bytes or by escapes, or that have control
/// characters, so these are checked first. Throws a `Problem`, or the decoder's error.
func decodedJSON<Value: Decodable>(_ type: Value.Type, from data: Data) throws -> Value {
    guard String(data: data, encoding: .utf8) != nil, !data.contains(0) else { throw Problem("it is not UTF-8") }
    try data.withUnsafeBytes { try checkEscapes($0.bindMemory(to: UInt8.self)) }
    return try JSONDecoder().decode(type, from: data)
}

/// Throws a `Problem` for invalid escapes and lone surrogates.
private func checkEscapes(_ bytes: UnsafeBufferPointer<UInt8>) throws {
    var index = 0, isWithin = false
    func escapedUnit(_ place: Int) -> UInt16? {
        guard place + 6 <= bytes.count, bytes[place] == UInt8(ascii: "\\"), bytes[place + 1] == UInt8(ascii: "u") else {
            return nil
        }
        let digits = bytes[(place + 2)..<(place + 6)]
        guard digits.allSatisfy({ $0 != UInt8(ascii: "+") && $0 != UInt8(ascii: "-") }) else { return nil }
        return UInt16(String(decoding: digits, as: UTF8.self), radix: 16)
    }
    while index < bytes.count {
        let byte = bytes[index]
        if byte == UInt8(ascii: "\"") { isWithin.toggle() }
        guard !isWithin || byte >= 0x20 else { throw Problem("it has a control character in a string") }
        guard isWithin, byte == UInt8(ascii: "\\") else {
            index += 1
            continue
        }
        guard index + 1 < bytes.count else { throw Problem("it is truncated") }
        if bytes[index + 1] == UInt8(ascii: "u") {
            guard let unit = escapedUnit(index) else { throw Problem("it has an invalid escape") }
            index += 6
            switch unit {
            case 0xD800...0xDBFF:
                guard let low = escapedUnit(index), (0xDC00...0xDFFF).contains(low) else {
                    throw Problem("it has a lone surrogate")
                }
                index += 6
            case 0xDC00...0xDFFF: throw Problem("it has a lone surrogate")
            default: break
            }
        } else {
            guard "\"\\/bfnrt".utf8.contains(bytes[index + 1]) else {
                throw Problem("it has an invalid escape")
            }
            index += 2
        }
    }
}
