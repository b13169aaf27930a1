import Foundation
import XCTest

@testable import VoxCPM
@testable import VoxCPMCoreML

/// Cases that tests/swift/record.py wrote: inputs, and what Python's driver made of them.
final class DriverTests: XCTestCase {
    func testSpeaksAsPython() async throws {
        let cases = try Recorded.cases("driver")
        for recorded in cases {
            let bundle = try OpenBundle(recorded.url("bundle"), precision: .init(rawValue: recorded.string("precision")))
            let predictor = CoreMLPredictor(cache: FileManager.default.temporaryDirectory)
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
                steps: 10, cfgValue: 2, swaySamplingCoef: 1, useCfgZeroStar: true,
                embeddingWidth: driver.architecture.ditWidth, meanMode: driver.architecture.meanMode)
            let prefilled = try await driver.prefill(sequence)
            let decoder = try await driver.patchDecoder(after: sequence)
            var conditions = prefilled.next, latents: [Float] = [], samples: [Float] = []
            for index in 0..<(noise.count / width) {
                let patch = try await driver.predict(conditions, noise: Array(noise.prefix(width)), solving)
                noise = noise.dropFirst(width)
                latents += patch
                samples += try await decoder(patch)
                conditions = try await driver.advance(prefilled, index: index, patch: patch)
            }
            let found = correlation(latents, try recorded.floats("latents"))
            let heard = correlation(samples, try recorded.floats("samples"))
            print(recorded.name, "latents", found, "samples", heard)
            XCTAssertGreaterThan(found, 0.99999, recorded.name)
            XCTAssertGreaterThan(heard, 0.99999, recorded.name)
        }
    }
}
