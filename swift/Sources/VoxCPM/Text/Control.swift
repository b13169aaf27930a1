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

    /// The description in parentheses that a text begins with, and the text after it: VoxCPM2's own voice design.
    ///
    /// Empty without one, and before VoxCPM2. Throws `VoxCPMError.text` if nothing follows it.
    static func leading(_ text: String, _ generation: Manifest.Generation) throws -> (description: String, rest: String) {
        let scalars = Array(text.unicodeScalars)[...], opening = scalars.drop(while: \.isSpace)
        guard generation.takesReference, let first = opening.first, Self.opening.contains(first) else { return ("", text) }
        let rest = withoutControl(opening)
        guard rest.count < opening.count else { return ("", text) }
        let description = try described(opening.dropLast(rest.count).string)
        guard !description.isEmpty else { return ("", text) }
        guard rest.contains(where: { !$0.isSpace }) else {
            throw VoxCPMError.text("expected text after the control in parentheses; add what to say")
        }
        return (description, rest.drop(while: \.isSpace).string)
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

/// A `SentenceCutter` that keeps a control in parentheses at the beginning of the text in the first sentence.
struct ControlledCutter: Sendable {
    private var cutter = SentenceCutter()
    /// Text that may be a control; nil after the first sentence.
    private var held: String?
    /// Whether `held` is a complete control.
    private var isComplete = false

    /// - Parameter takesControl: whether a text may begin with one (VoxCPM2).
    init(takesControl: Bool) { held = takesControl ? "" : nil }

    mutating func push(_ fragment: String) -> [Sentence] {
        guard let before = held, !isComplete else { return joined(cutter.push(fragment)) }
        let text = before + fragment, opening = text.unicodeScalars.drop(while: \.isSpace)
        guard opening.isEmpty || "(（".unicodeScalars.contains(opening[opening.startIndex]),
            opening.count < SentenceCutter.maxCharacters
        else {
            held = nil
            return cutter.push(text)
        }
        let rest = Control.withoutControl(String(opening))
        guard !opening.isEmpty, rest.unicodeScalars.count < opening.count else {
            held = text
            return []
        }
        held = Array(text.unicodeScalars).dropLast(rest.unicodeScalars.count).string
        isComplete = true
        return joined(cutter.push(rest))
    }

    mutating func flush() -> [Sentence] {
        let left = cutter.flush()
        return joined(left.isEmpty ? [Sentence(text: "", endsParagraph: false)] : left)
    }

    private mutating func joined(_ sentences: [Sentence]) -> [Sentence] {
        var sentences = sentences
        if let before = held, let first = sentences.first {
            held = nil
            sentences[0] = Sentence(text: before + first.text, endsParagraph: first.endsParagraph)
        }
        return sentences.filter { !$0.text.isEmpty }
    }
}
