import Foundation

extension Recording {
    /// Read a WAV file: PCM of 8, 16, 24 or 32 bits, or floating point of 32 or 64; channels are averaged.
    ///
    /// VoxCPMPlayback reads other formats on Apple platforms. Throws `VoxCPMError.voice`.
    public init(wav file: URL) throws {
        guard let content = content(of: file) else {
            throw VoxCPMError.voice("\(file.path): no such file, or it is too large or cannot be read")
        }
        do {
            try self.init(wav: content)
        } catch VoxCPMError.voice(let problem) {
            throw VoxCPMError.voice("\(file.path): \(problem)")
        }
    }

    /// Read the content of a WAV file. Throws `VoxCPMError.voice`.
    public init(wav content: Data) throws {
        let (samples, channels, rate) = try decoded([UInt8](content))
        try self.init(
            samples: try Self.averaged(samples, channels), sampleRate: rate, digest: SHA256.hex(content))
    }
}

private enum Format { case unsigned8, signed16, signed24, signed32, float32, float64 }

/// Interleaved samples, channels and rate. A truncated file gives the samples that it has.
private func decoded(_ bytes: [UInt8]) throws -> (samples: [Float], channels: Int, rate: Int) {
    func number(_ place: Int, _ count: Int) -> Int {
        (0..<count).reduce(0) { $0 | Int(bytes[place + $1]) << (8 * $1) }
    }
    func named(_ place: Int, _ name: String) -> Bool {
        place + 4 <= bytes.count && bytes[place..<(place + 4)].elementsEqual(name.utf8)
    }
    guard named(0, "RIFF"), named(8, "WAVE") else { throw VoxCPMError.voice("expected a WAV file") }
    var place = 12, format: Format?, channels = 0, rate = 0
    while place + 8 <= bytes.count {
        let start = place + 8, size = number(place + 4, 4)
        if named(place, "fmt "), size >= 16, start + 16 <= bytes.count {
            var code = number(start, 2)
            // An extensible header has the code at the beginning of its GUID.
            if code == 0xFFFE, size >= 26, start + 26 <= bytes.count { code = number(start + 24, 2) }
            channels = number(start + 2, 2)
            rate = number(start + 4, 4)
            format = switch (code, number(start + 14, 2)) {
            case (1, 8): .unsigned8
            case (1, 16): .signed16
            case (1, 24): .signed24
            case (1, 32): .signed32
            case (3, 32): .float32
            case (3, 64): .float64
            default: nil
            }
            guard format != nil else {
                throw VoxCPMError.voice("expected PCM of 8 to 32 bits or floating point; convert the recording")
            }
        } else if named(place, "data") {
            guard let format, (1...Recording.maxChannels).contains(channels) else {
                throw VoxCPMError.voice("the WAV file has an unsupported format, or too many channels")
            }
            return (samples(bytes[start..<min(bytes.count, start + size)], format), channels, rate)
        }
        // Chunks start at even offsets.
        place = start + size + size % 2
    }
    throw VoxCPMError.voice("the WAV file has no samples")
}

private func samples(_ bytes: ArraySlice<UInt8>, _ format: Format) -> [Float] {
    bytes.withUnsafeBytes { raw in
        func each<T>(_ type: T.Type, _ convert: (T) -> Float) -> [Float] {
            (0..<(raw.count / MemoryLayout<T>.size)).map { index in
                convert(raw.loadUnaligned(fromByteOffset: index * MemoryLayout<T>.size, as: T.self))
            }
        }
        switch format {
        case .unsigned8: return each(UInt8.self) { (Float($0) - 128) / 128 }
        case .signed16: return each(Int16.self) { Float(Int16(littleEndian: $0)) / 0x1p15 }
        case .signed32: return each(Int32.self) { Float(Int32(littleEndian: $0)) / 0x1p31 }
        case .float32: return each(UInt32.self) { Float(bitPattern: UInt32(littleEndian: $0)) }
        case .float64: return each(UInt64.self) { Float(Double(bitPattern: UInt64(littleEndian: $0))) }
        case .signed24:
            return (0..<(raw.count / 3)).map { index in
                let low = UInt32(raw[3 * index]), middle = UInt32(raw[3 * index + 1]), high = UInt32(raw[3 * index + 2])
                let value = Int32(bitPattern: high << 24 | middle << 16 | low << 8)
                return Float(value) / 0x1p31
            }
        }
    }
}
