"""A trade-off in a picture: throughput against what it costs, as steps."""

from typing import TYPE_CHECKING

from pipelab.display import STOPPED
from pipelab.figures.theme import TYPE_COLOURS, figure_of, finish, plain, rate

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from pipelab.engine.methods.trade_offs import TradeOff

_UNITS = {
    "gpus": "GPUs in use",
    "usd_per_hour": "$ per hour",
    "usd_per_million_tokens": "$ per million tokens",
    "seconds_per_pass": "seconds per pass",
}
# Amounts, whose chart shows what each yields; the others are ratios and times.
_ADDING_UP = {"gpus": "GPU", "usd_per_hour": "dollar"}


def plot_trade_off(curve: "TradeOff") -> "Figure":
    """Draw throughput against GPUs, dollars or seconds, as steps: nothing better exists between.

    Parameters
    ----------
    curve : TradeOff
        Made by `trade_off`.

    Returns
    -------
    plotly.graph_objects.Figure
        Tokens/s against what `curve.against` names; hover gives the placement.
    """
    frame = curve.to_frame().sort_values(curve.against) if curve.points else curve.to_frame()
    unit = _UNITS[curve.against]
    x, y = (
        frame[c].tolist() if len(frame) else [] for c in (curve.against, "throughput_tokens_per_s")
    )
    steps = {
        "type": "scatter",
        "mode": "lines",
        "x": [*x, _end(curve, x)] if x else [],
        "y": [*y, *y[-1:]],
        "line": {"color": TYPE_COLOURS[0], "width": 2, "shape": "hv"},
        "hoverinfo": "skip",
    }
    points = {
        "type": "scatter",
        "mode": "markers+text",
        "x": x,
        "y": y,
        "marker": {
            "color": TYPE_COLOURS[0],
            "size": 11,
            "symbol": ["circle" if proven else "circle-open" for proven in frame["proven"]]
            if x
            else [],
        },
        "text": _labels(curve.against, x, y),
        "textposition": "top center",
        "customdata": [p.replace(" → ", "<br>") for p in frame["placement"]] if x else [],
        "hovertemplate": f"%{{x:,.6g}} {unit}: %{{y:,.6g}} tokens/s<br>%{{customdata}}<extra></extra>",
    }
    across = {"title": unit} | ({"rangemode": "tozero"} if curve.against in _ADDING_UP else {})
    down = {"title": "tokens/s", "tickformat": ",", "range": [0, 1.15 * max(y, default=1)]}
    title, note = _finding(curve, unit, x, y), _note(curve)
    return figure_of(finish([steps, points], title, note, x=across, y=down, showlegend=False))


def _note(curve: "TradeOff") -> str:
    """How much is proven, and in what time."""
    proven, points = sum(p.status == "optimal" for p in curve.points), len(curve.points)
    if proven == points:
        note = f"every point proven, {points} in {curve.seconds:.2g} s"
    else:
        note = f"{proven} of {points} points proven (filled), in {curve.seconds:.2g} s"
    if not curve.complete:
        return f"{note}; {STOPPED}, points may be missing"
    return f"{note}; between two points nothing better exists" if points else note


def _end(curve: "TradeOff", x: list[float]) -> float:
    """How far the last step is drawn: more than the last point costs buys nothing; the cluster ends the axis."""
    if curve.against not in _ADDING_UP:
        return x[-1] * 1.15 if len(x) == 1 else x[-1] + 0.15 * (x[-1] - x[0])
    gpus = curve.problem.cluster.gpus
    return (
        float(len(gpus)) if curve.against == "gpus" else sum(gpu.usd_per_hour or 0 for gpu in gpus)
    )


def _finding(curve: "TradeOff", unit: str, x: list[float], y: list[float]) -> str:
    name = plain(curve.problem.name)
    if not x:
        return (
            f"{name}: no placement exists"
            if curve.complete
            else f"{name}: no point was proven in time"
        )
    if curve.against in _ADDING_UP:
        best = max((b / a, i) for i, (a, b) in enumerate(zip(x, y, strict=True)))[1]
        return f"{name}: {rate(y[-1])} at most, most per {_ADDING_UP[curve.against]} at {x[best]:g} {unit}"
    if len(x) == 1 and not curve.complete:
        return f"{name}: stopped early with one placement, {rate(y[0])} at {x[0]:.4g} {unit}"
    if len(x) == 1:
        return f"{name}: one placement is best in both, {rate(y[0])} at {x[0]:.4g} {unit}"
    least = {"usd_per_million_tokens": "cheapest", "seconds_per_pass": "lowest-latency"}[
        curve.against
    ]
    more, dearer = _percent(y[-1] / y[0] - 1), _percent(x[-1] / x[0] - 1)
    return f"{name}: up to {more} more tokens/s than the {least} plan, at {dearer} more {unit}"


def _percent(share: float) -> str:
    """Two digits, as small as it may be.

    >>> _percent(1.786), _percent(0.023), _percent(0.00046)
    ('179%', '2.3%', '0.046%')
    """
    return f"{share:.0%}" if share >= 0.1 else f"{100 * share:.2g}%"


def _labels(against: str, x: list[float], y: list[float]) -> list[str]:
    """Throughput beside each point, unless the next one leaves no room.

    >>> _labels("usd_per_hour", [1.0, 1.1, 4.0], [10.0, 11.0, 30.0])
    ['', '11', '30']
    """
    labels = [rate(v).split()[0] for v in y]
    room = 0.05 * x[-1] if against in _ADDING_UP else 0.07 * (x[-1] - x[0])
    return [t if i == len(x) - 1 or x[i + 1] - x[i] > room else "" for i, t in enumerate(labels)]
