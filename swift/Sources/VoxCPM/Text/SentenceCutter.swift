/// One sentence of a text.
public struct Sentence: Sendable, Equatable {
    /// The sentence verbatim, with its trailing white space; the first one also with its leading white space.
    public let text: String
    /// Whether a blank line follows; false at the end of the pushed text.
    public let endsParagraph: Bool
}

/// The sentences of a complete text, whose concatenation they are.
public func sentences(_ text: String) -> [Sentence] {
    var cutter = SentenceCutter()
    return cutter.push(text) + cutter.flush()
}

/// Splits text that arrives in fragments into sentences, as Python does, in linear time and bounded memory.
///
/// A sentence ends at a stop, at a blank line, and before a list item. Above 4000 characters it ends before the next
/// word, above 8000 anywhere. It is returned at the first character of the next sentence; in doubt, such as after
/// "U.S.", once that sentence's first word is complete.
public struct SentenceCutter: Sendable {
    static let maxCharacters = 4000
    private static let longestWord = 24
    private static let maxStops = 8

    private var text: [Unicode.Scalar] = []
    /// Whether the sentence has more than white space.
    private var isSpoken = false
    /// Whether the sentence's first letter is a capital; nil before the first letter.
    private var isCapital: Bool?
    /// Index in `text` where the last word begins.
    private var wordAt = 0
    /// Lookahead after a stop, to decide whether the sentence ends there.
    private var ahead: [Unicode.Scalar] = []
    /// The stops after the last word.
    private var stop: [Unicode.Scalar] = []
    private var stopAt = 0
    /// Whether a closing quotation mark or bracket, or an emoji, followed the stops.
    private var isClosed = false
    /// Whether white space followed; `lines` counts its line ends.
    private var hasGap = false
    private var lines = 0

    /// A cutter without text.
    public init() {}

    /// Add text; returns the sentences that are now complete.
    public mutating func push(_ fragment: String) -> [Sentence] {
        var done: [Sentence] = []
        for char in fragment.unicodeScalars { take(char, &done) }
        return done
    }

    /// The remaining sentences, as if the text ended here. Later text begins a new sentence.
    public mutating func flush() -> [Sentence] {
        var done: [Sentence] = []
        while !ahead.isEmpty { decide(&done, whole: true) }
        if !text.isEmpty { cut(&done) }
        return done
    }

    private mutating func resetStop() {
        stop = []
        stopAt = 0
        isClosed = false
        hasGap = false
        lines = 0
    }

    private mutating func take(_ char: Unicode.Scalar, _ done: inout [Sentence]) {
        if text.count >= 2 * Self.maxCharacters { cut(&done) }
        if char.isSpace {
            while !ahead.isEmpty { decide(&done, whole: true) }
            text.append(char)
            hasGap = true
            if char == "\n" { lines += 1 }
        } else if !ahead.isEmpty {
            ahead.append(char)
            decide(&done, whole: false)
        } else if hasGap {
            takeAfterGap(char, &done)
        } else if !stop.isEmpty {
            takeAfterStop(char, &done)
        } else {
            takeWithin(char)
        }
    }

    private mutating func takeAfterGap(_ char: Unicode.Scalar, _ done: inout [Sentence]) {
        if isSpoken, lines > 1 || text.count >= Self.maxCharacters {
            cut(&done)
            takeWithin(char)
        } else if !stop.isEmpty, char == "»" || char.isEmoji {  // « Oui. »
            isClosed = true
            hasGap = false
            text.append(char)
        } else if isSpoken, !stop.isEmpty || lines > 0 {
            ahead = [char]
            decide(&done, whole: false)
        } else {
            continueSentence(char)
        }
    }

    private mutating func takeAfterStop(_ char: Unicode.Scalar, _ done: inout [Sentence]) {
        let isHard = stop.last.map(Marks.hardStops.contains) ?? false, isStop = Marks.stops.contains(char)
        if isStop, !isClosed {
            stop = stop.suffix(Self.maxStops) + [char]
            text.append(char)
        } else if char.isEmoji || (Marks.closers.contains(char) && (char != "\"" || !isHard || isOpen)) {
            isClosed = true
            text.append(char)
        } else if !isStop, isHard || char.isChinese {
            ahead = [char]
            decide(&done, whole: false)
        } else {  // as in 3.14 and example.com
            resetStop()
            takeWithin(char)
        }
    }

    private mutating func takeWithin(_ char: Unicode.Scalar) {
        if Marks.stops.contains(char) {
            stop = [char]
            stopAt = text.count
        } else if isCapital == nil, char.isLetter {
            isCapital = !char.isSmall
        }
        isSpoken = true
        text.append(char)
        if Marks.openers.contains(char) || char.isChinese { wordAt = text.count }
    }

    private mutating func continueSentence(_ char: Unicode.Scalar) {
        wordAt = text.count
        resetStop()
        takeWithin(char)
    }

    private mutating func cut(_ done: inout [Sentence]) {
        done.append(Sentence(text: text.string, endsParagraph: isSpoken && lines > 1))
        self = Self()
    }

    /// Cut before `ahead`, continue the sentence with it, or wait. whole: its first word is complete.
    private mutating func decide(_ done: inout [Sentence], whole: Bool) {
        guard let ends = ends(whole: whole || ahead.count >= Self.longestWord), let first = ahead.first else { return }
        let rest = ahead.dropFirst()
        ahead = []
        if ends, !isOpen { cut(&done) }
        continueSentence(first)
        for char in rest { take(char, &done) }
    }

    private var isOpen: Bool { Marks.leavesOpen(text.suffix(Marks.longestWhole)) }

    /// Whether the sentence ends before `ahead`; nil if that needs more text.
    private func ends(whole: Bool) -> Bool? {
        if lines > 0, Marks.isListMarker(ahead) {
            guard whole else { return nil }
            if !(ahead.last?.isDecimal ?? false) { return true }
        }
        guard let last = stop.last, let next = ahead.first else { return false }
        if Marks.hardStops.contains(last) { return !(isClosed && Marks.continuers.contains(next)) }
        var first = Array(ahead.drop(while: Marks.openers.contains))
        if first.isEmpty, whole { first = ahead }
        guard let letter = first.first, !(letter.isSmall && first.count == 1 && !whole) else { return nil }
        // Texts without capitals begin sentences in lower case; a small letter before a capital may be iPhone.
        let isSmall = letter.isSmall && !(first.dropFirst().first?.isCapital ?? false)
        let continues = isSmall && (isClosed || isCapital != false)
        if continues || Marks.stops.contains(letter) { return false }  // as in . . .
        if !stop.allSatisfy(Marks.dots.contains) { return true }
        if stop.count > 1 ? stop != [".", "．"] : !Marks.fullStops.contains(last) {
            return isClosed || letter.isCapital
        }
        return endsAtDot(first, letter, whole: whole)
    }

    /// Whether the sentence ends at a single dot; nil as in `ends`. first: `ahead` from its first letter.
    private func endsAtDot(_ first: [Unicode.Scalar], _ letter: Unicode.Scalar, whole: Bool) -> Bool? {
        let stopAt = min(stopAt, text.count)
        if stopAt < Self.longestWord, Marks.isEnumeration(text[..<stopAt]) { return false }
        let said = text[min(wordAt, stopAt)..<stopAt].suffix(Self.longestWord)
        let word = said.reversed().prefix { $0.isWordCharacter || $0 == "." || $0 == "°" }.reversed()
            .trimming { $0 == "." }
        let name = word.string, forms = [UTF8Text(name), UTF8Text(name.pythonLowercased)]
        func isOne(of words: Set<UTF8Text>) -> Bool { forms.contains(where: words.contains) }
        if isOne(of: Abbreviations.neverLast) || (letter.isDecimal && isOne(of: Abbreviations.notBeforeNumbers)) {
            return false
        }
        if !isOne(of: Abbreviations.doubtful), !Marks.isInitials(word) { return true }
        guard letter.isWordCharacter else { return false }
        let found = first.prefix { $0.isWordCharacter || [".", "'", "’"].contains($0) }
        if found.count == first.count, !whole { return nil }
        let spoken = Array(found).string
        let begins = letter.isCapital
            || (isCapital == false && !Abbreviations.notFirstInLowerCase.contains(UTF8Text(spoken)))
        let plain = found.map { $0 == "’" ? "'" : $0 }.trimming { $0 == "'" }.string.pythonLowercased
        return begins && Abbreviations.firstWords.contains(UTF8Text(plain))
    }
}

extension String {
    /// Each scalar in lower case, as in Python except for a final sigma.
    var pythonLowercased: String { unicodeScalars.map(\.properties.lowercaseMapping).joined() }
}
