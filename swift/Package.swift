// swift-tools-version: 6.0
import PackageDescription

// On Linux, stand-ins with the names of Apple's frameworks let everything compile and run the same packages on ONNX
// Runtime, so the tests need no Mac (StandIns/README.md).
#if os(Linux)
let standIns: [Target] = [
    .target(name: "StandInWire", path: "StandIns/StandInWire"),
    .target(name: "CoreML", dependencies: ["StandInWire"], path: "StandIns/CoreML"),
    .target(name: "CoreAI", dependencies: ["StandInWire"], path: "StandIns/CoreAI"),
    .target(name: "AVFAudio", path: "StandIns/AVFAudio"),
]
let coreML: [Target.Dependency] = ["VoxCPM", "CoreML"]
let coreAI: [Target.Dependency] = ["VoxCPM", "CoreAI"]
let audio: [Target.Dependency] = ["VoxCPM", "AVFAudio"]
#else
let standIns: [Target] = []
let coreML: [Target.Dependency] = ["VoxCPM"]
let coreAI: [Target.Dependency] = ["VoxCPM"]
let audio: [Target.Dependency] = ["VoxCPM"]
#endif

// A separate constant: as one expression, the package takes half a minute to type-check.
let targets: [Target] = [
    .target(name: "VoxCPM"),
    .target(name: "VoxCPMCoreML", dependencies: coreML),
    .target(name: "VoxCPMCoreAI", dependencies: coreAI),
    .target(name: "VoxCPMPlayback", dependencies: audio),
    .executableTarget(name: "voxcpm-speak", dependencies: ["VoxCPM", "VoxCPMCoreML", "VoxCPMCoreAI"]),
    .testTarget(name: "VoxCPMTests", dependencies: ["VoxCPM", "VoxCPMCoreML", "VoxCPMCoreAI", "VoxCPMPlayback"]),
]

let package = Package(
    name: "VoxCPM",
    platforms: [.macOS(.v14), .iOS(.v17)],
    products: [
        .library(name: "VoxCPM", targets: ["VoxCPM", "VoxCPMCoreML", "VoxCPMPlayback"]),
        .library(name: "VoxCPMCoreAI", targets: ["VoxCPMCoreAI"]),
        .executable(name: "voxcpm-speak", targets: ["voxcpm-speak"]),
    ],
    targets: targets + standIns,
    swiftLanguageModes: [.v6]
)
