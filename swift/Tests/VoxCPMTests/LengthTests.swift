import Foundation
import XCTest

@testable import VoxCPM

final class LengthTests: XCTestCase {
    private struct Row: Decodable {
        let letters, tokens, context, min_len, patches, bound: Int
        let ratio, pace, per_letter, beside, upstream: Double
        let expected: [Double]
        let reason: String
    }

    func testLengthsArePythons() throws {
        let file = try Recorded.folder("lengths").appendingPathComponent("lengths.json")
        let rows = try JSONDecoder().decode([Row].self, from: Data(contentsOf: file))
        let manifest = try OpenBundle(builtInBundle).manifest
        XCTAssertEqual(rows.count, 500)
        for row in rows {
            let profile = try JSONDecoder().decode(
                Manifest.SpeechProfile.self,
                from: Data(
                    """
                    {"longest_seconds": 20, "longest_tokens": 240, "seconds_per_letter": \(row.per_letter),
                     "seconds_beside": \(row.beside)}
                    """.utf8))
            let length = ExpectedLength(
                profile, letters: row.letters, pace: row.pace, patchSeconds: 0.16, minLen: row.min_len)
            let badness = length.badness(row.patches, stopped: true).1
            let found = [length.seconds ?? 0, length.longFrom, length.shortBelow, length.maximum, badness]
            for (a, b) in zip(found, row.expected) { XCTAssertEqual(a, b, accuracy: 1e-9) }
            XCTAssertEqual(length.suspicion(row.patches, stopped: true)?.rawValue ?? "", row.reason)
            let upstream = ExpectedLength(
                tokens: row.tokens, ratio: row.ratio, context: row.context, patchSeconds: 0.16, minLen: row.min_len)
            XCTAssertEqual(upstream.longFrom, row.upstream, accuracy: 1e-9)
            var options = Options()
            options.minLen = row.min_len
            options.retryBadcaseRatioThreshold = row.ratio
            let lengths = Lengths(manifest, options, hasLettersOnly: true)
            XCTAssertEqual(lengths.patchBound(row.tokens), row.bound)
        }
    }

    func testTheBestOfBadAttempts() throws {
        let profile = try JSONDecoder().decode(
            Manifest.SpeechProfile.self,
            from: Data(
                """
                {"longest_seconds": 20, "longest_tokens": 240, "seconds_per_letter": 0.1, "seconds_beside": 0}
                """.utf8))
        let length = ExpectedLength(profile, letters: 20, pace: 1, patchSeconds: 0.2, minLen: 2)
        func best(_ patches: [Int], stopped: [Bool], isGood: Bool = false) -> Int {
            let attempts = zip(patches, stopped).enumerated().map { number, made in
                let rows = Rows(width: 1, values: [Float](repeating: 0, count: made.0))
                return Attempt(number: number, latents: rows, stopped: made.1, suspicion: isGood ? nil : .long)
            }
            return Narration.best(of: attempts, length).number
        }
        XCTAssertEqual(best([3, 5, 30], stopped: [true, true, true]), 1)
        XCTAssertEqual(best([14, 30, 12], stopped: [false, true, false]), 1, "ended by itself")
        XCTAssertEqual(best([5, 20, 5], stopped: [true, true, true]), 2, "of equal ones the last")
        XCTAssertEqual(best([9, 3], stopped: [true, true], isGood: true), 1)
    }

    func testNoiseIsNumPys() throws {
        for seed in [7, 1 << 40] as [UInt64] {
            let expected = try Recorded.floats(Recorded.folder("lengths"), "\(seed)")
            var noise = NumPyNoise(seed: seed)
            XCTAssertEqual(expected.count, 50_000)
            XCTAssertLessThan(relativeError(noise.standardNormal(expected.count), expected), 1e-8)
        }
    }

    func testOptionsOutOfRange() {
        func refuses(_ change: (inout Options) -> Void, line: UInt = #line) {
            var options = Options()
            change(&options)
            XCTAssertThrowsError(try options.check(), line: line) { error in
                guard case VoxCPMError.argument = error else { return XCTFail("\(error)", line: line) }
            }
        }
        XCTAssertNoThrow(try Options().check())
        refuses { $0.cfgValue = .nan }
        refuses { $0.inferenceTimesteps = 0 }
        refuses { $0.temperature = -1 }
        refuses { $0.swaySamplingCoef = 2 }
        refuses { $0.minLen = -1 }
        refuses { $0.maxLen = 0 }
        refuses { $0.maxLen = 1 }
        refuses { $0.retryBadcaseRatioThreshold = .infinity }
        refuses { $0.segmentTokens = 7 }
        refuses { $0.paragraphPause = .nan }
        refuses { $0.chunkPatches = 0 }
        refuses { $0.seed = 1; $0.noise = NumPyNoise(seed: 1) }
    }
}
