import Foundation
import XCTest

#if os(Linux)
import CoreML
#endif

@testable import VoxCPM
import VoxCPMCoreAI
import VoxCPMCoreML

/// Cases of tests/swift/driver.py: inputs, and the outputs of Python's driver.
final class DriverTests: XCTestCase {
    private func predictor(_ target: Manifest.Target) -> any Predictor {
        #if canImport(CoreAI)
        if target == .macOS27, #available(macOS 27, iOS 27, *) { return CoreAIPredictor() }
        #endif
        return CoreMLPredictor(cache: Recorded.cache)
    }

    #if os(Linux)
    func testTheGPUInTheBackgroundIsAnErrorThatNamesTheSetting() async throws {
        let recorded = try Recorded.first("driver", "-zero-shot"), bundle = try OpenBundle(recorded.url("bundle"))
        guard bundle.manifest.target != .macOS27 else { return }
        var configuration = Configuration(cache: Recorded.cache)
        configuration.computeUnits = [.locDiTStep: [.cpuAndGPU], .locDiTSolve: [.cpuAndGPU]]
        let tts = TextToSpeech(.folder(bundle.folder), configuration)
        for try await _ in tts.prepare() {}
        MLModel.isInBackground = true
        defer { MLModel.isInBackground = false }
        do {
            _ = try await tts.speak("the river runs")
            XCTFail("it spoke")
        } catch VoxCPMError.prediction(_, let reason) {
            XCTAssertTrue(reason.contains("speaksInBackground"), reason)
        }
        configuration.speaksInBackground = true
        _ = try await TextToSpeech(.folder(bundle.folder), configuration).speak("the river runs")
    }

    func testCompiledModelsOfAnotherSystemAreDeleted() async throws {
        let cache = FileManager.default.temporaryDirectory.appendingPathComponent(UUID().uuidString)
        defer { try? FileManager.default.removeItem(at: cache) }
        let bundle = try OpenBundle(Recorded.first("driver", "-zero-shot").url("bundle"))
        guard bundle.manifest.target != .macOS27 else { return }
        for name in ["\(String(repeating: "a", count: 64))-Version140.mlmodelc", "half"] {
            try FileManager.default.createDirectory(
                at: cache.appendingPathComponent(name), withIntermediateDirectories: true)
        }
        let predictor = CoreMLPredictor(cache: cache)
        for name in [StepModelName.featEncoder, .residualLMStep] {
            _ = try await predictor.load(bundle.packages(of: name)[0], on: .cpu)
        }
        let left = try FileManager.default.contentsOfDirectory(atPath: cache.path)
        XCTAssertEqual(left.count, 2, "\(left)")
        XCTAssertTrue(left.allSatisfy { !$0.contains("Version140") && $0 != "half" }, "\(left)")
    }

    func testVectorsAgreeWithStackedCaches() async throws {
        let bundle = try OpenBundle(Recorded.first("driver", "-zero-shot").url("bundle"))
        guard bundle.manifest.kvCache == .stacked else { return }
        for precision in bundle.manifest.precisions {
            let tts = TextToSpeech(.folder(bundle.folder), Configuration(precision: precision, cache: Recorded.cache))
            let found = try await tts.examine()
            XCTAssertEqual(found.count, 7)
            for one in found {
                XCTAssertTrue(one.isCorrect, "\(one)")
                XCTAssertEqual(one.streams["last_16"] != nil, one.model.rawValue.contains("lm_"))
            }
        }
    }
    #endif

    func testSpeaksAsPython() async throws {
        let cases = try Recorded.cases("driver")
        for recorded in cases {
            let precision = Manifest.Precision(rawValue: recorded.string("precision"))
            let bundle = try OpenBundle(recorded.url("bundle"), precision: precision)
            let predictor = predictor(bundle.manifest.target)
            var models: [StepModelName: any StepFunction] = [:]
            for name in bundle.manifest.names {
                var parts: [any StepFunction] = []
                for package in bundle.packages(of: name) {
                    parts.append(try await predictor.load(package, on: predictor.units(for: name)[0]))
                }
                models[name] = parts.count == 1 ? parts[0] : JoinedStepFunction(parts: parts)
            }
            let constants = try Constants(bundle.folder, bundle.manifest.architecture)
            let driver = try Driver(manifest: bundle.manifest, constants: constants, models: models)
            let width = driver.patchValues
            var noise = try recorded.floats("noise")[...]
            let prompt = Rows(width: width, values: try recorded.floats("prompt"))
            let reference = Rows(width: width, values: try recorded.floats("reference"))
            let sequence = InputSequence(text: recorded.integers("tokens"), prompt: prompt, reference: reference)
            let solving = Solving(
                steps: recorded.integer("steps"), cfgValue: 2, swaySamplingCoef: 1, useCfgZeroStar: true,
                embeddingWidth: driver.architecture.ditWidth, meanMode: driver.architecture.meanMode)
            let prefilled = try await driver.prefill(sequence)
            let decoder = try await driver.patchDecoder(after: sequence)
            let expected = Rows(width: width, values: try recorded.floats("latents"))
            var conditions = prefilled.next, latents: [Float] = [], samples: [Float] = []
            for index in 0..<expected.count {
                let patch = try await driver.predict(conditions, noise: Array(noise.prefix(width)), solving)
                noise = noise.dropFirst(width)
                latents += patch
                samples += try await decoder(expected[index])
                // Python's patch, as free runs diverge when rounding flips a step of the quantiser.
                conditions = try await driver.advance(prefilled, index: index, patch: expected[index])
            }
            let spoken = relativeError(latents, expected.values)
            let heard = relativeError(samples, try recorded.floats("samples"))
            print(recorded.name, "latents", spoken, "samples", heard)
            let maxError = try XCTUnwrap(maxErrors[bundle.precision.rawValue])
            XCTAssertLessThan(spoken, maxError, recorded.name)
            XCTAssertLessThan(heard, maxError, recorded.name)
            if !prompt.values.isEmpty {
                let encoded = try await driver.encode(recorded.floats("prompt_audio"), padding: .left)
                XCTAssertLessThan(relativeError(encoded.values, prompt.values), maxError, recorded.name)
            }
            if !reference.values.isEmpty {
                let encoded = try await driver.encode(recorded.floats("reference_audio"), padding: .right)
                XCTAssertLessThan(relativeError(encoded.values, reference.values), maxError, recorded.name)
            }
        }
    }
}
