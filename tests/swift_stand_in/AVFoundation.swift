// What examples/swift uses of AVFoundation, to compile it; nothing here reads a file.

@_exported import Foundation

public typealias AVAudioFrameCount = UInt32
public typealias AVAudioConverterInputBlock = (
    AVAudioFrameCount, UnsafeMutablePointer<AVAudioConverterInputStatus>
) -> AVAudioBuffer?

public enum AVAudioCommonFormat { case pcmFormatFloat32 }
public enum AVAudioConverterInputStatus { case haveData, noDataNow, endOfStream }
public enum AVAudioConverterOutputStatus { case haveData, inputRanDry, endOfStream, error }

public class AVAudioFormat {
    public let sampleRate: Double

    public init?(commonFormat: AVAudioCommonFormat, sampleRate: Double, channels: UInt32, interleaved: Bool) {
        self.sampleRate = sampleRate
    }
}

public class AVAudioBuffer {}

public class AVAudioPCMBuffer: AVAudioBuffer {
    public var frameLength: AVAudioFrameCount = 0
    public var floatChannelData: UnsafePointer<UnsafeMutablePointer<Float>>? { nil }

    public init?(pcmFormat: AVAudioFormat, frameCapacity: AVAudioFrameCount) {}
}

public class AVAudioFile {
    public var processingFormat: AVAudioFormat { fatalError("a stand-in") }
    public var length: Int64 { 0 }

    public init(forReading url: URL) throws {}

    public func read(into buffer: AVAudioPCMBuffer) throws {}
}

public class AVAudioConverter {
    public init?(from source: AVAudioFormat, to target: AVAudioFormat) {}

    @discardableResult
    public func convert(
        to buffer: AVAudioBuffer, error: inout NSError?, withInputFrom block: AVAudioConverterInputBlock
    ) -> AVAudioConverterOutputStatus { .endOfStream }
}
