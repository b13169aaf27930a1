"""The reading of English: numbers, dates, units and symbols in words. `tables.txt` is what it knows, as data."""
