// What examples/swift uses of Accelerate.

public typealias vDSP_Length = UInt

public func vDSP_mmul(
    _ a: UnsafePointer<Float>, _ strideA: Int, _ b: UnsafePointer<Float>, _ strideB: Int,
    _ c: UnsafeMutablePointer<Float>, _ strideC: Int, _ m: vDSP_Length, _ n: vDSP_Length, _ p: vDSP_Length
) {
    for row in 0..<Int(m) {
        for column in 0..<Int(n) {
            c[row * Int(n) + column] = (0..<Int(p)).reduce(0) { $0 + a[row * Int(p) + $1] * b[$1 * Int(n) + column] }
        }
    }
}

public enum vDSP {
    public static func add(_ a: [Float], _ b: [Float]) -> [Float] { zip(a, b).map { $0 + $1 } }

    public static func dot(_ a: [Float], _ b: [Float]) -> Float { zip(a, b).reduce(0) { $0 + $1.0 * $1.1 } }

    public static func multiply(_ factor: Float, _ a: [Float]) -> [Float] { a.map { factor * $0 } }
}
