// On Linux this is compiled and run with stand-ins. It has never been run on a Mac or a phone.

@preconcurrency import AVFAudio
import Foundation
import VoxCPM

/// Plays speech as it is generated, through its own `AVAudioEngine`.
///
/// It buffers slow speech so that it plays without gaps (`Preroll`), pauses and reports when a phone call or another
/// app interrupts, and continues after a change of audio route, such as headphones.
@MainActor
public final class SpeechPlayer {
    /// The state of a player.
    public enum State: Sendable, Equatable {
        case idle, buffering, playing, paused, interrupted
    }

    /// The current state.
    public private(set) var state = State.idle {
        didSet { if state != oldValue { onState?(state) } }
    }
    /// Called after each change of `state`.
    public var onState: (@MainActor (State) -> Void)?

    private(set) var engine = AVAudioEngine()
    private(set) var node = AVAudioPlayerNode()
    private let observers = Observers()
    /// From the last speech, so that the next one can start without measuring.
    private var realTimeFactor: Double?
    private var isStopped = false
    /// The engine did not start again.
    private var failure: (any Error)?
    private var format: AVAudioFormat?
    /// Whether enough is buffered to start.
    private var isBuffered = false
    /// Scheduled samples that have not been heard to the end, in order.
    private var waiting: [(number: Int, samples: [Float])] = []
    private var scheduled = 0
    /// Frames of speech before `waiting`.
    private var heardFrames = 0
    /// Frames of the first waiting samples that were heard before `began`, and when they began or went on.
    private var before = 0
    private var began: ContinuousClock.Instant?

    /// A player; call `play` to start.
    public init() {
        engine.attach(node)
        observe()
    }

    /// Seconds of the speech that were heard, to find the word that is heard now. Exact at the end of each chunk; within
    /// one, from the system's clock.
    public var currentTime: Double { format.map { Double(heardFrames + framesOfFirst) / $0.sampleRate } ?? 0 }

    private var framesOfFirst: Int {
        guard let first = waiting.first, let format else { return 0 }
        // Not the player's clock, which runs on while it has nothing to play.
        let elapsed = began.map { $0.duration(to: .now) / .seconds(1) } ?? 0
        return min(first.samples.count, before + Int(elapsed * format.sampleRate))
    }

    /// Play a stream, and return when its last sample has been heard or `stop` was called.
    ///
    /// - Parameters:
    ///   - chunks: from `TextToSpeech.stream` or `Session.chunks`.
    ///   - expectedSeconds: expected seconds of speech, for the pre-roll.
    ///   - scheduled: called with each chunk when it is scheduled.
    ///
    /// Cancelling the task, an error in the stream, or an audio engine that does not start again stops playback.
    public func play(
        _ chunks: AsyncThrowingStream<Chunk, any Error>, expectedSeconds: Double = 10,
        scheduled: (Chunk) -> Void = { _ in }
    ) async throws {
        (isStopped, isBuffered, failure, format) = (false, false, nil, nil)
        (heardFrames, before, began, waiting) = (0, 0, nil, [])
        state = .buffering
        var preroll = Preroll(expectedSeconds: expectedSeconds, realTimeFactor: realTimeFactor)
        var last = Date()
        defer {
            realTimeFactor = preroll.realTimeFactor ?? realTimeFactor
            waiting = []
            node.stop()
            engine.stop()
            state = .idle
        }
        for try await chunk in chunks {
            if isStopped { return }
            if let failure { throw failure }
            if format == nil {
                format = AVAudioFormat(standardFormatWithSampleRate: Double(chunk.sampleRate), channels: 1)
                if let format { engine.connect(node, to: engine.mainMixerNode, format: format) }
            }
            schedule(chunk.samples)
            scheduled(chunk)
            let seconds = Double(chunk.samples.count) / Double(chunk.sampleRate)
            let begins = preroll.begins(afterChunkOf: seconds, work: Date().timeIntervalSince(last))
            last = Date()
            isBuffered = isBuffered || begins
            if isBuffered, state == .buffering { try start() }
        }
        isBuffered = true
        if state == .buffering, !waiting.isEmpty { try start() }
        while !isStopped, !waiting.isEmpty {
            if let failure { throw failure }
            try await Task.sleep(nanoseconds: 20_000_000)
        }
    }

    /// Stop at once. `play` returns.
    public func stop() {
        isStopped = true
        node.stop()
    }

    /// Pause until `resume`.
    public func pause() {
        if [.playing, .buffering].contains(state) { hold(.paused) }
    }

    /// Continue after `pause` or an interruption. Throws if the audio session or the engine does not start.
    public func resume() throws {
        guard [.paused, .interrupted].contains(state) else { return }
        #if !os(macOS)
        try AVAudioSession.sharedInstance().setActive(true)
        #endif
        if state == .interrupted { try rebuild() }
        if isBuffered, !waiting.isEmpty { try start() } else { state = .buffering }
    }

    private func hold(_ held: State) {
        (before, began) = (framesOfFirst, nil)
        node.pause()
        state = held
    }

    private func start() throws {
        if !engine.isRunning { try engine.start() }
        node.play()
        began = began ?? (waiting.isEmpty ? nil : .now)
        state = .playing
    }

    private func schedule(_ samples: [Float]) {
        let count = AVAudioFrameCount(samples.count)
        guard count > 0, let format, let buffer = AVAudioPCMBuffer(pcmFormat: format, frameCapacity: count),
            let channel = buffer.floatChannelData?[0]
        else { return }
        for (index, sample) in samples.enumerated() { channel[index] = sample }
        buffer.frameLength = count
        scheduled += 1
        waiting.append((scheduled, samples))
        // `@Sendable`: it is called off the main thread, where one of this actor would trap.
        node.scheduleBuffer(buffer, completionCallbackType: .dataPlayedBack) { @Sendable [weak self, scheduled] _ in
            Task { @MainActor in self?.heard(scheduled) }
        }
    }

    /// Everything up to these samples was heard; those of an earlier engine and of a stopped speech no longer wait.
    private func heard(_ number: Int) {
        while let first = waiting.first, first.number <= number {
            heardFrames += first.samples.count
            (before, began) = (0, state == .playing ? .now : nil)
            waiting.removeFirst()
        }
        // The stream is slower than the speech: the node plays its next samples as they come.
        if waiting.isEmpty, state == .playing { (began, state) = (nil, .buffering) }
    }

    /// A new engine with what was not heard, as a stopped one may have lost its buffers.
    private func rebuild() throws {
        guard state != .idle, let format else { return }
        // The engine stopped a little earlier: rather hear a tenth of a second twice than not at all.
        let first = max(0, framesOfFirst - Int(format.sampleRate / 10)), left = waiting
        (waiting, heardFrames, before, began) = ([], heardFrames + first, 0, nil)
        node.stop()
        engine.stop()
        (engine, node) = (AVAudioEngine(), AVAudioPlayerNode())
        engine.attach(node)
        engine.connect(node, to: engine.mainMixerNode, format: format)
        for (index, part) in left.enumerated() { schedule(Array(part.samples.dropFirst(index == 0 ? first : 0))) }
        if state == .playing { try start() }
    }

    private func observe() {
        // A change of route stops the engine.
        observe(.AVAudioEngineConfigurationChange) { player, notification in
            let changed = (notification.object as AnyObject?).map(ObjectIdentifier.init)
            return { if changed == ObjectIdentifier(player.engine) { try player.rebuild() } }
        }
        #if !os(macOS)
        observe(AVAudioSession.mediaServicesWereResetNotification) { player, _ in { try player.rebuild() } }
        observe(AVAudioSession.interruptionNotification) { player, notification in
            let raw = notification.userInfo?[AVAudioSessionInterruptionTypeKey] as? UInt
            let options = notification.userInfo?[AVAudioSessionInterruptionOptionKey] as? UInt ?? 0
            let begins = raw == AVAudioSession.InterruptionType.began.rawValue
            let resumes = AVAudioSession.InterruptionOptions(rawValue: options).contains(.shouldResume)
            return { try player.interrupted(begins: begins, resumes: resumes) }
        }
        #endif
    }

    /// Call what `reads` makes of a notification; its error ends `play`.
    private func observe(
        _ name: NSNotification.Name,
        _ reads: @escaping @Sendable (SpeechPlayer, Notification) -> @MainActor () throws -> Void
    ) {
        observers.all.append(NotificationCenter.default.addObserver(forName: name, object: nil, queue: .main) {
            [weak self] notification in
            guard let self else { return }
            let action = reads(self, notification)
            MainActor.assumeIsolated {
                do { try action() } catch { self.failure = error }
            }
        })
    }

    private func interrupted(begins: Bool, resumes: Bool) throws {
        if begins, [.playing, .buffering].contains(state) {
            hold(.interrupted)
        } else if !begins, resumes, state == .interrupted {
            try resume()
        }
    }
}

/// Removes its observers when the player is released.
private final class Observers {
    var all: [any NSObjectProtocol] = []

    deinit {
        for observer in all { NotificationCenter.default.removeObserver(observer) }
    }
}
