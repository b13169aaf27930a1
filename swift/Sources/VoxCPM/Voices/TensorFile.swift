import Foundation

/// A file in the safetensors format, with the digest that Python's `dump_tensors` adds.
struct TensorFile: Sendable {
    struct Tensor: Sendable, Equatable {
        let dtype: DType
        let shape: [Int]
        /// Little-endian numbers in C order.
        let bytes: Data

        /// The numbers as floats.
        var floats: [Float] {
            bytes.withUnsafeBytes { raw in
                let count = raw.count / dtype.width
                return (0..<count).map { index in
                    let offset = index * dtype.width
                    switch dtype {
                    case .float32:
                        let bits = raw.loadUnaligned(fromByteOffset: offset, as: UInt32.self)
                        return Float(bitPattern: UInt32(littleEndian: bits))
                    case .float16:
                        let bits = raw.loadUnaligned(fromByteOffset: offset, as: UInt16.self)
                        return float(half: UInt16(littleEndian: bits))
                    case .int32:
                        return Float(Int32(littleEndian: raw.loadUnaligned(fromByteOffset: offset, as: Int32.self)))
                    }
                }
            }
        }

        init(dtype: DType, shape: [Int], bytes: Data) {
            self.dtype = dtype
            self.shape = shape
            self.bytes = bytes
        }

        /// A float32 tensor. `shape` must describe `values`.
        init(shape: [Int], values: [Float]) {
            let bytes = values.map(\.bitPattern.littleEndian).withUnsafeBytes { Data($0) }
            self.init(dtype: .float32, shape: shape, bytes: bytes)
        }
    }

    enum DType: String, Sendable, Decodable {
        case float32 = "F32", float16 = "F16", int32 = "I32"

        var width: Int { self == .float16 ? 2 : 4 }

        /// Its name in numpy.
        var numpy: String {
            switch self {
            case .float32: "<f4"
            case .float16: "<f2"
            case .int32: "<i4"
            }
        }
    }

    let tensors: [String: Tensor]
    /// Without the digest.
    let metadata: [String: String]

    private static let digestKey = "sha256"
    private static let longestHeader = 100_000_000

    init(tensors: [String: Tensor], metadata: [String: String]) {
        self.tensors = tensors
        self.metadata = metadata
    }

    /// Read a file's content. Throws a `Problem` for invalid content, a wrong digest, or without the one it needs.
    init(_ content: Data, needsDigest: Bool) throws {
        let content = content.startIndex == 0 ? content : Data(content)
        guard content.count >= 8 else { throw Problem("it is truncated") }
        let length = content.withUnsafeBytes { UInt64(littleEndian: $0.loadUnaligned(as: UInt64.self)) }
        guard length <= Self.longestHeader, Int(length) <= content.count - 8 else {
            throw Problem("it is truncated, or not in the safetensors format")
        }
        let start = 8 + Int(length)
        let header: Header
        do {
            header = try decodedJSON(Header.self, from: content.subdata(in: 8..<start))
        } catch let problem as Problem {
            throw problem
        } catch {
            throw Problem("its safetensors header is invalid (\(reason(error)))")
        }
        var tensors: [String: Tensor] = [:], end = 0
        let ordered = header.tensors.sorted {
            $0.value.data_offsets.lexicographicallyPrecedes($1.value.data_offsets)
        }
        for (name, entry) in ordered {
            let offsets = entry.data_offsets
            guard offsets.count == 2, offsets[0] == end, offsets[1] >= end, offsets[1] <= content.count - start,
                entry.bytes == offsets[1] - end
            else { throw Problem("the offsets of \(name.debugDescription) do not match its shape or the file") }
            end = offsets[1]
            let bytes = content.subdata(in: (start + offsets[0])..<(start + end))
            tensors[name] = Tensor(dtype: entry.dtype, shape: entry.shape, bytes: bytes)
        }
        guard end == content.count - start else { throw Problem("it has bytes that belong to no tensor") }
        var metadata = header.metadata
        let digest = metadata.removeValue(forKey: Self.digestKey)
        guard digest != nil || !needsDigest else { throw Problem("its digest is missing") }
        guard digest == nil || digest == Self.digest(tensors, metadata) else {
            throw Problem("its content differs from its digest")
        }
        self.tensors = tensors
        self.metadata = metadata
    }

    /// The file, byte for byte as Python writes it, with a digest.
    var content: Data {
        // In safetensors' order: wide types first.
        let order = tensors.sorted { ($1.value.dtype.width, $0.key) < ($0.value.dtype.width, $1.key) }
        var offsets: [String: Int] = [:], end = 0, numbers = Data()
        for (name, tensor) in order {
            offsets[name] = end
            end += tensor.bytes.count
            numbers += tensor.bytes
        }
        var all = metadata
        all[Self.digestKey] = Self.digest(tensors, metadata)
        let named = sorted(all).map { "\(pythonJSON($0)):\(pythonJSON($1))" }
        var entries = [("__metadata__", "{\(named.joined(separator: ","))}")]
        for (name, tensor) in tensors {
            let first = offsets[name] ?? 0, shape = tensor.shape.map(String.init).joined(separator: ",")
            let place = "[\(first),\(first + tensor.bytes.count)]"
            let type = tensor.dtype.rawValue
            entries.append((name, "{\"data_offsets\":\(place),\"dtype\":\"\(type)\",\"shape\":[\(shape)]}"))
        }
        let parts = entries.sorted { precedes($0.0, $1.0) }.map { "\(pythonJSON($0)):\($1)" }
        var header = Data("{\(parts.joined(separator: ","))}".utf8)
        header.append(Data(repeating: 0x20, count: (8 - header.count % 8) % 8))
        let length = withUnsafeBytes(of: UInt64(header.count).littleEndian) { Data($0) }
        return length + header + numbers
    }

    private static func digest(_ tensors: [String: Tensor], _ metadata: [String: String]) -> String {
        var whole = SHA256()
        let pairs = sorted(metadata).map { "[\(pythonJSON($0)), \(pythonJSON($1))]" }
        whole.update(Data("[\(pairs.joined(separator: ", "))]".utf8))
        for (name, tensor) in tensors.sorted(by: { precedes($0.key, $1.key) }) {
            let axes = tensor.shape.map(String.init).joined(separator: ", ")
            let shape = tensor.shape.count == 1 ? "(\(axes),)" : "(\(axes))"
            whole.update(Data("|\(name)|\(tensor.dtype.numpy)|\(shape)|".utf8))
            whole.update(tensor.bytes)
        }
        return whole.hex()
    }

    private struct Header: Decodable {
        struct Entry: Decodable {
            let dtype: DType
            let shape: [Int]
            let data_offsets: [Int]

            /// Bytes of the tensor; nil for a shape that overflows.
            var bytes: Int? {
                var product = dtype.width
                for axis in shape {
                    let (next, overflow) = product.multipliedReportingOverflow(by: axis)
                    guard axis >= 0, !overflow else { return nil }
                    product = next
                }
                return product
            }
        }

        var metadata: [String: String] = [:]
        var tensors: [String: Entry] = [:]

        init(from decoder: any Decoder) throws {
            let container = try decoder.container(keyedBy: AnyKey.self)
            for key in container.allKeys {
                if key.stringValue == "__metadata__" {
                    metadata = try container.decode([String: String].self, forKey: key)
                } else {
                    tensors[key.stringValue] = try container.decode(Entry.self, forKey: key)
                }
            }
        }
    }
}

/// A key of any name.
struct AnyKey: CodingKey {
    let stringValue: String
    var intValue: Int? { nil }

    init(stringValue: String) { self.stringValue = stringValue }

    init?(intValue: Int) { nil }
}

/// Whether a name precedes another in Python's order.
private func precedes(_ a: String, _ b: String) -> Bool { a.unicodeScalars.lexicographicallyPrecedes(b.unicodeScalars) }

private func sorted(_ names: [String: String]) -> [(String, String)] {
    names.map { ($0.key, $0.value) }.sorted { precedes($0.0, $1.0) }
}
