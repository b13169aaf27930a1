import Foundation
import VoxCPM

private let resources = Bundle.module.resourceURL ?? Bundle.module.bundleURL

extension BundleSource {
    /// The bundle of the built-in voice, 34 MB of resources of this product. It speaks English, offline.
    public static var builtInVoice: BundleSource { .folder(resources) }
}

extension Voice {
    /// One of thirteen voices for the built-in bundle, by name; without a voice it has another one at each run.
    public static func builtIn(_ name: String = "heart") throws -> Voice {
        try Voice(contentsOf: resources.appendingPathComponent("\(name).voice"))
    }
}
