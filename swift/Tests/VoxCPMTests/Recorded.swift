import Foundation
import XCTest

/// A folder with a case.json and arrays of float32, as tests/swift/driver.py writes them.
struct Recorded {
    let folder: URL
    let document: [String: Any]

    /// Compiled models of this run, since the stand-in's contain the paths of their packages.
    static let cache = FileManager.default.temporaryDirectory.appendingPathComponent(UUID().uuidString)

    var name: String { folder.lastPathComponent }

    /// The cases of a kind. Skips the test if nothing was recorded; `make test-swift` records first.
    static func cases(_ kind: String) throws -> [Recorded] {
        let folder = try folder(kind)
        let names = try FileManager.default.contentsOfDirectory(atPath: folder.path).sorted()
        XCTAssertFalse(names.isEmpty)
        return try names.map { name in
            let folder = folder.appendingPathComponent(name)
            let data = try Data(contentsOf: folder.appendingPathComponent("case.json"))
            return Recorded(folder: folder, document: try JSONSerialization.jsonObject(with: data) as! [String: Any])
        }
    }

    /// The first case of a kind whose name ends so. Not within `XCTUnwrap`, which makes a skipped test a failed one.
    static func first(_ kind: String, _ suffix: String) throws -> Recorded {
        let found = try cases(kind).first { $0.name.hasSuffix(suffix) }
        return try XCTUnwrap(found)
    }

    /// The folder of a kind of cases.
    static func folder(_ kind: String) throws -> URL {
        guard let root = ProcessInfo.processInfo.environment["VOXCPM_RECORDED"] else {
            throw XCTSkip("run by `make test-swift`, which records Python's results")
        }
        let folder = URL(fileURLWithPath: root).appendingPathComponent(kind)
        guard FileManager.default.fileExists(atPath: folder.path) else { throw XCTSkip("no \(kind) was recorded") }
        return folder
    }

    func string(_ key: String) -> String { document[key] as! String }

    func url(_ key: String) -> URL { URL(fileURLWithPath: string(key)) }

    func integer(_ key: String) -> Int { (document[key] as! NSNumber).intValue }

    func integers(_ key: String) -> [Int] { (document[key] as! [NSNumber]).map(\.intValue) }

    func decoded<T: Decodable>(_ key: String, _ type: T.Type) throws -> T {
        let value = try JSONSerialization.data(withJSONObject: document[key] ?? [], options: .fragmentsAllowed)
        return try JSONDecoder().decode(type, from: value)
    }

    func floats(_ name: String) throws -> [Float] { try Self.floats(folder, name) }

    static func floats(_ folder: URL, _ name: String) throws -> [Float] {
        try Data(contentsOf: folder.appendingPathComponent("\(name).f32")).withUnsafeBytes { bytes in
            stride(from: 0, to: bytes.count, by: 4).map { bytes.loadUnaligned(fromByteOffset: $0, as: Float.self) }
        }
    }
}

/// The norm of the difference over that of `expected`; unlike a correlation, it detects a wrong factor.
func relativeError(_ found: [Float], _ expected: [Float]) -> Double {
    guard found.count == expected.count, !found.isEmpty else { return .nan }
    var difference = 0.0, norm = 0.0
    for (x, y) in zip(found, expected) {
        difference += Double(x - y) * Double(x - y)
        norm += Double(y) * Double(y)
    }
    return (difference / norm).squareRoot()
}

/// Maximum relative errors of latents and samples by precision.
///
/// Quantised packages round each row of their inputs to 8 bits by its largest value, so the last bit of a float32 can
/// move a whole step: Python against itself, with every input moved by at most one ulp, has errors of up to 0.026 in
/// int8 and 0.05 in int4. Core ML also has caches in float16 where Python has float32.
let maxErrors: [String: Double] = ["fp32": 1e-4, "fp16": 0.006, "int8": 0.045, "int4": 0.063]

/// The same for the built-in voice's first patch in int8, where Python against itself has up to 0.16.
let maxErrorOfTrainedWeights = 0.25
