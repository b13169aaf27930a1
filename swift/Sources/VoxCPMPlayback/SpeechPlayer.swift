// On Linux this is compiled against stand-ins. It has never been run on a Mac or a phone.

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
        case idle, buffering, playing, interrupted
    }

    /// The current state.
    public private(set) var state = State.idle {
        didSet { if state != oldValue { onState?(state) } }
    }
    /// Called after each change of `state`.
    public var onState: (@MainActor (State) -> Void)?

    private let engine = AVAudioEngine()
    let node = AVAudioPlayerNode()
    private let observers = Observers()
    /// From the last speech, so that the next one can start without measuring.
    private var realTimeFactor: Double?
    private var isStopped = false

    /// A player; call `play` to start.
    public init() {
        engine.attach(node)
        observe()
    }

    /// Play a stream, and return when its last sample has been played or `stop` was called.
    ///
    /// - Parameters:
    ///   - chunks: from `VoxCPM.stream` or `Session.chunks`.
    ///   - expectedSeconds: expected seconds of speech, for the pre-roll.
    ///   - heard: called with each chunk when it is scheduled.
    ///
    /// Cancelling the task, or an error in the stream, stops playback.
    public func play(
        _ chunks: AsyncThrowingStream<Chunk, any Error>, expectedSeconds: Double = 10,
        heard: (Chunk) -> Void = { _ in }
    ) async throws {
        isStopped = false
        state = .buffering
        var format: AVAudioFormat?
        var preroll = Preroll(expectedSeconds: expectedSeconds, realTimeFactor: realTimeFactor)
        var last = Date(), frames = 0
        defer {
            realTimeFactor = preroll.realTimeFactor ?? realTimeFactor
            node.stop()
            engine.stop()
            state = .idle
        }
        for try await chunk in chunks {
            if isStopped { return }
            format = format ?? connected(chunk.sampleRate)
            guard let format, let buffer = buffer(chunk.samples, format) else { continue }
            node.scheduleBuffer(buffer, completionHandler: nil)
            frames += chunk.samples.count
            heard(chunk)
            let seconds = Double(chunk.samples.count) / Double(chunk.sampleRate)
            let begins = preroll.begins(afterChunkOf: seconds, work: Date().timeIntervalSince(last))
            last = Date()
            if begins, state == .buffering { try start() }
        }
        guard let format, frames > 0 else { return }
        if state == .buffering { try start() }
        while !isStopped, state != .idle, played(format) < frames {
            try await Task.sleep(nanoseconds: 50_000_000)
        }
    }

    /// Stop at once. `play` returns.
    public func stop() {
        isStopped = true
        node.stop()
    }

    /// Continue after an interruption.
    public func resume() throws {
        if state == .interrupted { try start() }
    }

    /// Connect the node with the format of mono samples at this rate in Hz, and return it.
    private func connected(_ sampleRate: Int) -> AVAudioFormat? {
        let format = AVAudioFormat(standardFormatWithSampleRate: Double(sampleRate), channels: 1)
        if let format { engine.connect(node, to: engine.mainMixerNode, format: format) }
        return format
    }

    private func start() throws {
        try engine.start()
        node.play()
        state = .playing
    }

    /// Number of frames that have been played.
    private func played(_ format: AVAudioFormat) -> Int {
        guard let time = node.lastRenderTime, let own = node.playerTime(forNodeTime: time) else { return 0 }
        return Int(Double(own.sampleTime) / own.sampleRate * format.sampleRate)
    }

    private func buffer(_ samples: [Float], _ format: AVAudioFormat) -> AVAudioPCMBuffer? {
        let count = AVAudioFrameCount(samples.count)
        guard count > 0, let buffer = AVAudioPCMBuffer(pcmFormat: format, frameCapacity: count),
            let channel = buffer.floatChannelData?[0]
        else { return nil }
        for (index, sample) in samples.enumerated() { channel[index] = sample }
        buffer.frameLength = count
        return buffer
    }

    private func observe() {
        let center = NotificationCenter.default
        // A route change stops the engine, but keeps scheduled buffers.
        observers.all.append(center.addObserver(
            forName: .AVAudioEngineConfigurationChange, object: engine, queue: .main
        ) { [weak self] _ in
            MainActor.assumeIsolated { if let self, self.state == .playing { try? self.start() } }
        })
        #if os(iOS)
        observers.all.append(center.addObserver(
            forName: AVAudioSession.interruptionNotification, object: nil, queue: .main
        ) { [weak self] notification in
            let raw = notification.userInfo?[AVAudioSessionInterruptionTypeKey] as? UInt
            let options = notification.userInfo?[AVAudioSessionInterruptionOptionKey] as? UInt ?? 0
            let begins = raw == AVAudioSession.InterruptionType.began.rawValue
            let resumes = AVAudioSession.InterruptionOptions(rawValue: options).contains(.shouldResume)
            MainActor.assumeIsolated { self?.interrupted(begins: begins, resumes: resumes) }
        })
        #endif
    }

    private func interrupted(begins: Bool, resumes: Bool) {
        if begins, state == .playing {
            node.pause()
            state = .interrupted
        } else if !begins, resumes {
            try? resume()
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
