"""A sweep in one picture: every point a dot, the best ones joined."""

from collections import Counter
from collections.abc import Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any

from pipelab.display import STOPPED, ended_row, outcome_of_row
from pipelab.errors import InvalidValue, UnknownName, nearest
from pipelab.figures.theme import TYPE_COLOURS, figure_of, finish, plain

if TYPE_CHECKING:
    from pandas import DataFrame
    from plotly.graph_objects import Figure

    from pipelab.engine.sweeps.run import Sweep

_REST = "#999999"
_BEST = (TYPE_COLOURS[0], 10)
_UNITS = {
    "throughput_tokens_per_s": "tokens/s",
    "bound_tokens_per_s": "tokens/s at most",
    "gpus_used": "GPUs in use",
    "usd_per_hour": "$ per hour",
    "usd_per_million_tokens": "$ per million tokens",
}
_LESS_IS_BETTER = ("gpus_used", "usd_per_hour", "usd_per_million_tokens", "stages", "seconds")
_EFFORT = ("gpus_used", "usd_per_hour")  # what one pays on the x axis: less for the same is better


def plot_sweep(
    sweep: "Sweep", x: str | None = None, y: str = "throughput_tokens_per_s"
) -> "Figure":
    """Draw one column of a sweep against another.

    Parameters
    ----------
    sweep : Sweep
        Made by `pl.sweep`.
    x : str, optional
        A column of numbers: a name of the points, or of the answers. By default what is paid:
        usd_per_hour where there are prices, otherwise gpus_used. Points that no other one beats in
        both x and y are then joined as steps; against any other column, the best at each value.
    y : str
        A column of numbers.

    Returns
    -------
    plotly.graph_objects.Figure
        A dot per point that has a placement; hover gives its values.

    Raises
    ------
    UnknownName
        The column is unknown.
    InvalidValue
        A column does not hold numbers.
    """
    frame = sweep.to_frame()
    x = x or ("usd_per_hour" if "usd_per_hour" in frame else "gpus_used")
    _check_columns(frame, x, y)
    known = frame.dropna(subset=[x, y])
    rows = known.to_dict("records")
    best = _best(rows, x, y)
    looks = (
        (rows, "markers", _REST, 6, "all points"),
        (best, "lines+markers", *_BEST, _best_name(x)),
    )
    data = [
        {
            "type": "scatter",
            "mode": mode,
            "name": name,
            "x": [row[x] for row in part],
            "y": [row[y] for row in part],
            "marker": {
                "color": colour,
                "size": size,
                "symbol": [outcome_of_row(row).marker for row in part],
            },
            "line": {"color": colour, "width": 2, "shape": "hv" if x in _EFFORT else "linear"},
            "text": [f"{_point(sweep, row)}, {ended_row(row)}" for row in part],
            "hovertemplate": f"%{{x:,.6g}} {_unit(x)}: %{{y:,.6g}} {_unit(y)}<br>%{{text}}"
            "<extra></extra>",
        }
        for part, mode, colour, size, name in looks
    ]
    across, down = ({"title": _unit(name), "rangemode": "tozero"} for name in (x, y))
    title, note = _title(sweep, best, y), _note(sweep, rows, best, x)
    return figure_of(finish(data, title, note, x=across, y=down, height=420))


def _check_columns(frame: "DataFrame", *names: str) -> None:
    from pandas.api.types import is_numeric_dtype

    for name in names:
        if name not in frame:
            hint = "; no GPU has a price" if "usd" in name else ""
            raise UnknownName(
                f"a sweep has no column {name!r}{hint}; {nearest(name, frame.columns)}"
            )
        if not is_numeric_dtype(frame[name]) and frame[name].notna().any():
            raise InvalidValue("plot_sweep", [("column", name, "expected one that holds numbers")])


def _best(rows: list[dict], x: str, y: str) -> list[dict]:
    """The best row at each x; where x is paid for, only those better than all that pay less."""
    sign = -1 if y in _LESS_IS_BETTER else 1
    ordered = sorted(rows, key=lambda row: (row[x], -sign * row[y], row["status"] != "optimal"))
    each = [next(same) for _, same in groupby(ordered, key=lambda row: row[x])]
    if x not in _EFFORT:
        return each
    front: list[dict] = []
    for row in each:
        if not front or sign * row[y] > sign * front[-1][y]:
            front.append(row)
    return front


def _best_name(x: str) -> str:
    return "beaten by none" if x in _EFFORT else plain(f"best at each {x}")


def _unit(name: str) -> str:
    return plain(_UNITS.get(name, name.replace("_", " ")))


def _point(sweep: "Sweep", row: dict) -> str:
    """The values of a point; numbers of GPUs that are 0 are left out."""
    return plain(", ".join(f"{name} = {row[name]}" for name in sweep.names if row[name] != 0))


def _title(sweep: "Sweep", best: list[dict], y: str) -> str:
    if not best:
        return f"None of {sweep.requested:,} points has a placement"
    top = (min if y in _LESS_IS_BETTER else max)(best, key=lambda row: row[y])
    least = "at least" if y in _LESS_IS_BETTER else "at most"
    return f"{top[y]:,.4g} {_unit(y)} {least}, with {_point(sweep, top)}"


def _note(sweep: "Sweep", rows: list[dict], best: list[dict], x: str) -> str:
    joined = (
        f"{len(best)} are beaten by none"
        if x in _EFFORT
        else f"the best at each of {len(best)} values joined"
    )
    parts = [
        f"{len(rows):,} points, {joined}",
        *["all proven"] * all(row["status"] == "optimal" for row in rows),
    ]
    parts += [
        f"{how}: {number:,}"
        for how, number in Counter(filter(None, map(_short_of_proof, sweep.rows))).items()
    ]
    parts += [] if sweep.complete else [f"{sweep.requested - len(sweep.rows):,} not reached"]
    return "; ".join(parts)


def _short_of_proof(row: Mapping[str, Any]) -> str:
    """How a point ended that is not proven, or for some placements only; empty for those that are proven."""
    if row["status"] == "optimal":
        return ""
    alone = outcome_of_row(row) is STOPPED and row["placement"] == ""
    return f"{ended_row(row)}, no placement" if alone else ended_row(row)
