import Foundation
import XCTest

#if canImport(Glibc)
import Glibc
#endif

/// A file system of a given size. Skips the test unless the process may mount one in its own namespace.
final class SmallDisk {
    let folder = FileManager.default.temporaryDirectory.appendingPathComponent(UUID().uuidString)

    init(bytes: Int) throws {
        guard ProcessInfo.processInfo.environment["VOXCPM_MAY_MOUNT"] != nil else { throw XCTSkip("not root") }
        try FileManager.default.createDirectory(at: folder, withIntermediateDirectories: true)
        try mounted(bytes, again: false)
    }

    func grow(to bytes: Int) throws { try mounted(bytes, again: true) }

    private func mounted(_ bytes: Int, again: Bool) throws {
        #if canImport(Glibc)
        let flags = UInt(again ? 32 : 0)  // MS_REMOUNT
        guard mount("tmpfs", folder.path, "tmpfs", flags, "size=\(bytes)") == 0 else { throw XCTSkip("cannot mount") }
        #endif
    }

    deinit {
        #if canImport(Glibc)
        umount(folder.path)
        #endif
        try? FileManager.default.removeItem(at: folder)
    }
}
