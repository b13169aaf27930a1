// Never run on a Mac or a phone; type-checked on Linux against stand-ins, and on macOS in continuous integration.

import SwiftUI

@main
struct SpeakApp: App {
    @StateObject private var model = SpeakModel()

    init() {
        #if canImport(AppKit)
        // Without a bundle, as by `swift run`, an app otherwise gets no keyboard.
        NSApplication.shared.setActivationPolicy(.regular)
        #endif
    }

    var body: some Scene {
        WindowGroup {
            SpeakView(model: model)
        }
    }
}
