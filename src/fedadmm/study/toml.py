"""TOML that somebody else wrote."""

from __future__ import annotations

import re
import tomllib
from typing import Any

_LONGEST, _DEEPEST = 10**7, 1000
"""Characters of a text, and dots of a key: nobody writes so many."""
_DOTTED = re.compile(r"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+)++""")


def tables(text: str) -> dict[str, Any]:
    """The tables of a text; a ValueError for whatever is none.

    Keys of many parts are refused unread: the time for them grows with the square of their number.
    """
    if len(text) > _LONGEST:
        raise ValueError(f"it has {len(text)} characters, but at most {_LONGEST} are read")
    if any(found.group().count(".") > _DEEPEST for found in _DOTTED.finditer(text)):
        raise ValueError(f"a key has more than {_DEEPEST} dots")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
