import Foundation

/// Pipes to tests/swift/stand_in.py. A message is the lengths of header and data (four bytes each), a JSON header,
/// data.
public final class Wire: @unchecked Sendable {
    public static let shared = Wire()
    private let requests: FileHandle?
    private let answers: FileHandle?

    private init() {
        let environment = ProcessInfo.processInfo.environment
        requests = environment["STAND_IN_REQUESTS"].flatMap { FileHandle(forWritingAtPath: $0) }
        answers = environment["STAND_IN_ANSWERS"].flatMap { FileHandle(forReadingAtPath: $0) }
    }

    /// The decoder and the step models call concurrently.
    private let lock = NSLock()

    public func answer(to header: [String: Any], _ data: Data) throws -> (header: [String: Any], data: Data) {
        lock.lock()
        defer { lock.unlock() }
        guard let requests, answers != nil else {
            throw failure("Linux has no Core ML: bundles run on macOS and iOS, and here with Python (voxcpm-coreml)")
        }
        let json = try! JSONSerialization.data(withJSONObject: header)
        var lengths = (UInt32(json.count).littleEndian, UInt32(data.count).littleEndian)
        requests.write(Data(bytes: &lengths, count: 8) + json + data)
        let counts = read(8).withUnsafeBytes { bytes in
            [0, 4].map { Int(bytes.loadUnaligned(fromByteOffset: $0, as: UInt32.self)) }
        }
        let document = try! JSONSerialization.jsonObject(with: read(counts[0])) as! [String: Any]
        let numbers = read(counts[1])
        if let error = document["error"] as? String {
            throw failure(error)
        }
        return (document, numbers)
    }

    private func failure(_ text: String) -> NSError {
        NSError(domain: "com.apple.CoreML", code: 0, userInfo: [NSLocalizedDescriptionKey: text])
    }

    private func read(_ count: Int) -> Data {
        var data = Data()
        while data.count < count {
            let more = answers?.readData(ofLength: count - data.count) ?? Data()
            precondition(!more.isEmpty, "tests/swift/stand_in.py has ended")
            data += more
        }
        return data
    }
}
