import Foundation

/// A bundle that is ready to speak.
struct LoadedBundle: Sendable {
    let bundle: OpenBundle
    let tokenizer: TextTokenizer
    let driver: Driver
    let units: [StepModelName: ComputeUnit]
    /// Whether memory is tight: prefill-only models are loaded per prefill.
    let isTight: Bool
    let prefixes = Prefixes()

    /// Predict, feed and decode one patch after no text.
    func warmUp() async throws {
        let width = driver.patchValues, none = Rows(width: width), steps = bundle.manifest.sizes.solverSteps
        let sequence = InputSequence(text: [], prompt: none, reference: none)
        let solving = Solving(
            steps: steps > 0 ? steps : Options().inferenceTimesteps, cfgValue: 2, swaySamplingCoef: 1,
            useCfgZeroStar: true, embeddingWidth: driver.architecture.ditWidth, meanMode: driver.architecture.meanMode)
        let prefilled = try await driver.prefill(sequence), decoder = try await driver.patchDecoder(after: sequence)
        let noise = [Float](repeating: 0, count: width)
        let patch = try await driver.predict(prefilled.next, noise: noise, solving)
        _ = try await driver.advance(prefilled, index: 0, patch: patch)
        _ = try await decoder(patch)
    }
}

typealias Report = @Sendable (Preparation) -> Void

/// Loads a bundle once for all waiting calls. A cancelled call returns at once; when no call waits, loading stops after
/// the current step model.
actor Loader {
    private let source: BundleSource
    private let configuration: Configuration
    private var loaded: LoadedBundle?
    private var task: Task<Void, Never>?
    private var waiting: [Int: CheckedContinuation<LoadedBundle, any Error>] = [:]
    private let listeners = Listeners()
    private var count = 0
    /// Incremented by `unload`: the result of an earlier load is discarded.
    private var round = 0
    private var isVerified = false

    init(_ source: BundleSource, _ configuration: Configuration) {
        self.source = source
        self.configuration = configuration
    }

    /// The bundle, loaded on first use.
    func bundle(_ report: @escaping Report = { _ in }) async throws -> LoadedBundle {
        try Task.checkCancellation()
        if let loaded {
            report(.ready)
            return loaded
        }
        count += 1
        let id = count
        return try await withTaskCancellationHandler {
            try await withCheckedThrowingContinuation { continuation in
                guard !Task.isCancelled else {
                    continuation.resume(throwing: CancellationError())
                    return
                }
                waiting[id] = continuation
                listeners.add(id, report)
                if task == nil { begin() }
            }
        } onCancel: {
            Task { await self.leave(id) }
        }
    }

    /// Free the step models. Running calls keep theirs.
    func unload() {
        loaded = nil
        round += 1
    }

    private func begin(after before: Task<Void, Never>? = nil) {
        let round = round, source = source, configuration = configuration, listeners = listeners
        let verifies = configuration.verifies && !isVerified
        task = Task {
            await before?.value
            do {
                try Task.checkCancellation()
                let made = try await loadedBundle(source, configuration, verifies: verifies) { listeners.report($0) }
                self.finish(.success(made), round)
            } catch {
                self.finish(.failure(error), round)
            }
        }
    }

    private func finish(_ result: Result<LoadedBundle, any Error>, _ round: Int) {
        if task?.isCancelled == true {
            // All waiting calls were cancelled; new ones may have arrived.
            task = nil
            if !waiting.isEmpty { begin() }
            return
        }
        task = nil
        if case .success(let made) = result {
            isVerified = true
            if round == self.round { loaded = made }
            listeners.report(.ready)
        }
        let all = waiting
        waiting = [:]
        for (id, one) in all {
            listeners.remove(id)
            one.resume(with: result)
        }
    }

    private func leave(_ id: Int) {
        guard let one = waiting.removeValue(forKey: id) else { return }
        listeners.remove(id)
        one.resume(throwing: CancellationError())
        if waiting.isEmpty { task?.cancel() }
    }
}

/// Callbacks for the progress of loading.
///
/// Unchecked: a lock guards all state.
private final class Listeners: @unchecked Sendable {
    private let lock = NSLock()
    private var reports: [Int: Report] = [:]

    func add(_ id: Int, _ report: @escaping Report) { lock.withLock { reports[id] = report } }

    func remove(_ id: Int) { lock.withLock { _ = reports.removeValue(forKey: id) } }

    func report(_ event: Preparation) {
        for report in lock.withLock({ Array(reports.values) }) { report(event) }
    }
}

/// Open, verify and load a bundle.
private func loadedBundle(
    _ source: BundleSource, _ configuration: Configuration, verifies: Bool, _ report: @escaping Report
) async throws -> LoadedBundle {
    let bundle = try await openBundle(source, configuration, verifies: verifies, report)
    let tokenizer = try TextTokenizer(folder: bundle.folder.appendingPathComponent("tokenizer"))
    let constants = try Constants(bundle.folder, bundle.manifest.architecture)
    let isTight = configuration.isTight(bundle)
    var models: [StepModelName: any StepFunction] = [:], units: [StepModelName: ComputeUnit] = [:]
    for name in bundle.manifest.names where !(isTight && name == .audioVAEEncoder) {
        let (model, unit) = try await loadedModel(name, of: bundle, configuration, report)
        (models[name], units[name]) = (model, unit)
        if isTight { await model.unloadPrefill() }
    }
    let driver = try Driver(manifest: bundle.manifest, constants: constants, models: models)
    return LoadedBundle(bundle: bundle, tokenizer: tokenizer, driver: driver, units: units, isTight: isTight)
}

/// The bundle, downloaded if missing, and verified.
private func openBundle(
    _ source: BundleSource, _ configuration: Configuration, verifies: Bool, _ report: @escaping Report
) async throws -> OpenBundle {
    func opened(_ folder: URL) throws -> OpenBundle {
        let bundle = try OpenBundle(folder, precision: configuration.precision)
        let mark = configuration.verified.appendingPathComponent(bundle.mark)
        guard verifies, !FileManager.default.fileExists(atPath: mark.path) else { return bundle }
        try bundle.verify { report(.verifying($0)) }
        // What is not noted is only verified again.
        try? FileManager.default.createDirectory(at: configuration.verified, withIntermediateDirectories: true)
        try? Data().write(to: mark)
        return bundle
    }
    switch source {
    case .folder(let folder): return try opened(folder)
    case .hub(let repository, let revision, let parent):
        let download = try HubDownload(
            repository, revision: revision, precision: configuration.precision, into: parent,
            endpoint: configuration.hub, token: configuration.hubToken, inBackground: configuration.downloadsInBackground)
        try await download { report(.downloading($0)) }
        do {
            return try opened(download.folder)
        } catch VoxCPMError.bundle {
            // Damaged on this device, which users cannot fix: download again.
            try? FileManager.default.removeItem(at: download.folder)
            try await download { report(.downloading($0)) }
            return try opened(download.folder)
        }
    }
}

/// A step model on the first compute unit that loads it.
func loadedModel(
    _ name: StepModelName, of bundle: OpenBundle, _ configuration: Configuration, _ report: Report
) async throws -> (any StepFunction, ComputeUnit) {
    let units = configuration.units(for: name)
    var reasons: [String] = []
    for unit in units {
        try Task.checkCancellation()
        report(.compiling(name))
        do {
            var parts: [any StepFunction] = []
            for package in bundle.packages(of: name) {
                parts.append(try await configuration.predictor.load(package, on: unit))
                try Task.checkCancellation()
            }
            return (parts.count == 1 ? parts[0] : JoinedStepFunction(parts: parts), unit)
        } catch let error as CancellationError {
            throw error
        } catch VoxCPMError.loading(_, let reason) {
            reasons.append("\(unit.rawValue): \(reason)")
            report(.fellBack(name, unit, reason: reason))
        } catch let error as VoxCPMError {
            throw error
        } catch let problem {
            reasons.append("\(unit.rawValue): \(reason(problem))")
            report(.fellBack(name, unit, reason: reason(problem)))
        }
    }
    throw VoxCPMError.loading(
        model: name.rawValue, reason: reasons.isEmpty ? "no compute units to try" : reasons.joined(separator: "; "))
}
