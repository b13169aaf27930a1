// What examples/swift uses of AVFoundation, to compile it. A file is float32 of two channels in turn, at 8 kHz; the
// converter changes no sample rate, and takes the first channel alone, as Apple's does.

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
    public let processingFormat = AVAudioFormat(standardFormatWithSampleRate: 8000, channels: 2)!
    private let samples: [Float]

    public var length: Int64 { Int64(samples.count / 2) }

    public init(forReading url: URL) throws {
        samples = try Data(contentsOf: url).withUnsafeBytes { bytes in
            stride(from: 0, to: bytes.count, by: 4).map { bytes.loadUnaligned(fromByteOffset: $0, as: Float.self) }
        }
    }

    public func read(into buffer: AVAudioPCMBuffer) throws {
        for (index, sample) in samples.enumerated() { buffer.floatChannelData![index % 2][index / 2] = sample }
        buffer.frameLength = AVAudioFrameCount(length)
    }
}

public class AVAudioConverter {
    public init?(from source: AVAudioFormat, to target: AVAudioFormat) {}

    @discardableResult
    public func convert(
        to buffer: AVAudioBuffer, error: inout NSError?, withInputFrom block: AVAudioConverterInputBlock
    ) -> AVAudioConverterOutputStatus {
        let output = buffer as! AVAudioPCMBuffer
        var status = AVAudioConverterInputStatus.noDataNow
        while let input = block(output.frameCapacity, &status) as? AVAudioPCMBuffer, status == .haveData {
            for frame in 0..<Int(input.frameLength) {
                output.floatChannelData![0][Int(output.frameLength) + frame] = input.floatChannelData![0][frame]
            }
            output.frameLength += input.frameLength
        }
        return status == .endOfStream ? .endOfStream : .error
    }
}
