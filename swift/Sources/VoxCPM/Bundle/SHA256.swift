import Foundation

#if canImport(CryptoKit)
import CryptoKit

/// Incremental SHA-256.
struct SHA256 {
    private var hasher = CryptoKit.SHA256()

    mutating func update(_ data: Data) { hasher.update(data: data) }

    func hex() -> String { hasher.finalize().map { String(format: "%02x", $0) }.joined() }
}
#else
/// Incremental SHA-256 (FIPS 180-4), for systems without CryptoKit.
struct SHA256 {
    private static let primes: [Int] = (2...311).filter { n in !(2..<n).contains { n % $0 == 0 } }
    /// The first 32 bits of the fractional parts of the cube roots of the first 64 primes.
    private static let constants = primes.map { fraction(cbrt(Double($0))) }
    private var state = primes.prefix(8).map { fraction(Double($0).squareRoot()) }
    private var pending: [UInt8] = []
    private var count: UInt64 = 0

    private static func fraction(_ x: Double) -> UInt32 { UInt32((x - x.rounded(.down)) * 0x1p32) }

    mutating func update(_ data: Data) {
        count += UInt64(data.count)
        pending += data
        let whole = pending.count / 64 * 64
        pending.withUnsafeBufferPointer { bytes in
            for start in stride(from: 0, to: whole, by: 64) { Self.compress(&state, bytes, start) }
        }
        pending.removeFirst(whole)
    }

    func hex() -> String {
        var last = self
        var padding = Data([0x80])
        padding.append(Data(count: (119 - Int(count % 64)) % 64))
        withUnsafeBytes(of: (count * 8).bigEndian) { padding.append(contentsOf: $0) }
        last.update(padding)
        return last.state.map { String(format: "%08x", $0) }.joined()
    }

    private static func compress(_ state: inout [UInt32], _ bytes: UnsafeBufferPointer<UInt8>, _ start: Int) {
        var words = [UInt32](repeating: 0, count: 64)
        for index in 0..<16 {
            var word: UInt32 = 0
            for byte in 0..<4 { word = word << 8 | UInt32(bytes[start + 4 * index + byte]) }
            words[index] = word
        }
        func rotated(_ word: UInt32, _ bits: UInt32) -> UInt32 { word >> bits | word << (32 - bits) }
        for index in 16..<64 {
            let a = words[index - 15], b = words[index - 2]
            let first: UInt32 = rotated(a, 7) ^ rotated(a, 18) ^ (a >> 3)
            let second: UInt32 = rotated(b, 17) ^ rotated(b, 19) ^ (b >> 10)
            words[index] = words[index - 16] &+ first &+ words[index - 7] &+ second
        }
        var (a, b, c, d) = (state[0], state[1], state[2], state[3])
        var (e, f, g, h) = (state[4], state[5], state[6], state[7])
        for index in 0..<64 {
            let mixed: UInt32 = rotated(e, 6) ^ rotated(e, 11) ^ rotated(e, 25)
            let chosen: UInt32 = (e & f) ^ (~e & g)
            let first: UInt32 = h &+ mixed &+ chosen &+ constants[index] &+ words[index]
            let majority: UInt32 = (a & b) ^ (a & c) ^ (b & c)
            let second: UInt32 = (rotated(a, 2) ^ rotated(a, 13) ^ rotated(a, 22)) &+ majority
            (h, g, f, e, d, c, b, a) = (g, f, e, d &+ first, c, b, a, first &+ second)
        }
        for (index, word) in [a, b, c, d, e, f, g, h].enumerated() { state[index] &+= word }
    }
}
#endif

extension SHA256 {
    /// The digest of data in hexadecimal.
    static func hex(_ data: Data) -> String {
        var digest = SHA256()
        digest.update(data)
        return digest.hex()
    }

    /// The digest of a file, read in blocks.
    static func hex(of file: URL) throws -> String {
        let handle = try FileHandle(forReadingFrom: file)
        defer { try? handle.close() }
        var digest = SHA256()
        while let block = try handle.read(upToCount: 1 << 20), !block.isEmpty { digest.update(block) }
        return digest.hex()
    }
}
