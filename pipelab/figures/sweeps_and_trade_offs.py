"""What is reached against what it costs: a sweep, or the trade-off between the two, as curves."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from pipelab.display import STOPPED, Figure, ended_row, outcome_of_row, rate
from pipelab.engine.methods.trade_offs import TradeOff
from pipelab.engine.sweeps.run import Sweep
from pipelab.figures.theme import TYPE_COLOURS, figure_of, finish, line, plain

_REST_COLOUR = "#999999"
_BEST_COLOUR_AND_SIZE = (TYPE_COLOURS[0], 10)
_UNITS = {
    "throughput_tokens_per_s": "tokens/s",
    "gpus": "GPUs in use",
    "gpus_used": "GPUs in use",
    "tpot_ms": "ms from token to token, at most",
}
# Amounts, whose chart shows what each yields; the others are ratios and times.
_ADDING_UP = {"gpus": "GPU", "usd_per_hour": "dollar"}


def _unit(name: str) -> str:
    return plain(_UNITS.get(name, name.replace("usd_", "$ ").replace("_", " ")))


def plot_sweep(sweep: Sweep) -> Figure:
    """Draw the throughput of every point against what is paid: dollars per hour, or GPUs where no GPU has a price.

    Parameters
    ----------
    sweep : Sweep
        Made by `pl.sweep`.

    Returns
    -------
    plotly.graph_objects.Figure
        A dot per point that has a placement; hover gives its values. Points that no other one beats
        in both are joined as steps.
    """
    frame = sweep.to_frame()
    x, y = "usd_per_hour" if "usd_per_hour" in frame else "gpus_used", "throughput_tokens_per_s"
    rows = frame.dropna(subset=[x, y]).to_dict("records")
    best = _unbeaten(rows, x, y)
    data = []
    for part, mode, colour, size, name in (
        (rows, "markers", _REST_COLOUR, 6, "all points"),
        (best, "lines+markers", *_BEST_COLOUR_AND_SIZE, "beaten by none"),
    ):
        symbols = [outcome_of_row(row).marker for row in part]
        hover = f"%{{x:,.6g}} {_unit(x)}: %{{y:,.6g}} {_unit(y)}<br>%{{text}}<extra></extra>"
        trace = line(
            name,
            [row[x] for row in part],
            [row[y] for row in part],
            colour,
            look={"shape": "hv"},
            text=[f"{_point(sweep, row)}, {ended_row(row)}" for row in part],
            hovertemplate=hover,
        )
        marker = {"color": colour, "size": size, "symbol": symbols}
        data.append(trace | {"mode": mode, "marker": marker})
    across, down = ({"title": _unit(name), "rangemode": "tozero"} for name in (x, y))
    title, note = _best_of(sweep, best), _points(sweep, rows, best)
    return figure_of(finish(data, title, note, x=across, y=down, height=420))


def _unbeaten(rows: list[dict], x: str, y: str) -> list[dict]:
    """Return the rows that yield more than all that pay no more."""
    front: list[dict] = []
    for row in sorted(rows, key=lambda row: (row[x], -row[y], row["status"] != "optimal")):
        if not front or row[y] > front[-1][y]:
            front.append(row)
    return front


def _point(sweep: Sweep, row: dict) -> str:
    """Return the values of a point; numbers of GPUs that are 0 are left out."""
    return plain(", ".join(f"{name} = {row[name]}" for name in sweep.names if row[name] != 0))


def _best_of(sweep: Sweep, best: list[dict]) -> str:
    if not best:
        return f"None of {sweep.requested:,} points has a placement"
    return f"{rate(best[-1]['throughput_tokens_per_s'])} at most, with {_point(sweep, best[-1])}"


def _points(sweep: Sweep, rows: list[dict], best: list[dict]) -> str:
    parts = [
        f"{len(rows):,} points, {len(best)} are beaten by none",
        *["all proven"] * all(row["status"] == "optimal" for row in rows),
    ]
    unproven = Counter(filter(None, map(_short_of_proof, sweep.rows)))
    parts += [f"{how}: {number:,}" for how, number in unproven.items()]
    parts += [] if sweep.complete else [f"{sweep.requested - len(sweep.rows):,} not reached"]
    return "; ".join(parts)


def _short_of_proof(row: Mapping[str, Any]) -> str:
    """Say how a point ended that is not proven, or for some placements only; empty if it is proven."""
    if row["status"] == "optimal":
        return ""
    alone = outcome_of_row(row) is STOPPED and row["placement"] == ""
    return f"{ended_row(row)}, no placement" if alone else ended_row(row)


def plot_trade_off(curve: TradeOff) -> Figure:
    """Draw throughput, or requests/s, against GPUs, dollars or times, as steps: nothing better exists between.

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
    unit = _unit(curve.against)
    requests = "requests_per_s" in frame
    what = "requests" if requests else "tokens"
    reached = "requests_per_s" if requests else "throughput_tokens_per_s"
    x, y = (frame[c].tolist() if len(frame) else [] for c in (curve.against, reached))
    ends = [*x, _end(curve, x)] if x else []
    steps = line("", ends, [*y, *y[-1:]], TYPE_COLOURS[0], look={"shape": "hv"})
    symbols = ["circle" if proven else "circle-open" for proven in frame["proven"]] if x else []
    points = line(
        "",
        x,
        y,
        TYPE_COLOURS[0],
        mode="markers+text",
        marker={"color": TYPE_COLOURS[0], "size": 11, "symbol": symbols},
        text=_labels(curve.against, x, y) if x else [],
        textposition="top center",
        customdata=[p.replace(" → ", "<br>") for p in frame["placement"]] if x else [],
        hovertemplate=f"%{{x:,.6g}} {unit}: %{{y:,.6g}} {what}/s<br>%{{customdata}}<extra></extra>",
    )
    across = {"title": unit} | ({"rangemode": "tozero"} if curve.against in _ADDING_UP else {})
    down = {"title": f"{what}/s", "tickformat": ",", "range": [0, 1.15 * max(y, default=1)]}
    title, note = _finding(curve, unit, x, y, what), _note(curve)
    return figure_of(finish([steps, points], title, note, x=across, y=down, showlegend=False))


def _note(curve: TradeOff) -> str:
    """Say how much is proven, and in what time."""
    proven, points = sum(p.status == "optimal" for p in curve.points), len(curve.points)
    if proven == points:
        note = f"every point proven, {points} in {curve.seconds:.2g} s"
    else:
        note = f"{proven} of {points} points proven (filled), in {curve.seconds:.2g} s"
    if not curve.complete:
        return f"{note}; {STOPPED}, points may be missing"
    return f"{note}; between two points nothing better exists" if points else note


def _end(curve: TradeOff, x: list[float]) -> float:
    """Return where the last step ends: more than the last point costs buys nothing; the cluster ends the axis."""
    if curve.against not in _ADDING_UP:
        return x[-1] * 1.15 if len(x) == 1 else x[-1] + 0.15 * (x[-1] - x[0])
    gpus = curve.problem.cluster.gpus
    return sum(1.0 if curve.against == "gpus" else gpu.usd_per_hour or 0.0 for gpu in gpus)


def _finding(curve: TradeOff, unit: str, x: list[float], y: list[float], what: str) -> str:
    name = plain(curve.problem.name)
    if not x:
        none = "no placement exists" if curve.complete else "no point was proven in time"
        return f"{name}: {none}"
    if curve.against in _ADDING_UP:
        best = max((b / a, i) for i, (a, b) in enumerate(zip(x, y, strict=True)))[1]
        return f"{name}: {rate(y[-1], what)} at most, most per {_ADDING_UP[curve.against]} at {x[best]:g} {unit}"
    if len(x) == 1:
        one = (
            "one placement is best in both"
            if curve.complete
            else "stopped early with one placement"
        )
        return f"{name}: {one}, {rate(y[0], what)} at {x[0]:.4g} {unit}"
    least = {
        "usd_per_million_tokens": "cheapest",
        "seconds_per_pass": "lowest-latency",
        "tpot_ms": "lowest-TPOT",
    }[curve.against]
    more, dearer = _percent(y[-1] / y[0] - 1), _percent(x[-1] / x[0] - 1)
    return f"{name}: up to {more} more {what}/s than the {least} plan, at {dearer} more {unit}"


def _percent(share: float) -> str:
    """Write two digits of a share, as small as it may be.

    >>> _percent(1.786), _percent(0.023), _percent(0.00046)
    ('179%', '2.3%', '0.046%')
    """
    return f"{share:.0%}" if share >= 0.1 else f"{100 * share:.2g}%"


def _labels(against: str, x: list[float], y: list[float]) -> list[str]:
    """Return throughput beside each point, unless the next one leaves no room.

    >>> _labels("usd_per_hour", [1.0, 1.1, 4.0], [10.0, 11.0, 30.0])
    ['', '11', '30']
    """
    labels = [rate(v).split()[0] for v in y]
    room = 0.07 * x[-1] if against in _ADDING_UP else 0.09 * (x[-1] - x[0])
    return [t if i == len(x) - 1 or x[i + 1] - x[i] > room else "" for i, t in enumerate(labels)]
