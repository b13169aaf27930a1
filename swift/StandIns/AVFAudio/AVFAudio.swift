// The part of AVFAudio that the package uses. A file is interleaved stereo float32 at 8 kHz; the converter does not
// resample, and takes only the first channel, as Apple's does. A player node plays everything at once.

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

public final class AVAudioPlayerNode: AVAudioNode {
    /// For tests: scheduled samples, and whether the node plays.
    public private(set) var heard: [Float] = []
    public private(set) var isPlaying = false

    public func scheduleBuffer(_ buffer: AVAudioPCMBuffer, completionHandler: (@Sendable () -> Void)? = nil) {
        guard let samples = buffer.floatChannelData?[0] else { return }
        heard += UnsafeBufferPointer(start: samples, count: Int(buffer.frameLength))
    }

    public func play() { isPlaying = true }

    public func pause() { isPlaying = false }

    public func stop() { isPlaying = false }

    public func playerTime(forNodeTime time: AVAudioTime) -> AVAudioTime? {
        isPlaying ? AVAudioTime(sampleTime: Int64(heard.count), sampleRate: 1) : nil
    }
}

public final class AVAudioEngine: NSObject {
    public let mainMixerNode = AVAudioMixerNode()
    public private(set) var isRunning = false

    public func attach(_ node: AVAudioNode) {}

    public func connect(_ from: AVAudioNode, to: AVAudioNode, format: AVAudioFormat?) {}

    public func start() throws { isRunning = true }

    public func stop() { isRunning = false }
}

extension NSNotification.Name {
    public static let AVAudioEngineConfigurationChange = NSNotification.Name("AVAudioEngineConfigurationChange")
}
