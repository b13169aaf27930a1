import Foundation
import XCTest

#if canImport(FoundationNetworking)
import FoundationNetworking
#endif

@testable import VoxCPM

/// With the hub of tests/swift/hub.py, which fails every third response.
final class DownloadTests: XCTestCase {
    /// verifies: false by default, as digests are slow without optimisation.
    private func tts(
        _ recorded: Recorded, into folder: URL, verifies: Bool = false, inBackground: Bool = false,
        token: String? = nil
    ) throws -> TextToSpeech {
        var configuration = Configuration(predictor: FakePredictor(), precision: .fp16)
        configuration.verifies = verifies
        configuration.verified = folder.appendingPathComponent("../verified-\(UUID().uuidString)")
        configuration.downloadsInBackground = inBackground
        configuration.hubToken = token
        configuration.hub = try XCTUnwrap(URL(string: recorded.string("endpoint")))
        return TextToSpeech(.hub("org/name", into: folder), configuration)
    }

    private func prepared(_ tts: TextToSpeech) async throws -> [Preparation] {
        var events: [Preparation] = []
        for try await event in tts.prepare() { events.append(event) }
        return events
    }

    private func emptyFolder() throws -> URL {
        let folder = FileManager.default.temporaryDirectory.appendingPathComponent(UUID().uuidString)
        try FileManager.default.createDirectory(at: folder, withIntermediateDirectories: true)
        return folder
    }

    func testDownloadsOnePrecision() async throws {
        let recorded = try Recorded.first("hub", "whole"), folder = try emptyFolder()
        let events = try await prepared(tts(recorded, into: folder, verifies: true))
        XCTAssertEqual(events.prefix { if case .downloading = $0 { true } else { false } }.last, .downloading(1))
        XCTAssertTrue(events.contains(.verifying(1)))
        XCTAssertEqual(events.last, .ready)
        let bundle = folder.appendingPathComponent("org--name--main--fp16")
        XCTAssertEqual(try FileManager.default.contentsOfDirectory(atPath: folder.path), [bundle.lastPathComponent])
        let entries = Set(try FileManager.default.contentsOfDirectory(atPath: bundle.path))
        XCTAssertEqual(entries, ["manifest.json", "manifest.sha256", "constants", "tokenizer", "fp16"])
        // A complete download needs no hub; a damaged one is downloaded again.
        let requests = try await requests(recorded)
        _ = try await prepared(tts(recorded, into: folder))
        let after = try await self.requests(recorded)
        XCTAssertEqual(after, requests)
        let file = bundle.appendingPathComponent("constants/embed_tokens.npy")
        var damaged = try Data(contentsOf: file)
        damaged[damaged.count / 2] ^= 1
        try damaged.write(to: file)
        let mended = try await prepared(tts(recorded, into: folder, verifies: true))
        XCTAssertTrue(mended.contains(.downloading(1)))
        XCTAssertEqual(mended.last, .ready)
    }

    /// The number of requested files.
    private func requests(_ recorded: Recorded) async throws -> Int {
        let url = try XCTUnwrap(URL(string: recorded.string("endpoint") + "/requests"))
        for _ in 0..<2 {
            let (data, _) = try await URLSession.shared.data(from: url)
            if let list = try? JSONDecoder().decode([String].self, from: data) {
                return list.count { $0 != "/requests" }
            }
        }
        throw CocoaError(.fileReadUnknown)
    }

    /// Each third file is asked for again, in blocks, as the hub fails its transfer; the others once.
    func testDownloadsThatTheSystemMakes() async throws {
        let recorded = try Recorded.first("hub", "whole"), folder = try emptyFolder()
        let before = try await requests(recorded)
        let events = try await prepared(tts(recorded, into: folder, verifies: true, inBackground: true))
        XCTAssertEqual(events.last, .ready)
        let bundle = try OpenBundle(folder.appendingPathComponent("org--name--main--fp16"))
        let after = try await requests(recorded)
        XCTAssertLessThan(after - before, 2 * bundle.manifest.files(of: .fp16).count)
        XCTAssertFalse(TextToSpeech.handleBackgroundDownloads(of: "another") {})
    }

    func testAnInterruptedDownloadContinues() async throws {
        let recorded = try Recorded.first("hub", "whole"), folder = try emptyFolder()
        for try await event in try tts(recorded, into: folder).prepare() {
            if case .downloading(let share) = event, share > 0.5 { break }
        }
        let partial = try XCTUnwrap(try FileManager.default.contentsOfDirectory(atPath: folder.path).first)
        XCTAssertTrue(partial.hasSuffix(".partial"))
        let events = try await prepared(tts(recorded, into: folder))
        guard case .downloading(let share)? = events.first else { return XCTFail("it was whole") }
        XCTAssertGreaterThan(events.last == .ready ? share : 0, 0)
    }

    func testAFullDiskIsAnErrorAndTheDownloadContinues() async throws {
        let recorded = try Recorded.first("hub", "whole")
        let disk = try SmallDisk(bytes: 256 << 10)
        do {
            _ = try await prepared(tts(recorded, into: disk.folder))
            XCTFail("it fits")
        } catch VoxCPMError.storage {}
        let left = try FileManager.default.contentsOfDirectory(atPath: disk.folder.path)
        XCTAssertTrue(left.allSatisfy { $0.hasSuffix(".partial") }, "\(left)")
        try disk.grow(to: 256 << 20)
        let events = try await prepared(tts(recorded, into: disk.folder))
        XCTAssertEqual(events.last, .ready)
    }

    func testAlteredFileIsRefusedAndNothingLooksWhole() async throws {
        let recorded = try Recorded.first("hub", "altered")
        let folder = try emptyFolder()
        do {
            _ = try await prepared(tts(recorded, into: folder))
            XCTFail("an altered file was accepted")
        } catch VoxCPMError.download(let file, _) {
            XCTAssertEqual(file, recorded.string("altered"))
        }
        let left = try FileManager.default.contentsOfDirectory(atPath: folder.path)
        XCTAssertTrue(left.allSatisfy { $0.hasSuffix(".partial") }, "\(left)")
    }

    func testSeveralFilesAtATimeWithAToken() async throws {
        let recorded = try Recorded.first("hub", "private"), folder = try emptyFolder()
        do {
            _ = try await prepared(tts(recorded, into: folder))
            XCTFail("it needs no token")
        } catch VoxCPMError.download(_, let problem) {
            XCTAssertTrue(problem.contains("hubToken"), problem)
        }
        let events = try await prepared(tts(recorded, into: folder, token: "secret"))
        XCTAssertEqual(events.last, .ready)
        let shares = events.compactMap { if case .downloading(let share) = $0 { share } else { nil } }
        XCTAssertEqual(shares, shares.sorted())
        // The hub answers once three files are asked for.
        let background = try await prepared(tts(recorded, into: emptyFolder(), inBackground: true, token: "secret"))
        XCTAssertEqual(background.last, .ready)
    }

    func testRepositoryThatLeavesItsFolderIsRefused() async throws {
        for name in ["a", "a/b/c", "../b", "a/..", "a b/c", ""] {
            do {
                _ = try await prepared(TextToSpeech(.hub(name), Configuration(predictor: FakePredictor())))
                XCTFail(name)
            } catch VoxCPMError.argument {}
        }
    }
}
