import Foundation
import VoxCPM

extension BundleSource {
    /// The bundle of the built-in voice, 15 MB of resources of this product. It speaks English, offline.
    public static var builtInVoice: BundleSource { .folder(Bundle.module.resourceURL ?? Bundle.module.bundleURL) }
}
