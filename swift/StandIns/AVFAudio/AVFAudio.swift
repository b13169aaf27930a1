// The part of AVFAudio that the package uses. A file is interleaved stereo float32 at 8 kHz; the converter does not
// resample, and takes only the first channel, as Apple's does. A player node plays in real time. Its clock runs on while
// it has nothing to play; a change of configuration stops the engine, and its buffers and connections are lost.

@_exported import Foundation

public typealias AVAudioFrameCount = UInt32
public typealias AVAudioConverterInputBlock =
    @Sendable (AVAudioFrameCount, UnsafeMutablePointer<AVAudioConverterInputStatus>) -> AVAudioBuffer?

public enum AVAudioConverterInputStatus { case haveData, noDataNow, endOfStream }
public enum AVAudioConverterOutputStatus { case haveData, inputRanDry, endOfStream, error }

public class AVAudioFormat {
    public let sampleRate: Double
    public let channelCount: UInt32

    public init?(standardFormatWithSampleRate sampleRate: Double, channels: UInt32) {
        guard sampleRate > 0 else { return nil }
        self.sampleRate = sampleRate
        channelCount = channels
    }
}

public class AVAudioBuffer {}

public class AVAudioPCMBuffer: AVAudioBuffer {
    public let format: AVAudioFormat
    public let frameCapacity: AVAudioFrameCount
    public var frameLength: AVAudioFrameCount = 0
    public let floatChannelData: UnsafePointer<UnsafeMutablePointer<Float>>?

    public init?(pcmFormat: AVAudioFormat, frameCapacity: AVAudioFrameCount) {
        format = pcmFormat
        self.frameCapacity = frameCapacity
        let channels = UnsafeMutablePointer<UnsafeMutablePointer<Float>>.allocate(capacity: Int(pcmFormat.channelCount))
        for channel in 0..<Int(pcmFormat.channelCount) {
            channels[channel] = .allocate(capacity: Int(frameCapacity))
        }
        floatChannelData = UnsafePointer(channels)
    }
}

public class AVAudioFile {
    public let processingFormat: AVAudioFormat
    private let samples: [Float]

    public var length: Int64 { Int64(samples.count / 2) }

    public init(forReading url: URL) throws {
        guard let format = AVAudioFormat(standardFormatWithSampleRate: 8000, channels: 2) else {
            throw CocoaError(.fileReadUnknown)
        }
        processingFormat = format
        samples = try Data(contentsOf: url).withUnsafeBytes { bytes in
            stride(from: 0, to: bytes.count, by: 4).map { bytes.loadUnaligned(fromByteOffset: $0, as: Float.self) }
        }
    }

    public func read(into buffer: AVAudioPCMBuffer) throws {
        for (index, sample) in samples.enumerated() { buffer.floatChannelData?[index % 2][index / 2] = sample }
        buffer.frameLength = AVAudioFrameCount(length)
    }
}

public class AVAudioConverter {
    public init?(from source: AVAudioFormat, to target: AVAudioFormat) {}

    @discardableResult
    public func convert(
        to buffer: AVAudioBuffer, error: inout NSError?, withInputFrom block: AVAudioConverterInputBlock
    ) -> AVAudioConverterOutputStatus {
        var status = AVAudioConverterInputStatus.noDataNow
        guard let output = buffer as? AVAudioPCMBuffer else { return .error }
        while let input = block(output.frameCapacity, &status) as? AVAudioPCMBuffer, status == .haveData {
            for frame in 0..<Int(input.frameLength) {
                output.floatChannelData?[0][Int(output.frameLength) + frame] = input.floatChannelData?[0][frame] ?? 0
            }
            output.frameLength += input.frameLength
        }
        return status == .endOfStream ? .endOfStream : .error
    }
}

public class AVAudioNode: NSObject {
    public var lastRenderTime: AVAudioTime? { AVAudioTime(sampleTime: 0, sampleRate: 1) }
}

public final class AVAudioTime: NSObject {
    public let sampleTime: Int64
    public let sampleRate: Double

    init(sampleTime: Int64, sampleRate: Double) {
        self.sampleTime = sampleTime
        self.sampleRate = sampleRate
    }
}

public final class AVAudioMixerNode: AVAudioNode {}

public enum AVAudioPlayerNodeCompletionCallbackType: Sendable { case dataConsumed, dataRendered, dataPlayedBack }

/// Unchecked: a lock guards all state.
public final class AVAudioPlayerNode: AVAudioNode, @unchecked Sendable {
    public typealias Handler = @Sendable (AVAudioPlayerNodeCompletionCallbackType) -> Void

    /// For tests: the samples that all nodes have played.
    public static var heard: [Float] {
        get { lock.withLock { all } }
        set { lock.withLock { all = newValue } }
    }
    private static let lock = NSLock()
    nonisolated(unsafe) private static var all: [Float] = []

    private let lock = NSRecursiveLock()
    private var queue: [(samples: ArraySlice<Float>, rate: Double, handler: Handler?)] = []
    /// When the first buffer began or went on.
    private var began: Date?
    private var round = 0
    private var clock: Date?
    fileprivate var isConnected = false
    fileprivate weak var engine: AVAudioEngine?
    public private(set) var isPlaying = false

    public func scheduleBuffer(
        _ buffer: AVAudioPCMBuffer, completionCallbackType: AVAudioPlayerNodeCompletionCallbackType,
        completionHandler: Handler? = nil
    ) {
        guard let samples = buffer.floatChannelData?[0] else { return }
        let copy = Array(UnsafeBufferPointer(start: samples, count: Int(buffer.frameLength)))
        lock.withLock { queue.append((copy[...], buffer.format.sampleRate, completionHandler)) }
        begin()
    }

    public func play() {
        lock.withLock {
            precondition(engine?.isRunning == true, "player started when engine not running")
            isPlaying = true
            clock = clock ?? Date()
        }
        begin()
    }

    public func pause() {
        interrupt()
        isPlaying = false
    }

    /// Completion handlers are also called for what is no longer played.
    public func stop() {
        pause()
        let dropped = lock.withLock {
            defer { (queue, clock) = ([], nil) }
            return queue
        }
        for buffer in dropped { buffer.handler?(.dataPlayedBack) }
    }

    public func playerTime(forNodeTime time: AVAudioTime) -> AVAudioTime? {
        clock.map { AVAudioTime(sampleTime: Int64(Date().timeIntervalSince($0) * 48000), sampleRate: 48000) }
    }

    private func begin() {
        lock.withLock {
            guard isPlaying, isConnected, engine?.isRunning == true, began == nil, let first = queue.first else { return }
            began = Date()
            let seconds = Double(first.samples.count) / first.rate
            DispatchQueue.global().asyncAfter(deadline: .now() + seconds) { [round] in self.end(round) }
        }
    }

    private func end(_ round: Int) {
        let first = lock.withLock {
            guard round == self.round, !queue.isEmpty else { return nil as (ArraySlice<Float>, Double, Handler?)? }
            began = nil
            return queue.removeFirst()
        }
        guard let first else { return }
        Self.lock.withLock { Self.all += first.0 }
        begin()
        first.2?(.dataPlayedBack)
    }

    /// Stop within the first buffer, whose rest stays.
    private func interrupt() {
        lock.withLock {
            round += 1
            guard let since = began, let first = queue.first else { return }
            let frames = min(first.samples.count, Int(Date().timeIntervalSince(since) * first.rate))
            Self.lock.withLock { Self.all += first.samples.prefix(frames) }
            queue[0].samples = first.samples.dropFirst(frames)
            began = nil
        }
    }

    fileprivate func lose() {
        interrupt()
        lock.withLock { (queue, isConnected) = ([], false) }
    }
}

public final class AVAudioEngine: NSObject {
    /// For tests: thrown by `start`.
    nonisolated(unsafe) public static var startError: (any Error)?

    public let mainMixerNode = AVAudioMixerNode()
    public private(set) var isRunning = false
    private var node: AVAudioPlayerNode?

    public func attach(_ node: AVAudioNode) {
        self.node = node as? AVAudioPlayerNode
        self.node?.engine = self
    }

    public func connect(_ from: AVAudioNode, to: AVAudioNode, format: AVAudioFormat?) { node?.isConnected = true }

    public func start() throws {
        if let error = Self.startError { throw error }
        isRunning = true
    }

    public func stop() { isRunning = false }

    /// For tests: a change of route.
    public func changeConfiguration() {
        isRunning = false
        node?.lose()
        NotificationCenter.default.post(name: .AVAudioEngineConfigurationChange, object: self)
    }
}

extension NSNotification.Name {
    public static let AVAudioEngineConfigurationChange = NSNotification.Name("AVAudioEngineConfigurationChange")
}

public let AVAudioSessionInterruptionTypeKey = "AVAudioSessionInterruptionTypeKey"
public let AVAudioSessionInterruptionOptionKey = "AVAudioSessionInterruptionOptionKey"

public final class AVAudioSession: NSObject, Sendable {
    public enum InterruptionType: UInt { case ended, began }

    public struct InterruptionOptions: OptionSet, Sendable {
        public let rawValue: UInt
        public static let shouldResume = InterruptionOptions(rawValue: 1)

        public init(rawValue: UInt) { self.rawValue = rawValue }
    }

    public static let interruptionNotification = NSNotification.Name("AVAudioSessionInterruptionNotification")
    public static let mediaServicesWereResetNotification = NSNotification.Name("AVAudioSessionMediaServicesWereReset")
    /// For tests: the calls of `setActive`, and what it throws.
    nonisolated(unsafe) public static var activations = 0
    nonisolated(unsafe) public static var error: (any Error)?
    private static let shared = AVAudioSession()

    public static func sharedInstance() -> AVAudioSession { shared }

    public func setActive(_ active: Bool) throws {
        if let error = Self.error { throw error }
        Self.activations += 1
    }
}
