import Foundation

/// Speaks text as it is written: each sentence as soon as it is complete.
///
///     let session = try await tts.session()
///     try session.push("Hello. How")
///     try session.push(" are you?")
///     try session.finish()
///     for try await chunk in session.chunks { play(chunk.samples) }
///
/// Generation pauses when about ten seconds of audio are unread. A session ends when it is released.
public final class Session: Sendable {
    private let inbox: Inbox
    private let production: Production<Chunk>

    /// Maximum seconds of unread audio.
    static let bufferSeconds = 10.0

    init(_ plan: Plan, _ loaded: LoadedBundle) {
        let inbox = Inbox(takesControl: plan.manifest.architecture.generation.takesReference)
        self.inbox = inbox
        let patches = max(1, (Self.bufferSeconds / plan.manifest.architecture.patchSeconds).rounded())
        production = Production(capacity: Int(min(patches, 10_000))) { channel in
            defer { inbox.cancel() }
            try await Self.speak(inbox, plan, loaded, to: channel)
        }
    }

    deinit { production.cancel() }

    /// Append text. A fragment may end anywhere.
    ///
    /// Throws `VoxCPMError.closed` after `finish`, `cancel` or an error, which `chunks` throws, and `VoxCPMError.text`
    /// if more than 64 million characters would wait.
    public func push(_ text: String) throws { try inbox.push(text) }

    /// Speak all pushed text, including an unfinished last sentence. More may follow.
    public func flush() throws { try inbox.flush() }

    /// Speak all pushed text, then end `chunks`.
    public func finish() throws { try inbox.finish() }

    /// Stop at the next Euler step and discard unread audio. `chunks` throws `CancellationError`.
    public func cancel() {
        inbox.cancel()
        production.cancel()
    }

    /// The speech as it is generated, a chunk per patch and per pause. Each chunk is delivered once.
    ///
    /// It ends after `finish`, and throws the error of a sentence that cannot be spoken. Cancelling the reading task
    /// cancels the session.
    public var chunks: AsyncThrowingStream<Chunk, any Error> { production.stream }

    private static func speak(
        _ inbox: Inbox, _ plan: Plan, _ loaded: LoadedBundle, to channel: Channel<Chunk>
    ) async throws {
        var narration = try Narration(plan, loaded), reader = SegmentReader(plan), offset = 0
        let rate = plan.manifest.architecture.outputSampleRate
        while let sentence = try await inbox.next() {
            for segment in try reader.split(sentence: sentence) {
                let planned = try reader.read(segment)
                _ = try await narration.speak(planned) { piece in
                    let chunk = Chunk(piece.samples, sampleRate: rate, offset: offset, piece, words: piece.words)
                    offset += piece.samples.count
                    try await channel.send(chunk)
                }
            }
        }
    }
}

/// Text in, complete sentences out.
///
/// Unchecked: a lock guards all mutable state.
private final class Inbox: @unchecked Sendable {
    private static let maxCharacters = 64 << 20
    private let lock = NSLock()
    private let sentences = Channel<String>()
    private var cutter: ControlledCutter
    private var isClosed = false
    /// Pushed bytes that have not been taken.
    private var waiting = 0

    init(takesControl: Bool) { cutter = ControlledCutter(takesControl: takesControl) }

    func push(_ text: String) throws {
        try lock.withLock {
            guard !isClosed else { throw VoxCPMError.closed }
            guard waiting + text.utf8.count <= Self.maxCharacters else {
                throw VoxCPMError.text("more than \(Self.maxCharacters) characters would wait to be spoken; push less")
            }
            waiting += text.utf8.count
            for sentence in cutter.push(text) { sentences.put(sentence.text) }
        }
    }

    func flush() throws {
        try lock.withLock {
            guard !isClosed else { throw VoxCPMError.closed }
            for sentence in cutter.flush() { sentences.put(sentence.text) }
        }
    }

    func finish() throws {
        try flush()
        lock.withLock { isClosed = true }
        sentences.finish()
    }

    func cancel() {
        lock.withLock { isClosed = true }
        sentences.cancel()
    }

    func next() async throws -> String? {
        let sentence = try await sentences.next()
        lock.withLock { waiting = max(0, waiting - (sentence?.utf8.count ?? 0)) }
        return sentence
    }
}
