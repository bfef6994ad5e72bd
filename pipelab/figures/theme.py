"""Colours and the figure template: one place, so that a thing looks the same everywhere.

The colours are Okabe and Ito's, which stay apart for the colour-blind and in print.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from html import escape
from typing import Any

from pipelab.display import DOES_NOT_FIT
from pipelab.io.jsonschema_import import build_iri_grammar_when_asked

TYPE_COLOURS = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#F0E442",
    "#999999",
    "#5D3A9B",
)
BOTTLENECK = "#111111"
WRONG = DOES_NOT_FIT.fill
GRID = "#D0D0D0"
NEUTRAL, NEUTRAL_LIGHT = "#46606F", "#DDE4E8"  # of what is neither GPU, action nor verdict
# Of the ledger: what agrees is blue, what does not is WRONG, and what is neither is light.
VERDICT_COLOURS = {
    "exact": "#0072B2", "rounded": "#56B4E9", "only under an unstated assumption": "#F0E442",
    "machine-dependent": "#D0D0D0", "wrong": WRONG,
    "holds": "#0072B2", "holds on what was tried": "#56B4E9", "does not hold": WRONG,
    "no verdict": "#999999",
}  # fmt: skip
# A family of GPUs keeps its colour from figure to figure: the write-up's types, and those of
# data/gpus.csv beside them.
_FAMILIES = (
    ("A100", "A100-SXM-40", "A100-SXM-80", "A100-PCIe-80"), ("V100", "V100-SXM-16", "V100-SXM-32"),
    ("H100", "H100-SXM", "H100-PCIe"), ("A40",), ("L20", "L4"), ("A10", "A10G"), ("T4",),
    ("RTX4090", "RTX3090", "L40S", "L40"),
)  # fmt: skip
_KNOWN = {
    name: colour for names, colour in zip(_FAMILIES, TYPE_COLOURS, strict=True) for name in names
}
_KNOWN |= {
    "H200-SXM": "#00583F",
    "MI300X": "#8C2D5A",
    "M2-Ultra-76c": "#7A5230",
    "M3-Max-40c": "#B08D57",
}


def colour_of_types(types: Iterable[str]) -> dict[str, str]:
    """A colour for each GPU type, in the order in which the cluster lists them.

    Types that are not known, and a second one of a family, get what the palette has left.

    >>> colour_of_types(["T4", "mine", "A100"])
    {'T4': '#999999', 'mine': '#E69F00', 'A100': '#0072B2'}
    """
    names = list(dict.fromkeys(types))
    first: dict[str, str] = {}  # colour: the type that it belongs to here
    for name in names:
        if name in _KNOWN:
            first.setdefault(_KNOWN[name], name)
    own = {name: colour for colour, name in first.items()}
    free = [colour for colour in TYPE_COLOURS if colour not in first] or TYPE_COLOURS
    others = [name for name in names if name not in own]
    return {n: own.get(n) or free[others.index(n) % len(free)] for n in names}


def ink_on(colour: str) -> str:
    """Black or white, whichever reads better on a background (relative luminance of WCAG)."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "black" if (luminance + 0.05) / 0.05 > 1.05 / (luminance + 0.05) else "white"


def plain(text: object) -> str:
    """A name for a figure's title or label, where plotly reads HTML: shown character by character.

    >>> plain("<b>mine</b> & yours")
    '&lt;b&gt;mine&lt;/b&gt; &amp; yours'
    """
    return escape(str(text), quote=False)


def room_for(labels: Iterable[str], size: int) -> int:
    """Pixels of margin that the longest of these labels takes in a font of this size, bold or not.

    >>> room_for(["GPU 12 · A100"], 12) > room_for(["GPU 1"], 12) > 60
    True
    """
    longest = max((len(re.sub("<[^>]*>", "", label)) for label in labels), default=0)
    return max(72, round(26 + 0.68 * size * longest))


@lru_cache(maxsize=1)  # making one takes plotly 20 ms, and a figure copies what it is given
def template() -> Any:
    """A plotly template: white ground, title left, room for long labels."""
    build_iri_grammar_when_asked()  # before plotly shows its first figure
    import plotly.graph_objects as go
    import plotly.io as pio

    base = go.layout.Template(pio.templates["plotly_white"])
    base.layout.update(
        font={"family": "DejaVu Sans, Verdana, sans-serif", "size": 13, "color": "#222222"},
        title={
            "x": 0.01, "xanchor": "left", "y": 1, "yref": "container", "yanchor": "top", "pad": {"t": 14},
            "font": {"size": 16},
        },
        margin={"l": 90, "r": 24, "t": 78, "b": 56},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 1, "xanchor": "right"},
        # a short toolbar, through which a long title can be read
        modebar={
            "remove": ["zoomIn2d", "zoomOut2d", "autoScale2d", "select2d", "lasso2d"],
            "bgcolor": "rgba(255, 255, 255, 0)",
        },
        hoverlabel={"align": "left"}, xaxis={"separatethousands": True}, yaxis={"separatethousands": True},
    )  # fmt: skip
    return base
