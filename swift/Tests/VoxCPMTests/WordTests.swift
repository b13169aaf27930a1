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

    func testNaNFromAModelGivesTimes() {
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
