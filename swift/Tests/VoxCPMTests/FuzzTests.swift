import Foundation
import XCTest

@testable import VoxCPM

/// Altered files: an error or a value, never a trap.
final class FuzzTests: XCTestCase {
    private let rounds = 10_000

    func testAlteredVoices() throws {
        let good = try Data(contentsOf: builtInVoices.appendingPathComponent("heart.voice"))
        let tensor = TensorFile.Tensor(shape: [2, 2, 2], values: [1, 2, 3, 4, 5, 6, 7, 8])
        let document = """
            {"format":1,"name":"a","generation":"voxcpm","latent_space":"0","sample_rate":16000,\
            "turns":[{"text":"b","patches":2}],"provenance":{"c":"d"}}
            """
        func sealed(_ document: String) -> Data {
            TensorFile(tensors: ["prompt": tensor], metadata: ["voice": document]).content
        }
        XCTAssertEqual(try Voice(data: sealed(document)).prompt.count, 2)
        var unsealed = sealed(document)
        unsealed.replaceSubrange(try XCTUnwrap(unsealed.range(of: Data("sha256".utf8))), with: Data("sha25x".utf8))
        XCTAssertThrowsError(try Voice(data: unsealed))
        var random = Random(seed: 1), read = 0
        for round in 0..<rounds {
            // Damage that the digest does not detect: the document's before the digest, and a file's without one.
            let written = random.altered(Data(document.utf8), focus: document.utf8.count)
            let altered = round % 4 == 0 ? random.altered(good, focus: 800) : sealed(String(decoding: written, as: UTF8.self))
            _ = try? TensorFile(random.altered(unsealed, focus: 800), needsDigest: false)
            do {
                let voice = try Voice(data: altered)
                XCTAssertEqual(try Voice(data: voice.data), voice)
                read += 1
            } catch is VoxCPMError {}
        }
        XCTAssertGreaterThan(read, 100)
    }

    func testAlteredManifests() throws {
        let good = try Data(contentsOf: builtInBundle.appendingPathComponent("manifest.json"))
        let small = try smaller(good)
        var random = Random(seed: 2), valid = 0
        for _ in 0..<rounds {
            do {
                let manifest = try Manifest(json: random.altered(small, focus: small.count))
                valid += 1
                _ = manifest.architecture.latentSpace
                for name in manifest.names {
                    let model = manifest.stepModel(name)
                    _ = model.parts(manifest.sizes.baseLMParts)
                    _ = model.chunkLengths
                }
                _ = try Lengths(manifest, Options(), hasLettersOnly: false).patchLimit(taken: 10, targetTokens: 10)
            } catch is VoxCPMError {}
        }
        XCTAssertGreaterThan(valid, 0)
    }

    func testAlteredArrays() throws {
        let source = builtInBundle.appendingPathComponent("constants/lm_to_dit_proj_w.npy")
        let header = try Data(contentsOf: source).prefix(128)
        let shape = try XCTUnwrap(String(decoding: header, as: UTF8.self).firstMatch(of: #/\(([0-9]+), ([0-9]+)\)/#))
        let text = String(decoding: header.dropFirst(10), as: UTF8.self).replacing(shape.0, with: "(2, 4)")
        var good = header.prefix(10) + Data(text.utf8).prefix(117)
        good += Data(repeating: 0x20, count: 127 - good.count) + Data([10]) + Data(repeating: 1, count: 32)
        let folder = FileManager.default.temporaryDirectory.appendingPathComponent(UUID().uuidString)
        try FileManager.default.createDirectory(at: folder, withIntermediateDirectories: true)
        defer { try? FileManager.default.removeItem(at: folder) }
        let file = folder.appendingPathComponent("array.npy")
        var random = Random(seed: 3)
        try good.write(to: file)
        XCTAssertEqual(try NumpyArray(file).values.count, 8)
        for _ in 0..<rounds {
            try random.altered(good, focus: 128).write(to: file)
            do { _ = try NumpyArray(file).values } catch is VoxCPMError {}
        }
    }

    func testAlteredRecordings() throws {
        var good = Data("RIFF\u{44}\0\0\0WAVEfmt \u{10}\0\0\0\u{1}\0\u{1}\0".utf8)
        good += Data([0x80, 0x3E, 0, 0, 0, 0x7D, 0, 0, 2, 0, 16, 0]) + Data("data".utf8) + Data([32, 0, 0, 0])
        good += Data(repeating: 7, count: 32)
        XCTAssertEqual(try Recording(wav: good).samples.count, 16)
        var random = Random(seed: 4)
        for _ in 0..<rounds {
            do { _ = try Recording(wav: random.altered(good, focus: 44)) } catch is VoxCPMError {}
        }
    }

    /// The manifest without most of its files, so that more alterations hit other fields.
    private func smaller(_ data: Data) throws -> Data {
        var document = try XCTUnwrap(try JSONSerialization.jsonObject(with: data) as? [String: Any])
        document["files"] = ["constants/a.npy": ["bytes": 3, "sha256": "00"]]
        return try JSONSerialization.data(withJSONObject: document, options: [.sortedKeys])
    }
}

/// SplitMix64, and alterations of files.
private struct Random: RandomNumberGenerator {
    private var noise: UInt64

    init(seed: UInt64) { noise = seed }

    mutating func next() -> UInt64 {
        noise &+= 0x9E37_79B9_7F4A_7C15
        var z = noise
        z = (z ^ (z >> 30)) &* 0xBF58_476D_1CE4_E5B9
        z = (z ^ (z >> 27)) &* 0x94D0_49BB_1331_11EB
        return z ^ (z >> 31)
    }

    private static let numbers = [
        "-1", "0", "1", "9223372036854775807", "99999999999999999999", "1e400", "1.5", "null", "true", "[]", "{}",
        "\"\"",
    ]

    /// One to four changes within the first `focus` bytes: bytes, numbers, truncation, duplicated parts.
    mutating func altered(_ data: Data, focus: Int) -> Data {
        var bytes = [UInt8](data)
        for _ in 0..<Int.random(in: 1...4, using: &self) {
            guard !bytes.isEmpty else { break }
            let place = Int.random(in: 0..<min(focus, bytes.count), using: &self)
            switch Int.random(in: 0..<7, using: &self) {
            case 0: bytes[place] = UInt8.random(in: 0...255, using: &self)
            case 1: bytes[place] ^= 1 << UInt8.random(in: 0..<8, using: &self)
            case 2: bytes.removeLast(Int.random(in: 0...(bytes.count - place), using: &self))
            case 3: bytes.insert(contentsOf: bytes[place..<min(bytes.count, place + 40)], at: place)
            case 4: bytes.removeSubrange(place..<min(bytes.count, place + Int.random(in: 1...30, using: &self)))
            default:
                // Replace a number with another one, or with something else.
                guard let first = bytes[place...].firstIndex(where: { (48...57).contains($0) }) else { continue }
                let last = bytes[first...].firstIndex { !(48...57).contains($0) } ?? bytes.count
                let number = Self.numbers[Int.random(in: 0..<Self.numbers.count, using: &self)]
                bytes.replaceSubrange(first..<last, with: number.utf8)
            }
        }
        return Data(bytes)
    }
}
