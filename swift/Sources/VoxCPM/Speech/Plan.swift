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
    /// Whether another segment follows; nil if unknown, as in a session.
    var followed: Bool?
}

/// What to speak, and how.
struct Plan: Sendable {
    let manifest: Manifest
    let tokenizer: TextTokenizer
    /// Nil to continue the first segments.
    let voice: Voice?
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

    /// The silence between two paragraphs.
    var pause: [Float] {
        let samples = options.paragraphPause * Double(manifest.architecture.outputSampleRate)
        return [Float](repeating: 0, count: Int(samples.rounded(.toNearestOrEven)))
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
        if try fitsAlone(text, anchored: false) {
            var only = try reader.read(Segment(text: text, endsParagraph: false))
            only.followed = false
            return TextSegments(reader: reader, read: [only])
        }
        var segments = try TextSegments(reader: reader, waiting: parts(text), orElse: text)
        if text.unicodeScalars.count <= Self.readAtOnce {
            var all: [PlannedSegment] = []
            while let segment = try segments.next() { all.append(segment) }
            return TextSegments(reader: segments.reader, read: all)
        }
        return segments
    }

    /// A long text in segments whose speech fits the KV cache.
    ///
    /// Without a voice, there is also room for the first segment, which the others continue.
    private func parts(_ text: String) throws -> Segments {
        // If nothing fits, the error about the whole text is clearer.
        let target = max(try longestSegment(anchored: voice == nil), Lengths.minSegmentTokens)
        return Segments(text, target: target) { try count($0, target) }
    }

    /// A sentence, with its trailing white space, as segments; empty if there is nothing to say.
    func split(sentence: String) throws -> [Segment] {
        guard let whole = oneSegment(sentence).first else { return [] }
        // Other sentences may precede or follow it.
        if try fitsAlone(whole.text, anchored: voice == nil) { return [whole] }
        var source = try parts(whole.text), found: [Segment] = []
        while let part = try source.next() { found.append(part) }
        guard let last = found.popLast() else { return [whole] }
        return found + [Segment(text: last.text, endsParagraph: whole.endsParagraph)]
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
        let said = (try? tokenizer.spelled(text)) ?? text
        let tokens = try tokenizer(said).count
        guard let profile = lengths.profile, options.segmentTokens == nil else { return tokens }
        let share = profile.expectedSeconds(letters(in: said)) / profile.longestSeconds
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
    private var waiting: Segments?
    /// The next unplanned segment.
    private var ahead: Segment?

    fileprivate init(reader: SegmentReader, read: [PlannedSegment]) {
        self.reader = reader
        self.read = read[...]
        total = read.count
    }

    /// - Parameter text: the only segment if there is nothing to say, for the error message.
    fileprivate init(reader: SegmentReader, waiting: Segments, orElse text: String) throws {
        self.reader = reader
        var waiting = waiting
        ahead = try waiting.next() ?? Segment(text: text, endsParagraph: false)
        self.waiting = waiting
    }

    mutating func next() throws -> PlannedSegment? {
        if let known = read.popFirst() { return known }
        guard let segment = ahead else { return nil }
        ahead = try waiting?.next()
        var planned = try reader.read(segment)
        // The edge of its speech depends on whether another one follows.
        planned.followed = ahead != nil
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
        let shortest = plan.options.minPatches
        // The speech before this segment and its own have at most `maxLen` patches together.
        if let maximum = plan.maxPatches { continued = min(continued, maximum - shortest) }
        var planned = try planned(segment)
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

    private func planned(_ segment: Segment) throws -> PlannedSegment {
        let tokenizer = plan.tokenizer
        // A segment that continues the first one also continues its style.
        let hasControl = !plan.description.isEmpty && (plan.voice != nil || transcript.isEmpty)
        func read(_ text: String) throws -> String {
            plan.options.normalize ? try tokenizer.normalized(saidText(text)) : saidText(text)
        }
        let said = try read(hasControl ? Control.controlled(segment.text, plan.description) : segment.text)
        let strict = plan.options.strict
        let (target, foreign) = try tokenizer.spelledAndForeign(said, strict: strict)
        let before = try tokenizer.spelledTranscript(plan.voice?.transcript ?? transcript, strict: strict)
        let unknown = tokenizer.unknownCharacters(before + target)
        guard unknown.isEmpty || !strict else {
            throw VoxCPMError.text("this voice has no token for \(unknown.debugDescription); remove them")
        }
        // The prompt's transcript is used as given, with or without a trailing space.
        let tokens = try tokenizer(before + target)
        // The control is tokenised, but not spoken.
        let spoken = hasControl ? try tokenizer.spelled(read(segment.text)) : target
        var planned = PlannedSegment(
            text: segment.text, said: spoken, transcript: tokenizer.continuedTranscript(said), tokens: tokens,
            transcriptTokens: before.isEmpty ? [] : try tokenizer(before),
            targetTokens: before.isEmpty ? tokens.count : try tokenizer(target).count, letters: letters(in: spoken),
            endsParagraph: segment.endsParagraph)
        planned.replaced = foreign + unknown
        _ = try plan.limit(planned, plan.voice, continued: continued)
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
