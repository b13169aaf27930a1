import Foundation

/// Where a bundle is.
public enum BundleSource: Sendable {
    /// A folder with a manifest.json.
    case folder(URL)
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
    /// Files are compared with their digests; the share that is done.
    case verifying(Double)
    /// A step model is loaded. The first time on a device it is compiled, which takes seconds to minutes.
    case compiling(StepModelName)
    /// The system did not load a step model on a compute unit, and the next one is tried.
    case fellBack(StepModelName, ComputeUnit, reason: String)
    /// The bundle speaks.
    case ready
}
