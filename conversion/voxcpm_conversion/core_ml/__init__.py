"""Step models as Core ML packages: exported, compressed, and compiled where Apple's compiler is present."""
