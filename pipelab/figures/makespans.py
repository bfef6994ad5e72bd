"""Makespans of several schedules while something changes."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from pipelab.display import listed, number
from pipelab.engine.schedules import RULES
from pipelab.errors import InvalidValue
from pipelab.fields import amounts, checked_arguments, described, instance, is_list
from pipelab.figures.theme import BOTTLENECK, TYPE_COLOURS, figure_of, finish, line, plain

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

# yellow is too pale
_LINES = (*(colour for colour in TYPE_COLOURS if colour != "#F0E442"), "#B34700", "#111111")
_SYMBOLS = [
    "circle",
    "diamond",
    "square",
    "x",
    "triangle-up",
    "star",
    "cross",
    "hexagon",
    "triangle-down",
]


@checked_arguments
def plot_makespans(
    values: Any,
    makespans: Mapping[str, Sequence[float]],
    axis: Annotated[str, described("text")],
    *,
    finding: Annotated[str | None, described("text")] = None,
) -> "Figure":
    """Draw makespans of several schedules while something changes; the line of a bound is dotted.

    Parameters
    ----------
    values : sequence
        Of what changes: numbers, or labels.
    makespans : mapping of name to sequence of float
        One number per value, at least 0, of at most nine schedules. A name with "bound" in it is a
        bound.
    axis : str
        What changes.
    finding : str, optional
        The title; by default who is fastest at both ends, and who is slowest in the end.

    Returns
    -------
    plotly.graph_objects.Figure
        A line per name, in the unit of the makespans.

    Raises
    ------
    InvalidValue
        There are too many lines or none, a line has not one number per value, or an argument is of
        another kind.

    Examples
    --------
    >>> import pipelab as pl
    >>> ends = {"GPipe": [33, 39], "1F1B": [33, 49], "bound": [33, 39]}
    >>> plot_makespans([0, 1], ends, "comm").layout.title.text
    'comm 0: GPipe and 1F1B are fastest; comm 1: GPipe is, and 1F1B takes 1.26 times as long'
    """
    values, lines = _checked(values, makespans)
    runners = {name: ends for name, ends in lines.items() if "bound" not in name}
    if not 1 <= len(runners) <= len(_LINES):
        expected = f"expected 1 to {len(_LINES)} lines that are no bound"
        raise InvalidValue("plot_makespans", [("makespans", f"{len(runners)} of them", expected)])
    looks = _looks(list(runners))
    # The legend is beside the right end, in its order; a line that others cover is the
    # wider one.
    ordered = sorted(runners, key=lambda name: -runners[name][-1])
    data: list[dict] = []
    for i, name in enumerate(ordered):
        covered = sum(runners[other] == runners[name] for other in ordered[i + 1 :])
        colour, symbol = looks[name]
        data.append(
            line(
                name,
                values,
                runners[name],
                colour,
                2 + 6 * covered,
                mode="lines+markers",
                marker={"symbol": symbol, "size": 9 + 7 * covered},
                hovertemplate=f"{name}: %{{y:.6g}} at {axis} %{{x}}<extra></extra>",
            )
        )
    for name in [name for name in lines if name not in runners]:
        hover = f"{name}: %{{y:.6g}}<extra></extra>"
        dots = line(name, values, lines[name], BOTTLENECK, look={"dash": "dot"})
        data.append(dots | {"hovertemplate": hover, "hoverinfo": "all"})
    parts = finish(
        data,
        finding or _who_changes(values, runners, axis),
        x=axis,
        y="makespan",
        height=430,
        legend={"orientation": "v", "x": 1.02, "xanchor": "left", "y": 0.5, "yanchor": "middle"},
    )
    return figure_of(parts)


def _looks(names: list[str]) -> dict[str, tuple[str, str]]:
    """Return colour and symbol of each line: those of a schedule, and for other names what is left."""
    free = dict(zip(RULES, zip(_LINES, _SYMBOLS, strict=True), strict=False))
    looks = {name: free.pop(name) for name in names if name in free}
    others = (name for name in names if name not in looks)
    return looks | dict(zip(others, free.values(), strict=False))


def _checked(values: Any, makespans: Any) -> tuple[list, dict[str, list[float]]]:
    """Return both as plain lists, every makespan a number."""
    instance("plot_makespans", "makespans", makespans, Mapping, "a mapping of name to makespans")
    if not is_list(values):
        expected = "expected a list of numbers or labels"
        raise InvalidValue("plot_makespans", [("values", values, expected)])
    values, lines = list(values), {}
    for name, ends in makespans.items():
        field = f"makespans[{name!r}]"
        numbers = amounts("plot_makespans", field, ends)
        if len(numbers) != len(values) or not values:
            many = f"one number for each of {len(values)} values, and at least one"
            expected = f"expected {many}; got {len(numbers)}"
            raise InvalidValue("plot_makespans", [(field, ends, expected)])
        lines[plain(name)] = numbers
    return values, lines


def _who_changes(values: list, runners: Mapping[str, Sequence[float]], axis: str) -> str:
    said = []
    for i in (0, -1):
        best = min(ends[i] for ends in runners.values())
        names = [name for name, ends in runners.items() if ends[i] <= best * (1 + 1e-9)]
        said.append(f"{axis} {values[i]}: {listed(names)} {'are' if len(names) > 1 else 'is'}")
    slowest = max(runners, key=lambda name: runners[name][-1])
    worst = runners[slowest][-1]
    takes = f"{worst / best:.3g} times as long" if best > 0 else number(worst)
    return f"{said[0]} fastest; {said[1]}, and {slowest} takes {takes}"
