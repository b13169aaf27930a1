import Foundation

/// Where a bundle is.
public enum BundleSource: Sendable {
    /// A folder with a manifest.json.
    case folder(URL)
    /// A repository of a hub, such as "openbmb/voxcpm-1.5-coreml", at a branch, tag or commit. `prepare()`, or the first
    /// call, downloads what one precision needs, and continues a download that was interrupted. `into` is the folder in
    /// which the bundle's folder is made; nil for one in the application support folder, out of backups.
    ///
    /// A bundle that was downloaded is used without a request: name another revision to update it.
    case hub(String, revision: String = "main", into: URL? = nil)
}

/// What loads a bundle, and how.
public struct Configuration: Sendable {
    /// Loads step models: `CoreMLPredictor()` on Apple's systems.
    public var predictor: any Predictor
    /// One that the bundle has; nil for the smallest.
    public var precision: Manifest.Precision?
    /// Compute units to try for a step model, best first, instead of the predictor's.
    public var computeUnits: [StepModelName: [ComputeUnit]] = [:]
    /// Bytes that the step models may take; nil for half of the physical memory. Where the bundle needs more than half
    /// of it, whatever serves prefill alone is unloaded whenever it is not needed; then each speech starts later.
    public var memoryLimit: UInt64?
    /// Whether the files are compared with the manifest's digests before the first load: about a second a gigabyte.
    public var verifies = true
    /// The address of the hub; another one for a mirror.
    public var hub = URL(string: "https://huggingface.co") ?? URL(fileURLWithPath: "/")

    /// - Parameters:
    ///   - predictor: loads step models.
    ///   - precision: one that the bundle has; nil for the smallest.
    public init(predictor: any Predictor, precision: Manifest.Precision? = nil) {
        self.predictor = predictor
        self.precision = precision
    }

    /// Whether what only prefill needs should not stay in memory.
    func isTight(_ bundle: OpenBundle) -> Bool {
        let limit = memoryLimit ?? ProcessInfo.processInfo.physicalMemory / 2
        let weights = bundle.manifest.files(of: bundle.precision).values.reduce(0.0) { $0 + Double($1.bytes) }
        return 2 * weights > Double(limit)
    }
}

/// A step of making a bundle ready to speak.
public enum Preparation: Sendable, Equatable {
    /// Files are downloaded; the share of all bytes that is there.
    case downloading(Double)
    /// Files are compared with their digests; the share that is done.
    case verifying(Double)
    /// A step model is loaded. The first time on a device it is compiled, which takes seconds to minutes.
    case compiling(StepModelName)
    /// The system did not load a step model on a compute unit, and the next one is tried.
    case fellBack(StepModelName, ComputeUnit, reason: String)
    /// The bundle speaks.
    case ready
}
