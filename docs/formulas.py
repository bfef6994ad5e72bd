"""TeX between dollar signs becomes MathML, which browsers typeset themselves: no script, no fonts to fetch."""

import re
from functools import cache
from html import unescape

from pipelab.display import NO_FORMULAS

_HTML = re.compile(
    r"(?P<code><(pre|code|script|style)\b.*?</\2>|<(\w+)[^>]*? class='(?:[^']* )?"
    + NO_FORMULAS
    + r"'.*?</\3>)"
    r"|\$(?P<inline>[^\s$<](?:[^$\n<]*[^\s$\\<])?)\$",
    flags=re.S,
)

# latex2mathml knows them by themselves, but not behind \Big.
_FENCES = {r"\lfloor": "⌊", r"\rfloor": "⌋", r"\lceil": "⌈", r"\rceil": "⌉"}


def typeset_html(html: str) -> str:
    """Typeset the HTML that an object shows itself by; its formulas are escaped text.

    >>> typeset_html(f"<p class='{NO_FORMULAS}'>between $1-$2</p>")
    "<p class='tex2jax_ignore mathjax_ignore'>between $1-$2</p>"
    """
    return _HTML.sub(_replaced, html)


def _replaced(match: re.Match) -> str:
    parts = match.groupdict()
    if parts.get("code"):
        return parts["code"]
    if parts.get("block"):
        return mathml(parts["block"].strip(), "block")
    return mathml(unescape(parts["inline"]), "inline")


@cache
def mathml(tex: str, display: str) -> str:
    """Return a formula as MathML, `display` "inline" or "block"."""
    from latex2mathml.converter import convert

    for name, sign in _FENCES.items():
        tex = tex.replace(name, sign)
    # In TeX a dollar sign of text is written with a backslash, which MathML would show.
    return convert(tex, display=display).replace("<mtext>\\$", "<mtext>$")
