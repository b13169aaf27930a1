// The plan of one call, checked without a step model, as in runtime/voxcpm_runtime/speech/planning.py:
//
//     options, voice, control ─► text ─► segments ─► tokens ─► room in the KV cache

import Foundation

/// One utterance of the speech, as tokens. A short text is one segment.
struct PlannedSegment: Sendable, Equatable {
    /// As the caller wrote it.
    let text: String
    /// As it is said, without the control.
    let said: String
    /// The prompt's transcript for segments that continue this one.
    let transcript: String
    /// Of the prompt's transcript and the text, tokenised together.
    let tokens: [Int]
    /// Of the prompt's transcript alone.
    let transcriptTokens: [Int]
    /// Number of tokens of the text alone.
    let targetTokens: Int
    /// Letters and digits of the text alone, for its expected duration.
    let letters: Int
    /// Whether a blank line follows.
    let endsParagraph: Bool
    /// Whether later segments continue its speech as their voice, as no voice was given.
    var anchors = false
    /// Characters that the voice cannot say, each once.
    var replaced = ""
    /// The voice of this segment alone; nil for that of the plan.
    var voice: Voice?
    /// How many times faster it is spoken.
    var speed = 1.0
    /// Seconds of silence before it; nil for the usual pause if a paragraph ends there.
    var before: Double?
    /// Seconds of silence after it, at the end of the text.
    var after = 0.0
    /// Whether another segment follows; nil if unknown, as in a session.
    var followed: Bool?
}

/// What to speak, and how.
struct Plan: Sendable {
    let manifest: Manifest
    let tokenizer: TextTokenizer
    /// Nil to continue the first segments.
    private(set) var voice: Voice?
    /// The caller's lexicon, and what says a text as that and the voice's do.
    private let lexicon: [String: String]
    private(set) var pronounced: Pronunciation
    /// Those of a text with markup.
    private let parts: [MarkupPart]
    /// The control, without its parentheses; empty for none.
    private(set) var description: String
    let options: Options
    let lengths: Lengths
    /// The seed of the first attempt at the first segment.
    let seed: UInt64
    /// Without the control that it began with; nil for a session, whose text comes later.
    let text: String?
    /// Number of unicode scalars of that control.
    let textStart: Int

    /// Maximum characters of a text that is planned completely before speech starts.
    private static let readAtOnce = 5000
    /// A text with more characters per token of the longest segment is long; its tokens are not counted.
    private static let charactersPerToken = 16

    /// - Parameter text: nil for a session.
    ///
    /// Throws a `VoxCPMError` for invalid arguments.
    init(_ manifest: Manifest, _ tokenizer: TextTokenizer, text: String?, voice: Voice?, options: Options) throws {
        try options.check()
        if let text { try checkText(text) }
        try voice?.check(manifest.architecture)
        self.manifest = manifest
        self.tokenizer = tokenizer
        self.voice = voice
        let (control, rest) = try Control.leading(text ?? "", manifest.architecture.generation)
        self.text = text == nil ? nil : rest
        textStart = (text ?? "").unicodeScalars.count - rest.unicodeScalars.count
        self.options = options
        lexicon = try checkedLexicon(options.lexicon)
        pronounced = Pronunciation((voice?.lexicon ?? [:]).merging(lexicon) { $1 })
        if options.markup {
            guard text != nil else { throw VoxCPMError.unsupported("markup needs a whole text, not a session; use speak") }
            // Spaces keep the places in error messages.
            let whole = String(repeating: " ", count: textStart) + rest
            parts = try spokenParts(whole, paragraphPause: options.paragraphPause / options.speed, speed: options.speed) { name in
                guard let found = options.findVoice else { throw Problem("no voice \(name): no Options.findVoice is set") }
                return try found(name)
            }
        } else {
            parts = []
        }
        description = try Self.description([options.control, control], manifest, voice)
        lengths = Lengths(manifest, options, hasLettersOnly: tokenizer.hasLettersOnly)
        seed = options.seed ?? UInt64(UInt32.random(in: 0...UInt32.max))
    }

    private static func description(_ controls: [String?], _ manifest: Manifest, _ voice: Voice?) throws -> String {
        let continues = (voice?.prompt.count ?? 0) > 0
        return try controls.map { try checkedControl($0, manifest.architecture.generation, continues: continues) }
            .filter { !$0.isEmpty }.joined(separator: ", ")
    }

    /// Add a control. Throws a `VoxCPMError` before VoxCPM2, and together with a prompt.
    mutating func add(control: String) throws {
        description = try Self.description([description, control], manifest, voice)
    }

    /// Maximum number of patches of the whole speech; nil for no limit, as in a session.
    var maxPatches: Int? { text == nil ? nil : options.maxLen }

    /// The plan of a part of a text with markup, in its voice.
    func of(_ part: MarkupPart) throws -> Plan {
        guard let own = part.voice else { return self }
        try own.check(manifest.architecture)
        var plan = self
        (plan.voice, plan.description) = (own, "")
        if own.lexicon != voice?.lexicon ?? [:] { plan.pronounced = Pronunciation(own.lexicon.merging(lexicon) { $1 }) }
        return plan
    }

    /// The seed of an attempt at a segment, both counted from 0. A retry adds 1.
    func seed(segment: Int, attempt: Int) -> UInt64 {
        let first = segment == 0 ? seed : UInt64(SeedSequence([seed, UInt64(segment)]).words(1)[0])
        return first &+ UInt64(attempt)
    }

    /// The noise of an attempt at a segment, and of a repair of it, all counted from 0.
    func noise(segment: Int, attempt: Int, repair: Int = 0) -> NumPyNoise {
        let seed = seed(segment: segment, attempt: attempt)
        return NumPyNoise(seeds: repair == 0 ? [seed] : [seed, UInt64(segment), UInt64(repair)])
    }

    /// Whether the alignment heads are followed, so that every word is said once.
    var followsText: Bool { options.everyWord && !manifest.sizes.alignment.isEmpty }

    /// Maximum number of patches of a segment in a voice. Throws `VoxCPMError.doesNotFit`.
    ///
    /// - Parameter continued: patches of a voice that has yet to be spoken.
    func limit(_ segment: PlannedSegment, _ voice: Voice?, continued: Int = 0) throws -> Int {
        let taken = VoiceSize(voice).positions(segment.tokens.count) + continued
        return try lengths.patchLimit(taken: taken, targetTokens: segment.targetTokens)
    }

    /// The segments of the text, planned here for a text of ordinary length, lazily for a longer one.
    func segments() throws -> TextSegments {
        let text = text ?? ""
        var reader = SegmentReader(self)
        if parts.isEmpty, try fitsAlone(text, anchored: false) {
            var only = try reader.read(Segment(text: text, endsParagraph: false))
            only.followed = false
            return TextSegments(reader: reader, read: [only])
        }
        var segments = try TextSegments(reader: reader, waiting: source(text), orElse: text)
        if text.unicodeScalars.count <= Self.readAtOnce {
            var all: [PlannedSegment] = []
            while let segment = try segments.next() { all.append(segment) }
            return TextSegments(reader: segments.reader, read: all)
        }
        return segments
    }

    /// The segments of a long text, or of one with markup, part by part.
    private func source(_ text: String) throws -> () throws -> Segment? {
        if parts.isEmpty {
            var segments = try fitting(text)
            return { try segments.next() }
        }
        var waiting = parts[...], ready: ArraySlice<Segment> = []
        return {
            while ready.isEmpty, let part = waiting.popFirst() {
                let said = part.said, whole = Segment(text: said.string, endsParagraph: false)
                var end = 0
                ready = try of(part).split(whole, anchored: voice == nil && part.voice == nil && parts.count > 1).map {
                    let own = $0.text.unicodeScalars
                    let start = said.indices[end...].first { said[$0...].starts(with: own) } ?? end
                    end = start + own.count
                    return Segment(text: $0.text, endsParagraph: $0.endsParagraph, part: part, place: start..<end)
                }[...]
            }
            return ready.popFirst()
        }
    }

    /// A long text in segments whose speech fits the KV cache.
    ///
    /// Without a voice, there is also room for the first segment, which the others continue.
    private func fitting(_ text: String) throws -> Segments {
        // If nothing fits, the error about the whole text is clearer.
        let target = max(try longestSegment(anchored: voice == nil), Lengths.minSegmentTokens)
        return Segments(text, target: target) { try count($0, target) }
    }

    /// A sentence, with its trailing white space, as segments; empty if there is nothing to say.
    func split(sentence: String) throws -> [Segment] {
        guard let whole = oneSegment(sentence).first else { return [] }
        // Other sentences may precede or follow it.
        return try split(whole, anchored: voice == nil)
    }

    /// - Parameter anchored: leave room for a segment that this one continues.
    private func split(_ whole: Segment, anchored: Bool) throws -> [Segment] {
        if try fitsAlone(whole.text, anchored: anchored) { return [whole] }
        var source = try fitting(whole.text), found: [Segment] = []
        while let part = try source.next() { found.append(part) }
        guard let last = found.popLast() else { return [whole] }
        return found + [Segment(text: last.text, endsParagraph: last.endsParagraph || whole.endsParagraph)]
    }

    func longestSegment(anchored: Bool) throws -> Int {
        let transcript = voice?.transcript ?? ""
        var tokens = transcript.isEmpty ? 0 : try tokenizer(transcript).count
        if !description.isEmpty { tokens += try tokenizer(Control.controlled("", description)).count }
        return lengths.longestSegment(VoiceSize(voice), transcriptTokens: tokens, anchored: anchored)
    }

    private func fitsAlone(_ text: String, anchored: Bool) throws -> Bool {
        let longest = try longestSegment(anchored: anchored)
        let maximum = max(longest, Lengths.minSegmentTokens) * Self.charactersPerToken
        guard text.unicodeScalars.count <= maximum, !Self.hasBlankLines(text) else { return false }
        return try count(text, longest) <= longest
    }

    /// Whether the text has several paragraphs.
    private static func hasBlankLines(_ text: String) -> Bool {
        var newlines = 0, begun = false, found = false
        for scalar in text.unicodeScalars {
            if scalar.isSpace {
                newlines += scalar == "\n" ? 1 : 0
            } else {
                found = found || (begun && newlines > 1)
                (newlines, begun) = (0, true)
            }
        }
        return found
    }

    /// Number of tokens of a text; above `target` also if its expected duration exceeds `longestSeconds`.
    private func count(_ text: String, _ target: Int) throws -> Int {
        let said = pronounced(text), spelled = (try? tokenizer.spelled(said)) ?? said
        let tokens = try tokenizer(spelled).count
        guard let profile = lengths.profile, options.segmentTokens == nil else { return tokens }
        let share = profile.expectedSeconds(letters(in: spelled)) / profile.longestSeconds
        return max(tokens, Int(min((Double(target) * share).rounded(.up), 1e12)))
    }
}

/// The segments of a text, in order.
struct TextSegments {
    /// Nil if they are read when their turn comes.
    private(set) var total: Int?
    fileprivate private(set) var reader: SegmentReader
    /// Planned segments.
    private var read: ArraySlice<PlannedSegment> = []
    private var waiting: (() throws -> Segment?)?
    /// The next unplanned segment.
    private var ahead: Segment?

    fileprivate init(reader: SegmentReader, read: [PlannedSegment]) {
        self.reader = reader
        self.read = read[...]
        total = read.count
    }

    /// - Parameter text: the only segment if there is nothing to say, for the error message.
    fileprivate init(reader: SegmentReader, waiting: @escaping () throws -> Segment?, orElse text: String) throws {
        self.reader = reader
        ahead = try waiting() ?? Segment(text: text, endsParagraph: false)
        self.waiting = waiting
    }

    mutating func next() throws -> PlannedSegment? {
        if let known = read.popFirst() { return known }
        guard let segment = ahead else { return nil }
        ahead = try waiting?()
        var planned = try reader.read(segment)
        // The edge of its speech depends on whether another one follows.
        planned.followed = ahead != nil
        if ahead != nil { planned.after = 0 }
        return planned
    }
}

/// Tokenises and checks one segment after another.
///
/// Without a voice, the first segment is the voice of the others, extended by the next ones while it is short, such as
/// a heading.
struct SegmentReader: Sendable {
    private var plan: Plan
    /// Transcript, tokens and minimum patches of the segments that are the voice.
    private var transcript = "", taken = 0, continued = 0
    private var isGrowing: Bool
    private var isFirst = true

    init(_ plan: Plan) {
        self.plan = plan
        isGrowing = plan.voice == nil
    }

    /// The segments of a session's sentence. The first may begin with a control, of all that follow.
    mutating func split(sentence: String) throws -> [Segment] {
        let (control, rest) = isFirst ? try Control.leading(sentence, plan.manifest.architecture.generation) : ("", sentence)
        isFirst = false
        try plan.add(control: control)
        return try plan.split(sentence: rest)
    }

    /// Throws a `VoxCPMError` for a segment that cannot be spoken, or does not fit the KV cache.
    mutating func read(_ segment: Segment) throws -> PlannedSegment {
        if let part = segment.part, part.voice != nil { return try plan.of(part).tokenised(segment) }
        let shortest = plan.options.minPatches
        // The speech before this segment and its own have at most `maxLen` patches together.
        if let maximum = plan.maxPatches { continued = min(continued, maximum - shortest) }
        var planned = try plan.tokenised(segment, transcript, continued)
        let longest = max(try plan.longestSegment(anchored: true), Lengths.minSegmentTokens)
        // `split` leaves room for a voice as long as the longest segment.
        isGrowing = isGrowing && (taken == 0 || taken + planned.targetTokens <= longest)
        if isGrowing {
            planned.anchors = true
            transcript += planned.transcript
            taken += planned.targetTokens
            continued += shortest
            isGrowing = Double(taken) < plan.lengths.minAnchor
        }
        return planned
    }

}

extension Plan {
    /// The segment as it is said, with its tokens.
    ///
    /// - Parameters:
    ///   - anchored: transcript of the segments that it continues if there is no voice.
    ///   - continued: their minimum patches.
    fileprivate func tokenised(
        _ segment: Segment, _ anchored: String = "", _ continued: Int = 0
    ) throws -> PlannedSegment {
        // A segment that continues the first one also continues its style.
        let hasControl = !description.isEmpty && (voice != nil || anchored.isEmpty)
        func read(_ text: String) throws -> String {
            options.normalize ? try tokenizer.normalized(saidText(text)) : saidText(text)
        }
        let text = pronounced(segment.text), strict = options.strict
        let said = try read(hasControl ? Control.controlled(text, description) : text)
        let (target, foreign) = try tokenizer.spelledAndForeign(said, strict: strict)
        let before = try tokenizer.spelledTranscript(voice?.transcript ?? anchored, strict: strict)
        let unknown = tokenizer.unknownCharacters(before + target)
        guard unknown.isEmpty || !strict else {
            throw VoxCPMError.text("this voice has no token for \(unknown.debugDescription); remove them")
        }
        // The prompt's transcript is used as given, with or without a trailing space.
        let tokens = try tokenizer(before + target)
        // The control is tokenised, but not spoken.
        let spoken = hasControl ? try tokenizer.spelled(read(text)) : target
        let part = segment.part
        var planned = PlannedSegment(
            text: part?.written(segment.place) ?? segment.text, said: spoken,
            transcript: tokenizer.continuedTranscript(said), tokens: tokens,
            transcriptTokens: before.isEmpty ? [] : try tokenizer(before),
            targetTokens: before.isEmpty ? tokens.count : try tokenizer(target).count, letters: letters(in: spoken),
            endsParagraph: segment.endsParagraph)
        planned.replaced = foreign + unknown
        planned.voice = part?.voice
        planned.speed = options.speed * (part?.rate ?? 1)
        if segment.place.lowerBound == 0 { planned.before = part?.pause }
        planned.after = part?.after ?? 0
        _ = try limit(planned, voice, continued: continued)
        return planned
    }
}

/// Throws `VoxCPMError.text` for a text that is blank or too long.
func checkText(_ text: String) throws {
    let maximum = 64 << 20
    guard text.utf8.count <= 4 * maximum, text.unicodeScalars.count <= maximum else {
        throw VoxCPMError.text("the text has more than \(maximum) characters; split it")
    }
    guard text.unicodeScalars.contains(where: { !$0.properties.isWhitespace }) else {
        throw VoxCPMError.text("the text is empty; expected something to say")
    }
}

/// The description in a control. Throws a `VoxCPMError` before VoxCPM2, and together with a prompt.
private func checkedControl(
    _ control: String?, _ generation: Manifest.Generation, continues: Bool
) throws -> String {
    let description = try Control.described(control)
    guard description.isEmpty || generation.takesReference else {
        throw VoxCPMError.unsupported(
            "control (voice design, style control) needs VoxCPM2, but this bundle is an earlier VoxCPM; leave it "
                + "out, or give a prompt to continue")
    }
    guard description.isEmpty || !continues else {
        throw VoxCPMError.argument(
            name: "control",
            problem: "it cannot be used together with a prompt to continue, which brings its own style; give one of "
                + "them, or the recording as a reference")
    }
    return description
}
