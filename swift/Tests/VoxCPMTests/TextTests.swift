import Foundation
import XCTest

@testable import VoxCPM

/// Texts of tests/swift/texts.py, with Python's results.
final class TextTests: XCTestCase {
    private struct Cases {
        let folders: [String: String]
        let cases: [[String: Any]]
        let foreign: [String: [String]]

        init() throws {
            guard let root = ProcessInfo.processInfo.environment["VOXCPM_RECORDED"] else {
                throw XCTSkip("nothing recorded")
            }
            let file = URL(fileURLWithPath: root).appendingPathComponent("texts/case.json")
            guard let data = try? Data(contentsOf: file) else { throw XCTSkip("no texts recorded") }
            let document = try XCTUnwrap(JSONSerialization.jsonObject(with: data) as? [String: Any])
            folders = try XCTUnwrap(document["folders"] as? [String: String])
            cases = try XCTUnwrap(document["cases"] as? [[String: Any]])
            foreign = try XCTUnwrap(document["foreign"] as? [String: [String]])
            XCTAssertGreaterThan(cases.count, 500)
        }
    }

    private func parts(_ value: Any?) throws -> [String] {
        try XCTUnwrap(value as? [[Any]]).map { "\(try XCTUnwrap($0[0] as? String))|\(try XCTUnwrap($0[1] as? Bool))" }
    }

    private func assertSame(_ found: [String], _ expected: [String], _ what: String) {
        let same = found.count == expected.count && zip(found, expected).allSatisfy { $0.utf8.elementsEqual($1.utf8) }
        func shown(_ texts: [String]) -> Substring { texts.map(\.debugDescription).joined(separator: " ").prefix(700) }
        XCTAssertTrue(same, "\(what)\nfound    \(shown(found))\nexpected \(shown(expected))")
    }

    func testSentencesAreThoseOfPython() throws {
        for recorded in try Cases().cases {
            let text = try XCTUnwrap(recorded["text"] as? String)
            let expected = try parts(recorded["sentences"])
            assertSame(sentences(text).map { "\($0.text)|\($0.endsParagraph)" }, expected, "whole")
            var cutter = SentenceCutter(), found: [Sentence] = []
            for char in text.unicodeScalars { found += cutter.push(String(char)) }
            found += cutter.flush()
            assertSame(found.map { "\($0.text)|\($0.endsParagraph)" }, expected, "pushed by characters")
            assertSame([Control.withoutControl(text)], [try XCTUnwrap(recorded["spoken"] as? String)], "spoken")
            let control = recorded["control"] as? String
            assertSame([(try? Control.described(text)) ?? "refused"], [control ?? "refused"], "control")
            let leading = try? Control.leading(text, .voxcpm2), expectedLeading = recorded["leading"] as? [String]
            assertSame(leading.map { [$0.description, $0.rest] } ?? [], expectedLeading ?? [], "leading")
            var controlled = ControlledCutter(takesControl: true), kept: [Sentence] = []
            for char in text.unicodeScalars { kept += controlled.push(String(char)) }
            kept += controlled.flush()
            assertSame(kept.map { "\($0.text)|\($0.endsParagraph)" }, try parts(recorded["controlled"]), "controlled")
            assertSame(oneSegment(text).map { "\($0.text)|\($0.endsParagraph)" }, try parts(recorded["one"]), "one")
        }
    }

    func testTokensAndSegmentsAreThoseOfPython() throws {
        let recorded = try Cases()
        for (name, folder) in recorded.folders {
            let tokenizer = try TextTokenizer(folder: URL(fileURLWithPath: folder))
            XCTAssertEqual(tokenizer.hasLettersOnly, name == "letters")
            var tokens = 0, placed = 0, segmented = 0
            for recorded in recorded.cases {
                let text = try XCTUnwrap(recorded["text"] as? String)
                let expected = try XCTUnwrap(recorded[name] as? [String: Any])
                let (ids, places) = try tokenizer.placed(text)
                tokens += ids.count
                if let places {
                    let expected = (expected["places"] as? [NSNumber])?.map(\.intValue)
                    XCTAssertEqual(places, expected, "\(name) \(text.prefix(200).debugDescription)")
                    placed += 1
                }
                let expectedIDs = (expected["tokens"] as? [NSNumber])?.map(\.intValue)
                XCTAssertEqual(ids, expectedIDs, "\(name) \(text.prefix(200).debugDescription)")
                let continued = try XCTUnwrap(expected["continued"] as? String)
                assertSame([tokenizer.continuedTranscript(text)], [continued], "continued in \(name)")
                if !text.unicodeScalars.contains(where: { $0 == "▁" || $0 == "<" }) {
                    let unknown = try XCTUnwrap(expected["unknown"] as? String)
                    assertSame([tokenizer.unknownCharacters(text)], [unknown], "unknown to \(name)")
                }
                for (target, expected) in try XCTUnwrap(expected["segments"] as? [String: Any]) {
                    var segments = Segments(text, target: Int(target) ?? 0) { try tokenizer($0).count }
                    var found: [String] = []
                    while let segment = try segments.next() { found.append("\(segment.text)|\(segment.endsParagraph)") }
                    assertSame(found, try parts(expected), "\(name) \(target)")
                    segmented += found.count
                }
            }
            print(name, recorded.cases.count, "texts", tokens, "tokens", placed, "placed", segmented, "segments")
            XCTAssertGreaterThan(placed, recorded.cases.count / 2)
        }
    }

    func testSpelledTextIsThatOfPython() throws {
        XCTAssertFalse(EnglishReader.all.contains { $0 == nil }, "a pattern does not compile")
        let recorded = try Cases()
        let tokenizer = try TextTokenizer(folder: URL(fileURLWithPath: try XCTUnwrap(recorded.folders["letters"])))
        var same = 0, other = 0, refused = 0
        for recorded in recorded.cases {
            let text = try XCTUnwrap(recorded["text"] as? String), expected = recorded["spelled"] as? String
            let found = try? tokenizer.spelled(text, strict: true)
            if found == expected {
                let transcript = try? tokenizer.spelledTranscript(text, strict: true)
                assertSame([transcript ?? "refused"], [recorded["transcript"] as? String ?? "refused"], "transcript")
                same += 1
                if found == nil { refused += 1 }
            } else if recorded["reads_more"] as? Bool ?? false {
                other += 1  // by rules that were not ported
            } else {
                let shown = [text, found ?? "refused", expected ?? "refused"]
                    .map { String($0.prefix(400)).debugDescription }
                XCTFail("spelled \(shown[0])\nfound    \(shown[1])\nexpected \(shown[2])")
            }
        }
        print("spelled", same, "as Python,", refused, "of them refused;", other, "read differently on purpose")
    }

    /// Letters of other alphabets: Python's library and Foundation agree on these.
    func testLettersThatCannotBeSaidAreTransliterated() throws {
        let recorded = try Cases(), folder = try XCTUnwrap(recorded.folders["letters"])
        let tokenizer = try TextTokenizer(folder: URL(fileURLWithPath: folder))
        XCTAssertGreaterThan(recorded.foreign.count, 4)
        for (text, expected) in recorded.foreign {
            let found = try tokenizer.spelledAndForeign(text, strict: false)
            assertSame([found.said, found.foreign], expected, text)
            XCTAssertThrowsError(try tokenizer.spelled(text, strict: true))
        }
    }

    /// What each written word is read as, in what Python says.
    func testWordsAreReadAsInPython() throws {
        var compared = 0, other = 0
        for recorded in try Cases().cases {
            guard let spans = recorded["spans"] as? [[Any]], !(recorded["reads_more"] as? Bool ?? false) else { continue }
            let text = try XCTUnwrap(recorded["text"] as? String), said = try XCTUnwrap(recorded["spelled"] as? String)
            let found = saidSpans(text, said: said).map { "\($0.word)|\($0.span.lowerBound)|\($0.span.upperBound)" }
            let expected = spans.map { "\($0[0])|\($0[1])|\($0[2])" }
            compared += expected.count
            if found == expected { continue }
            XCTAssertEqual(found.count, expected.count, text.prefix(300).debugDescription)
            let wrong = zip(found, expected).filter { !$0.utf8.elementsEqual($1.utf8) }
            other += wrong.count
        }
        print("words", compared, "of them otherwise", other)
        XCTAssertGreaterThan(compared, 2000)
        XCTAssertLessThan(Double(other), 0.001 * Double(compared))
    }

    func testNormalizedTextIsThatOfPython() throws {
        XCTAssertFalse(TextTokenizer.markupRules.contains { $0 == nil }, "a pattern does not compile")
        let recorded = try Cases()
        var same = 0, other = 0
        for recorded in recorded.cases where recorded["normalized"] != nil {
            let text = try XCTUnwrap(recorded["text"] as? String), expected = recorded["normalized"] as? String
            let found = try? TextTokenizer.normalized(saidText(text), isSpelled: false)
            if found == expected {
                same += 1
            } else if recorded["reads_more_written"] as? Bool ?? false {
                other += 1
            } else {
                let shown = text.prefix(300).debugDescription
                assertSame([found ?? "refused"], [expected ?? "refused"], "normalized \(shown)")
            }
        }
        print("normalized", same, "as Python,", other, "read differently on purpose")
        XCTAssertGreaterThan(same, 450)
        XCTAssertThrowsError(try TextTokenizer.normalized("你好", isSpelled: false)) { error in
            guard case VoxCPMError.unsupported = error else { return XCTFail("\(error)") }
        }
    }

    func testReadsNumbers() throws {
        let said = [
            "0": "zero", "21": "twenty-one", "105": "one hundred five",
            "1,234,567": "one million two hundred thirty-four thousand five hundred sixty-seven",
            "007": "zero zero seven", "100": "one hundred",
        ]
        for (number, name) in said { XCTAssertEqual(NumberNames.cardinal(number), name) }
        XCTAssertEqual(NumberNames.ordinal("112"), "one hundred twelfth")
        XCTAssertEqual(NumberNames.ordinal("20"), "twentieth")
        let long = NumberNames.cardinal(String(repeating: "9", count: 36)).split(separator: " ")
        XCTAssertEqual(long.suffix(3).joined(separator: " "), "nine hundred ninety-nine")
        XCTAssertEqual(NumberNames.cardinal(String(repeating: "9", count: 37)).split(separator: " ").count, 37)
    }
}
