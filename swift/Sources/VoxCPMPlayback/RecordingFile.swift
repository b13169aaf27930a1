// On Linux this is compiled against stand-ins. It has never been run on a Mac or a phone.

@preconcurrency import AVFAudio
import Foundation
import VoxCPM

extension Recording {
    /// Read an audio file in any format that the system supports, averaging its channels.
    ///
    /// Throws `VoxCPMError.voice` for a file that is not audio or is empty.
    public init(contentsOf file: URL) throws {
        do {
            let source = try AVAudioFile(forReading: file), format = source.processingFormat
            guard source.length > 0, source.length < Int64(AVAudioFrameCount.max),
                let buffer = AVAudioPCMBuffer(pcmFormat: format, frameCapacity: AVAudioFrameCount(source.length))
            else { throw VoxCPMError.voice("\(file.lastPathComponent): expected a recording, but it is empty") }
            try source.read(into: buffer)
            guard let channels = buffer.floatChannelData else {
                throw VoxCPMError.voice("\(file.lastPathComponent): its samples cannot be read")
            }
            let count = Int(format.channelCount)
            let mono = (0..<Int(buffer.frameLength)).map { frame in
                (0..<count).reduce(Float(0)) { $0 + channels[$1][frame] } / Float(count)
            }
            try self.init(samples: mono, sampleRate: Int(format.sampleRate.rounded()))
        } catch let error as VoxCPMError {
            throw error
        } catch {
            throw VoxCPMError.voice("\(file.lastPathComponent): expected an audio file (\(error.localizedDescription))")
        }
    }
}
