import Foundation
import XCTest

@testable import VoxCPM

/// Against the hub of tests/swift/hub.py, each third answer of which fails.
final class DownloadTests: XCTestCase {
    private func download(_ recorded: Recorded, into folder: URL) throws -> HubDownload {
        try HubDownload(
            "org/name", precision: .fp16, into: folder, endpoint: URL(string: recorded.string("endpoint")))
    }

    private func emptyFolder() throws -> URL {
        let folder = FileManager.default.temporaryDirectory.appendingPathComponent(UUID().uuidString)
        try FileManager.default.createDirectory(at: folder, withIntermediateDirectories: true)
        return folder
    }

    func testDownloadsOnePrecision() async throws {
        for recorded in try Recorded.cases("hub") where recorded.name == "whole" {
            let folder = try emptyFolder()
            let bundle = try await download(recorded, into: folder)()
            let opened = try OpenBundle(bundle)
            try opened.verify()
            XCTAssertEqual(opened.precision, .fp16)
            XCTAssertEqual(try FileManager.default.contentsOfDirectory(atPath: folder.path), [bundle.lastPathComponent])
            let entries = Set(try FileManager.default.contentsOfDirectory(atPath: bundle.path))
            XCTAssertEqual(entries, ["manifest.json", "manifest.sha256", "constants", "tokenizer", "fp16"])
            let again = try await download(recorded, into: folder)()
            XCTAssertEqual(again.path, bundle.path)
        }
    }

    func testAlteredFileIsRefusedAndNothingLooksWhole() async throws {
        for recorded in try Recorded.cases("hub") where recorded.name == "altered" {
            let folder = try emptyFolder()
            do {
                _ = try await download(recorded, into: folder)()
                XCTFail("an altered file was taken")
            } catch VoxCPMError.download(let file, _) {
                XCTAssertEqual(file, recorded.string("altered"))
            }
            let left = try FileManager.default.contentsOfDirectory(atPath: folder.path)
            XCTAssertTrue(left.allSatisfy { $0.hasSuffix(".partial") }, "\(left)")
        }
    }

    func testRepositoryThatLeavesItsFolderIsRefused() throws {
        for name in ["a", "a/b/c", "../b", "a/..", "a b/c", ""] {
            XCTAssertThrowsError(try HubDownload(name, into: emptyFolder()))
        }
    }
}
