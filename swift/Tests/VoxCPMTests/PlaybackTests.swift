import XCTest

@testable import VoxCPM
@testable import VoxCPMPlayback

/// On Linux, with the stand-in for AVFAudio, whose node plays scheduled buffers at once.
final class PlaybackTests: XCTestCase {
    private static func stream() -> AsyncThrowingStream<Chunk, any Error> {
        var configuration = Configuration(predictor: FakePredictor(stops: false)), options = Options()
        configuration.verifies = false
        (options.seed, options.maxLen, options.minLen, options.chunkPatches) = (1, 20, 20, 3)
        return VoxCPM(.folder(builtInBundle), configuration).stream("the river runs to the sea", options: options)
    }

    func testAPlayerHearsTheWholeSpeech() async throws {
        #if os(Linux)
        try await Self.play()
        #endif
    }

    #if os(Linux)
    @MainActor
    private static func play() async throws {
        var whole: [Float] = []
        for try await chunk in stream() { whole += chunk.samples }
        let player = SpeechPlayer()
        var states: [SpeechPlayer.State] = [], heard = 0
        player.onState = { states.append($0) }
        try await player.play(stream()) { heard += $0.samples.count }
        XCTAssertEqual(player.node.heard, whole)
        XCTAssertEqual(heard, whole.count)
        XCTAssertEqual(states, [.buffering, .playing, .idle])
        XCTAssertFalse(player.node.isPlaying)
        player.onState = { [weak player] in if $0 == .playing { player?.stop() } }
        try await player.play(stream())
        XCTAssertEqual(player.state, .idle)
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
