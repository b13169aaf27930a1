"""English text normalization: numbers, dates, units and symbols in words. `tables.txt` has its data."""
