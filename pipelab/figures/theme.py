"""Colours and the figure template: one place, so that a thing looks the same everywhere.

The colours are Okabe and Ito's, which stay apart for the colour-blind and in print.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from html import escape
from typing import Any

import numpy as np

from pipelab.display import DOES_NOT_FIT, Figure

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
    "exact": "#0072B2",
    "rounded": "#56B4E9",
    "only under an unstated assumption": "#F0E442",
    "machine-dependent": "#D0D0D0",
    "wrong": WRONG,
    "holds": "#0072B2",
    "holds on what was tried": "#56B4E9",
    "does not hold": WRONG,
    "no verdict": "#999999",
}
# Generations of GPUs keep their colour from figure to figure: the write-up's types, and those of
# data/gpus.csv beside them.
_GENERATIONS = (
    "A100 A100-SXM-40 A100-SXM-80 A100-PCIe-80",
    "V100 V100-SXM-16 V100-SXM-32",
    "H100 H100-SXM H100-PCIe GH200 H20",
    "A40",
    "L20 L4",
    "A10 A10G",
    "T4",
    "RTX4090 RTX3090 L40S L40 RTX6000-Ada",
)
_KNOWN_COLOURS = {
    name: colour
    for names, colour in zip(_GENERATIONS, TYPE_COLOURS, strict=True)
    for name in names.split()
}
_KNOWN_COLOURS |= {
    "B200": "#4B2E83",
    "H200-SXM": "#00583F",
    "MI300X": "#8C2D5A",
    "MI325X": "#8C2D5A",
    "M2-Ultra-76c": "#7A5230",
    "M3-Max-40c": "#B08D57",
}


def colour_of_types(types: Iterable[str]) -> dict[str, str]:
    """Return a colour for each GPU type, in the order in which the cluster lists them.

    Types that are not known, and a second one of a generation, get what the palette has left.

    >>> colour_of_types(["T4", "mine", "A100"])
    {'T4': '#999999', 'mine': '#E69F00', 'A100': '#0072B2'}
    """
    names = list(dict.fromkeys(types))
    first: dict[str, str] = {}  # colour: the type that it belongs to here
    for name in names:
        if name in _KNOWN_COLOURS:
            first.setdefault(_KNOWN_COLOURS[name], name)
    kept = {name: colour for colour, name in first.items()}
    free = [colour for colour in TYPE_COLOURS if colour not in first] or TYPE_COLOURS
    others = [name for name in names if name not in kept]
    return {n: kept.get(n) or free[others.index(n) % len(free)] for n in names}


def ink_on(colour: str) -> str:
    """Return black or white, whichever reads better on a background (relative luminance of WCAG)."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "black" if (luminance + 0.05) / 0.05 > 1.05 / (luminance + 0.05) else "white"


def plain(text: object) -> str:
    """Return a name for a figure's title or label, where plotly reads HTML: shown character by character.

    >>> plain("<b>mine</b> & yours")
    '&lt;b&gt;mine&lt;/b&gt; &amp; yours'
    """
    return escape(str(text), quote=False)


def distance_from_best(answer: Any) -> str:
    """Say at the end of a title how far an answer with `status` and `gap` may be from the best."""
    if answer.status == "optimal":
        return ", proven best"
    return "" if answer.gap is None else f", the best at most {answer.gap:.1%} better"


# A line of entries that ends at the right edge, above its `y`.
LEGEND = {
    "orientation": "h",
    "yanchor": "bottom",
    "x": 1,
    "xanchor": "right",
    "traceorder": "normal",
}
_PLAIN: Mapping[str, str] = {}  # neither dashed nor in steps


def room_for(labels: Iterable[str], size: int) -> int:
    """Return the pixels that the longest of these labels takes in a margin, bold or not.

    >>> room_for(["GPU 12 · A100"], 12) > room_for(["GPU 1"], 12) > 60
    True
    """
    lines = [re.sub("<[^>]*>", "", line) for label in labels for line in label.split("<br>")]
    return max(72, round(26 + 0.68 * size * max(map(len, lines), default=0)))


def rows(labels: Sequence[str], **axis: Any) -> dict:
    """Return the vertical axis of named rows, the first at the top."""
    return {
        "tickvals": list(range(len(labels))),
        "ticktext": list(labels),
        "range": [max(len(labels), 1) - 0.5, -0.5],
        "showgrid": False,
        **axis,
    }


def bar(name: str, lane: Any, start: Any, end: Any, **more: Any) -> dict:
    """Return a trace of bars from `start` to `end` in their rows."""
    place = {"y": lane, "base": start, "x": np.subtract(end, start)}
    return {"type": "bar", "name": name, "orientation": "h", **place, **more}


def points(name: str, x: Any, y: Any, mode: str = "markers", **more: Any) -> dict:
    """Return a trace of points, or of texts."""
    return {"type": "scatter", "mode": mode, "name": name, "x": x, "y": y, **more}


def line(
    name: str, x: Any, y: Any, colour: str, width: float = 2, look: Mapping = _PLAIN, **more: Any
) -> dict:
    """Return a trace of a line, about which hovering says nothing unless `more` has what."""
    quiet = {} if any(key.startswith("hover") for key in more) else {"hoverinfo": "skip"}
    drawn = {"color": colour, "width": width, **look}
    return points(name, x, y, **{"mode": "lines", "line": drawn, **quiet, **more})


def finish(
    data: Sequence[dict],
    title: str,
    note: str = "",
    *,
    x: "str | Mapping" = "",
    y: "str | Mapping" = "",
    height: int = 400,
    **layout: Any,
) -> dict:
    """Return a drawing: traces under a title that is never wider than the figure, and a note.

    Parameters
    ----------
    data : sequence of dict
        Traces, as plotly names their properties; values may be numpy arrays.
    title, note : str
        What is to be seen, and in small type how to read it.
    x, y : str or mapping
        The name of an axis, or its properties with the name as "title".
    height : int
        Pixels, with a title of one line.
    **layout
        Further properties of plotly's layout; they come before those set here.

    Returns
    -------
    dict
        "data" and "layout": see `figure_of`, and `pipelab.figures.html_charts.as_json`.

    Examples
    --------
    >>> parts = finish([{"type": "bar", "y": [1, 2]}], "Two bars", "no more", y="seconds")
    >>> parts["layout"]["title"]["text"]
    'Two bars<br><sup>no more</sup>'
    """
    lines, notes = folded(title, _TITLE_LETTERS), folded(note, _NOTE_LETTERS)
    text = "<br>".join([*lines, *(f"<sup>{line}</sup>" for line in notes)])
    legend = layout.get("showlegend", sum(trace.get("showlegend", True) for trace in data) > 1)
    more = 20 * (max(len(lines), 1) - 1) + 18 * max(len(notes) - 1, 0)
    margin = {"t": 50 + more + 20 * bool(notes) + 28 * bool(legend), "b": 52}
    axes = {"xaxis": _axis(x), "yaxis": _axis(y)}
    if "ticktext" in axes["yaxis"]:
        size = axes["yaxis"].get("tickfont", {}).get("size", 13)
        margin["l"] = room_for(axes["yaxis"]["ticktext"], size)
    margin |= layout.pop("margin", {})
    fixed = {"title": {"text": text}, "height": height + more, "margin": margin}
    return {"data": list(data), "layout": fixed | axes | layout}


# Letters of a line of the title, and of a note, in a figure as wide as a notebook.
_TITLE_LETTERS, _NOTE_LETTERS = 100, 140


def folded(text: str, most: int) -> list[str]:
    """Return the lines of a text, none longer than `most` letters; they end with a clause if they can.

    >>> folded("one stage is slow, two are idle, and that is all", 36)
    ['one stage is slow, two are idle,', 'and that is all']
    """
    parts = []
    for line in filter(None, text.split("<br>")):
        rest = line
        while len(rest) > most:
            clauses = (rest.rfind(mark, most // 3, most) + 1 for mark in ("; ", ", ", ": "))
            end = next(filter(None, clauses), 0) or rest.rfind(" ", 0, most)
            if end < 0:
                break
            parts.append(rest[:end].rstrip())
            rest = rest[end:].lstrip()
        parts.append(rest)
    return parts


def _axis(axis: "str | Mapping") -> dict:
    properties = {"title": axis} if isinstance(axis, str) else dict(axis)
    title = properties.pop("title", "")
    if properties.get("type") != "log":
        properties = {"exponentformat": "none", **properties}  # 20,000 and not 20k
    return properties | ({"title": {"text": title}} if title else {})


def new_figure() -> Figure:
    """Return a figure without traces; plotly is imported only now, since that takes a moment."""
    import plotly.graph_objects as go

    return go.Figure()


def figure_of(parts: "dict | Figure") -> Figure:
    """Return a drawing as a still figure, checked by plotly, in the package's template.

    Returns
    -------
    plotly.graph_objects.Figure
    """
    import plotly.graph_objects as go

    parts = as_dict(parts)
    return go.Figure(parts["data"], {**parts["layout"], "template": template()})


def as_dict(parts: "dict | Figure") -> dict:
    """Return a drawing or a figure as plain traces and layout, without a template."""
    if isinstance(parts, dict):
        return parts
    plain = parts.to_plotly_json()
    plain["layout"].pop("template", None)
    return {"data": plain["data"], "layout": plain["layout"]}


@lru_cache(maxsize=1)  # making one takes plotly 20 ms, and a figure copies what it is given
def template() -> Any:
    """Return the plotly template: white ground, title left, toolbar in the margin on the right."""
    import plotly.graph_objects as go
    import plotly.io as pio

    base = go.layout.Template(pio.templates["plotly_white"])
    axis = {
        "separatethousands": True,
        "gridcolor": GRID,
        "zeroline": False,
        "ticklabeloverflow": "allow",  # measuring every label takes longer than drawing it
    }
    base.layout.update(
        font={"family": "DejaVu Sans, Verdana, sans-serif", "size": 13, "color": "#222222"},
        title={
            "x": 0.01,
            "xanchor": "left",
            "y": 1,
            "yref": "container",
            "yanchor": "top",
            "pad": {"t": 18},
            "font": {"size": 16},
        },
        margin={"l": 90, "r": 40, "t": 78, "b": 56},
        legend={"y": 1.02, **LEGEND},
        # beside the drawing, so that it covers neither the title nor the legend
        modebar={
            "orientation": "v",
            "remove": ["zoomIn2d", "zoomOut2d", "autoScale2d", "select2d", "lasso2d"],
            "bgcolor": "rgba(255, 255, 255, 0)",
        },
        hoverlabel={"align": "left"},
        uniformtext={"minsize": 8, "mode": "hide"},
        xaxis={**axis, "ticklabelstandoff": 4},  # clear of the lowest label of the y-axis
        yaxis={**axis, "ticklabelstandoff": 8},
    )
    return base
