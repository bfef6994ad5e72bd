"""Notebook 13, Reproducing the write-up: verdicts in one picture, a claim to refute, digits, and a weight to find."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from pipelab.course.exercises import Construction, Exercise, Function, Given, Number
from pipelab.course.ledger.book import Ledger
from pipelab.course.ledger.claims import FAILED, FAILS, KINDS, numbers_in
from pipelab.engine.formulations.count import count_candidates
from pipelab.errors import InvalidPlacement, InvalidValue, shown
from pipelab.evaluation import evaluate
from pipelab.figures.theme import VERDICT_COLOURS, ink_on, template
from pipelab.io.cases_csv import load_case
from pipelab.placement import Placement
from pipelab.problem import Model, Problem

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


# The ledger in one picture


def plot_verdicts(ledger: "Ledger") -> "Figure":
    """Stacked bars, one per section, one colour per verdict; numbers, statements and readings side by side.

    Parameters
    ----------
    ledger : Ledger
        With at least one entry.

    Returns
    -------
    plotly.graph_objects.Figure
        In numbers of rows; the three parts share one scale.

    Raises
    ------
    InvalidValue
        The ledger has no entry.
    """
    import plotly.graph_objects as go

    if not len(ledger):
        raise InvalidValue(
            "plot_verdicts", [("ledger", "no entries", "expected at least one; see reproduce")]
        )
    data = ledger.data
    sections = list(data["section"].unique())
    found = Counter(zip(data["kind"], data["verdict"], data["section"], strict=True))
    rows = Counter(zip(data["kind"], data["section"], strict=True))
    longest = {kind: max(rows[kind, s] for s in sections) for kind in KINDS}
    axes = {
        kind: f"x{i}" if i > 1 else "x"
        for i, kind in enumerate((k for k in KINDS if longest[k]), 1)
    }
    figure = go.Figure()
    for kind, axis in axes.items():
        for verdict in (
            v for v in (*KINDS[kind], FAILED) if any(found[kind, v, s] for s in sections)
        ):
            numbers = [found[kind, verdict, s] for s in sections]
            colour = VERDICT_COLOURS.get(verdict, "#FFFFFF")
            figure.add_trace(
                go.Bar(
                    orientation="h",
                    name=verdict,
                    y=sections,
                    x=numbers,
                    marker={"color": colour},
                    xaxis=axis,
                    text=[str(n) if n else "" for n in numbers],
                    textposition="inside",
                    insidetextanchor="middle",
                    textangle=0,
                    textfont={"color": ink_on(colour)},
                    constraintext="none",
                    legendgroup=kind,
                    legendgrouptitle={"text": f"{kind}s"},
                    hovertemplate=f"%{{y}}: %{{x}} {verdict}<extra></extra>",
                )
            )
    figure.update_layout(
        template=template(),
        title=_title(ledger),
        barmode="stack",
        height=270 + 40 * len(sections),
        yaxis={"autorange": "reversed", "automargin": True, "ticklabelstandoff": 8},
        **_side_by_side(axes, longest),
        legend={"y": -0.3, "yanchor": "top", "x": 0, "xanchor": "left", "traceorder": "grouped"},
        margin={"t": 78, "b": 190},
    )
    return figure


def _side_by_side(axes: dict[str, str], longest: dict[str, int]) -> dict[str, dict]:
    """Axes as wide as their longest bars, so that one row is as long in each."""
    gap = 0.06
    unit = (1 - gap * (len(axes) - 1)) / sum(longest.values())
    layout, left = {}, 0.0
    for kind, axis in axes.items():
        right = min(left + unit * longest[kind], 1.0)
        layout[axis.replace("x", "xaxis")] = {
            "domain": [left, right],
            "range": [0, longest[kind]],
            "title": {"text": f"{kind}s"},
            "nticks": 6,
        }
        left = right + gap
    return layout


def _title(ledger: "Ledger") -> str:
    totals, kinds = (Counter(ledger.data[column]) for column in ("verdict", "kind"))
    wrong, fails = totals["wrong"], totals[FAILS]
    finding = f"{wrong} of {kinds['number']} numbers are wrong, {fails} of {kinds['statement']} statements do not hold"
    return f"{finding}<br><sup>rows by verdict; {kinds['reading']} readings have none</sup>"


# Exercises


@cache
def _demo(**rules: Any) -> Problem:
    return load_case("demo", **{"max_gpus_per_stage": 3, **rules})


def _refutes(mine: object) -> tuple[bool, str]:
    """Whether a placement on the GPUs of the write-up's "balanced pipeline" is faster than it."""
    if not isinstance(mine, Placement):
        made = "a placement, as pl.Placement.of([(layers, gpus), …]) makes it"
        return False, f"expected {made}; yours is {shown(mine)}"
    problem = _demo(max_gpus_per_stage=4, link_units="tokens")
    claimed = Placement.of([(8, (0,)), (4, (10, 11)), (2, (20, 21, 22, 23))])
    if sorted(mine.gpus) != sorted(claimed.gpus):
        wanted = ", ".join(map(str, sorted(claimed.gpus)))
        return False, f"the claim is about GPUs {wanted}; use all of these and no other"
    try:
        rate = evaluate(problem, mine).throughput
    except InvalidPlacement as error:
        return False, str(error)
    best = evaluate(problem, claimed).throughput
    if rate <= best * (1 + 1e-9):
        yields = f"yours yields {rate:,.1f} tokens/s, the claimed one {best:,.1f}"
        hint = "which stage is the slowest, and may another group of GPUs hold more layers?"
        return False, f"{yields}. Hint: {hint}"
    return True, f"refuted: {rate:,.1f} tokens/s against {best:,.1f}"


def _where_it_turns(holds: Callable[[float], bool], low: float, high: float) -> float:
    """The largest number for which something holds, by bisection."""
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


@cache
def _heaviest_layer(more: int) -> float:
    """Of the demo: the weight at which a number of GPUs of one type holds fewer layers than with the bundled weight."""
    demo = _demo()
    model = cast(Model, demo.model)

    def allocations(weight: float) -> int:
        heavier = replace(demo, model=replace(model, layer_weight_gb=weight))
        return count_candidates(heavier)["allocations"]

    bundled = model.layer_weight_gb
    as_bundled = allocations(bundled)
    heaviest = _where_it_turns(lambda weight: allocations(weight) == as_bundled, bundled, 3.0)
    if not more:
        return heaviest
    fewer = allocations(heaviest * (1 + 1e-9))
    return _where_it_turns(lambda weight: allocations(weight) >= fewer, heaviest, 3.0)


def _step(text: str) -> float:
    """Place value of the last significant digit of a printed number."""
    return numbers_in(text)[0].step


@cache
def _printed() -> tuple[Given, ...]:
    """Numbers as texts print them, short ones first."""
    chance, found = random.Random(4), {"5", "10", "~10", "0.5", "2K"}
    while len(found) < 200:
        whole = chance.randint(1, 999) * 10 ** chance.choice((0, 0, 1, 2, 3))
        decimals = chance.choice(("", "", ".5", ".78", ".784"))
        suffix = chance.choice(("", "", "K", "M")) if whole < 1000 else ""
        found.add(f"{chance.choice(('', '~'))}{whole:,}{decimals}{suffix}")
    return tuple(Given(text=text) for text in sorted(found, key=lambda text: (len(text), text)))


def _look_at(given: Given) -> str:
    if given.text.startswith("~") and "." not in given.text:
        return "behind a ~, zeros at the end of a whole number say nothing"
    if given.text[-1] in "KM":
        return "one in the last digit is that much larger: K is a thousand, M a million"
    return "how much larger is the number when its last digit is one more?"


EXERCISES: dict[str, Exercise] = {
    "13.1": Construction("a placement", _refutes),
    "13.2": Function(
        signature="step(text)",
        inputs=_printed,
        target=lambda given: _step(given.text),
        hint=_look_at,
        rel=1e-9,
    ),
    "13.3": Number(
        target=lambda: _heaviest_layer(0),
        unit="GB",
        hint="move the slider until the count falls, then halve the interval",
        mistakes={
            "that is where the count falls for the second time": lambda: _heaviest_layer(1),
            "that is the bundled weight; how much heavier may it be?": (
                lambda: cast(Model, _demo().model).layer_weight_gb
            ),
            "there the count has fallen already": lambda: 2.1,
        },
        rel=2e-4,  # 2.059 is right; with 2.06 the count has fallen already
    ),
}
