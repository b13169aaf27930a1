import Foundation

/// A recording of a voice: mono samples and their rate.
public struct Recording: Sendable, Equatable {
    /// In [-1, 1].
    public let samples: [Float]
    /// Hz.
    public let sampleRate: Int
    /// SHA-256 of its file.
    let digest: String?

    static let longestSeconds = 1200.0
    static let maxSamples = 57_600_000
    static let maxChannels = 8
    static let maxRate = 384_000
    /// A peak 40 dB above full scale is a scaling error.
    private static let maxPeak: Float = 100
    /// A lower peak is silence: 33 steps of 16 bits.
    private static let minPeak: Float = 0.001

    /// - Parameters:
    ///   - samples: mono, in [-1, 1].
    ///   - sampleRate: in Hz.
    ///
    /// Throws `VoxCPMError.voice` for samples that are missing, too many, not finite, or far beyond full scale.
    public init(samples: [Float], sampleRate: Int) throws {
        try self.init(samples: samples, sampleRate: sampleRate, digest: nil)
    }

    /// - Parameters:
    ///   - interleaved: samples of all channels, interleaved; channels are averaged.
    ///   - channels: 1 to 8.
    ///   - sampleRate: in Hz.
    public init(interleaved: [Float], channels: Int, sampleRate: Int) throws {
        try self.init(samples: try Self.averaged(interleaved, channels), sampleRate: sampleRate, digest: nil)
    }

    init(samples: [Float], sampleRate: Int, digest: String?) throws {
        guard (1...Self.maxRate).contains(sampleRate) else {
            throw VoxCPMError.voice("the sample rate of a recording must be 1 to \(Self.maxRate) Hz, got \(sampleRate)")
        }
        guard !samples.isEmpty else { throw VoxCPMError.voice("the recording has no samples") }
        guard samples.count <= Self.maxSamples, Double(samples.count) <= Self.longestSeconds * Double(sampleRate) else {
            throw VoxCPMError.voice(
                "the recording is longer than \(Int(Self.longestSeconds)) s or \(Self.maxSamples) samples; cut it")
        }
        guard samples.allSatisfy({ abs($0) <= Self.maxPeak }) else {
            throw VoxCPMError.voice("the recording has samples that are not finite, or far beyond [-1, 1]; scale them")
        }
        self.samples = samples
        self.sampleRate = sampleRate
        self.digest = digest
    }

    /// Seconds.
    public var duration: Double { Double(samples.count) / Double(sampleRate) }

    static func averaged(_ interleaved: [Float], _ channels: Int) throws -> [Float] {
        guard (1...maxChannels).contains(channels) else {
            throw VoxCPMError.voice("a recording has 1 to \(maxChannels) channels, got \(channels)")
        }
        guard channels > 1 else { return interleaved }
        return (0..<(interleaved.count / channels)).map { frame in
            var sum: Float = 0
            for channel in 0..<channels { sum += interleaved[frame * channels + channel] }
            return sum / Float(channels)
        }
    }

    /// The samples at another rate, as the AudioVAE takes them.
    ///
    /// - Parameters:
    ///   - rate: in Hz.
    ///   - minimum: samples of one patch.
    ///   - trimmed: whether to cut silence from both ends.
    ///
    /// Throws `VoxCPMError.voice` for a recording that is shorter than a patch, or silent.
    func resampled(to rate: Int, minimum: Int, trimmed: Bool = false) throws -> [Float] {
        var result = sampleRate == rate ? samples : windowedSinc(samples, from: sampleRate, to: rate)
        if trimmed { result = withoutSilence(result, sampleRate: rate) }
        guard result.count >= minimum else {
            let seconds = Double(result.count) / Double(rate), patch = Double(minimum) / Double(rate)
            throw VoxCPMError.voice(
                "the recording has \(seconds) s\(trimmed ? " of sound" : ""), but the minimum is one patch, \(patch) s")
        }
        // Ignore DC offset.
        let mean = Float(result.reduce(0.0) { $0 + Double($1) } / Double(result.count))
        guard result.contains(where: { abs($0 - mean) >= Self.minPeak }) else {
            throw VoxCPMError.voice("expected speech, but the recording is silent")
        }
        return result
    }
}

/// The bytes of a regular file, a voice or a recording; nil if it is missing, unreadable or larger than 256 MiB.
func content(of file: URL) -> Data? {
    let attributes = try? FileManager.default.attributesOfItem(atPath: file.resolvingSymlinksInPath().path)
    guard let bytes = (attributes?[.size] as? NSNumber)?.intValue, bytes <= 256 << 20,
        attributes?[.type] as? FileAttributeType == .typeRegular
    else { return nil }
    return try? Data(contentsOf: file)
}
