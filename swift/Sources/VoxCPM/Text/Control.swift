// The control of VoxCPM2: a description of voice or style in parentheses before the text.

private func depth(_ scalar: Unicode.Scalar) -> Int {
    switch scalar {
    case "(", "（": 1
    case ")", "）": -1
    default: 0
    }
}

/// The description in a control, such as "warm, slow", without parentheses around it; empty for none.
///
/// Throws for a control that the generation or the voice does not take, and for an unmatched parenthesis.
func checkedControl(
    _ control: String?, _ generation: Manifest.Generation, continues: Bool
) throws -> String {
    var description = Scalars(control ?? "").trimmed, level = 0
    for scalar in description where level >= 0 { level += depth(scalar) }
    guard level == 0 else {
        throw VoxCPMError.argument(name: "control", problem: "it has an unmatched parenthesis; remove it")
    }
    while !description.isEmpty, withoutControl(description.text).isEmpty {
        description = Array(description.dropFirst().dropLast()).trimmed
    }
    if description.isEmpty { return "" }
    guard generation.takesReference else {
        throw VoxCPMError.unsupported("control needs VoxCPM2, and this bundle is of an earlier VoxCPM; leave it out")
    }
    guard !continues else {
        throw VoxCPMError.argument(
            name: "control", problem: "a prompt to continue has its own style; give one of them, or a reference")
    }
    return description.text
}

/// The text with the description, if there is one, in parentheses before it.
func controlled(_ text: String, _ description: String) -> String {
    description.isEmpty ? text : "(\(description))\(text)"
}

/// The text without the description in parentheses that it begins with.
func withoutControl(_ text: String) -> String {
    let scalars = Scalars(text)
    var level = 0
    for (index, scalar) in scalars.enumerated() {
        level += depth(scalar)
        if level <= 0 { return index > 0 ? Array(scalars[(index + 1)...]).text : text }
    }
    return text
}
