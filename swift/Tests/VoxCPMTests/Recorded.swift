import Foundation
import XCTest

/// A folder with a case.json and arrays of float32, as tests/swift/driver.py writes them.
struct Recorded {
    let folder: URL
    let document: [String: Any]

    var name: String { folder.lastPathComponent }

    /// The cases of a kind. Skips the test where nothing was recorded: `make test-swift` records first.
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

    /// The folder of a kind of cases.
    static func folder(_ kind: String) throws -> URL {
        guard let root = ProcessInfo.processInfo.environment["VOXCPM_RECORDED"] else {
            throw XCTSkip("run by `make test-swift`, which records what Python does")
        }
        let folder = URL(fileURLWithPath: root).appendingPathComponent(kind)
        guard FileManager.default.fileExists(atPath: folder.path) else { throw XCTSkip("no \(kind) was recorded") }
        return folder
    }

    func string(_ key: String) -> String { document[key] as! String }

    func url(_ key: String) -> URL { URL(fileURLWithPath: string(key)) }

    func integer(_ key: String) -> Int { (document[key] as! NSNumber).intValue }

    func integers(_ key: String) -> [Int] { (document[key] as! [NSNumber]).map(\.intValue) }

    func floats(_ name: String) throws -> [Float] { try Self.floats(folder, name) }

    static func floats(_ folder: URL, _ name: String) throws -> [Float] {
        try Data(contentsOf: folder.appendingPathComponent("\(name).f32")).withUnsafeBytes { bytes in
            stride(from: 0, to: bytes.count, by: 4).map { bytes.loadUnaligned(fromByteOffset: $0, as: Float.self) }
        }
    }
}

func correlation(_ a: [Float], _ b: [Float]) -> Double {
    guard a.count == b.count, !a.isEmpty else { return .nan }
    let n = Double(a.count), x = a.map(Double.init), y = b.map(Double.init)
    let mx = x.reduce(0, +) / n, my = y.reduce(0, +) / n
    var xy = 0.0, xx = 0.0, yy = 0.0
    for (p, q) in zip(x, y) {
        xy += (p - mx) * (q - my)
        xx += (p - mx) * (p - mx)
        yy += (q - my) * (q - my)
    }
    return xy / (xx * yy).squareRoot()
}
