import VoxCPM
