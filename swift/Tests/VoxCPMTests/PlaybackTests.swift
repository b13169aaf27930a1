import XCTest

#if os(Linux)
import AVFAudio
#endif

@testable import VoxCPM
@testable import VoxCPMPlayback

/// On Linux, with the stand-in for AVFAudio, whose node plays in real time.
final class PlaybackTests: XCTestCase {
    private static func stream() -> AsyncThrowingStream<Chunk, any Error> {
        var configuration = Configuration(predictor: FakePredictor(stops: false)), options = Options()
        configuration.verifies = false
        (options.seed, options.maxLen, options.minLen, options.chunkPatches) = (1, 20, 20, 3)
        return TextToSpeech(.folder(builtInBundle), configuration).stream("the river runs to the sea", options: options)
    }

    #if os(Linux)
    /// Chunks of 0.1 s whose samples count up, with a pause before one of them.
    private static func chunks(_ count: Int, stallBefore stalled: Int = 0) -> AsyncThrowingStream<Chunk, any Error> {
        AsyncThrowingStream { continuation in
            Task {
                for index in 0..<count {
                    if index > 0, index == stalled { try await Task.sleep(nanoseconds: 600_000_000) }
                    let samples = (0..<800).map { Float(800 * index + $0) }
                    continuation.yield(Chunk(samples, sampleRate: 8000, offset: 800 * index, nil, words: []))
                }
                continuation.finish()
            }
        }
    }

    /// Expects every sample, in order. A few may be heard twice where the engine was lost.
    @MainActor
    private static func expectHeard(_ count: Int, repeated: Int = 0, line: UInt = #line) {
        let heard = AVAudioPlayerNode.heard.map { Int($0) }
        XCTAssertEqual(Set(heard).count, 800 * count, "cut", line: line)
        XCTAssertTrue(zip(heard, heard.dropFirst()).allSatisfy { $1 <= $0 + 1 }, "a gap", line: line)
        XCTAssertLessThanOrEqual(heard.count, 800 * count + repeated, "repeated", line: line)
        AVAudioPlayerNode.heard = []
    }

    @MainActor
    func testAPlayerHearsTheWholeSpeech() async throws {
        var whole: [Float] = []
        for try await chunk in Self.stream() { whole += chunk.samples }
        let player = SpeechPlayer()
        var states: [SpeechPlayer.State] = [], scheduled = 0
        player.onState = { states.append($0) }
        AVAudioPlayerNode.heard = []
        try await player.play(Self.stream()) { scheduled += $0.samples.count }
        XCTAssertEqual(AVAudioPlayerNode.heard, whole)
        XCTAssertEqual(scheduled, whole.count)
        XCTAssertEqual(states.first, .buffering)
        XCTAssertEqual(states.last, .idle)
        XCTAssertFalse(player.node.isPlaying)
        player.onState = { [weak player] in if $0 == .playing { player?.stop() } }
        try await player.play(Self.stream())
        XCTAssertEqual(player.state, .idle)
    }

    /// The player's clock runs on meanwhile, and would end the speech too early.
    @MainActor
    func testAStallCutsNothing() async throws {
        let player = SpeechPlayer()
        AVAudioPlayerNode.heard = []
        var states: [SpeechPlayer.State] = []
        player.onState = { states.append($0) }
        try await player.play(Self.chunks(8, stallBefore: 3), expectedSeconds: 0)
        XCTAssertEqual(player.currentTime, 0.8, accuracy: 1e-9)
        XCTAssertTrue(states.dropFirst(2).contains(.buffering), "\(states)")
        Self.expectHeard(8)
    }

    @MainActor
    func testPauseAndResume() async throws {
        let player = SpeechPlayer()
        AVAudioPlayerNode.heard = []
        let playing = Task { try await player.play(Self.chunks(6)) }
        try await Task.sleep(nanoseconds: 250_000_000)
        player.pause()
        let time = player.currentTime
        XCTAssertEqual(player.state, .paused)
        XCTAssertGreaterThan(time, 0)
        try await Task.sleep(nanoseconds: 500_000_000)
        XCTAssertEqual(player.currentTime, time)
        XCTAssertLessThan(time, 0.6)
        try player.resume()
        try await playing.value
        Self.expectHeard(6)
    }

    /// A change of configuration and a reset of the media services lose the engine and what it was to play.
    @MainActor
    func testALostEngineIsBuiltAgain() async throws {
        for isReset in [false, true] {
            let player = SpeechPlayer(), engine = player.engine
            AVAudioPlayerNode.heard = []
            let playing = Task { try await player.play(Self.chunks(6)) }
            try await Task.sleep(nanoseconds: 250_000_000)
            if isReset {
                NotificationCenter.default.post(name: AVAudioSession.mediaServicesWereResetNotification, object: nil)
            } else {
                player.engine.changeConfiguration()
            }
            try await playing.value
            XCTAssertFalse(player.engine === engine)
            Self.expectHeard(6, repeated: 2400)
        }
    }

    @MainActor
    func testAnEngineThatDoesNotStartIsAnError() async throws {
        struct Refused: Error {}
        AVAudioEngine.startError = Refused()
        defer { AVAudioEngine.startError = nil }
        func fails(_ play: () async throws -> Void) async {
            do {
                try await play()
                XCTFail("it played")
            } catch is Refused {} catch { XCTFail("\(error)") }
        }
        let player = SpeechPlayer()
        await fails { try await player.play(Self.chunks(3)) }
        XCTAssertEqual(player.state, .idle)
        AVAudioEngine.startError = nil
        let playing = Task { try await player.play(Self.chunks(6)) }
        try await Task.sleep(nanoseconds: 250_000_000)
        AVAudioEngine.startError = Refused()
        player.engine.changeConfiguration()
        await fails { try await playing.value }
    }

    @MainActor
    func testAnInterruption() async throws {
        struct Refused: Error {}
        func post(_ type: AVAudioSession.InterruptionType, _ options: UInt = 0) {
            let info = [AVAudioSessionInterruptionTypeKey: type.rawValue, AVAudioSessionInterruptionOptionKey: options]
            NotificationCenter.default.post(
                name: AVAudioSession.interruptionNotification, object: nil, userInfo: info)
        }
        for error in [nil, Refused()] {
            let player = SpeechPlayer(), activations = AVAudioSession.activations
            AVAudioPlayerNode.heard = []
            let playing = Task { try await player.play(Self.chunks(6)) }
            try await Task.sleep(nanoseconds: 250_000_000)
            post(.began)
            player.engine.stop()
            try await Task.sleep(nanoseconds: 200_000_000)
            XCTAssertEqual(player.state, .interrupted)
            AVAudioSession.error = error
            defer { AVAudioSession.error = nil }
            post(.ended, AVAudioSession.InterruptionOptions.shouldResume.rawValue)
            if error == nil {
                try await playing.value
                XCTAssertEqual(AVAudioSession.activations, activations + 1)
                Self.expectHeard(6, repeated: 2400)
            } else {
                do {
                    try await playing.value
                    XCTFail("it went on")
                } catch is Refused {}
            }
        }
    }
    #endif

    /// At a real-time factor of 1.25, a fifth of the speech must be buffered.
    func testPrerollOfSlowSpeech() {
        var preroll = Preroll(expectedSeconds: 10), made = 0.0
        repeat { made += 0.5 } while !preroll.begins(afterChunkOf: 0.5, work: made == 0.5 ? 3 : 0.625)
        XCTAssertEqual(made, 2.5)
        XCTAssertEqual(preroll.realTimeFactor ?? 0, 1.25, accuracy: 1e-9)
        var fast = Preroll(expectedSeconds: 10, realTimeFactor: 0.3)
        XCTAssertTrue(fast.begins(afterChunkOf: 0.16, work: 0.1))
        var unknown = Preroll()
        XCTAssertFalse(unknown.begins(afterChunkOf: 5, work: 1))
    }

    func testRecordingsOfSeveralChannels() throws {
        #if os(Linux)
        let file = FileManager.default.temporaryDirectory.appendingPathComponent(UUID().uuidString)
        defer { try? FileManager.default.removeItem(at: file) }
        try ([0.5, 0, 0.25, 0.75] as [Float]).withUnsafeBytes { try Data($0).write(to: file) }
        XCTAssertEqual(try Recording(contentsOf: file), try Recording(samples: [0.25, 0.5], sampleRate: 8000))
        try Data().write(to: file)
        XCTAssertThrowsError(try Recording(contentsOf: file))
        #endif
    }
}
