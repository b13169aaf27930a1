import SwiftUI

struct SpeakView: View {
    @ObservedObject var model: SpeakModel
    @State private var choosesBundle = false
    @State private var choosesRecording = false
    @State private var transcript = ""
    @State private var name = "me"

    var body: some View {
        VStack(alignment: .leading, spacing: 12) {
            TextEditor(text: $model.text)
            Picker("Voice", selection: $model.voiceName) {
                ForEach([SpeakModel.noVoice] + model.voices.keys.sorted(), id: \.self) { name in
                    Text(name)
                }
            }
            HStack {
                Button("Speak") { model.speak() }
                    .disabled(!model.isReady || model.isSpeaking)
                Button("Stop") { model.stop() }
                    .disabled(!model.isSpeaking)
                Button("Choose bundle") { choosesBundle = true }
                    // Of several importers on one view only the last opens.
                    .fileImporter(isPresented: $choosesBundle, allowedContentTypes: [.folder]) { result in
                        if case .success(let folder) = result { model.open(.folder(folder), folder) }
                    }
            }
            HStack {
                TextField("What is said in the recording", text: $transcript)
                TextField("Name", text: $name)
                Button("Make a voice") { choosesRecording = true }
                    .disabled(!model.isReady || transcript.isEmpty || name.isEmpty)
                    .fileImporter(isPresented: $choosesRecording, allowedContentTypes: [.audio]) { result in
                        if case .success(let file) = result {
                            model.makeVoice(file, transcript: transcript, name: name)
                        }
                    }
            }
            Text(model.status)
        }
        .padding()
    }
}
