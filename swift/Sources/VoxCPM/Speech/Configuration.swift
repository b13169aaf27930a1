import Foundation

/// The location of a bundle.
public enum BundleSource: Sendable {
    /// The folder of a bundle.
    case folder(URL)
    /// A hub repository, such as "openbmb/voxcpm-1.5-coreml", at a branch, tag or commit. `prepare()`, or the first
    /// call, downloads one precision, resuming an interrupted download. `into` is where to create the bundle's folder;
    /// nil for the application support folder, excluded from backups.
    ///
    /// A downloaded bundle is used without a request; to update it, name another revision.
    case hub(String, revision: String = "main", into: URL? = nil)
}

/// How to load a bundle.
public struct Configuration: Sendable {
    /// Loads step models: `CoreMLPredictor()` on Apple platforms.
    public var predictor: any Predictor
    /// One of the bundle's precisions; nil for the smallest.
    public var precision: Manifest.Precision?
    /// Compute units to try for a step model, best first, instead of the predictor's.
    public var computeUnits: [StepModelName: [ComputeUnit]] = [:]
    /// Whether to leave out the GPU, which iOS forbids in the background. Then the language models run on the CPU. The
    /// app also needs the background mode for audio.
    public var speaksInBackground = false
    /// Maximum bytes for the step models; nil for half of the physical memory. If the weights exceed half of it, what
    /// only prefill needs is unloaded in between, and each speech starts later.
    public var memoryLimit: UInt64?
    /// Whether to verify the files' digests, about a second per gigabyte: before the first load, and after any file has
    /// changed.
    public var verifies = true
    /// Where is noted what was verified.
    var verified = FileManager.default.urls(for: .cachesDirectory, in: .userDomainMask)[0]
        .appendingPathComponent("voxcpm-verified")
    /// The address of the hub or a mirror.
    public var hub = URL(string: "https://huggingface.co") ?? URL(fileURLWithPath: "/")
    /// A token of the hub, for a private bundle.
    public var hubToken: String?
    /// Whether the system downloads the files, also while the app is suspended (`TextToSpeech.handleBackgroundDownloads`).
    public var downloadsInBackground = false

    /// - Parameters:
    ///   - predictor: loads step models.
    ///   - precision: one of the bundle's; nil for the smallest.
    public init(predictor: any Predictor, precision: Manifest.Precision? = nil) {
        self.predictor = predictor
        self.precision = precision
    }

    /// The compute units to try for a step model, best first.
    func units(for model: StepModelName) -> [ComputeUnit] {
        let units = computeUnits[model] ?? predictor.units(for: model)
        guard speaksInBackground else { return units }
        let allowed = units.filter { $0 != .cpuAndGPU }
        return allowed.isEmpty ? [.cpu] : allowed
    }

    /// Whether to unload what only prefill needs.
    func isTight(_ bundle: OpenBundle) -> Bool {
        let limit = memoryLimit ?? ProcessInfo.processInfo.physicalMemory / 2
        let weights = bundle.manifest.files(of: bundle.precision).values.reduce(0.0) { $0 + Double($1.bytes) }
        return 2 * weights > Double(limit)
    }
}

/// Progress of loading a bundle.
public enum Preparation: Sendable, Equatable {
    /// Downloading files; the share of all bytes.
    case downloading(Double)
    /// Verifying digests; the share of all bytes.
    case verifying(Double)
    /// Loading a step model. On first use on a device it is compiled, which takes seconds to minutes.
    case compiling(StepModelName)
    /// A compute unit rejected a step model; the next one is tried.
    case fellBack(StepModelName, ComputeUnit, reason: String)
    /// Predicting a first patch, as a model's first prediction takes longer.
    case warmingUp
    /// The bundle is ready to speak.
    case ready
}
