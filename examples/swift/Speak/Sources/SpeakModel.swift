import Foundation
import SwiftUI
import VoxCPM
import VoxCPMBuiltInVoice
import VoxCPMCoreML
import VoxCPMPlayback

#if os(iOS)
import AVFAudio
#endif

/// The app's state: opens a bundle, plays speech as it is generated, and saves voices.
@MainActor
final class SpeakModel: ObservableObject {
    @Published var text = "Hello from Core ML."
    @Published var voiceName = SpeakModel.noVoice
    @Published private(set) var voices: [String: Voice] = [:]
    @Published private(set) var status = ""
    @Published private(set) var isReady = false
    @Published private(set) var isSpeaking = false

    static let noVoice = "The voice of the model"

    private let player = SpeechPlayer()
    private var speech: TextToSpeech?
    private var speaking: Task<Void, Never>?
    private var heard: [Float] = []
    private var sampleRate = 0

    private var voicesFolder: URL { URL.documentsDirectory.appending(path: "Voices") }

    init() {
        #if os(iOS)
        // Also with the ringer switched off and, with the background mode for audio, in the background.
        try? AVAudioSession.sharedInstance().setCategory(.playback)
        #endif
        readVoices()
        open(.builtInVoice)
    }

    /// Open a bundle. The first compilation takes minutes, so each step is shown.
    ///
    /// - Parameter chosen: its folder, if the user chose it.
    func open(_ bundle: BundleSource, _ chosen: URL? = nil) {
        _ = chosen?.startAccessingSecurityScopedResource()
        var configuration = Configuration(predictor: CoreMLPredictor())
        configuration.speaksInBackground = true
        let opened = TextToSpeech(bundle, configuration)
        isReady = false
        Task {
            do {
                for try await step in opened.prepare() { status = words(step) }
                speech = opened
                isReady = true
            } catch {
                status = "\(error)"
            }
        }
    }

    func speak() {
        guard let speech, !isSpeaking else { return }
        let chunks = speech.stream(text, voice: voices[voiceName])
        heard = []
        isSpeaking = true
        speaking = Task {
            do {
                try await player.play(chunks) { chunk in
                    heard += chunk.samples
                    sampleRate = chunk.sampleRate
                    status = String(format: "%.1f s", Double(heard.count) / Double(chunk.sampleRate))
                }
            } catch is CancellationError {
                status = "Stopped."
            } catch {
                status = "\(error)"
            }
            isSpeaking = false
        }
    }

    func stop() {
        speaking?.cancel()
        player.stop()
    }

    /// The last speech, as a WAV file.
    var file: Data? { heard.isEmpty ? nil : wavFile(heard, sampleRate: sampleRate) }

    /// Make a voice from a recording and its transcript, and save it.
    func makeVoice(_ recording: URL, transcript: String, name: String) {
        guard let speech else { return }
        let folder = voicesFolder
        Task {
            do {
                _ = recording.startAccessingSecurityScopedResource()
                let prompt = try Recording(contentsOf: recording)
                let voice = try await speech.makeVoice(name: name, prompt: prompt, transcript: transcript + " ")
                try FileManager.default.createDirectory(at: folder, withIntermediateDirectories: true)
                try voice.write(to: folder.appending(path: "\(name).voice"))
                readVoices()
                voiceName = name
                status = "Saved \(name)."
            } catch {
                status = "\(error)"
            }
        }
    }

    private func readVoices() {
        let files = try? FileManager.default.contentsOfDirectory(at: voicesFolder, includingPropertiesForKeys: nil)
        for file in files ?? [] where file.pathExtension == "voice" {
            voices[file.deletingPathExtension().lastPathComponent] = try? Voice(contentsOf: file)
        }
    }

    private func words(_ step: Preparation) -> String {
        switch step {
        case .downloading(let share): "Downloading: \(Int(100 * share)) %"
        case .verifying(let share): "Verifying: \(Int(100 * share)) %"
        case .compiling(let model): "Preparing \(model.rawValue), once on this device …"
        case .fellBack(let model, let unit, let reason): "\(model.rawValue) does not run on \(unit.rawValue): \(reason)"
        case .warmingUp: "Predicting a first patch …"
        case .ready: "Ready."
        }
    }
}
