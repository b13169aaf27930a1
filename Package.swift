// swift-tools-version: 6.0
import PackageDescription

// On Linux, stand-ins with the names of Apple's frameworks let everything compile and run the same packages on ONNX
// Runtime, so the tests need no Mac (swift/StandIns/README.md).
#if os(Linux)
let standIns: [Target] = [
    .target(name: "StandInWire", path: "swift/StandIns/StandInWire"),
    .target(name: "CoreML", dependencies: ["StandInWire"], path: "swift/StandIns/CoreML"),
    .target(name: "CoreAI", dependencies: ["StandInWire"], path: "swift/StandIns/CoreAI"),
    .target(name: "AVFAudio", path: "swift/StandIns/AVFAudio"),
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

let all: [Target.Dependency] = [
    "VoxCPM", "VoxCPMCoreML", "VoxCPMCoreAI", "VoxCPMPlayback", "VoxCPMBuiltInVoice",
]

// Resources must be below their target, which has links to the runtime's bundle and voices. A link itself would be
// copied as one.
let bundle: [Resource] = ["manifest.json", "manifest.sha256", "constants", "int8", "tokenizer", "vectors"].map {
    .copy("bundle/\($0)")
}
let voices: [Resource] = [
    "alloy", "aoede", "daniel", "emma", "eric", "fable", "fenrir", "george", "heart", "isabella", "liam", "michael",
    "river",
].map { .copy("voices/\($0).voice") }

// A separate constant: as one expression, the package takes half a minute to type-check.
let targets: [Target] = [
    .target(name: "VoxCPM", path: "swift/Sources/VoxCPM"),
    .target(name: "VoxCPMCoreML", dependencies: coreML, path: "swift/Sources/VoxCPMCoreML"),
    .target(name: "VoxCPMCoreAI", dependencies: coreAI, path: "swift/Sources/VoxCPMCoreAI"),
    .target(name: "VoxCPMPlayback", dependencies: audio, path: "swift/Sources/VoxCPMPlayback"),
    .target(
        name: "VoxCPMBuiltInVoice", dependencies: ["VoxCPM"], path: "swift/Sources/VoxCPMBuiltInVoice",
        exclude: ["bundle/README.md", "voices/README.md"], resources: bundle + voices),
    .executableTarget(name: "voxcpm-speak", dependencies: all, path: "swift/Sources/voxcpm-speak"),
    .testTarget(name: "VoxCPMTests", dependencies: all, path: "swift/Tests/VoxCPMTests"),
]

let package = Package(
    name: "VoxCPM",
    platforms: [.macOS(.v14), .iOS(.v17)],
    products: [
        .library(name: "VoxCPM", targets: ["VoxCPM", "VoxCPMCoreML", "VoxCPMPlayback"]),
        .library(name: "VoxCPMBuiltInVoice", targets: ["VoxCPMBuiltInVoice"]),
        .library(name: "VoxCPMCoreAI", targets: ["VoxCPMCoreAI"]),
        .executable(name: "voxcpm-speak", targets: ["voxcpm-speak"]),
    ],
    targets: targets + standIns,
    swiftLanguageModes: [.v6]
)
