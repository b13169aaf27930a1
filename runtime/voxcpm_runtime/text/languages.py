"""Whether a text in Latin letters is English, by its function words."""

from __future__ import annotations

import re

# Words that are common in their language and rare in English; names have some of them, such as De Niro and Los Angeles.
_ENGLISH = """
the an of and to in is was are were it i you he she we they that this have has had at by for from with on as not be
will would can my your his her our their its or but if
"""
_OTHERS = """
le les des du une est et il elle je nous vous dans avec sur pas qui que c'est j'ai au aux ans sont ont y
el los las una de en con por para tiene tengo hay son del al años está
das und ist ein eine nicht mit für von dem ich wir kostet zu sind es bis im auf uhr
lo gli di che ho ha sono per della anni alle
os da em tem tenho são não uma eu
het een van ik niet voor zijn heeft
"""
_FUNCTION_WORDS = {
    **dict.fromkeys(_OTHERS.split(), -1),
    **dict.fromkeys(_ENGLISH.split(), 1),
}
_SHORT = 3  # Words of a text in which one function word is enough, unless it may be a variable
_PROSE = 8  # At least one of so many words is a function word in prose; a list of names has some by chance


def may_be_english(text: str) -> bool:
    """False if function words of French, Spanish, German, Italian, Portuguese or Dutch outnumber the English ones."""
    words = re.findall(r"(?<![\w.@/])[^\W\d_]+(?:['’][^\W\d_]+)*", text.lower().replace("’", "'"))
    found = [word for word in words if word in _FUNCTION_WORDS]
    others = [word for word in found if _FUNCTION_WORDS[word] < 0]
    several = len(others) > 1 and _PROSE * len(others) >= len(words)
    is_enough = several or (len(words) <= _SHORT and others != ["y"])
    return not is_enough or sum(map(_FUNCTION_WORDS.__getitem__, found)) >= 0
