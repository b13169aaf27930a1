// VoxCPM on Core ML: zero-shot speech, and the continuation of a recording, in one file without dependencies.
//
// NEVER RUN ON A MAC OR A PHONE, nor compiled against Apple's frameworks: the project had no Mac when this was written.
// It was compiled with Swift 6.0 on Linux against stand-ins for them (tests/swift_stand_in), and speaks the samples of
// the Python driver there. On a Mac, check it with docs/bundle.md, "Check your own loop".
//
// It follows runtime/voxcpm_runtime/model/: driver, flow_matching, sequence, projections, chunk_plan and audio_vae.
// Names, shapes and lengths of tensors come from the bundle's manifest.json.
//
// Systems: macOS 14 and iOS 17, with a bundle for macOS15: macOS 15 and iOS 18.
// Left out: reference voices, control, texts longer than one utterance, retries, bundles for several utterances, and
// those converted with --kv-cache rows or --split-gigabytes.

import AVFoundation
import Accelerate
import CoreML
import CryptoKit
import Foundation

// MARK: - Constants

/// Numbers that the Python driver has, too; the test reads them from here.
enum Constant {
    static let schemaVersion = 3
    static let audioStart = 101
    static let stopIndex = 1
    static let zeroVelocityFraction = 0.04
    static let normFloor: Float = 1e-8
    static let angleScale: Float = 1000
    static let lowestFrequency = 1e-4
    static let callCost = 8
    static let patchesBeyondTheRatio = 10
    static let peak: Float = 32767
    static let oneChinese: ClosedRange<UInt32> = 0x4E00...0x9FFF
    /// Prompt patches that the decoder hears before the first generated one.
    static let decoderContextPatches = ["voxcpm": 2, "voxcpm2": 3]
    /// Packages whose caches are Core ML states in a bundle for macOS15, and that have one function for each length.
    static let modelsWithCaches = ["base_lm_step", "residual_lm_step"]
    /// Where each step model runs; the reasons are in docs/bundle.md, "Which compute unit for which model".
    static let computeUnits: [String: MLComputeUnits] = [
        "audio_vae_encoder": .cpuOnly,
        "audio_vae_decoder": .cpuOnly,
        "feat_encoder": .cpuAndNeuralEngine,
        "base_lm_step": .cpuAndGPU,
        "residual_lm_step": .cpuAndGPU,
        "locdit_step": .cpuAndNeuralEngine,
    ]
}

/// The generation options that this driver has, with the project's defaults.
struct SpeechOptions {
    var cfgValue: Float = 2.0
    var inferenceTimesteps = 10
    var temperature: Float = 1.0
    var swaySamplingCoef: Float = 1.0
    var useCfgZeroStar = true
    var minLen = 2
    var maxLen = 4096
    var retryBadcaseRatioThreshold = 6.0
}

struct SpeechError: LocalizedError {
    let errorDescription: String?

    init(_ description: String) { errorDescription = description }
}

// MARK: - The manifest

/// The parts of manifest.json that a driver needs, under the names that they have there.
struct Manifest: Decodable {
    struct Axis: Decodable {
        /// The lengths that the axis may have: one, or all that are enumerated.
        let lengths: [Int]

        init(from decoder: Decoder) throws {
            let container = try decoder.singleValueContainer()
            if let length = try? container.decode(Int.self) {
                lengths = [length]
            } else {
                lengths = try container.decode([Int].self)
            }
        }
    }

    struct Tensor: Decodable {
        let name: String
        let shape: [Axis]
        let dtype: String
    }

    struct StepModel: Decodable {
        let name: String
        let inputs: [Tensor]
        let outputs: [Tensor]
        let state: [Tensor]

        /// The first input with an enumerated axis, and that axis; else the first input and axis 1.
        var chunkAxis: (tensor: Tensor, axis: Int) {
            for tensor in inputs {
                if let axis = tensor.shape.firstIndex(where: { $0.lengths.count > 1 }) { return (tensor, axis) }
            }
            return (inputs[0], 1)
        }

        var chunkLengths: [Int] { chunkAxis.tensor.shape[chunkAxis.axis].lengths }

        /// The lengths that an axis of an input may have.
        func lengths(_ input: String, _ axis: Int) throws -> [Int] {
            guard let tensor = inputs.first(where: { $0.name == input }), axis < tensor.shape.count else {
                throw SpeechError("\(name) has no input \(input); the bundle is of another release")
            }
            return tensor.shape[axis].lengths
        }
    }

    struct Sizes: Decodable {
        let kv_length: Int
        let base_lm_parts: Int
    }

    struct LanguageModel: Decodable {
        let hidden_size: Int
        let use_mup: Bool
        let scale_emb: Float
    }

    struct DiT: Decodable {
        let dit_mean_mode: Bool
    }

    struct AudioVAE: Decodable {
        let sample_rate: Int
        let out_sample_rate: Int?
    }

    struct Architecture: Decodable {
        let architecture: String
        let patch_size: Int
        let feat_dim: Int
        let dit_mean_mode: Bool
        let lm_config: LanguageModel
        let dit_config: DiT
        let audio_vae_config: AudioVAE
    }

    struct File: Decodable {
        let sha256: String
    }

    let schema_version: Int
    let architecture: Architecture
    let sizes: Sizes
    let step_models: [String: StepModel]
    let precisions: [String]
    let target: String
    let kv_cache: String
    let files: [String: File]

    var isSecondGeneration: Bool { architecture.architecture == "voxcpm2" }

    /// Whether the DiT is told the length of a step.
    var meanMode: Bool { isSecondGeneration ? architecture.dit_config.dit_mean_mode : architecture.dit_mean_mode }

    /// A name that changes with the content of a step model's package.
    func packageKey(_ package: String) -> String {
        let records = files.filter { $0.key.hasPrefix("\(package)/") }.map { "\($0.key) \($0.value.sha256)" }
        let digest = SHA256.hash(data: Data(records.sorted().joined(separator: "\n").utf8))
        return digest.map { String(format: "%02x", $0) }.joined()
    }
}

// MARK: - Arrays

/// Numbers in C order: the last axis is contiguous.
struct Tensor {
    let shape: [Int]
    let values: [Float]

    /// A new array for Core ML, int32 where the declaration says so.
    func multiArray(dtype: String) throws -> MLMultiArray {
        let type: MLMultiArrayDataType = dtype == "int32" ? .int32 : .float32
        let array = try MLMultiArray(shape: shape.map { NSNumber(value: $0) }, dataType: type)
        array.withUnsafeMutableBytes { bytes, strides in
            forEachOffset(shape, strides) { index, offset in
                if type == .int32 {
                    bytes.storeBytes(of: Int32(values[index]), toByteOffset: 4 * offset, as: Int32.self)
                } else {
                    bytes.storeBytes(of: values[index], toByteOffset: 4 * offset, as: Float.self)
                }
            }
        }
        return array
    }
}

/// Calls `body(index in C order, offset in elements)` for each element of an array with these strides.
func forEachOffset(_ shape: [Int], _ strides: [Int], _ body: (Int, Int) -> Void) {
    let width = shape.last ?? 1, step = strides.last ?? 1
    guard width > 0 else { return }
    for row in 0..<(shape.reduce(1, *) / width) {
        var rest = row, start = 0
        for axis in stride(from: shape.count - 2, through: 0, by: -1) {
            start += (rest % shape[axis]) * strides[axis]
            rest /= shape[axis]
        }
        for column in 0..<width { body(row * width + column, start + column * step) }
    }
}

/// The numbers of a result in C order. Core ML may pad its rows: reading them without the strides gives noise.
func floats(_ array: MLMultiArray) throws -> [Float] {
    let shape = array.shape.map(\.intValue), strides = array.strides.map(\.intValue)
    var values = [Float](repeating: 0, count: shape.reduce(1, *))
    let type = array.dataType
    guard type == .float32 || type == .float16 else { throw SpeechError("a result is neither float32 nor float16") }
    array.withUnsafeBytes { buffer in
        guard let bytes = buffer.baseAddress else { return }
        forEachOffset(shape, strides) { index, offset in
            values[index] = type == .float32
                ? bytes.loadUnaligned(fromByteOffset: 4 * offset, as: Float.self)
                : float(half: bytes.loadUnaligned(fromByteOffset: 2 * offset, as: UInt16.self))
        }
    }
    return values
}

/// A float16 by its bits; Swift has no Float16 on Intel Macs.
func float(half bits: UInt16) -> Float {
    let sign = UInt32(bits & 0x8000) << 16, exponent = UInt32(bits >> 10) & 0x1F, fraction = UInt32(bits & 0x3FF)
    switch exponent {
    case 0: return (sign == 0 ? 1 : -1) * Float(fraction) * 0x1p-24
    case 31: return Float(bitPattern: sign | 0x7F80_0000 | fraction << 13)
    default: return Float(bitPattern: sign | (exponent + 112) << 23 | fraction << 13)
    }
}

/// Rows and columns of a matrix in C order, exchanged.
func transposed(_ values: [Float], rows: Int, columns: Int) -> [Float] {
    var result = [Float](repeating: 0, count: values.count)
    for row in 0..<rows {
        for column in 0..<columns { result[column * rows + row] = values[row * columns + column] }
    }
    return result
}

/// A constant of the bundle: a .npy file in C order, mapped into memory, so that a row costs only itself.
struct NumpyArray {
    let shape: [Int]
    private let data: Data
    private let start: Int
    private let isHalf: Bool

    init(_ url: URL) throws {
        data = try Data(contentsOf: url, options: .alwaysMapped)
        let length = data.count < 12 ? 0 : data[6] == 1 ? Int(data[8]) | Int(data[9]) << 8
            : Int(data[8]) | Int(data[9]) << 8 | Int(data[10]) << 16 | Int(data[11]) << 24
        start = (data.count > 6 && data[6] == 1 ? 10 : 12) + length
        guard length > 0, start <= data.count else { throw SpeechError("\(url.path): expected a .npy file") }
        let header = String(decoding: data[(start - length)..<start], as: UTF8.self)
        guard
            let shapes = header.firstMatch(of: #/'shape': \(([0-9, ]*)\)/#),
            let type = header.firstMatch(of: #/'descr': '<f([24])'/#),
            header.contains("'fortran_order': False")
        else { throw SpeechError("\(url.path): expected float16 or float32 in C order") }
        shape = shapes.1.split(separator: ",").compactMap { Int($0.trimmingCharacters(in: .whitespaces)) }
        isHalf = type.1 == "2"
        guard data.count == start + shape.reduce(1, *) * (isHalf ? 2 : 4) else {
            throw SpeechError("\(url.path): expected \(shape) numbers, the file has another length")
        }
    }

    /// Numbers `range` of the array, counted in C order.
    subscript(range: Range<Int>) -> [Float] {
        data.withUnsafeBytes { bytes in
            range.map { index in
                isHalf
                    ? float(half: bytes.loadUnaligned(fromByteOffset: start + 2 * index, as: UInt16.self))
                    : bytes.loadUnaligned(fromByteOffset: start + 4 * index, as: Float.self)
            }
        }
    }

    var values: [Float] { self[0..<shape.reduce(1, *)] }
}

/// x · wᵀ + b, with w (out, in) and b (out,) of the bundle.
struct Projection {
    private let weight: [Float]
    private let bias: [Float]

    init(_ folder: URL, _ stem: String) throws {
        weight = try NumpyArray(folder.appending(path: "\(stem)_w.npy")).values
        bias = try NumpyArray(folder.appending(path: "\(stem)_b.npy")).values
    }

    func callAsFunction(_ x: [Float]) -> [Float] {
        var y = [Float](repeating: 0, count: bias.count)
        vDSP_mmul(weight, 1, x, 1, &y, 1, vDSP_Length(bias.count), 1, vDSP_Length(x.count))
        return vDSP.add(y, bias)
    }
}

// MARK: - Text

/// BPE as published VoxCPM tokenizers have it: Llama's word starts, bytes for unknown characters, no BOS, and tokens of
/// several Chinese characters split into single ones. Special tokens that are spelled out in a text are not cut out.
struct TextTokenizer {
    // Keys are bytes: Swift's strings are equal if they look the same, and a vocabulary has several spellings of some.
    private var ids: [[UInt8]: Int] = [:]
    private var tokens: [Int: [UInt8]] = [:]
    private var merges: [[Int]: (rank: Int, merged: Int)] = [:]
    private let unknown: Int?
    private static let wordStart: Unicode.Scalar = "\u{2581}"

    init(_ url: URL) throws {
        // Not JSONDecoder, whose keys are Swift's strings.
        let document = try JSONSerialization.jsonObject(with: Data(contentsOf: url)) as? NSDictionary
        guard
            let model = document?["model"] as? NSDictionary, let vocabulary = model["vocab"] as? NSDictionary,
            let normalizers = (document?["normalizer"] as? NSDictionary)?["normalizers"] as? [NSDictionary],
            normalizers.compactMap({ $0["type"] as? String }) == ["Prepend", "Replace"]
        else { throw SpeechError("\(url.path): not a tokenizer of Llama's form; pass a tokenizer of your own") }
        for case let (token as NSString, id as NSNumber) in vocabulary {
            let bytes = Array((token as String).utf8)
            ids[bytes] = id.intValue
            tokens[id.intValue] = bytes
        }
        unknown = ids[Array("<unk>".utf8)]
        for (rank, merge) in (model["merges"] as? [Any] ?? []).enumerated() {
            let pair = merge as? [NSString] ?? (merge as? NSString)?.components(separatedBy: " ").map { $0 as NSString }
            guard let parts = pair?.map({ Array(($0 as String).utf8) }), parts.count == 2 else { continue }
            if let left = ids[parts[0]], let right = ids[parts[1]], let merged = ids[parts[0] + parts[1]] {
                merges[[left, right]] = (rank, merged)
            }
        }
    }

    func callAsFunction(_ text: String) -> [Int] {
        var scalars = text.unicodeScalars.map { $0 == " " ? Self.wordStart : $0 }
        if scalars.first != Self.wordStart { scalars.insert(Self.wordStart, at: 0) }
        var symbols: [Int] = []
        for scalar in scalars { append(scalar, to: &symbols) }
        while true {
            // Of two equal pairs the first.
            var best: (rank: Int, merged: Int)?, place = 0
            for index in symbols.indices.dropLast() {
                if let merge = merges[[symbols[index], symbols[index + 1]]], merge.rank < best?.rank ?? Int.max {
                    best = merge
                    place = index
                }
            }
            guard let best else { break }
            symbols.replaceSubrange(place...(place + 1), with: [best.merged])
        }
        return symbols.flatMap(split)
    }

    private func append(_ scalar: Unicode.Scalar, to symbols: inout [Int]) {
        let bytes = Array(String(scalar).utf8)
        let spelled = bytes.compactMap { ids[Array(String(format: "<0x%02X>", $0).utf8)] }
        if let id = ids[bytes] {
            symbols.append(id)
        } else if spelled.count == bytes.count {
            symbols += spelled
        } else if let unknown, symbols.last != unknown {
            symbols.append(unknown)
        }
    }

    private func split(_ id: Int) -> [Int] {
        let token = String(decoding: tokens[id] ?? [], as: UTF8.self)
        let bare = token.unicodeScalars.filter { $0 != Self.wordStart }
        let isChinese = bare.count > 1 && bare.allSatisfy { Constant.oneChinese.contains($0.value) }
        guard isChinese, ids[bare.flatMap { Array(String($0).utf8) }] != nil else { return [id] }
        return bare.compactMap { ids[Array(String($0).utf8)] ?? unknown }
    }
}

// MARK: - Step models

/// KV caches or convolution contexts of one stream. Never share one between two utterances.
final class StepState {
    /// Inputs of the next call, where the app passes the state.
    fileprivate var passed: [String: MLFeatureValue] = [:]
    /// An MLState, where Core ML keeps it; the type exists from macOS 15 on.
    fileprivate var native: Any?
}

/// One package of the bundle.
final class StepModel {
    let declared: Manifest.StepModel
    private let keepsState: Bool
    private let functions: [MLModel]

    /// Names of a package's functions, one for each length; nil is the only function of a package.
    static func functionNames(_ lengths: [Int], keepsState: Bool) -> [String?] {
        keepsState && lengths.count > 1 ? lengths.map { $0 == 1 ? "decode" : "prefill_\($0)" } : [nil]
    }

    init(_ name: String, bundle: URL, manifest: Manifest, precision: String, cache: URL) async throws {
        guard let declared = manifest.step_models[name] else { throw SpeechError("the bundle has no \(name)") }
        self.declared = declared
        keepsState = manifest.target == "macOS15" && Constant.modelsWithCaches.contains(name)
        let path = "\(precision)/\(name).mlpackage"
        let compiled = try await StepModel.compiled(
            bundle.appending(path: path), into: cache, key: manifest.packageKey(path))
        functions = try StepModel.functionNames(declared.chunkLengths, keepsState: keepsState).map { function in
            let configuration = MLModelConfiguration()
            configuration.computeUnits = Constant.computeUnits[name] ?? .cpuOnly
            if #available(macOS 14.4, iOS 17.4, *) {
                // Lengths are enumerated, and speech keeps to one of them for long.
                configuration.optimizationHints.reshapeFrequency = .infrequent
            }
            if #available(macOS 15, iOS 18, *) {
                configuration.functionName = function
            } else if function != nil {
                throw SpeechError("this bundle needs macOS 15 or iOS 18")
            }
            return try MLModel(contentsOf: compiled, configuration: configuration)
        }
    }

    /// The compiled model: the bundle's own, or one that is compiled once and kept. Compiling takes seconds to minutes.
    private static func compiled(_ package: URL, into cache: URL, key: String) async throws -> URL {
        let files = FileManager.default
        let beside = package.deletingPathExtension().appendingPathExtension("mlmodelc")
        if files.fileExists(atPath: beside.path) { return beside }
        let system = ProcessInfo.processInfo.operatingSystemVersionString.filter { $0.isLetter || $0.isNumber }
        let kept = cache.appending(path: "\(key)-\(system).mlmodelc")
        if files.fileExists(atPath: kept.path) { return kept }
        let fresh = try await MLModel.compileModel(at: package)
        try files.createDirectory(at: cache, withIntermediateDirectories: true)
        do {
            try files.moveItem(at: fresh, to: kept)
        } catch {
            // Another process may have been faster.
            guard files.fileExists(atPath: kept.path) else { throw error }
        }
        return kept
    }

    /// The state at the start of a stream: zeros.
    func newState() throws -> StepState {
        let state = StepState()
        if keepsState {
            // One state for all functions of the package, made by the default one, which is the first.
            if #available(macOS 15, iOS 18, *) { state.native = functions[0].makeState() }
            return state
        }
        for tensor in declared.state {
            let shape = tensor.shape.map { NSNumber(value: $0.lengths[0]) }
            let constraint = functions[0].modelDescription.inputDescriptionsByName[tensor.name]?.multiArrayConstraint
            let zeros = try MLMultiArray(shape: shape, dataType: constraint?.dataType ?? .float16)
            zeros.withUnsafeMutableBytes { bytes, _ in _ = bytes.initializeMemory(as: UInt8.self, repeating: 0) }
            state.passed[tensor.name] = MLFeatureValue(multiArray: zeros)
        }
        return state
    }

    /// One step: outputs in C order, by name. The state is updated.
    func callAsFunction(_ inputs: [String: Tensor], _ state: StepState? = nil) throws -> [String: [Float]] {
        var features = state?.passed ?? [:]
        for tensor in declared.inputs {
            guard let given = inputs[tensor.name] else { throw SpeechError("\(declared.name) needs \(tensor.name)") }
            features[tensor.name] = MLFeatureValue(multiArray: try given.multiArray(dtype: tensor.dtype))
        }
        let provider = try MLDictionaryFeatureProvider(dictionary: features)
        let model = try function(inputs)
        let results: MLFeatureProvider
        if #available(macOS 15, iOS 18, *), let native = state?.native as? MLState {
            results = try model.prediction(from: provider, using: native)
        } else {
            results = try model.prediction(from: provider)
            for tensor in declared.state {
                guard let after = results.featureValue(for: "\(tensor.name)_out") else {
                    throw SpeechError("\(declared.name) gave no \(tensor.name)_out; its caches have another form")
                }
                state?.passed[tensor.name] = after
            }
        }
        var outputs: [String: [Float]] = [:]
        for tensor in declared.outputs {
            guard let array = results.featureValue(for: tensor.name)?.multiArrayValue else {
                throw SpeechError("\(declared.name) gave no \(tensor.name)")
            }
            outputs[tensor.name] = try floats(array)
        }
        return outputs
    }

    private func function(_ inputs: [String: Tensor]) throws -> MLModel {
        guard functions.count > 1 else { return functions[0] }
        let (tensor, axis) = declared.chunkAxis
        guard
            let length = inputs[tensor.name]?.shape[axis],
            let index = declared.chunkLengths.firstIndex(of: length)
        else { throw SpeechError("\(declared.name) takes the lengths \(declared.chunkLengths)") }
        return functions[index]
    }
}

/// Items start ..< start + length, run as `size` items, of which the last are padding.
struct Chunk: Equatable {
    let start: Int
    let length: Int
    let size: Int
}

/// The cheapest way to run `count` items in chunks of `sizes`. Padding is written into the cache, too, so it must fit.
func planChunks(_ count: Int, _ sizes: [Int], position: Int = 0, capacity: Int? = nil) throws -> [Chunk] {
    let end = position + count
    var best: [(cost: Int, size: Int)] = [(0, 0)]
    for left in stride(from: 1, through: count, by: 1) {
        var chosen: (cost: Int, size: Int)?
        for size in sizes {
            if let capacity, size > left, end - left + size > capacity { continue }
            let cost = Constant.callCost + size + best[max(0, left - size)].cost
            if let known = chosen, (known.cost, -known.size) <= (cost, -size) { continue }
            chosen = (cost, size)
        }
        guard let chosen else { throw SpeechError("\(count) items at position \(position) do not fit the KV cache") }
        best.append(chosen)
    }
    var chunks: [Chunk] = [], start = 0
    while start < count {
        let size = best[count - start].size
        chunks.append(Chunk(start: start, length: min(size, count - start), size: size))
        start += size
    }
    return chunks
}

// MARK: - Noise

/// Numbers from the standard normal distribution. To check the loop, give it the recorded noise of docs/bundle.md.
protocol NoiseSource {
    mutating func standardNormal(_ count: Int) -> [Float]
}

/// SplitMix64 and Box and Muller's transform: the same seed, the same speech; other noise than numpy's.
struct GaussianNoise: NoiseSource {
    private var state: UInt64

    init(seed: UInt64) { state = seed }

    mutating func standardNormal(_ count: Int) -> [Float] {
        (0..<count).map { _ in Float((-2 * log(uniform())).squareRoot() * cos(2 * Double.pi * uniform())) }
    }

    /// In (0, 1].
    private mutating func uniform() -> Double {
        state &+= 0x9E37_79B9_7F4A_7C15
        var z = state
        z = (z ^ (z >> 30)) &* 0xBF58_476D_1CE4_E5B9
        z = (z ^ (z >> 27)) &* 0x94D0_49BB_1331_11EB
        return Double((z ^ (z >> 31)) >> 11 + 1) * 0x1p-53
    }
}

// MARK: - The solver

/// Times from 1 (noise) to 0 (data), steps + 1 of them, denser near the noise.
func timeSpan(_ steps: Int, _ swaySamplingCoef: Float) -> [Float] {
    let step = 1 / Float(steps)
    return (0...steps).map { index in
        let linear = 2 * index < steps + 1 ? 1 - step * Float(index) : step * Float(steps - index)
        return linear + swaySamplingCoef * (cos(Float(Double.pi / 2) * linear) - 1 + linear)
    }
}

/// Number of first steps with zero velocity (CFG-zero*).
func zeroVelocitySteps(_ steps: Int) -> Int {
    max(1, Int(Double(steps + 1) * Constant.zeroVelocityFraction))
}

/// The sinusoids of a time: the sines of all frequencies, then the cosines.
func timeEmbedding(_ time: Float, width: Int) -> [Float] {
    let half = width / 2
    let decay = Float(log(Constant.lowestFrequency) / Double(half - 1))
    let angles = (0..<half).map { Constant.angleScale * time * exp(Float($0) * decay) }
    return angles.map { sin($0) } + angles.map { cos($0) }
}

/// The velocity of a patch from the conditional and the unconditional row.
func guidedVelocity(_ rows: [Float], _ cfgValue: Float, useCfgZeroStar: Bool) -> [Float] {
    let conditional = Array(rows[..<(rows.count / 2)])
    var unconditional = Array(rows[(rows.count / 2)...])
    if useCfgZeroStar {
        let scale = vDSP.dot(conditional, unconditional)
            / (vDSP.dot(unconditional, unconditional) + Constant.normFloor)
        unconditional = vDSP.multiply(scale, unconditional)
    }
    return zip(conditional, unconditional).map { $1 + cfgValue * ($0 - $1) }
}

// MARK: - The driver

/// A recording to continue: mono samples at `inputSampleRate`, and what is said in it, with the space that separates it
/// from the text that follows.
struct Prompt {
    let samples: [Float]
    let transcript: String
}

/// An open bundle. Calls block for as long as they compute: use it off the main thread, one utterance at a time.
final class VoxCPMSpeech {
    let manifest: Manifest
    let inputSampleRate: Int
    let outputSampleRate: Int
    private let models: [String: StepModel]
    private let tokenizer: (String) -> [Int]
    private let embedTokens: NumpyArray
    private let lmToDiT: Projection
    private let residualToDiT: Projection
    private let fusion: Projection?
    private let hidden: Int
    private let frames: Int
    private let width: Int

    /// bundle: its folder. precision: one of the manifest's. cache: a folder for compiled models. tokenizer: a function
    /// from a text to token ids, without BOS, in place of this file's.
    init(bundle: URL, precision: String, cache: URL, tokenizer: ((String) -> [Int])? = nil) async throws {
        let document = try Data(contentsOf: bundle.appending(path: "manifest.json"))
        let manifest = try JSONDecoder().decode(Manifest.self, from: document)
        guard
            (2...Constant.schemaVersion).contains(manifest.schema_version),
            manifest.precisions.contains(precision)
        else { throw SpeechError("expected a bundle of this release, with \(precision)") }
        guard manifest.kv_cache == "scatter", manifest.sizes.base_lm_parts == 1 else {
            throw SpeechError("expected a bundle converted without --kv-cache rows and without --split-gigabytes")
        }
        guard Set(manifest.step_models.keys).isSuperset(of: Constant.computeUnits.keys) else {
            throw SpeechError("expected the step models \(Constant.computeUnits.keys.sorted())")
        }
        self.manifest = manifest
        let architecture = manifest.architecture
        inputSampleRate = architecture.audio_vae_config.sample_rate
        outputSampleRate = architecture.audio_vae_config.out_sample_rate ?? architecture.audio_vae_config.sample_rate
        frames = architecture.patch_size
        width = architecture.feat_dim
        hidden = architecture.lm_config.hidden_size
        let constants = bundle.appending(path: "constants")
        embedTokens = try NumpyArray(constants.appending(path: "embed_tokens.npy"))
        lmToDiT = try Projection(constants, "lm_to_dit_proj")
        residualToDiT = try Projection(constants, "res_to_dit_proj")
        fusion = try manifest.isSecondGeneration ? Projection(constants, "fusion_concat_proj") : nil
        if let tokenizer {
            self.tokenizer = tokenizer
        } else {
            let own = try TextTokenizer(bundle.appending(path: "tokenizer/tokenizer.json"))
            self.tokenizer = { own($0) }
        }
        var loaded: [String: StepModel] = [:]
        for name in Constant.computeUnits.keys.sorted() {
            loaded[name] = try await StepModel(
                name, bundle: bundle, manifest: manifest, precision: precision, cache: cache)
        }
        models = loaded
    }

    /// Speak a text. Each patch's samples, at `outputSampleRate`, are given to `onAudio` as soon as they are there; it
    /// returns false to end the speech.
    func speak(
        _ text: String,
        continuing prompt: Prompt? = nil,
        options: SpeechOptions = SpeechOptions(),
        noise source: NoiseSource = GaussianNoise(seed: .random(in: 0...UInt64.max)),
        onAudio: ([Float]) throws -> Bool
    ) throws {
        var noise = source
        let said = text.replacing(#/\s+/#, with: " ")
        let tokens = tokenizer((prompt?.transcript ?? "") + said) + [Constant.audioStart]
        let patches = try prompt.map { try encode($0.samples) } ?? []
        let positions = tokens.count + patches.count
        let room = manifest.sizes.kv_length - positions
        guard room >= options.minLen + 2 else { throw SpeechError("the text and the prompt do not fit the KV cache") }
        let byRatio = Double(tokenizer(said).count) * options.retryBadcaseRatioThreshold
        let limit = min(Int(byRatio + Double(Constant.patchesBeyondTheRatio)), options.maxLen, room)

        let base = try model("base_lm_step").newState(), residual = try model("residual_lm_step").newState()
        let decoder = try model("audio_vae_decoder").newState()

        // order: prefill
        let promptEmbeddings = try embed(patches)  // feat_encoder
        let embeddings = try tokens.map(embedding) + promptEmbeddings
        let heard = try baseStep(embeddings, base, at: 0)  // base_lm_step
        let states = (0..<positions).map { $0 < tokens.count ? heard.hidden[$0] : heard.quantised[$0] }
        let none = [Float](repeating: 0, count: hidden)
        let spoken = [[Float]](repeating: none, count: tokens.count) + promptEmbeddings
        let joined = zip(states, spoken).map { residualInput($0, $1) }
        var residualHidden = try residualStep(joined, residual, at: 0)  // residual_lm_step
        // order: end

        var lmHidden = states[positions - 1], stopLogits = heard.stopLogits
        var last = patches.last ?? [Float](repeating: 0, count: frames * width)
        let context = Constant.decoderContextPatches[manifest.architecture.architecture] ?? 0
        for patch in patches.suffix(context) { _ = try decode(patch, decoder) }

        for index in 0..<limit {
            let drawn = noise.standardNormal(width * frames).map { $0 * options.temperature }
            // order: patch
            let x = try solve(drawn, condition(lmHidden, residualHidden), last, options)  // locdit_step
            guard x.allSatisfy(\.isFinite) else { throw SpeechError("patch \(index): the models overflow") }
            let patch = transposed(x, rows: width, columns: frames)
            let stops = index > options.minLen && stopLogits[Constant.stopIndex] > stopLogits[0]
            let more = try onAudio(decode(patch, decoder))  // audio_vae_decoder
            if !more || stops || index + 1 == limit { return }
            let embedded = try embed([patch])  // feat_encoder
            let step = try baseStep(embedded, base, at: positions + index)  // base_lm_step
            lmHidden = step.quantised[0]
            stopLogits = step.stopLogits
            residualHidden = try residualStep(
                [residualInput(lmHidden, embedded[0])], residual, at: positions + index)  // residual_lm_step
            // order: end
            last = patch
        }
    }

    /// Latent patches of a recording, frames · width numbers each; zeros on the left fill the first patch.
    func encode(_ samples: [Float]) throws -> [[Float]] {
        let encoder = try model("audio_vae_encoder"), state = try encoder.newState()
        let lengths = try encoder.declared.lengths("audio", 2)
        guard let unit = lengths.min() else { return [] }
        let missing = (unit - samples.count % unit) % unit
        let padded = [Float](repeating: 0, count: missing) + samples
        var patches: [[Float]] = []
        for chunk in try planChunks(padded.count / unit, lengths.map { $0 / unit }) {
            var audio = Array(padded[(chunk.start * unit)..<((chunk.start + chunk.length) * unit)])
            audio += [Float](repeating: 0, count: chunk.size * unit - audio.count)
            let latents = try encoder(["audio": Tensor(shape: [1, 1, audio.count], values: audio)], state)["latents"]!
            // (width, size · frames) -> (size · frames, width)
            let rows = transposed(latents, rows: width, columns: chunk.size * frames)
            for patch in 0..<chunk.length {
                patches.append(Array(rows[(patch * frames * width)..<((patch + 1) * frames * width)]))
            }
        }
        return patches
    }

    /// Samples of one patch. A call always decodes one: streaming and whole speech are the same samples.
    private func decode(_ patch: [Float], _ state: StepState) throws -> [Float] {
        let latents = transposed(patch, rows: frames, columns: width)
        let input = Tensor(shape: [1, width, frames], values: latents)
        return try model("audio_vae_decoder")(["latents": input], state)["audio"]!
    }

    /// An embedding for each patch.
    private func embed(_ patches: [[Float]]) throws -> [[Float]] {
        let encoder = try model("feat_encoder")
        var embeddings: [[Float]] = []
        for chunk in try planChunks(patches.count, encoder.declared.lengths("patches", 1)) {
            let rows = patches[chunk.start..<(chunk.start + chunk.length)].flatMap { $0 }
            let padding = [Float](repeating: 0, count: (chunk.size - chunk.length) * frames * width)
            let input = Tensor(shape: [1, chunk.size, frames, width], values: rows + padding)
            embeddings += split(try encoder(["patches": input])["embeddings"]!, hidden, chunk.length)
        }
        return embeddings
    }

    /// The embedding of a token.
    private func embedding(_ token: Int) throws -> [Float] {
        guard 0 <= token, token < embedTokens.shape[0] else { throw SpeechError("no token \(token) in the vocabulary") }
        let lm = manifest.architecture.lm_config
        return vDSP.multiply(lm.use_mup ? lm.scale_emb : 1, embedTokens[(token * hidden)..<((token + 1) * hidden)])
    }

    private struct BaseOutputs {
        var hidden: [[Float]] = []
        var quantised: [[Float]] = []
        var stopLogits: [Float] = []
    }

    private func baseStep(_ rows: [[Float]], _ state: StepState, at position: Int) throws -> BaseOutputs {
        var outputs = BaseOutputs()
        try languageModel("base_lm_step", rows, state, at: position) { results, length in
            outputs.hidden += split(results["hidden"]!, hidden, length)
            outputs.quantised += split(results["fsq_hidden"]!, hidden, length)
            outputs.stopLogits = split(results["stop_logits"]!, 2, length)[length - 1]
        }
        return outputs
    }

    /// The last hidden state of the residual model.
    private func residualStep(_ rows: [[Float]], _ state: StepState, at position: Int) throws -> [Float] {
        var last: [Float] = []
        try languageModel("residual_lm_step", rows, state, at: position) { results, length in
            last = split(results["hidden"]!, hidden, length)[length - 1]
        }
        return last
    }

    /// Runs a language model over rows from a cache position on; `take` gets the outputs and rows of each call.
    private func languageModel(
        _ name: String, _ rows: [[Float]], _ state: StepState, at position: Int,
        _ take: ([String: [Float]], Int) -> Void
    ) throws {
        let lm = try model(name)
        let plan = try planChunks(
            rows.count, lm.declared.lengths("embeddings", 1), position: position,
            capacity: manifest.sizes.kv_length)
        for chunk in plan {
            let given = rows[chunk.start..<(chunk.start + chunk.length)].flatMap { $0 }
            let padding = [Float](repeating: 0, count: (chunk.size - chunk.length) * hidden)
            let embeddings = Tensor(shape: [1, chunk.size, hidden], values: given + padding)
            let at = Tensor(shape: [1], values: [Float(position + chunk.start)])
            take(try lm(["embeddings": embeddings, "position": at], state), chunk.length)
        }
    }

    /// The DiT's condition: the sum of both projections; for VoxCPM2 both, side by side.
    private func condition(_ lmHidden: [Float], _ residualHidden: [Float]) -> [Float] {
        let both = (lmToDiT(lmHidden), residualToDiT(residualHidden))
        return manifest.isSecondGeneration ? both.0 + both.1 : vDSP.add(both.0, both.1)
    }

    /// The residual model's input: the sum; for VoxCPM2 a projection of both, side by side.
    private func residualInput(_ lmHidden: [Float], _ embedding: [Float]) -> [Float] {
        fusion.map { $0(lmHidden + embedding) } ?? vDSP.add(lmHidden, embedding)
    }

    /// A patch (width, frames) from noise of that shape: Euler steps with guidance. last: the patch before, (frames,
    /// width).
    private func solve(_ noise: [Float], _ mu: [Float], _ last: [Float], _ options: SpeechOptions) throws -> [Float] {
        let dit = try model("locdit_step")
        let steps = options.inferenceTimesteps, embedded = try dit.declared.lengths("t_embedding", 1)[0]
        let times = timeSpan(steps, options.swaySamplingCoef)
        let unmoved = options.useCfgZeroStar ? zeroVelocitySteps(steps) : 0
        let before = transposed(last, rows: frames, columns: width)
        let mus = Tensor(shape: [2, mu.count], values: mu + [Float](repeating: 0, count: mu.count))
        let conds = Tensor(shape: [2, width, frames], values: before + before)
        var x = noise, time = times[0], delta = times[0] - times[1]
        for step in 1...steps {
            if step > unmoved {
                let now = timeEmbedding(time, width: embedded)
                let told = timeEmbedding(manifest.meanMode ? delta : 0, width: embedded)
                let rows = try dit([
                    "x": Tensor(shape: [2, width, frames], values: x + x),
                    "mu": mus,
                    "t_embedding": Tensor(shape: [2, embedded], values: now + now),
                    "cond": conds,
                    "dt_embedding": Tensor(shape: [2, embedded], values: told + told),
                ])["velocity"]!
                let velocity = guidedVelocity(rows, options.cfgValue, useCfgZeroStar: options.useCfgZeroStar)
                x = zip(x, velocity).map { $0 - delta * $1 }
            }
            // Not times[step]: upstream subtracts, and the model is told the rounding, too.
            time -= delta
            if step < steps { delta = time - times[step + 1] }
        }
        return x
    }

    private func model(_ name: String) throws -> StepModel {
        guard let model = models[name] else { throw SpeechError("the bundle has no \(name)") }
        return model
    }

    /// The first `count` rows of an array (1, rows, width).
    private func split(_ values: [Float], _ width: Int, _ count: Int) -> [[Float]] {
        (0..<count).map { Array(values[($0 * width)..<(($0 + 1) * width)]) }
    }
}

// MARK: - Audio files

/// Samples of an audio file at a sample rate in Hz: mono, the mean of its channels.
func samples(of file: URL, at sampleRate: Int) throws -> [Float] {
    let source = try AVAudioFile(forReading: file)
    let format = source.processingFormat, capacity = AVAudioFrameCount(source.length)
    guard
        let mono = AVAudioFormat(standardFormatWithSampleRate: format.sampleRate, channels: 1),
        let target = AVAudioFormat(standardFormatWithSampleRate: Double(sampleRate), channels: 1),
        let channels = AVAudioPCMBuffer(pcmFormat: format, frameCapacity: capacity),
        let mixed = AVAudioPCMBuffer(pcmFormat: mono, frameCapacity: capacity),
        let converter = AVAudioConverter(from: mono, to: target),
        let output = AVAudioPCMBuffer(
            pcmFormat: target,
            frameCapacity: AVAudioFrameCount(Double(source.length) * Double(sampleRate) / format.sampleRate) + 1024)
    else { throw SpeechError("\(file.path): cannot be converted to mono at \(sampleRate) Hz") }
    try source.read(into: channels)
    // The converter would keep one channel and drop the others.
    mixed.frameLength = channels.frameLength
    for frame in 0..<Int(channels.frameLength) {
        let sum = (0..<Int(format.channelCount)).reduce(Float(0)) { $0 + channels.floatChannelData![$1][frame] }
        mixed.floatChannelData![0][frame] = sum / Float(format.channelCount)
    }
    let given = GivenOnce(mixed)
    var failure: NSError?
    converter.convert(to: output, error: &failure) { _, status in
        let buffer = given.take()
        status.pointee = buffer == nil ? .endOfStream : .haveData
        return buffer
    }
    if let failure { throw failure }
    return Array(UnsafeBufferPointer(start: output.floatChannelData![0], count: Int(output.frameLength)))
}

/// A buffer that the converter's block, which is `@Sendable`, gives once. The converter calls it before it returns.
private final class GivenOnce: @unchecked Sendable {
    private var buffer: AVAudioPCMBuffer?

    init(_ buffer: AVAudioPCMBuffer) { self.buffer = buffer }

    func take() -> AVAudioPCMBuffer? {
        defer { buffer = nil }
        return buffer
    }
}

/// A WAV file of mono samples, 16 bits each.
func wav(_ samples: [Float], sampleRate: Int) -> Data {
    let pcm = samples.map { Int16((min(max($0, -1), 1) * Constant.peak).rounded(.toNearestOrEven)) }
    var data = Data()
    func append<T: FixedWidthInteger>(_ value: T) {
        withUnsafeBytes(of: value.littleEndian) { data.append(contentsOf: $0) }
    }
    let bytes = UInt32(2 * pcm.count)
    data.append(contentsOf: Array("RIFF".utf8))
    append(36 + bytes)
    data.append(contentsOf: Array("WAVEfmt ".utf8))
    append(UInt32(16))
    append(UInt16(1))
    append(UInt16(1))
    append(UInt32(sampleRate))
    append(UInt32(2 * sampleRate))
    append(UInt16(2))
    append(UInt16(16))
    data.append(contentsOf: Array("data".utf8))
    append(bytes)
    pcm.forEach { append($0) }
    return data
}
