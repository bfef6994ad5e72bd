"""The rates of all placements as a histogram, with a few of them marked."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from pipelab.display import listed
from pipelab.figures.theme import BOTTLENECK, NEUTRAL, TYPE_COLOURS, plain, template

if TYPE_CHECKING:
    import plotly.graph_objects as go

_SAME = 1 + 1e-9  # rates this close to one another are one
_BARS = 60


def plot_rates(rates: Sequence[float], marks: Mapping[str, float]) -> "go.Figure":
    """How many placements reach which rate, and where the marked ones stand among them.

    Parameters
    ----------
    rates : sequence of float
        In tokens/s, one per placement; 0 does not fit. At least one fits.
    marks : mapping of name to float
        The rates of a few placements, such as those of rules; 0 does not fit and is not drawn.

    Returns
    -------
    plotly.graph_objects.Figure
        Of the placements that fit, on a logarithmic axis. Each mark says which share of them it
        beats.

    Examples
    --------
    >>> figure = plot_rates([0, 100, 200, 200, 400], {"even": 200, "odd": 0})
    >>> figure.layout.title.text.split("<br>")[0]
    'Even beats 25% of the placements that fit; the best is 2.0 times as fast'
    """
    import plotly.graph_objects as go

    fits = np.array([rate for rate in rates if rate > 0])
    best = float(fits.max())
    numbers, edges = np.histogram(fits, bins=_BARS, range=(0, 1.02 * best))
    figure = go.Figure(
        go.Bar(
            x=(edges[:-1] + edges[1:]) / 2, y=numbers, width=0.9 * np.diff(edges), marker={"color": NEUTRAL},
            hovertemplate="%{y:,} placements near %{x:,.0f} tokens/s<extra></extra>", showlegend=False,
        )
    )  # fmt: skip
    top = float(np.log10(numbers.max()))
    rows = _rows(marks, best)
    for place, (rate, names) in enumerate(rows):
        height = top + 0.55 * (len(rows) - place)
        ends = rate > 0.6 * best  # on the right, a label stands to the left of its line
        slower = float((fits * _SAME < rate).mean())
        colour = BOTTLENECK if names == ["best"] else TYPE_COLOURS[0]
        says = f"<b>{plain(listed(names))}</b> {rate:,.1f} beats {_share(slower)}"
        figure.add_scatter(
            x=[rate, rate], y=[0.6, 10**height], mode="lines", line={"color": colour, "width": 2, "dash": "dot"},
            showlegend=False, hoverinfo="skip",
        )  # fmt: skip
        figure.add_annotation(
            x=rate, y=height, text=says, showarrow=False, xanchor="right" if ends else "left",
            xshift=-4 if ends else 4, font={"color": colour, "size": 12}, bgcolor="white",
        )  # fmt: skip
    ticks = [10**power for power in range(int(top) + 1)]
    figure.update_layout(
        template=template(), title=_title(fits, marks), height=330 + 26 * len(rows),
        xaxis={"title": {"text": "tokens/s"}, "range": [0, 1.03 * best], "tickformat": ",", "zeroline": False},
        yaxis={"type": "log", "title": {"text": "placements (log scale)"}, "tickvals": ticks, "tickformat": ",",
               "range": [np.log10(0.6), top + 0.55 * len(rows) + 0.4]},
    )  # fmt: skip
    return figure


def _rows(marks: Mapping[str, float], best: float) -> list[tuple[float, list[str]]]:
    """Rates with the names of the marks that reach them, the best last."""
    rows: dict[float, list[str]] = {best: ["best"]}
    for name, rate in marks.items():
        if rate > 0:
            same = next((r for r in rows if max(r, rate) <= min(r, rate) * _SAME), rate)
            rows.setdefault(same, []).append(name)
    return sorted(rows.items())


def _share(share: float) -> str:
    """In per cent; never 100% where one is left."""
    if share in (0, 1):
        return "all" if share else "none"
    if share > 0.99995:
        return "over 99.99%"
    return f"{share:.{0 if share < 0.985 else 2}%}"


def _title(fits: np.ndarray, marks: Mapping[str, float]) -> str:
    note = f"{len(fits):,} placements that fit; dotted: the rates of some of them, and which share each beats"
    best = float(fits.max())
    fast = max(marks.values(), default=0.0)
    if not fast:
        return f"No rule finds a placement that fits; the best has {best:,.1f} tokens/s<br><sup>{note}</sup>"
    name = max(marks, key=lambda mark: marks[mark])
    name = plain(name[:1].upper() + name[1:])
    beats = _share(float((fits * _SAME < fast).mean()))
    more = (
        f"{best / fast - 1:.0%} faster" if best < 2 * fast else f"{best / fast:.1f} times as fast"
    )
    if fast * _SAME >= best:
        says = f"{name} is as fast as the best of all placements, {best:,.1f} tokens/s"
    else:
        who = "No rule beats any" if beats == "none" else f"{name} beats {beats}"
        says = f"{who} of the placements that fit; the best is {more}"
    return f"{says}<br><sup>{note}</sup>"
