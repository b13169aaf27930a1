// JSON strings as Python writes them, so that digests and files are equal.

/// A string as `json.dumps` writes it: ASCII only.
func pythonJSON(_ text: String) -> String {
    escaped(text) { scalar in
        guard scalar.value > 0x7E else { return nil }
        return String(scalar).utf16.map { "\\u" + hexadecimal(UInt32($0)) }.joined()
    }
}

/// A string as pydantic writes it: UTF-8.
func pydanticJSON(_ text: String) -> String { escaped(text) { _ in nil } }

private func escaped(_ text: String, _ other: (Unicode.Scalar) -> String?) -> String {
    var result = "\""
    for scalar in text.unicodeScalars {
        switch scalar {
        case "\"": result += "\\\""
        case "\\": result += "\\\\"
        case "\u{8}": result += "\\b"
        case "\u{C}": result += "\\f"
        case "\n": result += "\\n"
        case "\r": result += "\\r"
        case "\t": result += "\\t"
        default:
            if scalar.value < 0x20 {
                result += "\\u" + hexadecimal(scalar.value)
            } else if let changed = other(scalar) {
                result += changed
            } else {
                result.unicodeScalars.append(scalar)
            }
        }
    }
    return result + "\""
}

/// Four digits.
private func hexadecimal(_ number: UInt32) -> String {
    let digits = String(number, radix: 16)
    return String(repeating: "0", count: max(0, 4 - digits.count)) + digits
}
