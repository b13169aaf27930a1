import Foundation
import XCTest

@testable import VoxCPM

/// The texts of tests/swift/texts.py, with a vocabulary of letters and one of a published form.
final class TextTests: XCTestCase {
    private func same(_ found: [String], _ expected: [String]) -> Bool {
        // Not Swift's equality, to which é as one character and as two are the same.
        found.map { Array($0.utf8) } == expected.map { Array($0.utf8) }
    }

    func testTextsAreCutTokenisedAndSpelledAsInPython() throws {
        for recorded in try Recorded.cases("texts") {
            let tokenizer = try TextTokenizer(recorded.url("tokenizer"))
            let texts = recorded.document["texts"] as? [[String: Any]] ?? []
            XCTAssertGreaterThanOrEqual(texts.count, 500)
            var spelledDifferently = 0, failures = 0
            for document in texts where failures < 10 {
                let text = document["text"] as? String ?? ""
                func check(_ what: String, _ isSame: Bool, _ found: Any) {
                    if isSame { return }
                    failures += 1
                    XCTFail("\(recorded.name): \(what) of \(text.debugDescription.prefix(200)): \(found)")
                }
                let tokens = try tokenizer(saidText(text))
                check("tokens", tokens == (document["tokens"] as? [NSNumber])?.map(\.intValue), tokens)
                let unknown = tokenizer.unknownCharacters(text)
                check("unknown", same([unknown], [document["unknown"] as? String ?? ""]), unknown)
                let cut = sentences(text)
                check("sentences", same(cut.map(\.text), parts(document["sentences"])), cut)
                check("blank lines", cut.map(\.endsParagraph) == flags(document["sentences"]), cut)
                for (target, expected) in document["segments"] as? [String: Any] ?? [:] {
                    let found = try eachSegment(text, target: Int(target) ?? 0) { try tokenizer($0).count }
                    check("segments of \(target)", same(found.map(\.text), parts(expected)), found)
                    check("ends of \(target)", found.map(\.endsParagraph) == flags(expected), found)
                }
                let said = try? spelled(saidText(text), tokenizer)
                let expected = document["spelled"] as? String
                if !same([said ?? "-"], [expected ?? "-"]) {
                    spelledDifferently += 1
                    if ProcessInfo.processInfo.environment["VOXCPM_VERBOSE"] != nil {
                        print(recorded.name, "|", said ?? "-", "|", expected ?? "-")
                    }
                }
            }
            print(recorded.name, "spelled differently:", spelledDifferently, "of", texts.count)
            // What the rules of English that are not ported would read: abbreviations, dates, units.
            XCTAssertLessThan(spelledDifferently, tokenizer.hasLettersOnly ? texts.count / 4 : 1)
        }
    }

    private func parts(_ value: Any?) -> [String] { (value as? [[Any]] ?? []).map { $0[0] as? String ?? "" } }

    private func flags(_ value: Any?) -> [Bool] { (value as? [[Any]] ?? []).map { ($0[1] as? NSNumber)?.boolValue ?? false } }
}
