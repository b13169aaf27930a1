import Foundation
import VoxCPM
import VoxCPMCoreML

print("voxcpm-speak")
