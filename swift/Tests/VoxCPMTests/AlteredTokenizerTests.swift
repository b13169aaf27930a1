import Foundation
import XCTest

@testable import VoxCPM

/// 10,000 altered tokenizer files: each is rejected with an error, or opens and encodes a text.
final class AlteredTokenizerTests: XCTestCase {
    /// A linear congruential generator: the same alterations in each run.
    private struct Seeded: RandomNumberGenerator {
        var state: UInt64

        mutating func next() -> UInt64 {
            state = state &* 6_364_136_223_846_793_005 &+ 1_442_695_040_888_963_407
            return state ^ state >> 29
        }
    }

    private static let words = Data(
        #"""
        {"added_tokens": [{"id": 0, "content": "<unk>", "special": true, "normalized": false},
        {"id": 9, "content": "ab", "special": false}], "normalizer": {"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true, "vocab": {"<unk>": 0,
        "▁": 1, "a": 2, "b": 3, "▁a": 4, "ab": 9, "中": 5, "国": 6, "中国": 7, "<0x0A>": 8, "é": 10, "e\u0301": 11},
        "merges": ["▁ a", "a b", ["中", "国"]]}}
        """#.utf8)
    private static let letters = Data(
        #"""
        {"added_tokens": [{"id": 0, "content": "<unk>", "special": true, "normalized": false}], "normalizer": {"type":
        "Sequence", "normalizers": [{"type": "Lowercase"}, {"type": "Prepend", "prepend": "▁"}, {"type": "Replace",
        "pattern": {"String": " "}, "content": "▁"}]}, "pre_tokenizer": {"type": "Metaspace", "replacement": "▁",
        "prepend_scheme": "first", "split": true}, "model": {"type": "BPE", "unk_token": "<unk>", "vocab": {"<unk>": 0,
        "▁": 1, "a": 2, "b": 3, ".": 4}, "merges": []}}
        """#.utf8)
    private static let config = Data(#"{"unk_token": "<unk>", "bos_token": {"content": "<s>"}, "legacy": true}"#.utf8)

    func testCanonicallyEqualTokensStayApart() throws {
        let tokenizer = try TextTokenizer(tokenizer: Self.words, config: Self.config)
        XCTAssertEqual(try tokenizer("é"), [1, 10])
        XCTAssertEqual(try tokenizer("中国"), [1, 5, 6])
    }

    func testAlteredFilesAreRefusedOrRun() throws {
        var random = Seeded(state: 7), opened = 0, refused = 0
        let pieces = [
            "{", "}", "[", "]", "\"", ",", ":", "null", "-1", "1e999", "99999999999", "\\ud800", "\u{0}", "true",
            "\"▁\"", "0.5",
        ]
        for round in 0..<10_000 {
            var files = [round % 2 == 0 ? Self.words : Self.letters, Self.config].map { [UInt8]($0) }
            let file = Int.random(in: 0..<8, using: &random) == 0 ? 1 : 0
            for _ in 0..<Int.random(in: 1...3, using: &random) {
                let at = Int.random(in: 0..<max(1, files[file].count), using: &random)
                let end = min(files[file].count, at + Int.random(in: 0..<8, using: &random))
                switch Int.random(in: 0..<5, using: &random) {
                case 0: files[file].replaceSubrange(at..<end, with: [UInt8.random(in: 0...255, using: &random)])
                case 1:
                    let piece = pieces.randomElement(using: &random) ?? ""
                    files[file].replaceSubrange(at..<end, with: Array(piece.utf8))
                case 2: files[file].removeSubrange(at..<end)
                case 3: files[file].insert(contentsOf: files[file][at..<end], at: at)
                default:
                    guard let digit = files[file][at...].firstIndex(where: { (48...57).contains($0) }) else { break }
                    files[file][digit] = UInt8.random(in: 48...57, using: &random)
                }
            }
            do {
                let tokenizer = try TextTokenizer(tokenizer: Data(files[0]), config: Data(files[1]))
                _ = try tokenizer("▁a ab 中国\né \u{301}<unk><s>\u{1F600}")
                _ = tokenizer.unknownCharacters("ab中😀")
                opened += 1
            } catch is VoxCPMError {
                refused += 1
            }
        }
        print("altered tokenizers:", opened, "opened,", refused, "refused")
        XCTAssertGreaterThan(opened, 500)
        XCTAssertGreaterThan(refused, 500)
    }
}
