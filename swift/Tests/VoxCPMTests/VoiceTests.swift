import Foundation
import XCTest

@testable import VoxCPM

final class VoiceTests: XCTestCase {
    func testBuiltInVoicesAreWrittenAsInPython() throws {
        let files = try FileManager.default.contentsOfDirectory(at: builtInVoices, includingPropertiesForKeys: nil)
            .filter { $0.pathExtension == "voice" }
        XCTAssertGreaterThan(files.count, 10)
        let manifest = try OpenBundle(builtInBundle).manifest
        for file in files {
            let voice = try Voice(contentsOf: file)
            XCTAssertEqual(voice.data, try Data(contentsOf: file), file.lastPathComponent)
            try voice.check(manifest.architecture)
        }
    }

    func testAFullDiskLeavesTheOldVoice() throws {
        let disk = try SmallDisk(bytes: 128 << 10), file = disk.folder.appendingPathComponent("a.voice")
        let small = try Voice(contentsOf: builtInVoices.appendingPathComponent("heart.voice"))
        try small.write(to: file)
        var prompt = small.prompt
        for _ in 0..<8 { prompt.append(prompt) }
        let large = small.extended("more ", prompt), speech = Speech(
            samples: prompt.values, sampleRate: 24000, segments: [], seed: nil, isUnfinished: false)
        for write in [large.write, { try speech.write(to: $0) }] {
            XCTAssertThrowsError(try write(file)) { error in
                guard case VoxCPMError.storage = error else { return XCTFail("\(error)") }
            }
            XCTAssertEqual(try FileManager.default.contentsOfDirectory(atPath: disk.folder.path), ["a.voice"])
            XCTAssertEqual(try Voice(contentsOf: file), small)
        }
    }

    /// With every kind of character in names, Swift writes the same header.
    func testNewVoicesHavePythonsBytes() throws {
        let folder = try Recorded.folder("voices")
        let expected = try Data(contentsOf: folder.appendingPathComponent("every.voice"))
        let read = try Voice(data: expected)
        let names = try JSONDecoder().decode(
            [String: String].self, from: Data(contentsOf: folder.appendingPathComponent("every.json")))
        XCTAssertEqual(Array(read.turns[0].text.utf8), Array(names["text", default: ""].utf8))
        XCTAssertEqual(read.data, expected)
        let made = Voice(
            name: read.name, generation: read.generation, latentSpace: read.latentSpace, sampleRate: read.sampleRate,
            turns: read.turns, provenance: read.provenance, patchShape: read.patchShape, prompt: read.prompt,
            reference: read.reference)
        XCTAssertEqual(made.data, expected)
        XCTAssertEqual(made, read)
        XCTAssertEqual(try Recorded.floats(folder, "every"), read.prompt.values + read.reference.values)
    }

    func testInvalidVoiceFiles() throws {
        let good = try Data(contentsOf: builtInVoices.appendingPathComponent("heart.voice"))
        var altered = good
        altered[altered.count - 5] ^= 1
        let torn = good.dropLast(100), foreign = Data("RIFF....WAVE".utf8), empty = Data()
        for content in [altered, torn, foreign, empty, Data(good.dropFirst(3))] {
            XCTAssertThrowsError(try Voice(data: content)) { error in
                guard case VoxCPMError.voice = error else { return XCTFail("\(error)") }
            }
        }
        XCTAssertThrowsError(try Voice(contentsOf: URL(fileURLWithPath: "/nowhere.voice")))
        XCTAssertThrowsError(try Voice(contentsOf: FileManager.default.temporaryDirectory))
        // Data that does not begin at index 0.
        XCTAssertEqual(try Voice(data: (Data([1, 2, 3]) + good).dropFirst(3)).data, good)
    }

    func testWAV() throws {
        let values: [Float] = [0, 0.5, -0.5, 0.25]
        let formats = [(1, 16, 1e-4), (1, 24, 1e-6), (1, 32, 1e-6), (3, 32, 0), (3, 64, 0), (1, 8, 1e-2)]
        for (code, bits, tolerance) in formats {
            let recording = try Recording(wav: wav(values, code, bits))
            XCTAssertEqual(recording.sampleRate, 16000)
            for (found, wanted) in zip(recording.samples, values) {
                XCTAssertEqual(Double(found), Double(wanted), accuracy: tolerance + 1e-12)
            }
            XCTAssertEqual(recording.samples.count, 4)
        }
        let stereo = try Recording(wav: wav([1, 0, 0.5, -0.5], 3, 32, channels: 2))
        XCTAssertEqual(stereo.samples, [0.5, 0])
        // Truncated within its samples, a file gives the complete ones.
        XCTAssertEqual(try Recording(wav: wav(values, 1, 16).dropLast(3)).samples.count, 2)
        let invalid = [
            Data(), Data("RIFF".utf8), wav(values, 1, 16).prefix(40), wav(values, 2, 4), wav([.nan], 3, 32),
        ]
        for content in invalid {
            XCTAssertThrowsError(try Recording(wav: content))
        }
    }

    func testResamplingIsSoxrs() throws {
        let folder = try Recorded.folder("voices"), sound = try Recorded.floats(folder, "sound")
        for rate in [16000, 24000, 48000] {
            let expected = try Recorded.floats(folder, "sound-\(rate)")
            let found = windowedSinc(sound, from: 44100, to: rate)
            let inner = 500..<(min(found.count, expected.count) - 500)
            XCTAssertLessThanOrEqual(abs(found.count - expected.count), 1)
            XCTAssertLessThan(relativeError(Array(found[inner]), Array(expected[inner])), 0.0014, "\(rate)")
        }
    }

    func testSpeechIsStretchedAsInPython() throws {
        let folder = try Recorded.folder("voices"), quiet = try Recorded.floats(folder, "quiet")
        for speed in [0.5, 1.3] {
            var stretch = Stretching(speed: speed, sampleRate: 16000), found: [Float] = []
            for at in stride(from: 0, to: quiet.count, by: 999) {
                found += stretch(Array(quiet[at...].prefix(999)), isLast: at + 999 >= quiet.count)
            }
            let expected = try Recorded.floats(folder, "quiet-at-\(speed)")
            XCTAssertEqual(found.count, expected.count)
            XCTAssertLessThan(relativeError(found, expected), 1e-6, "\(speed)")
        }
    }

    func testSilenceIsCutAsInPython() throws {
        let folder = try Recorded.folder("voices"), quiet = try Recorded.floats(folder, "quiet")
        let expected = try Recorded.floats(folder, "quiet-trimmed")
        XCTAssertLessThan(expected.count, 30_000)
        XCTAssertEqual(withoutSilence(quiet, sampleRate: 16000), expected)
        let recording = try Recording(samples: quiet, sampleRate: 16000)
        XCTAssertEqual(try recording.resampled(to: 16000, minimum: 1, trimmed: true), expected)
        for short in [[], [0], [0.5], [Float](repeating: 0.5, count: 2048)] as [[Float]] {
            XCTAssertEqual(withoutSilence(short, sampleRate: 16000), short)
        }
    }

    func testHalves() {
        for bits in UInt16.min...UInt16.max {
            let value = float(half: bits)
            if value.isNaN { XCTAssertTrue(float(half: half(value)).isNaN) } else { XCTAssertEqual(half(value), bits) }
        }
        let ties: [Float] = [1 + 0x1p-11, 1 + 0x3p-11, 0x1p-25, 65520]
        XCTAssertEqual(ties.map { half($0) }, [0x3C00, 0x3C02, 0, 0x7C00])
    }

    func testRecordingsThatCannotBeUsed() throws {
        XCTAssertThrowsError(try Recording(samples: [], sampleRate: 16000))
        XCTAssertThrowsError(try Recording(samples: [.infinity], sampleRate: 16000))
        XCTAssertThrowsError(try Recording(samples: [0], sampleRate: 0))
        XCTAssertThrowsError(try Recording(interleaved: [0], channels: 0, sampleRate: 16000))
        let silent = try Recording(samples: [Float](repeating: 0.5, count: 5000), sampleRate: 16000)
        XCTAssertThrowsError(try silent.resampled(to: 16000, minimum: 100))
        XCTAssertThrowsError(try Recording(samples: [0, 1], sampleRate: 16000).resampled(to: 16000, minimum: 100))
    }

    private func wav(_ values: [Float], _ code: Int, _ bits: Int, channels: Int = 1) -> Data {
        var data = Data()
        for value in values {
            switch (code, bits) {
            case (1, 8): data.append(UInt8(value * 127 + 128))
            case (1, let bits):
                let number = Int64(Double(value) * Double((1 << (bits - 1)) - 1))
                for byte in 0..<(bits / 8) { data.append(UInt8(truncatingIfNeeded: number >> (8 * byte))) }
            case (3, 32): withUnsafeBytes(of: value.bitPattern.littleEndian) { data.append(contentsOf: $0) }
            default: withUnsafeBytes(of: Double(value).bitPattern.littleEndian) { data.append(contentsOf: $0) }
            }
        }
        func number(_ value: Int, _ count: Int) -> Data {
            Data((0..<count).map { UInt8(truncatingIfNeeded: value >> (8 * $0)) })
        }
        var format = number(code, 2) + number(channels, 2) + number(16000, 4)
        format += number(16000 * channels * bits / 8, 4) + number(channels * bits / 8, 2) + number(bits, 2)
        let chunks = Data("fmt ".utf8) + number(16, 4) + format + Data("data".utf8) + number(data.count, 4) + data
        return Data("RIFF".utf8) + number(chunks.count + 4, 4) + Data("WAVE".utf8) + chunks
    }
}
