"""Formulas: plain text in docstrings, LaTeX in pages, MathML on the site, without a script.

Docstrings are read in terminals, so that their recursions are plain text (`y_i+ = y_i + rho w_i+`).
Here that becomes Markdown with LaTeX, which the written pages have from the start, and when a page
is made every formula becomes MathML.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

from latex2mathml.converter import convert

LETTERS = ("alpha", "beta", "gamma", "delta", "eta", "theta", "mu", "rho", "sigma", "tau", "Delta")
GREEK = {name: f"\\{name}" for name in LETTERS}
GREEK |= {"xbar": r"\bar{x}", "xhat": r"\hat{x}", "xtilde": r"\tilde{x}"}
WORDS = {"grad": r"\nabla", "argmin": r"\operatorname{argmin}", "prox": r"\operatorname{prox}"}
WORDS |= {"sum": r"\textstyle\sum"}
SIGNS = {"<-": r"\leftarrow", "<=": r"\le", "~": r"\approx", "*": r"\cdot", "<": r"\langle"}
SIGNS |= {">": r"\rangle"}

_INDEX, _POWER = r"_(?:\{[^}]*\}|[A-Za-z0-9]+)", r"\^(?:\([^)]*\)|\w+)"
TOKEN = re.compile(
    r"(?P<code>`[^`]*`)|(?P<word>[A-Za-z]+(?:['-][A-Za-z]+)+)|(?P<fraction>\(\w+/\w+\))"
    r"|(?P<size>\|\w\|)|(?P<norm>\|\|)|(?P<sum>sum(?= \w_))|(?P<root>sqrt\(\w+\))"
    rf"|(?P<name>[A-Za-z]+\d*(?:{_INDEX})?(?:{_POWER})?(?:\+(?=[\s);,.]|$))?)|(?P<power>{_POWER})"
    r"|(?P<number>\d+)|(?P<sign><-|<=|[-+*/=~<>()])|(?P<stop>[,;.:])|(?P<space>\s+)|(?P<other>.)"
)
"""What plain text consists of; `name` is a word or a symbol, as in w_i+ or theta^(k - delay)."""
INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.S)
DISPLAY = re.compile(r'<div class="arithmatex">\\\[(.*?)\\\]</div>', re.S)


def on_site(page: str) -> str:
    """A page's HTML with every LaTeX formula turned into MathML."""

    def made(found: re.Match[str], display: str) -> str:
        text = html.unescape(found[1]).strip()
        return convert(text, display=display)

    page = DISPLAY.sub(lambda found: f'<div class="formula">{made(found, "block")}</div>', page)
    return INLINE.sub(lambda found: made(found, "inline"), page)


def described(text: str) -> str:
    """A docstring as Markdown: recursions as tables of formulas, and symbols in sentences."""
    parts = [
        _recursion(part) if part.startswith("    ") else prose(part) for part in text.split("\n\n")
    ]
    return "\n\n".join(parts)


def prose(text: str) -> str:
    """A sentence whose Greek letters and indexed names are formulas; code stays as it is."""

    def made(found: re.Match[str]) -> str:
        text, base = found[0], re.split(r"[\d_^+]", found[0])[0]
        if found.lastgroup == "name" and (base in GREEK or re.match(r"([A-Za-z]|prox)[_^]", text)):
            return f"${latex(text)}$"
        if found.lastgroup == "fraction" and GREEK.keys() & set(re.findall("[A-Za-z]+", text)):
            return f"${_fraction(text)}$"
        return text

    return TOKEN.sub(made, text)


def _recursion(block: str) -> str:
    rows = ["| | |", "|---|---|"]
    for line in block.splitlines():
        role, _, rest = line[4:].partition("  ")
        rows.append(f"| {prose(role)} | {formulas(rest)} |" if rest else f"| | {formulas(role)} |")
    return "\n".join(['<div class="recursion" markdown>', "", *rows, "", "</div>"])


def formulas(line: str) -> str:
    """One line of a recursion: words as text, the rest as formulas."""
    return "&emsp;".join(_formulas(part) for part in re.split(r"\s{2,}", line.strip()))


def _formulas(line: str) -> str:
    result, formula = "", ""
    for is_formula, piece in _pieces(line):
        if is_formula or (formula and piece.isspace()):
            apart = re.search(r"\\[A-Za-z]+$", formula) and piece[0].isalpha()
            formula += f" {piece}" if apart else piece
        else:
            result, formula = result + _closed(formula) + piece, ""
    return result + _closed(formula)


def _closed(formula: str) -> str:
    text = formula.strip()
    return f"${text}$" + " " * formula.endswith(" ") if text else formula


def _pieces(line: str) -> Iterator[tuple[bool, str]]:
    """The line in pieces, with whether each is LaTeX or words."""
    depth, norms = 0, 0
    for found in TOKEN.finditer(line):
        kind, text = found.lastgroup, found[0]
        depth += {"(": 1, ")": -1, "<": 1, ">": -1}.get(text, 0)
        norms += kind == "norm"
        if kind == "name":
            yield _is_symbol(text), latex(text) if _is_symbol(text) else text
        elif kind == "fraction":
            yield True, _fraction(text)
        elif kind in ("sum", "power"):
            yield True, latex(text)
        elif kind == "norm":
            yield True, r"\lVert" if norms % 2 else r"\rVert"
        elif kind == "size":
            yield True, f"\\lvert {text[1]}\\rvert"
        elif kind == "root":
            yield True, f"\\sqrt{{{latex(text[5:-1])}}}"
        elif kind == "stop":
            yield depth > 0, text
        else:
            yield kind in ("sign", "number"), SIGNS.get(text, text)


def _is_symbol(name: str) -> bool:
    base = re.split(r"[\d_^+]", name)[0]
    known = base in GREEK or (base in WORDS and base != "sum")
    return known or "_" in name or (len(base) == 1 and name != "a")


def latex(name: str) -> str:
    """A name of the plain text, as in x_i+ or theta^(k - delay), as LaTeX."""
    found = re.fullmatch(r"([A-Za-z]*)(\d*)(?:_(?:\{(.*?)\}|(\w+?)))?(?:\^(.*?))?(\+?)", name)
    assert found is not None, name
    base, digit, group, below, above, following = found.groups()
    lower = _inside(group or below or (digit if base else ""))
    upper = "+" if following else _inside((above or "").strip("()"))
    text = _word(base) if base else digit
    return text + (f"_{{{lower}}}" if lower else "") + (f"^{{{upper}}}" if upper else "")


def _fraction(text: str) -> str:
    above, below = text.strip("()").split("/")
    return f"\\tfrac{{{latex(above)}}}{{{latex(below)}}}"


def _inside(text: str) -> str:
    """The content of an index or a power."""
    return re.sub(r"[A-Za-z]+(_\w)?", lambda found: latex(found[0]) + " ", text).strip()


def _word(name: str) -> str:
    upright = f"\\mathrm{{{name}}}" if len(name) > 1 else name
    return GREEK.get(name) or WORDS.get(name) or upright
