import Foundation
import XCTest

@testable import VoxCPM

/// Markup and lexicons by the tables of Python's tests, tests/marked_up_texts.json.
final class MarkupTests: XCTestCase {
    private func table<T>(_ name: String, _ type: T.Type) throws -> T {
        let data = try Data(contentsOf: repository.appendingPathComponent("tests/marked_up_texts.json"))
        let tables = try XCTUnwrap(JSONSerialization.jsonObject(with: data) as? [String: Any])
        return try XCTUnwrap(tables[name] as? T)
    }

    private func voice(_ name: String) throws -> Voice {
        guard let voice = Self.voices[name] else { throw VoxCPMError.voice("no voice \(name)") }
        return voice
    }

    private static let voices = ["emma", "liam", "heart"].reduce(into: [String: Voice]()) {
        $0[$1] = try? Voice(contentsOf: builtInVoices.appendingPathComponent("\($1).voice"))
    }

    private func parts(_ text: String) throws -> [MarkupPart] {
        try spokenParts(text, paragraphPause: 0.6, findVoice: voice)
    }

    private func assertSame(_ found: String, _ expected: String, _ text: String) {
        XCTAssertTrue(found.utf8.elementsEqual(expected.utf8), "\(text): \(found.debugDescription), not \(expected)")
    }

    func testPartsAreThoseOfPython() throws {
        for row in try table("parts", [[Any]].self) {
            let text = try XCTUnwrap(row[0] as? String), expected = try XCTUnwrap(row[1] as? [[Any]])
            let found = try parts(text)
            XCTAssertEqual(found.count, expected.count, text)
            for (part, wanted) in zip(found, expected) {
                assertSame(part.said.trimming(\.isSpace).string, try XCTUnwrap(wanted[0] as? String), text)
                XCTAssertEqual(part.voice?.name ?? "", wanted[1] as? String, text)
                XCTAssertEqual(part.rate, try XCTUnwrap(wanted[2] as? Double), accuracy: 1e-12, text)
                XCTAssertEqual(part.pause, (wanted[3] as? NSNumber)?.doubleValue, text)
            }
        }
        for row in try table("say_as", [[String]].self) {
            let found = try parts("<say-as interpret-as=\"\(row[0])\" \(row[2])>\(row[1])</say-as>")
            assertSame(found.map(\.said.string).joined(), row[3], row[1])
        }
    }

    func testErrorsArePythonsWithTheirPlaces() throws {
        for row in try table("errors", [[String]].self) {
            XCTAssertThrowsError(try parts(row[0]), row[0]) { error in
                // Of what is not XML, the parsers name different columns.
                let column = row[1].contains("XML needs") ? #/, column \d+/# : #/$^/#
                assertSame("\(error)".replacing(column, with: ""), row[1].replacing(column, with: ""), row[0])
            }
        }
    }

    func testRandomMarkupAndWordsAreReadAsInPython() throws {
        let data = try Data(contentsOf: Recorded.folder("texts").appendingPathComponent("case.json"))
        let recorded = try XCTUnwrap(JSONSerialization.jsonObject(with: data) as? [String: Any])
        var refused = 0
        for row in try XCTUnwrap(recorded["marked_up"] as? [[Any]]) {
            let text = try XCTUnwrap(row[0] as? String)
            do {
                let found = try parts(text), expected = try XCTUnwrap(row[1] as? [[Any]], text)
                XCTAssertEqual(found.count, expected.count, text)
                for (part, wanted) in zip(found, expected) {
                    assertSame(part.said.string, try XCTUnwrap(wanted[0] as? String), text)
                    let count = part.said.count
                    let ways = [0..<count, min(1, count)..<count, 0..<max(count - 1, 0), min(2, count)..<min(4, count)]
                    let written = ways.map(part.written).joined(separator: "|")
                    assertSame(written, try XCTUnwrap(wanted[1] as? [String]).joined(separator: "|"), text)
                    XCTAssertEqual(part.voice?.name, wanted[2] as? String, text)
                    XCTAssertEqual(part.pause, (wanted[3] as? NSNumber)?.doubleValue, text)
                    XCTAssertEqual(part.after, (wanted[4] as? NSNumber)?.doubleValue, text)
                    XCTAssertEqual(part.rate, try XCTUnwrap(wanted[5] as? Double), accuracy: 1e-12, text)
                }
            } catch let error as VoxCPMError {
                let expected = row[1] as? String ?? "parts"
                // The parsers have different words for what is not XML.
                if !expected.contains("XML needs") || !"\(error)".contains("XML needs") {
                    assertSame("\(error)", expected, text)
                }
                refused += 1
            }
        }
        XCTAssertGreaterThan(refused, 300)
        let pronounced = Pronunciation(try checkedLexicon(table("lexicon", [String: String].self)))
        for row in try XCTUnwrap(recorded["pronounced"] as? [[String]]) { assertSame(pronounced(row[0]), row[1], row[0]) }
    }

    func testDeepAndLongMarkupTakesNoRecursionAndNoSquareOfTime() throws {
        let deep = String(repeating: "<s>", count: 50_000) + "a" + String(repeating: "</s>", count: 50_000)
        XCTAssertEqual(try parts(deep).map { $0.said.prefix(2).string }, ["a."])
        XCTAssertEqual(try parts(String(repeating: "a <break/> ", count: 20_000)).count, 20_000)
        let pieces = try parts(String(repeating: "<sub alias=\"b\">a</sub> c ", count: 20_000)).map(\.pieces.count)
        XCTAssertEqual(pieces, [40_000])
    }

    func testWhatIsWrittenForWhatIsSaid() throws {
        let part = try parts("[voice emma]x <sub alias='World Wide Web'>WWW</sub> y")[0]
        XCTAssertEqual(part.said.string, "x World Wide Web y")
        XCTAssertEqual([0..<7, 7..<18, 1..<2].map(part.written), ["x WWW", " y", " "])
    }

    func testWordsAreReplacedAsInPython() throws {
        let pronounced = Pronunciation(try checkedLexicon(table("lexicon", [String: String].self)))
        for row in try table("pronounced", [[String]].self) {
            assertSame(pronounced(row[0]), row[1], row[0])
            assertSame(Pronunciation([:])(row[0]), row[0], row[0])
        }
    }

    func testLexiconFilesAreReadAsInPython() throws {
        let file = FileManager.default.temporaryDirectory.appendingPathComponent("\(UUID()).tsv")
        defer { try? FileManager.default.removeItem(at: file) }
        for row in try table("lexicon_files", [[Any]].self) {
            try Data(XCTUnwrap(row[0] as? String).utf8).write(to: file)
            if let entries = row[1] as? [String: String] {
                XCTAssertEqual(try lexiconEntries(contentsOf: file), entries)
            } else {
                XCTAssertThrowsError(try lexiconEntries(contentsOf: file)) {
                    XCTAssertEqual("\($0)", "lexicon \(file.path), \(row[1])")
                }
            }
        }
        try Data([0xFF]).write(to: file)
        XCTAssertThrowsError(try lexiconEntries(contentsOf: file)) { XCTAssertTrue("\($0)".contains("expected UTF-8")) }
    }

    private var tts: TextToSpeech {
        var configuration = Configuration(predictor: FakePredictor())
        configuration.verifies = false
        return TextToSpeech(.folder(builtInBundle), configuration)
    }

    func testCallsThatCannotHaveMarkup() async throws {
        var options = Options(), messages: [String] = []
        options.markup = true
        for call in [{ _ = try await $0.session(options: $1) }, { _ = try await $0.speak("[voice a]b", options: $1) }]
            as [(TextToSpeech, Options) async throws -> Void]
        {
            do { try await call(tts, options) } catch { messages.append("\(error)") }
        }
        XCTAssertEqual(messages, [
            "markup needs a whole text, not a session; use speak",
            "markup, line 1, column 1: no voice a: no Options.findVoice is set",
        ])
    }

    func testLongPausesAreStreamedByTheSecond() async throws {
        var options = Options()
        (options.markup, options.seed) = (true, 1)
        let text = "[pause 60s][pause 2s]one[pause 3s]two[pause 4s]"
        let whole = try await tts.speak(text, options: options)
        let spoken = whole.segments.reduce(0) { $0 + $1.sampleCount }
        XCTAssertEqual(whole.samples.count, spoken + 69 * whole.sampleRate)
        var samples: [Float] = []
        options.chunkPatches = 2
        for try await chunk in tts.stream(text, options: options) {
            XCTAssertLessThan(chunk.samples.count, 2 * whole.sampleRate)
            XCTAssertEqual(chunk.offset, samples.count)
            samples += chunk.samples
        }
        XCTAssertEqual(samples.count, whole.samples.count)
    }

    func testALexiconStaysInItsVoice() throws {
        let heart = try voice("heart")
        let own = Voice(
            name: "own", generation: heart.generation, latentSpace: heart.latentSpace, sampleRate: heart.sampleRate,
            turns: heart.turns, lexicon: ["ada": "ay da"], patchShape: heart.patchShape, prompt: heart.prompt,
            reference: heart.reference)
        XCTAssertEqual(try Voice(data: own.extended("more ", heart.prompt).data).lexicon, ["ada": "ay da"])
    }
}
