"""Seeded mutations: of bytes as by disks and transfers, and of documents as by an attacker."""

import copy
import json

DAMAGES = ("flip", "truncation", "swap")
_LARGEST_BLOCK = 4096
# Values that tend to break readers: integer limits, other types, other paths, unusual text.
ODD_VALUES = (
    None, True, 0, -1, 1, 2**31, 2**63, 10**22, 1e308, -0.0, float("nan"), float("inf"), "", "x" * 5000, "../../x",
    "/etc/passwd", "\x00", "\ud800", "\u0430\u0301\u200b", "C:\\x", "~root/x", [], {}, [[]], {"": None}, [1] * 300,
)  # fmt: skip


def damaged(content, damage, chance):
    """The content with one byte flipped, cut off, or with two of its blocks exchanged; never the content itself."""
    if not content:
        return b"\0"
    if damage == "truncation":
        return content[: chance.randrange(len(content))]
    if damage == "swap" and (found := _swapped(content, chance)) is not None:
        return found
    at = chance.randrange(len(content))
    return content[:at] + bytes([content[at] ^ chance.randrange(1, 256)]) + content[at + 1 :]


def _swapped(content, chance):
    for _ in range(20):
        size = chance.randint(1, max(1, min(_LARGEST_BLOCK, len(content) // 3)))
        if 2 * size > len(content):
            return None
        first = chance.randint(0, len(content) - 2 * size)
        second = chance.randint(first + size, len(content) - size)
        one, other = content[first : first + size], content[second : second + size]
        if one != other:
            return content[:first] + other + content[first + size : second] + one + content[second + size :]
    return None


def mutated_bytes(content, chance):
    """One to four changes: flips, cuts, insertions, swapped blocks, and integers at their limits."""
    for _ in range(chance.randint(1, 4)):
        at = chance.randint(0, len(content))
        match chance.randrange(6):
            case 0:
                content = damaged(content, "flip", chance)
            case 1:
                content = content[:at]
            case 2:
                content = content[:at] + chance.randbytes(chance.randint(1, 16)) + content[at:]
            case 3:
                content = content[:at] + content[at + chance.randint(1, 64) :]
            case 4:
                content = damaged(content, "swap", chance)
            case _:
                odd = chance.choice((b"\xff" * 8, b"\0" * 8, b"\xff\xff\xff\x7f", b"\0\0\0\x80", b"\x7f"))
                content = content[:at] + odd + content[at + len(odd) :]
    return content


def mutated_json(content, chance):
    """A JSON document with one to three of its values changed, or sometimes with other bytes."""
    if chance.random() < 0.2:
        return mutated_bytes(content, chance)
    document = json.loads(content)
    for _ in range(chance.randint(1, 3)):
        if not (holders := list(_holders(document))):
            document = copy.deepcopy(chance.choice(ODD_VALUES))
            continue
        _change(chance.choice(holders), holders, chance)
    # Keep lone surrogates.
    return json.dumps(document).encode()


def _change(holder, holders, chance):
    """Replace, remove, repeat, rename or exchange one value of a list or dict."""
    key = _key(holder, chance)
    value = holder[key]
    match chance.randrange(6):
        case 0 | 1:
            holder[key] = copy.deepcopy(chance.choice(ODD_VALUES))
        case 2:
            del holder[key]
        case 3:
            holder[key] = [value] * chance.choice((1, 2, 40))
        case 4:
            other = chance.choice(holders)
            # A copy, to avoid a recursive document.
            holder[key] = copy.deepcopy(other[_key(other, chance)])
        case _ if isinstance(value, bool) or value is None:
            holder[key] = not value
        case _ if isinstance(value, int | float):
            holder[key] = chance.choice((value + 1, -value, value * 1000, value / 3, str(value)))
        case _ if isinstance(value, str):
            holder[key] = mutated_text(value, chance)
        case _ if isinstance(holder, dict):
            holder[f"{key}x"] = holder.pop(key)
        case _:
            holder.append(value)


def _key(holder, chance):
    return chance.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))


def _holders(document):
    if isinstance(document, dict | list) and document:
        yield document
        for value in document.values() if isinstance(document, dict) else document:
            yield from _holders(value)


PIECES = (
    "1", "12:30", "$4.20", "Dr.", "U.S.A.", "https://a.b/c?d=e", "a@b.c", "III", "...", "?!", "»", "“", "”", "(", ")",
    "\u200b", "\u0301", "\u202e", "😀", "👩‍👩‍👧", "中文", "ß", "ﷺ", "\n\n", "\t", " ", "—", "1e999", "9" * 40,
    "NASA", "km/h", "1,234,567.89", "#x", "\\", "<", ">", "&amp;", "\r", "\x85", "\u2028", "'", "''", ",", ",,,", "№", "½",  # noqa: E501
)  # fmt: skip


def mutated_text(text, chance):
    """A text with pieces inserted, removed, repeated and exchanged."""
    for _ in range(chance.randint(1, 6)):
        at = chance.randint(0, len(text))
        match chance.randrange(5):
            case 0 | 1:
                text = text[:at] + chance.choice(PIECES) * chance.choice((1, 1, 2, 30)) + text[at:]
            case 2:
                text = text[:at] + text[at + chance.randint(1, 10) :]
            case 3:
                character = chr(chance.choice((chance.randrange(0x110000), chance.randrange(0x300))))
                text = text[:at] + character + text[at:]
            case _:
                text = text[at:] + text[:at]
    return text
