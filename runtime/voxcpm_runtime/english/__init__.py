"""The reading of English: numbers, dates, units and symbols in words. `tables.txt` is what it knows, as data."""

from __future__ import annotations

from pathlib import Path

from voxcpm_runtime.text.substitutions import Tables

TABLES = Tables(Path(__file__).with_name("tables.txt"))
