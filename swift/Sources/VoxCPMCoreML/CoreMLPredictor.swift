// On Linux this is compiled and run with stand-ins. It has never been run on a Mac or a phone.

@preconcurrency import CoreML
import Foundation
import VoxCPM

/// Loads a bundle's `.mlpackage` folders with Core ML, compiled once into a cache folder.
public struct CoreMLPredictor: Predictor {
    private let cache: URL

    /// - Parameter cache: a folder for compiled models; nil for one in the system's caches.
    public init(cache: URL? = nil) {
        self.cache = cache ?? FileManager.default.urls(for: .cachesDirectory, in: .userDomainMask)[0]
            .appendingPathComponent("voxcpm-compiled")
    }

    /// See docs/bundle.md, "Which compute unit for which model".
    public func units(for model: StepModelName) -> [ComputeUnit] {
        switch model {
        case .audioVAEEncoder, .audioVAEDecoder: [.cpu]
        case .featEncoder, .locDiTStep, .locDiTSolve: [.cpuAndNeuralEngine, .cpuAndGPU, .cpu]
        case .baseLMStep, .residualLMStep: [.cpuAndGPU, .cpu]
        }
    }

    /// Compile a package on first use, and load it. Throws `VoxCPMError.loading` if Core ML rejects it.
    public func load(_ package: StepPackage, on unit: ComputeUnit) async throws -> any StepFunction {
        let compiled = try await compiled(package)
        return try await CoreMLStepFunction(package, unit) { index in
            let configuration = MLModelConfiguration()
            configuration.computeUnits = unit.units
            if #available(macOS 14.4, iOS 17.4, *), index == 0 || package.functions.count > 1 {
                // Core ML optimizes again when a shape changes. This instance has one shape only.
                configuration.optimizationHints.reshapeFrequency = .infrequent
            }
            let function = package.functions[min(index, package.functions.count - 1)]
            if #available(macOS 15, iOS 18, *) {
                configuration.functionName = function
            } else if function != nil {
                throw VoxCPMError.unsupported("this bundle needs macOS 15 or iOS 18")
            }
            do {
                return try await MLModel.load(contentsOf: compiled, configuration: configuration)
            } catch {
                throw VoxCPMError.loading(
                    model: package.declaration.name, reason: (error as NSError).localizedDescription)
            }
        }
    }

    /// The compiled model: the bundle's own, or a cached one. Compiling takes seconds to minutes.
    private func compiled(_ package: StepPackage) async throws -> URL {
        let files = FileManager.default
        let beside = package.folder.deletingPathExtension().appendingPathExtension("mlmodelc")
        if files.fileExists(atPath: beside.path) { return beside }
        let system = ProcessInfo.processInfo.operatingSystemVersionString.filter { $0.isLetter || $0.isNumber }
        let suffix = "-\(system).mlmodelc"
        let kept = cache.appendingPathComponent("\(package.contentKey)\(suffix)")
        if files.fileExists(atPath: kept.path) { return kept }
        let fresh: URL
        do {
            fresh = try await MLModel.compileModel(at: package.folder)
        } catch {
            throw VoxCPMError.loading(
                model: package.declaration.name, reason: (error as NSError).localizedDescription)
        }
        do {
            try files.createDirectory(at: cache, withIntermediateDirectories: true)
            // Other builds of the system compiled the others, which nothing reads again.
            for name in try files.contentsOfDirectory(atPath: cache.path) where !name.hasSuffix(suffix) {
                try? files.removeItem(at: cache.appendingPathComponent(name))
            }
            try files.moveItem(at: fresh, to: kept)
        } catch {
            // Another process may have created it.
            guard files.fileExists(atPath: kept.path) else {
                throw VoxCPMError.storage(path: cache.path, problem: (error as NSError).localizedDescription)
            }
        }
        return kept
    }
}

extension ComputeUnit {
    var units: MLComputeUnits {
        switch self {
        case .cpu: .cpuOnly
        case .cpuAndGPU: .cpuAndGPU
        case .cpuAndNeuralEngine: .cpuAndNeuralEngine
        }
    }
}

extension Configuration {
    /// A bundle on Core ML.
    ///
    /// - Parameters:
    ///   - precision: one of the bundle's; nil for the smallest.
    ///   - cache: a folder for compiled models; nil for one in the system's caches.
    public init(precision: Manifest.Precision? = nil, cache: URL? = nil) {
        self.init(predictor: CoreMLPredictor(cache: cache), precision: precision)
    }
}
