// The written text as it is said.
//
// Published vocabularies have every character, and their texts stay as they are. A vocabulary of letters, as the built-in
// voice has, needs everything in words. The reference implementation reads English by some hundred rules
// (runtime/voxcpm_runtime/english); here only what every text has is read: whole numbers and decimals, years, ordinals,
// percents, dollars, times, titles and a few signs. Write anything else in words.

import Foundation

/// The text with single spaces.
func saidText(_ text: String) -> String {
    var said: Scalars = []
    for scalar in text.unicodeScalars {
        if !scalar.isSpace {
            said.append(scalar)
        } else if said.last != " " {
            said.append(" ")
        }
    }
    return said.text
}

/// Throws `VoxCPMError.text` for a text without anything to say.
func checkText(_ text: String) throws {
    guard text.unicodeScalars.contains(where: { !$0.isSpace }) else {
        throw VoxCPMError.text("the text is empty; expected text to speak")
    }
}

/// The text as it is read aloud, for a vocabulary of letters; unchanged if the vocabulary has digits.
///
/// Throws `VoxCPMError.text` for letters of other alphabets, and if nothing is left to say.
func spelled(_ text: String, _ tokenizer: TextTokenizer) throws -> String {
    guard tokenizer.hasLettersOnly else { return text }
    let parts = try sentences(text).map { sentence in
        let read = Scalars(readAloud(sentence.text)).lowercased
        let said = try read.flatMap { scalar -> Scalars in
            guard !tokenizer.unknownCharacters(String(scalar)).isEmpty else { return [scalar] }
            let replaced = replacement(scalar)
            let left = tokenizer.unknownCharacters(replaced.text)
            guard left.isEmpty else {
                throw VoxCPMError.text(
                    "this voice knows the letters a to z only, and cannot say \(left); write the text in English letters")
            }
            return replaced
        }
        return tidied(said)
    }
    let whole = parts.filter { !$0.isEmpty }.map(\.text).joined(separator: " ")
    guard !whole.isEmpty else {
        throw VoxCPMError.text("nothing is left to say of \(text.prefix(60).debugDescription): this voice knows letters only")
    }
    return whole
}

/// The transcript as `spelled` rewrites it, with a space after it; empty if it was empty.
func spelledTranscript(_ transcript: String, _ tokenizer: TextTokenizer) throws -> String {
    guard !transcript.isEmpty, tokenizer.hasLettersOnly else { return transcript }
    return try spelled(transcript, tokenizer) + " "
}

/// The transcript of a text that other segments continue, before it is spelled; transcripts are concatenated.
func continuedTranscript(_ said: String, _ tokenizer: TextTokenizer) -> String {
    if tokenizer.hasLettersOnly { return "\(said)\n\n" }
    guard let last = said.unicodeScalars.last, !last.isSpace, !isFullWidth(last) else { return said.isEmpty ? " " : said }
    return "\(said) "
}

/// Wide by Unicode's East Asian Width, as far as scripts without spaces need it.
private func isFullWidth(_ scalar: Unicode.Scalar) -> Bool {
    switch scalar.value {
    case 0x1100...0x115F, 0x2E80...0x303E, 0x3041...0xA4CF, 0xA960...0xA97F, 0xAC00...0xD7A3, 0xF900...0xFAFF,
        0xFE10...0xFE19, 0xFE30...0xFE6F, 0xFF00...0xFF60, 0xFFE0...0xFFE6, 0x1F300...0x1F64F, 0x1F900...0x1F9FF,
        0x20000...0x3FFFD: true
    default: false
    }
}

/// What an unknown character is read as: a comma for a long dash, e for é.
private func replacement(_ scalar: Unicode.Scalar) -> Scalars {
    if Scalars(";:()[]{}–—").contains(scalar) { return [","] }
    guard scalar.isLetter else { return [" "] }
    let parts = Scalars(String(scalar).decomposedStringWithCompatibilityMapping)
    return parts.filter { $0.properties.canonicalCombiningClass == .notReordered }
}

/// The sentence with one space between words and one mark between clauses; empty if it has no word.
private func tidied(_ text: Scalars) -> Scalars {
    var said = text.text
    for (pattern, replacement) in tidying {
        said = said.replacingOccurrences(of: pattern, with: replacement, options: .regularExpression)
    }
    var tidy = Scalars(said)
    while let first = tidy.first, first == " " || first == "," { tidy.removeFirst() }
    while let last = tidy.last, last == " " || last == "," { tidy.removeLast() }
    guard tidy.contains(where: \.isLetter) else { return [] }
    if let first = tidy.first, Scalars(".!?,-").contains(first) {
        tidy = Array(tidy.drop { Scalars(" ,.!?-'").contains($0) })
    }
    return tidy.last.map { Scalars(".!?").contains($0) } ?? true ? tidy : tidy + ["."]
}

// What was replaced leaves spaces before marks, and commas next to other marks.
private let tidying = [
    (#"\s+"#, " "),
    (#"[ ,]+(?=[,.!?])"#, ""),
    (#"(?<=[.!?])[ ,]*,"#, ""),
    (#"\.+"#, "."),
    (#"\.(?=[!?])|(?<=[!?])\."#, ""),
    (#",(?=[^\W_])"#, ", "),
    (#"(?<=[.!?])(?=[^\W_])"#, " "),
]
