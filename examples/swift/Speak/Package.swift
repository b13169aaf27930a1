// swift-tools-version: 6.0
import PackageDescription

// The app is the folder Sources. As a package it runs on a Mac (`swift run Speak`) and is type-checked on Linux; for an
// iPhone there is Speak.xcodeproj.
#if os(Linux)
let standIns: [Target] = [.target(name: "SwiftUI", path: "StandIns/SwiftUI")]
let swiftUI: [Target.Dependency] = ["SwiftUI"]
#else
let standIns: [Target] = []
let swiftUI: [Target.Dependency] = []
#endif

let products: [Target.Dependency] = ["VoxCPM", "VoxCPMBuiltInVoice"].map { .product(name: $0, package: "VoxCPM") }

let package = Package(
    name: "Speak",
    platforms: [.macOS(.v14), .iOS(.v17)],
    dependencies: [.package(name: "VoxCPM", path: "../../..")],
    targets: [
        .executableTarget(
            name: "Speak", dependencies: products + swiftUI, path: "Sources")
    ] + standIns,
    swiftLanguageModes: [.v6]
)
