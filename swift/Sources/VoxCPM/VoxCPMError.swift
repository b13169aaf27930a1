import Foundation

/// All errors, each with what to do about it. Cancellation is Swift's `CancellationError`.
public enum VoxCPMError: Error, Sendable, Equatable {
    /// A file of the bundle is missing, damaged or of another release. `file` is relative to the bundle.
    case bundle(file: String, problem: String)
    /// This system or bundle does not support the bundle or option.
    case unsupported(String)
    /// The text cannot be spoken.
    case text(String)
    /// An argument is out of range.
    case argument(name: String, problem: String)
    /// A voice or a recording cannot be used.
    case voice(String)
    /// Text, voice and the shortest speech need more positions than the KV cache has.
    case doesNotFit(needed: Int, capacity: Int)
    /// No compute unit loaded a step model.
    case loading(model: String, reason: String)
    /// A step model failed, or returned something other than it declares.
    case prediction(model: String, reason: String)
    /// A patch has infinities or NaN: the step models overflow.
    case notFinite(patch: Int)
    /// A folder or file cannot be written, for example because the disk is full.
    case storage(path: String, problem: String)
    /// A download failed; calling again resumes it.
    case download(file: String, problem: String)
    /// The object was closed, or the session has ended.
    case closed
}

extension VoxCPMError: LocalizedError, CustomStringConvertible {
    public var description: String {
        switch self {
        case .bundle(let file, let problem): "\(file): \(problem); copy the bundle again or convert it again"
        case .unsupported(let problem): problem
        case .text(let problem): problem
        case .argument(let name, let problem): "\(name): \(problem)"
        case .voice(let problem): problem
        case .doesNotFit(let needed, let capacity):
            "text, prompt and the shortest speech need \(needed) positions, but the KV cache has \(capacity); "
                + "shorten the text or the prompt, lower minLen, or convert with a greater --max-length"
        case .loading(let model, let reason): "\(model) cannot be loaded: \(reason)"
        case .prediction(let model, let reason): "\(model) failed: \(reason)"
        case .notFinite(let patch): "patch \(patch) is not finite: the step models overflow; try another precision"
        case .storage(let path, let problem): "\(path): \(problem)"
        case .download(let file, let problem): "\(file): \(problem); call again to resume the download"
        case .closed: "closed; create a new instance"
        }
    }

    public var errorDescription: String? { description }
}
