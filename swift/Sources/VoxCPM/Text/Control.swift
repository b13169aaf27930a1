/// The control in parentheses before a text (VoxCPM2), such as "(warm, slow)".
enum Control {
    private static let opening = Marks.set("(（"), closing = Marks.set(")）")

    private static func depth(_ char: Unicode.Scalar) -> Int {
        (opening.contains(char) ? 1 : 0) - (closing.contains(char) ? 1 : 0)
    }

    /// The description in a control, without enclosing parentheses; empty for none.
    ///
    /// Throws `VoxCPMError.argument` for an unbalanced parenthesis, which would end the description early.
    static func described(_ control: String?) throws -> String {
        var description = Array((control ?? "").unicodeScalars).trimming(\.isSpace)
        var open = 0
        for char in description {
            open += depth(char)
            if open < 0 { break }
        }
        guard open == 0 else {
            throw VoxCPMError.argument(
                name: "control",
                problem: "expected a description such as \"warm, slow\", but a parenthesis is unbalanced; remove it")
        }
        while !description.isEmpty, withoutControl(description).isEmpty {
            description = description.dropFirst().dropLast().trimming(\.isSpace)
        }
        return description.string
    }

    /// The text with the description, if any, in parentheses before it.
    static func controlled(_ text: String, _ description: String) -> String {
        description.isEmpty ? text : "(\(description))\(text)"
    }

    /// The text without a leading description in parentheses, ASCII or full-width.
    static func withoutControl(_ text: String) -> String { withoutControl(Array(text.unicodeScalars)[...]).string }

    private static func withoutControl(_ text: ArraySlice<Unicode.Scalar>) -> ArraySlice<Unicode.Scalar> {
        var open = 0
        for (at, char) in zip(text.indices, text) {
            open += depth(char)
            if open <= 0 { return at > text.startIndex ? text[(at + 1)...] : text }
        }
        return text
    }
}
