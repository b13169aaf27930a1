"""The command `doctor`: trials of a bundle's step models on every compute unit of this machine, and advice."""
