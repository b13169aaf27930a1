// What examples/swift uses of CryptoKit: a digest for a name, here FNV-1a.

import Foundation

public enum SHA256 {
    public static func hash(data: Data) -> [UInt8] {
        let digest = data.reduce(0xCBF2_9CE4_8422_2325 as UInt64) { ($0 ^ UInt64($1)) &* 0x100_0000_01B3 }
        return withUnsafeBytes(of: digest) { Array($0) }
    }
}
