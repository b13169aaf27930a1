/// An input or output of a step model, in C order.
///
/// Values are `Float`; predictors convert them to the declared type, such as int32 for a position (exact up to
/// 16,777,216).
public struct Tensor: Sendable, Equatable {
    /// Lengths of the axes.
    public let shape: [Int]
    /// In C order, as many as the product of `shape`.
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
    /// Values in a row.
    public let width: Int
    /// All rows, concatenated.
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

/// A matrix in C order, transposed: (rows, columns) to (columns, rows).
func transposed(_ values: [Float], rows: Int, columns: Int) -> [Float] {
    var result = [Float](repeating: 0, count: values.count)
    for row in 0..<rows {
        for column in 0..<columns { result[column * rows + row] = values[row * columns + column] }
    }
    return result
}

/// The bits of the nearest float16, ties to even.
public func half(_ value: Float) -> UInt16 {
    let sign = UInt16(truncatingIfNeeded: value.bitPattern >> 16) & 0x8000, magnitude = abs(value)
    if value.isNaN { return 0x7E00 }
    if magnitude >= 65520 { return sign | 0x7C00 }
    if magnitude < 0x1p-14 { return sign | UInt16((magnitude * 0x1p24).rounded(.toNearestOrEven)) }
    let bits = magnitude.bitPattern - 112 << 23
    return sign | UInt16(truncatingIfNeeded: (bits + 0xFFF + (bits >> 13 & 1)) >> 13)
}

/// The value of a float16 by its bits; Swift has no Float16 on Intel Macs.
public func float(half bits: UInt16) -> Float {
    let sign = UInt32(bits & 0x8000) << 16, exponent = UInt32(bits >> 10) & 0x1F, fraction = UInt32(bits & 0x3FF)
    switch exponent {
    case 0: return (sign == 0 ? 1 : -1) * Float(fraction) * 0x1p-24
    case 31: return Float(bitPattern: sign | 0x7F80_0000 | fraction << 13)
    default: return Float(bitPattern: sign | (exponent + 112) << 23 | fraction << 13)
    }
}
