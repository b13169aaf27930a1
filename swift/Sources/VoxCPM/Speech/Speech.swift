/// A complete speech: the samples, and how they were generated.
public struct Speech: Sendable {
    /// Mono, in [-1, 1].
    public let samples: [Float]
    /// Hz.
    public let sampleRate: Int
    /// The segments of the text, in order.
    public let segments: [SpokenSegment]
    /// The seed that reproduces it; nil if the caller gave a noise source.
    public let seed: UInt64?
    /// Whether `Options.maxLen` ended the speech before the end of its text.
    public let isUnfinished: Bool

    /// Generated patches of all segments; each row is (frames · latent_dim).
    public var latents: Rows {
        var all = Rows(width: segments.first?.latents.width ?? 0)
        for segment in segments { all.append(segment.latents) }
        return all
    }

    /// The words of the text as it is written, with their times.
    public var words: [TimedWord] { segments.flatMap(\.words) }

    /// The words that the speech lacks, by the model's attention: none for a bundle without alignment heads.
    public var unsaid: [TimedWord] { segments.flatMap(\.unsaid) }
    /// The characters that the voice cannot say, each once: transliterated or left out.
    public var replaced: String {
        var known: Set<Unicode.Scalar> = []
        return segments.flatMap { Array($0.replaced.unicodeScalars) }.filter { known.insert($0).inserted }.string
    }
    /// The words that it repeats, likewise.
    public var repeated: [TimedWord] { segments.flatMap(\.repeated) }

    /// Seconds.
    public var duration: Double { Double(samples.count) / Double(sampleRate) }

    /// Whether the stop head ended every segment, rather than a length limit.
    public var stopped: Bool { !isUnfinished && segments.allSatisfy(\.stopped) }
}

/// One segment of a speech; a short text is one segment.
public struct SpokenSegment: Sendable {
    /// As the caller wrote it.
    public let text: String
    /// Number of samples.
    public let sampleCount: Int
    /// Generated patches; each row is (frames · latent_dim).
    public let latents: Rows
    /// The seed of the kept attempt; nil if the caller gave a noise source.
    public let seed: UInt64?
    /// Number of attempts.
    public let attempts: Int
    /// Whether the stop head ended the segment.
    public let stopped: Bool
    /// What is suspicious about the best attempt. Without `Options.retryBadcase` lengths are not judged.
    public let suspicion: Suspicion?
    /// Expected duration in seconds; nil without a speech.json.
    public let expectedSeconds: Double?
    /// Whether a blank line follows in the text.
    public let endsParagraph: Bool
    /// The words of the text, with their times in the whole speech.
    public let words: [TimedWord]
    /// The characters that the voice cannot say, each once: transliterated or left out.
    public let replaced: String

    /// The words that the speech lacks.
    public var unsaid: [TimedWord] { words.filter { $0.said == 0 } }
    /// The words that it repeats.
    public var repeated: [TimedWord] { words.filter { $0.said > 1 } }
}

/// The progress of a speech. A short text is one segment.
public struct SpeechProgress: Sendable, Equatable {
    /// Patches so far in this attempt at this segment.
    public let patches: Int
    /// Seconds of speech so far, all segments together.
    public let audioSeconds: Double
    /// Seconds of work, all attempts included.
    public let elapsedSeconds: Double
    /// Number of this attempt, from 1; earlier ones were bad.
    public let attempt: Int
    /// Index of the segment that is being spoken, from 0.
    public let segment: Int
    /// Number of segments; nil for a long text, which is read while it is spoken, and in a session.
    public let segments: Int?
}

/// A part of a speech that is being generated.
public struct Chunk: Sendable, Equatable {
    /// Mono, in [-1, 1].
    public let samples: [Float]
    /// Hz.
    public let sampleRate: Int
    /// Index of the first sample in the whole speech.
    public let offset: Int
    /// Index of the last sample's segment, from 0.
    public let segment: Int
    /// The text of that segment.
    public let text: String
    /// What is suspicious about that segment so far; streams are not retried.
    public let suspicion: Suspicion?
    /// The words of the segments that end in this chunk, with their times in the whole speech, and how often each is said.
    public let words: [TimedWord]

    init(_ samples: [Float], sampleRate: Int, offset: Int, _ last: Piece?, words: [TimedWord]) {
        self.samples = samples
        self.sampleRate = sampleRate
        self.offset = offset
        segment = last?.segment ?? 0
        text = last?.text ?? ""
        suspicion = last?.suspicion
        self.words = words
    }
}
