// swift-tools-version: 6.0
import PackageDescription

// The app is the folder Sources. As a package it runs on a Mac (`swift run Speak`) and is type-checked on Linux. For an
// iPhone, create an app in Xcode and add these files and the package VoxCPM.
#if os(Linux)
let standIns: [Target] = [.target(name: "SwiftUI", path: "StandIns/SwiftUI")]
let swiftUI: [Target.Dependency] = ["SwiftUI"]
#else
let standIns: [Target] = []
let swiftUI: [Target.Dependency] = []
#endif

let package = Package(
    name: "Speak",
    platforms: [.macOS(.v14), .iOS(.v17)],
    dependencies: [.package(path: "../../../swift")],
    targets: [
        .executableTarget(
            name: "Speak", dependencies: [.product(name: "VoxCPM", package: "swift")] + swiftUI, path: "Sources")
    ] + standIns,
    swiftLanguageModes: [.v6]
)
