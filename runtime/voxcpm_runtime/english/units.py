"""Units and currencies: their symbols, and what is said."""

from __future__ import annotations

from voxcpm_runtime.text.substitutions import word_set

_IRREGULAR = {
    "%": ("percent", "percent"), "‰": ("per mille", "per mille"),
    "°": ("degree", "degrees"), "°C": ("degree celsius", "degrees celsius"), "°F": ("degree fahrenheit",
    "degrees fahrenheit"),
    "in": ("inch", "inches"), "ft": ("foot", "feet"), "mph": ("mile per hour", "miles per hour"),
    "kph": ("kilometer per hour", "kilometers per hour"), "mpg": ("mile per gallon", "miles per gallon"),
    "sq ft": ("square foot", "square feet"), "sq mi": ("square mile", "square miles"),
    "sq km": ("square kilometer", "square kilometers"), "sq m": ("square meter", "square meters"),
    "Mbps": ("megabit per second", "megabits per second"), "Gbps": ("gigabit per second", "gigabits per second"),
    "kbps": ("kilobit per second", "kilobits per second"), "fps": ("frame per second", "frames per second"),
    "rpm": ("revolution per minute", "revolutions per minute"), "bpm": ("beat per minute", "beats per minute"),
    "dpi": ("dot per inch", "dots per inch"), "ppm": ("part per million", "parts per million"),
    "psi": ("pound per square inch", "pounds per square inch"), "hp": ("horsepower", "horsepower"),
    "Hz": ("hertz", "hertz"), "kHz": ("kilohertz", "kilohertz"), "MHz": ("megahertz", "megahertz"),
    "GHz": ("gigahertz", "gigahertz"), "THz": ("terahertz", "terahertz"), "lx": ("lux", "lux"),
    "mi": ("mile", "miles"), "Ω": ("ohm", "ohms"), "kΩ": ("kiloohm", "kiloohms"), "MΩ": ("megaohm", "megaohms"),
    "k": ("thousand", "thousand"), "M": ("million", "million"), "bn": ("billion", "billion"), "B": ("billion",
    "billion"),
    "min": ("minute", "minutes"), "mins": ("minute", "minutes"), "h": ("hour", "hours"), "hr": ("hour", "hours"),
    "hrs": ("hour", "hours"), "s": ("second", "seconds"), "sec": ("second", "seconds"), "secs": ("second", "seconds"),
    "yr": ("year", "years"), "yrs": ("year", "years"), "lb": ("pound", "pounds"), "lbs": ("pound", "pounds"),
    "oz": ("ounce", "ounces"), "yd": ("yard", "yards"), "yds": ("yard", "yards"), "gal": ("gallon", "gallons"),
    "tsp": ("teaspoon", "teaspoons"), "tbsp": ("tablespoon", "tablespoons"), "ha": ("hectare", "hectares"),
    "t": ("tonne", "tonnes"), "px": ("pixel", "pixels"), "A": ("amp", "amps"),
}  # fmt: skip
"""Symbol → singular and plural."""
_PREFIXES = {
    "": "",
    "k": "kilo",
    "c": "centi",
    "d": "deci",
    "m": "milli",
    "μ": "micro",
    "n": "nano",
    "M": "mega",
    "G": "giga",
}
_BASES = {
    "m": ("meter", "kcdmμn"), "g": ("gram", "kmμn"), "l": ("liter", "cdm"), "L": ("liter", "mk"), "s": ("second",
    "mμn"),
    "W": ("watt", "kmMG"), "V": ("volt", "kmM"), "A": ("amp", "mk"), "J": ("joule", "kM"), "N": ("newton", "k"),
    "Pa": ("pascal", "kM"), "Wh": ("watt hour", "kMG"), "Ah": ("amp hour", "m"), "cal": ("calorie", "k"),
    "dB": ("decibel", ""),
    "bit": ("bit", "kMG"), "b": ("bit", "kMG"), "mol": ("mole", "m"), "eV": ("electron volt", "kMG"),
    "F": ("farad", "mμn"),
}  # fmt: skip
"""Symbol → name, and the prefixes that it is written with."""
_UNPREFIXED = word_set("m g l L s W V A J dB mol eV Wh Pa N")
"""Symbols that are units without a prefix, too."""
_BYTES = {
    "kB": "kilobyte", "KB": "kilobyte", "MB": "megabyte", "GB": "gigabyte", "TB": "terabyte", "PB": "petabyte",
    "KiB": "kibibyte", "MiB": "mebibyte", "GiB": "gibibyte", "TiB": "tebibyte",
}  # fmt: skip
UNITS: dict[str, tuple[str, str]] = {
    **{
        prefix + base: (f"{_PREFIXES[prefix]}{name}", f"{_PREFIXES[prefix]}{name}s")
        for base, (name, written) in _BASES.items()
        for prefix in (*written, *([""] if base in _UNPREFIXED else []))
    },
    **{symbol: (name, f"{name}s") for symbol, name in _BYTES.items()},
    **_IRREGULAR,
}
"""Symbol → singular and plural, as "km" → "kilometer", "kilometers"."""
ATTACHED_UNITS = frozenset(["in", "k", "M", "B"])
"""Symbols that are units only right after a number: in `5 in` there may be a preposition."""

CURRENCIES = {
    "$": ("dollar", "dollars", "cent", "cents"), "£": ("pound", "pounds", "penny", "pence"),
    "€": ("euro", "euros", "cent", "cents"), "¥": ("yen", "yen", "sen", "sen"),
    "₹": ("rupee", "rupees", "paisa", "paise"), "₩": ("won", "won", "jeon", "jeon"),
    "₽": ("rouble", "roubles", "kopeck", "kopecks"), "₿": ("bitcoin", "bitcoins", "satoshi", "satoshis"),
    "¢": ("cent", "cents", "", ""),
    "US$": ("US dollar", "US dollars", "cent", "cents"),
    "A$": ("australian dollar", "australian dollars", "cent", "cents"),
    "C$": ("canadian dollar", "canadian dollars", "cent", "cents"),
    "USD": ("US dollar", "US dollars", "cent", "cents"), "EUR": ("euro", "euros", "cent", "cents"),
    "GBP": ("pound", "pounds", "penny", "pence"), "JPY": ("yen", "yen", "sen", "sen"),
    "CHF": ("swiss franc", "swiss francs", "centime", "centimes"), "INR": ("rupee", "rupees", "paisa", "paise"),
    "CNY": ("yuan", "yuan", "fen", "fen"), "CAD": ("canadian dollar", "canadian dollars", "cent", "cents"),
    "AUD": ("australian dollar", "australian dollars", "cent", "cents"),
}  # fmt: skip
"""Symbol or code → singular and plural of the currency and of its hundredth."""
SCALES = {
    "k": "thousand", "K": "thousand", "m": "million", "M": "million", "bn": "billion", "b": "billion", "B": "billion",
    "tn": "trillion", "thousand": "thousand", "million": "million", "billion": "billion", "trillion": "trillion",
}  # fmt: skip
"""What follows an amount of money."""
