// Cutting text into sentences while it arrives; the rules are those of runtime/voxcpm_runtime/text/sentences.py.

private let dots = Set(Scalars(".．"))
private let hardStops = Set(Scalars("。！？｡।॥؟۔።។။"))
private let stops = dots.union(hardStops).union(Scalars("…!?‼⁇⁈⁉"))
private let pairs: [Unicode.Scalar: Unicode.Scalar] = [
    "“": "”", "‘": "’", "«": "»", "「": "」", "『": "』", "《": "》", "〈": "〉",
    "(": ")", "[": "]", "{": "}", "（": "）", "【": "】", "〔": "〕", "［": "］",
]
/// Marks that belong to the stop before them: ends of quotations and brackets, and Markdown's emphasis.
private let closers = Set(Scalars("\"'*_~") + pairs.values)
/// What may stand before the first letter of a sentence.
private let openers = Set(Scalars("\"'*_~¿¡") + pairs.keys)
/// Right after a quotation these continue the sentence around it.
private let goingOn = Set(Scalars("，、；：,;:—–-と"))

private let longestSentence = 4000
private let longestWithoutSpace = 2 * longestSentence
/// There is no cut inside quotations and brackets of up to this many characters.
private let longestWhole = 200
private let longestWord = 24
private let mostStops = 8

private func words(_ list: String) -> Set<String> { Set(list.split(whereSeparator: \.isWhitespace).map(String.init)) }

// Abbreviations before a dot, and words after it. Those in lower case also match with a capital.
private let neverLast = words("cf dr e.g eg i.e ie mr mrs ms messrs prof viz vs")
private let notBeforeNumbers = words("apt art ed ex min max n° no nos nr par tel")
/// These end a sentence only before one of `firstWords`, as do initials and other letters with dots.
private let doubtful = words(
    """
    adm brig capt cdr cmdr col cpl cpt esq fr gen gov hon insp jr lt maj mme mlle pres pvt rep rev sen sgt sr supt
    ave bldg blvd dept ft hwy mt rd st assn bros co corp inc llc ltd univ hr hrs lb lbs oz
    al approx ca ch chap cit eds eq eqs est etc fig figs misc p pg pp ref sec tel trans vol vols
    Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov Dec Mon Tue Tues Wed Thu Thur Thurs Fri Sat Sun
    """)
/// Function words. None of them is a name, so a capital means that a sentence begins.
private let firstWords = words(
    """
    a an the this that these those my your his her its our their some any no every each all both many most such
    i he she we they you it there here what which who whom whose when where why how
    is are was were be do does did has have had can could should would must
    in on at by for from with without after before during since until while as if unless to into over under
    between through about against among and but or nor so yet because although though however then still also
    again now later today yesterday tomorrow perhaps maybe please let not only just once
    i'm i've i'd i'll he's she's it's we're they're you're that's there's let's what's who's don't didn't
    """)
/// Where sentences begin in lower case, these more often continue a sentence than begin one.
private let notFirstInLowerCase = words(
    """
    and or nor of in on at by for from with to into over under between through about against among as than
    is are was were be do does did has have had can could should would must also
    """)

/// One sentence, with the white space after it; the first one also with the white space before.
struct Sentence: Sendable, Equatable {
    let text: String
    /// Whether a blank line follows.
    let endsParagraph: Bool
}

/// The sentences of a complete text; joined together they are the text.
func sentences(_ text: String) -> [Sentence] {
    var cutter = SentenceCutter()
    return cutter.push(text) + cutter.flush()
}

/// Cuts text that arrives in fragments into sentences, character by character, in linear time and bounded memory.
///
/// A sentence ends at a stop, at a blank line, and before a line that is an item of a list. It is returned with the first
/// character of the next one; in doubt, such as after "U.S.", when that one's first word is complete.
struct SentenceCutter: Sendable {
    private var text: Scalars = []
    /// Whether the sentence has more than white space.
    private var isSpoken = false
    /// Whether the sentence's first letter is a capital; nil before the first letter.
    private var isCapital: Bool?
    /// Index in `text` where the last word begins.
    private var wordAt = 0
    /// Text after a stop that was read to decide whether the sentence ends there.
    private var ahead: Scalars = []
    /// The stops after the last word.
    private var lastStops: Scalars = []
    private var stopAt = 0
    /// Whether a quotation or bracket was closed after the stops, or an emoji came.
    private var isClosed = false
    /// Whether white space came after that; `lines` counts the line ends in it.
    private var hasGap = false
    private var lines = 0

    /// Add text; returns the sentences that are now known to be complete.
    mutating func push(_ fragment: String) -> [Sentence] {
        var done: [Sentence] = []
        for scalar in fragment.unicodeScalars { take(scalar, &done) }
        return done
    }

    /// The remaining sentences, as if the text ended here.
    mutating func flush() -> [Sentence] {
        var done: [Sentence] = []
        while !ahead.isEmpty { decide(&done, isWhole: true) }
        if !text.isEmpty { cut(&done) }
        return done
    }

    private mutating func take(_ scalar: Unicode.Scalar, _ done: inout [Sentence]) {
        if text.count >= longestWithoutSpace { cut(&done) }
        if scalar.isSpace {
            while !ahead.isEmpty { decide(&done, isWhole: true) }
            text.append(scalar)
            hasGap = true
            if scalar == "\n" { lines += 1 }
        } else if !ahead.isEmpty {
            ahead.append(scalar)
            decide(&done)
        } else if hasGap {
            afterGap(scalar, &done)
        } else if !lastStops.isEmpty {
            afterStop(scalar, &done)
        } else {
            within(scalar)
        }
    }

    private mutating func afterGap(_ scalar: Unicode.Scalar, _ done: inout [Sentence]) {
        if isSpoken, lines > 1 || text.count >= longestSentence {
            cut(&done)
            within(scalar)
        } else if !lastStops.isEmpty, scalar == "»" || isEmoji(scalar) {  // « Oui. »
            isClosed = true
            hasGap = false
            text.append(scalar)
        } else if isSpoken, !lastStops.isEmpty || lines > 0 {
            ahead = [scalar]
            decide(&done)
        } else {
            resume(scalar)
        }
    }

    private mutating func afterStop(_ scalar: Unicode.Scalar, _ done: inout [Sentence]) {
        let isHard = lastStops.last.map(hardStops.contains) ?? false
        if stops.contains(scalar), !isClosed {
            lastStops = lastStops.suffix(mostStops) + [scalar]
            text.append(scalar)
        } else if isEmoji(scalar) || (closers.contains(scalar) && (scalar != "\"" || !isHard || isOpen)) {
            isClosed = true
            text.append(scalar)
        } else if !stops.contains(scalar), isHard || scalar.isChineseOrJapanese {
            ahead = [scalar]
            decide(&done)
        } else {  // as in 3.14 and example.com
            forgetStop()
            within(scalar)
        }
    }

    private mutating func within(_ scalar: Unicode.Scalar) {
        if stops.contains(scalar) {
            lastStops = [scalar]
            stopAt = text.count
        } else if isCapital == nil, scalar.isLetter {
            isCapital = !scalar.properties.isLowercase
        }
        isSpoken = true
        text.append(scalar)
        if openers.contains(scalar) || scalar.isChineseOrJapanese { wordAt = text.count }
    }

    private mutating func resume(_ scalar: Unicode.Scalar) {
        wordAt = text.count
        forgetStop()
        within(scalar)
    }

    private mutating func forgetStop() {
        lastStops = []
        stopAt = 0
        isClosed = false
        hasGap = false
        lines = 0
    }

    private mutating func cut(_ done: inout [Sentence]) {
        done.append(Sentence(text: text.text, endsParagraph: isSpoken && lines > 1))
        self = SentenceCutter()
    }

    /// Cut before `ahead`, continue the sentence with it, or wait for more. isWhole: its first word is complete.
    private mutating func decide(_ done: inout [Sentence], isWhole: Bool = false) {
        guard let ends = ends(isWhole || ahead.count >= longestWord) else { return }
        let taken = ahead
        ahead = []
        if ends, !isOpen { cut(&done) }
        guard let first = taken.first else { return }
        resume(first)
        for scalar in taken.dropFirst() { take(scalar, &done) }
    }

    /// Whether a quotation or bracket is open, as far as the last `longestWhole` characters show.
    private var isOpen: Bool {
        let last = Array(text.suffix(longestWhole))
        var awaited: Scalars = []
        for (index, mark) in last.enumerated() {
            let before = index > 0 ? last[index - 1] : nil
            let opens: Bool
            switch mark {
            case "(", "[", "{": opens = before.map { !Scalars(":;=-").contains($0) } ?? true  // :( opens nothing,
            case "\"": opens = before.map(precedesQuotation) ?? true  // nor does the mark of 5" wide
            case "’":
                // An apostrophe closes nothing.
                guard index + 1 == last.count || !last[index + 1].isWordCharacter else { continue }
                opens = false
            default:
                opens = pairs[mark] != nil
                guard opens || isClosingMark(mark) else { continue }
            }
            if let place = awaited.firstIndex(of: mark) {
                awaited.removeSubrange(place...)
            } else if opens {
                awaited.append(pairs[mark] ?? mark)
            }
        }
        return !awaited.isEmpty
    }

    /// Whether the sentence ends before `ahead`; nil if more text is needed to decide.
    private func ends(_ isWhole: Bool) -> Bool? {
        guard let next = ahead.first, let last = ahead.last else { return false }
        if lines > 0, isListMarker(ahead) {
            if !isWhole { return nil }
            if !last.isDecimalDigit { return true }
        }
        guard let lastStop = lastStops.last else { return false }
        if hardStops.contains(lastStop) { return !(isClosed && goingOn.contains(next)) }
        var first = Array(ahead.drop(while: openers.contains))
        if first.isEmpty, isWhole { first = ahead }
        guard let letter = first.first else { return nil }
        if letter.properties.isLowercase, first.count == 1, !isWhole { return nil }
        // A text without capitals begins sentences in lower case; a small letter before a capital is as in iPhone.
        let isSmall = letter.properties.isLowercase && !(first.count > 1 && first[1].properties.isUppercase)
        if (isSmall && (isClosed || isCapital != false)) || stops.contains(letter) { return false }  // as in . . .
        if lastStops.contains(where: { !dots.contains($0) && $0 != "…" }) { return true }
        if lastStops.count > 1 || !dots.contains(lastStop) { return isClosed || letter.properties.isUppercase }
        return endsAtDot(first, isWhole)
    }

    /// Whether the sentence ends at a single dot; nil as in `ends`. first: `ahead` from its first letter.
    private func endsAtDot(_ first: Scalars, _ isWhole: Bool) -> Bool? {
        if stopAt < longestWord, isEnumeration(Array(text[..<stopAt])) { return false }
        let last = Array(text[min(wordAt, stopAt)..<stopAt].suffix(longestWord))
        let tail = last.lastIndex { !($0.isWordCharacter || $0 == "." || $0 == "°") }.map { Array(last[($0 + 1)...]) }
        let bare = stripped(tail ?? last, of: ".")
        let forms = [bare.text, bare.lowercased.text]
        if forms.contains(where: neverLast.contains) { return false }
        if let letter = first.first, letter.isDecimalDigit, forms.contains(where: notBeforeNumbers.contains) {
            return false
        }
        if !forms.contains(where: doubtful.contains), !areLettersWithDots(bare) { return true }
        guard let found = wordAtStart(first) else { return false }
        if found.count == first.count, !isWhole { return nil }
        let word = stripped(Array(found.map { $0 == "’" ? "'" : $0 }), of: "'").lowercased.text
        let isUpper = first.first?.properties.isUppercase ?? false
        let begins = isUpper || (isCapital == false && !notFirstInLowerCase.contains(found.text))
        return begins && firstWords.contains(word)
    }
}

private func isClosingMark(_ mark: Unicode.Scalar) -> Bool { Scalars("”»」』》〉)]}）】〕］").contains(mark) }

private func precedesQuotation(_ scalar: Unicode.Scalar) -> Bool {
    scalar.isSpace || Scalars("“‘«([{").contains(scalar) || (0x3000...0x303F).contains(scalar.value)
        || (0xFF01...0xFF60).contains(scalar.value) || scalar.isChineseOrJapanese
}

private func stripped(_ text: Scalars, of mark: Unicode.Scalar) -> Scalars {
    guard let first = text.firstIndex(where: { $0 != mark }), let last = text.lastIndex(where: { $0 != mark }) else {
        return []
    }
    return Array(text[first...last])
}

/// `[-*•–—]`, `#{1,6}` or `\d{1,3}[.)]?`.
private func isListMarker(_ text: Scalars) -> Bool {
    if text.count == 1, Scalars("-*•–—").contains(text[0]) { return true }
    if (1...6).contains(text.count), text.allSatisfy({ $0 == "#" }) { return true }
    let digits = text.last.map { $0 == "." || $0 == ")" } ?? false ? Array(text.dropLast()) : text
    return (1...3).contains(digits.count) && digits.allSatisfy(\.isDecimalDigit)
}

/// `\W*(\d{1,3}|[A-Za-z]|[ivxIVX]+)`.
private func isEnumeration(_ text: Scalars) -> Bool {
    let rest = Array(text.drop { !$0.isWordCharacter })
    if (1...3).contains(rest.count), rest.allSatisfy(\.isDecimalDigit) { return true }
    if rest.count == 1, rest[0].isASCII, rest[0].isLetter { return true }
    return !rest.isEmpty && rest.allSatisfy { Scalars("ivxIVX").contains($0) }
}

/// Initials and letters with dots: J, U.S, p.m, Ph.D.
private func areLettersWithDots(_ text: Scalars) -> Bool {
    let parts = text.split(separator: ".", omittingEmptySubsequences: false)
    guard parts.allSatisfy({ (1...2).contains($0.count) && $0.allSatisfy(isInitial) }) else { return false }
    return parts.count > 1 || text.count == 1
}

/// `[A-Za-zÀ-ɏΑ-ωА-я]`.
private func isInitial(_ scalar: Unicode.Scalar) -> Bool {
    switch scalar.value {
    case 0x41...0x5A, 0x61...0x7A, 0xC0...0x24F, 0x391...0x3C9, 0x410...0x44F: true
    default: false
    }
}

/// `\w[\w.'’]*` at the beginning.
private func wordAtStart(_ text: Scalars) -> Scalars? {
    guard let first = text.first, first.isWordCharacter else { return nil }
    return [first] + text.dropFirst().prefix { $0.isWordCharacter || $0 == "." || $0 == "'" || $0 == "’" }
}

/// Whether the character is an emoji or a part of one, such as a joiner; it belongs to the sentence before it.
private func isEmoji(_ scalar: Unicode.Scalar) -> Bool {
    if scalar.value == 0x200D { return true }
    guard scalar.value > 0x2190 else { return false }
    switch scalar.properties.generalCategory {
    case .otherSymbol, .modifierSymbol, .nonspacingMark, .enclosingMark, .format: return true
    default: return false
    }
}
