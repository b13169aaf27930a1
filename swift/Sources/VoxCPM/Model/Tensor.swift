/// An input or output of a step model: numbers in C order, the last axis contiguous.
///
/// All are held as `Float`. A predictor converts them to the type that the step model declares: int32 for a position,
/// which stays exact up to 16,777,216.
public struct Tensor: Sendable, Equatable {
    /// Lengths of the axes.
    public let shape: [Int]
    /// As many as the product of `shape`.
    public let values: [Float]

    /// The product of `shape` must be the number of values.
    public init(shape: [Int], values: [Float]) {
        precondition(shape.reduce(1, *) == values.count, "a tensor's values do not fill its shape")
        self.shape = shape
        self.values = values
    }
}

/// Rows of equal width, contiguous: embeddings, hidden states, latent frames.
public struct Rows: Sendable, Equatable {
    /// Numbers in a row.
    public let width: Int
    /// All rows, one after the other.
    public private(set) var values: [Float]

    /// Number of rows.
    public var count: Int { width == 0 ? 0 : values.count / width }

    init(width: Int, values: [Float] = []) {
        self.width = width
        self.values = values
    }

    subscript(row: Int) -> [Float] { Array(values[(row * width)..<((row + 1) * width)]) }

    subscript(range: Range<Int>) -> Rows {
        Rows(width: width, values: Array(values[(range.lowerBound * width)..<(range.upperBound * width)]))
    }

    mutating func append(_ row: [Float]) { values += row }

    mutating func append(_ other: Rows) { values += other.values }

    /// The values as `size` rows, padded with zeros.
    func padded(to size: Int) -> [Float] { values + [Float](repeating: 0, count: (size - count) * width) }
}

/// Rows and columns of a matrix in C order, exchanged: (rows, columns) to (columns, rows).
func transposed(_ values: [Float], rows: Int, columns: Int) -> [Float] {
    var result = [Float](repeating: 0, count: values.count)
    for row in 0..<rows {
        for column in 0..<columns { result[column * rows + row] = values[row * columns + column] }
    }
    return result
}

/// The bits of the float16 that is nearest to a number; of two, the even one.
public func half(_ value: Float) -> UInt16 {
    let sign = UInt16(truncatingIfNeeded: value.bitPattern >> 16) & 0x8000, magnitude = abs(value)
    if value.isNaN { return 0x7E00 }
    if magnitude >= 65520 { return sign | 0x7C00 }
    if magnitude < 0x1p-14 { return sign | UInt16((magnitude * 0x1p24).rounded(.toNearestOrEven)) }
    let bits = magnitude.bitPattern - 112 << 23
    return sign | UInt16(truncatingIfNeeded: (bits + 0xFFF + (bits >> 13 & 1)) >> 13)
}

/// A float16 by its bits; Swift has no Float16 on Intel Macs.
public func float(half bits: UInt16) -> Float {
    let sign = UInt32(bits & 0x8000) << 16, exponent = UInt32(bits >> 10) & 0x1F, fraction = UInt32(bits & 0x3FF)
    switch exponent {
    case 0: return (sign == 0 ? 1 : -1) * Float(fraction) * 0x1p-24
    case 31: return Float(bitPattern: sign | 0x7F80_0000 | fraction << 13)
    default: return Float(bitPattern: sign | (exponent + 112) << 23 | fraction << 13)
    }
}
