"""Units and currencies: their symbols, and what is said."""

from __future__ import annotations

from voxcpm_runtime.english.tables import TABLES

_PREFIXES = {
    "1": "", "k": "kilo", "c": "centi", "d": "deci", "m": "milli", "μ": "micro", "n": "nano", "M": "mega", "G": "giga",
}  # fmt: skip
UNITS = {
    **{
        prefix.strip("1") + base: (f"{_PREFIXES[prefix]}{name}", f"{_PREFIXES[prefix]}{name}s")
        for base, (name, prefixes) in TABLES.rows("units with prefixes").items()
        for prefix in prefixes
    },
    **{symbol: (name, f"{name}s") for symbol, name in TABLES.pairs("units of data").items()},
    **{symbol: (one, several) for symbol, (one, several) in TABLES.rows("units").items()},
}
"""Symbol → singular and plural, as "km" → "kilometer", "kilometers"."""
ATTACHED_UNITS = frozenset(["in", "k", "M", "B"])
"""Symbols that are units only right after a number: in `5 in` there may be a preposition."""
CURRENCIES = TABLES.rows("currencies")
"""Symbol or code → singular and plural of the currency and, if it has one, of its hundredth."""
SCALES = TABLES.pairs("scales")
"""What follows an amount of money."""
