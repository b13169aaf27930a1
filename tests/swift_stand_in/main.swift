// main BUNDLE PRECISION FOLDER: speaks FOLDER/job.json with the noise of noise.f32, and writes samples.f32 and out.wav.

import CoreML
import Foundation

struct Job: Decodable {
    let text: String
    let transcript: String?
    let patches: Int
}

struct RecordedNoise: NoiseSource {
    var values: ArraySlice<Float>

    mutating func standardNormal(_ count: Int) -> [Float] {
        defer { values = values.dropFirst(count) }
        return Array(values.prefix(count))
    }
}

let arguments = CommandLine.arguments
let folder = URL(fileURLWithPath: arguments[3])

func numbers(_ name: String) throws -> [Float] {
    try Data(contentsOf: folder.appendingPathComponent(name)).withUnsafeBytes { bytes in
        stride(from: 0, to: bytes.count, by: 4).map { bytes.loadUnaligned(fromByteOffset: $0, as: Float.self) }
    }
}

let job = try JSONDecoder().decode(Job.self, from: Data(contentsOf: folder.appendingPathComponent("job.json")))
let speech = try await VoxCPMSpeech(
    bundle: URL(fileURLWithPath: arguments[1]), precision: arguments[2],
    cache: folder.appendingPathComponent("compiled"))
var options = SpeechOptions()
options.maxLen = job.patches
let recording = folder.appendingPathComponent("prompt.f32")
let prompt = try job.transcript.map {
    Prompt(samples: try samples(of: recording, at: speech.inputSampleRate), transcript: $0)
}
var spoken: [Float] = []
let noise = RecordedNoise(values: try numbers("noise.f32")[...])
try speech.speak(job.text, continuing: prompt, options: options, noise: noise) { patch in
    spoken += patch
    return true
}
try spoken.withUnsafeBytes { try Data($0).write(to: folder.appendingPathComponent("samples.f32")) }
try wav(spoken, sampleRate: speech.outputSampleRate).write(to: folder.appendingPathComponent("out.wav"))
