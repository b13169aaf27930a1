import Foundation
import XCTest

@testable import VoxCPM

/// Times of words, beside those of tests/swift/speech.py for the same samples and attention.
final class WordTests: XCTestCase {
    func testTimesArePythons() throws {
        let cases = try Recorded.cases("words")
        XCTAssertGreaterThan(cases.count, 3)
        for recorded in cases {
            let text = recorded.string("text"), said = recorded.string("said"), values = try recorded.floats("rows")
            let shape = recorded.integers("shape"), tokens = shape[2]
            let rows = (0..<shape[0]).map { patch in
                (0..<shape[1]).map { head in
                    Array(values[((patch * shape[1] + head) * tokens)..<((patch * shape[1] + head + 1) * tokens)])
                }
            }
            let silences = Silences(try recorded.floats("samples"), sampleRate: recorded.integer("rate"))
            let followed = try attentionTimes(
                said, places: recorded.integers("places"), rows: rows, shifts: recorded.decoded("shifts", [Double].self),
                patchSeconds: recorded.decoded("patch", Double.self), silences)
            for (method, times, start) in [("pauses", pauseTimes(said, silences), 1.5), ("attention", followed, 0)] {
                let found = timedWords(
                    text, said: said, times: times, start: start, method: try XCTUnwrap(.init(rawValue: method)))
                let wanted = try recorded.decoded(method, [TimedWord].self)
                XCTAssertEqual(found.map(\.text), wanted.map(\.text))
                XCTAssertLessThan(maxDifference(found, wanted), 0.0015, "\(method): \(text)")
            }
        }
    }

    /// Where speech may end, what is repaired and how often each word is said, patch by patch.
    func testFollowsTheTextAsPython() throws {
        let cases = try Recorded.cases("coverage")
        XCTAssertGreaterThan(cases.count, 5)
        for recorded in cases {
            let shape = recorded.integers("shape"), values = try recorded.floats("rows"), size = shape[1] * shape[2]
            let said = recorded.string("said"), count = said.unicodeScalars.count
            var follower = Follower(said, places: Array(0..<count), positions: 3..<(3 + count))
            let ends = (0..<shape[0]).map { patch in
                follower.ends(true, Rows(width: shape[2], values: Array(values[(patch * size)..<((patch + 1) * size)])))
            }
            XCTAssertEqual(ends, try recorded.decoded("ends", [Bool].self), recorded.name)
            let repairs = (0...shape[0]).map { follower.repair(from: $0, repairs: $0 % 5, handedOut: $0 % 3) ?? -1 }
            XCTAssertEqual(repairs, recorded.integers("repairs"), recorded.name)
            XCTAssertEqual(follower.counts, recorded.integers("counts"), recorded.name)
            let words = wordCounts(recorded.string("text"), said: said, follower.counts)
            XCTAssertEqual(words, recorded.integers("words"), recorded.name)
        }
    }

    func testNaNFromAModelGivesTimes() {
        var follower = Follower("a b c", places: [0, 2, 4], positions: 0..<3)
        for _ in 0..<9 { _ = follower.ends(true, Rows(width: 3, values: [.nan, .infinity, 0])) }
        XCTAssertEqual(follower.counts.count, 5)

        let silences = Silences((0..<48_000).map { sin(Float($0)) }, sampleRate: 24_000)
        let rows = [[[Float]]](repeating: [[.nan, .infinity, 0]], count: 9)
        let times = attentionTimes(
            "a b c", places: [0, 2, 4], rows: rows, shifts: [0], patchSeconds: 0.16, silences)
        XCTAssertTrue(times.allSatisfy(\.isFinite))
        XCTAssertEqual(times, times.sorted())
    }

    func testSilentAndEmptySpeech() {
        for samples in [[], [Float](repeating: 0, count: 5), [Float](repeating: 0, count: 48_000)] {
            let silences = Silences(samples, sampleRate: 24_000)
            for said in ["", "...", "one two.", "中文"] {
                XCTAssertEqual(pauseTimes(said, silences).count, said.unicodeScalars.count + 1)
            }
        }
    }
}

/// The largest difference of two lists of times, in seconds.
func maxDifference(_ found: [TimedWord], _ wanted: [TimedWord]) -> Double {
    zip(found, wanted).map { max(abs($0.start - $1.start), abs($0.end - $1.end)) }.max() ?? 0
}
