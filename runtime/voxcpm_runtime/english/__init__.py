"""The reading of English: numbers, dates, units and symbols in words."""
