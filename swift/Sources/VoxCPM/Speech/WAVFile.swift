import Foundation

extension Speech {
    /// The speech as a WAV file: mono, 16 bits.
    public var wav: Data { wavFile(samples, sampleRate: sampleRate) }

    /// Write the speech as a WAV file, atomically. Throws `VoxCPMError.storage`.
    public func write(to file: URL) throws { try writeWhole(wav, to: file) }
}

/// Write a file atomically. Throws `VoxCPMError.storage`.
func writeWhole(_ data: Data, to file: URL) throws {
    do {
        try data.write(to: file, options: .atomic)
    } catch {
        throw VoxCPMError.storage(path: file.path, problem: reason(error))
    }
}

/// A 16-bit WAV file of mono samples in [-1, 1]; other values are clipped, and NaN becomes silence.
public func wavFile(_ samples: [Float], sampleRate: Int) -> Data {
    let bytes = UInt32(clamping: 2 * samples.count), rate = UInt32(clamping: sampleRate)
    var data = Data(capacity: 44 + 2 * samples.count)
    func append<Number: FixedWidthInteger>(_ value: Number) {
        withUnsafeBytes(of: value.littleEndian) { data.append(contentsOf: $0) }
    }
    data.append(contentsOf: Array("RIFF".utf8))
    append(bytes &+ 36)
    data.append(contentsOf: Array("WAVEfmt ".utf8))
    append(UInt32(16))
    append(UInt16(1))
    append(UInt16(1))
    append(rate)
    append(rate &* 2)
    append(UInt16(2))
    append(UInt16(16))
    data.append(contentsOf: Array("data".utf8))
    append(bytes)
    for sample in samples {
        let clipped = sample.isNaN ? 0 : min(max(sample, -1), 1)
        append(Int16((clipped * 32767).rounded(.toNearestOrEven)))
    }
    return data
}
