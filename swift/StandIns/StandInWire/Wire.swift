import Foundation

/// Pipes to tests/swift/stand_in.py. A message is the lengths of header and data (four bytes each), a JSON header,
/// data.
public final class Wire: @unchecked Sendable {
    public static let shared = Wire()
    private let requests: FileHandle
    private let answers: FileHandle

    private init() {
        let environment = ProcessInfo.processInfo.environment
        requests = FileHandle(forWritingAtPath: environment["STAND_IN_REQUESTS"]!)!
        answers = FileHandle(forReadingAtPath: environment["STAND_IN_ANSWERS"]!)!
    }

    /// The decoder and the step models call concurrently.
    private let lock = NSLock()

    public func answer(to header: [String: Any], _ data: Data) throws -> (header: [String: Any], data: Data) {
        lock.lock()
        defer { lock.unlock() }
        let json = try! JSONSerialization.data(withJSONObject: header)
        var lengths = (UInt32(json.count).littleEndian, UInt32(data.count).littleEndian)
        requests.write(Data(bytes: &lengths, count: 8) + json + data)
        let counts = read(8).withUnsafeBytes { bytes in
            [0, 4].map { Int(bytes.loadUnaligned(fromByteOffset: $0, as: UInt32.self)) }
        }
        let document = try! JSONSerialization.jsonObject(with: read(counts[0])) as! [String: Any]
        let numbers = read(counts[1])
        if let error = document["error"] as? String {
            throw NSError(domain: "com.apple.CoreML", code: 0, userInfo: [NSLocalizedDescriptionKey: error])
        }
        return (document, numbers)
    }

    private func read(_ count: Int) -> Data {
        var data = Data()
        while data.count < count {
            let more = answers.readData(ofLength: count - data.count)
            precondition(!more.isEmpty, "tests/swift/stand_in.py has ended")
            data += more
        }
        return data
    }
}
