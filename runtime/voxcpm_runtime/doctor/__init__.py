"""Trials of a bundle's step models on every compute unit of this machine, each in a child process, and advice."""
