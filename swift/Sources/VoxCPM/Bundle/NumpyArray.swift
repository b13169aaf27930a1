import Foundation

/// A memory-mapped .npy file of float16 or float32 in C order.
struct NumpyArray: Sendable {
    let shape: [Int]
    private let data: Data
    private let start: Int
    private let isHalf: Bool

    /// Throws `VoxCPMError.bundle` for a file that is missing, truncated or of another type.
    init(_ url: URL) throws {
        do {
            try self.init(mapped: Data(contentsOf: url, options: .alwaysMapped))
        } catch let problem as Problem {
            throw VoxCPMError.bundle(file: url.lastPathComponent, problem: problem.text)
        } catch {
            throw VoxCPMError.bundle(file: url.lastPathComponent, problem: "cannot be read")
        }
    }

    /// Throws a `Problem`.
    private init(mapped data: Data) throws {
        let bytes = [UInt8](data.prefix(12)).map(Int.init)
        guard bytes.count == 12, Array(bytes[..<6]) == [0x93] + "NUMPY".utf8.map(Int.init), (1...3).contains(bytes[6])
        else { throw Problem("expected a .npy file") }
        let isFirstVersion = bytes[6] == 1
        let length = isFirstVersion
            ? bytes[8] | bytes[9] << 8 : bytes[8] | bytes[9] << 8 | bytes[10] << 16 | bytes[11] << 24
        start = (isFirstVersion ? 10 : 12) + length
        guard length <= 65_536, start <= data.count else { throw Problem("its header is truncated") }
        let header = String(decoding: data.subdata(in: (start - length)..<start), as: UTF8.self)
        guard
            let shape = header.between("'shape': (", ")"),
            let type = header.between("'descr': '<f", "'"), ["2", "4"].contains(type),
            header.contains("'fortran_order': False")
        else { throw Problem("expected float16 or float32 in C order") }
        let axes = shape.split(separator: ",").map { Int($0.filter { $0 != " " }) }
        isHalf = type == "2"
        var count = isHalf ? 2 : 4
        for axis in axes {
            guard let axis, axis >= 0, case let (product, false) = count.multipliedReportingOverflow(by: axis) else {
                throw Problem("its shape is invalid")
            }
            count = product
        }
        guard data.count - start == count else {
            throw Problem("expected \(count) bytes of numbers, got \(data.count - start)")
        }
        self.shape = axes.compactMap(\.self)
        self.data = data
    }

    /// Numbers `range` of the array, counted in C order.
    subscript(range: Range<Int>) -> [Float] {
        data.withUnsafeBytes { bytes in
            range.map { index in
                isHalf
                    ? float(half: bytes.loadUnaligned(fromByteOffset: start + 2 * index, as: UInt16.self))
                    : bytes.loadUnaligned(fromByteOffset: start + 4 * index, as: Float.self)
            }
        }
    }

    var values: [Float] { self[0..<shape.reduce(1, *)] }
}

extension String {
    /// The text between the first `opening` and the next `closing`.
    fileprivate func between(_ opening: String, _ closing: String) -> Substring? {
        guard let before = range(of: opening),
            let after = range(of: closing, range: before.upperBound..<endIndex)
        else { return nil }
        return self[before.upperBound..<after.lowerBound]
    }
}

/// An error in a file, without the file's name.
struct Problem: Error {
    let text: String

    init(_ text: String) { self.text = text }
}
