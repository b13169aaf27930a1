"""What is read, as data: the tables of `tables.txt`."""

from __future__ import annotations

from pathlib import Path

from voxcpm_runtime.text.substitutions import Tables

TABLES = Tables(Path(__file__).with_suffix(".txt"))
