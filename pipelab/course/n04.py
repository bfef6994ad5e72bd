"""Notebook 04, A failed heuristic: what counts and averages predict, beside what is true."""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise, permutations, product
from typing import TYPE_CHECKING, Any, cast

from pipelab.costs import LayerTimes
from pipelab.course.exercises import Construction, Exercise, Failure, Function, Given, Number, drawn
from pipelab.course.ledger.type_count import EFFICIENCY, average_link, list_options
from pipelab.course.n00 import GPUS, three_sites
from pipelab.course.pictures import (
    SAME,
    Block,
    BlockRow,
    colour_of,
    finish,
    plot_counts,
    plot_rows,
)
from pipelab.display import number
from pipelab.engine.solving import solve
from pipelab.errors import shown
from pipelab.fields import given, is_list
from pipelab.figures.theme import BOTTLENECK, NEUTRAL_LIGHT, TYPE_COLOURS, WRONG, line, new_figure
from pipelab.problem import Model, Problem

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


# The heuristic: how many GPUs of which type, and averages


def published_speedup(k: int) -> float:
    """Tell how many times as fast as one GPU the heuristic takes k of them to be.

    Parameters
    ----------
    k : int
        At least 1.

    Returns
    -------
    float
        More than k from two GPUs on.

    Examples
    --------
    >>> published_speedup(1), round(published_speedup(2), 2)
    (1.0, 2.55)
    """
    return EFFICIENCY * (2 - 1 / k) * k if k > 1 else 1.0


def average_link_ms(problem: Problem) -> float:
    """Compute what a message takes over a link with the average bandwidth of all.

    Parameters
    ----------
    problem : Problem
        With links counted in tokens/s.

    Returns
    -------
    float
        In milliseconds; 0 for one GPU.

    Examples
    --------
    >>> from pipelab.course import three_sites
    >>> round(average_link_ms(three_sites()))
    52
    """
    many = len(problem.cluster) > 1
    return 1000 * given(problem.workload).tokens / average_link(problem) if many else 0.0


def predict_by_counts(problem: Problem) -> float | None:
    """Predict a rate as the heuristic does if only counts of GPUs limit it.

    The highest rate at which stages of GPUs of one type, as many as there are, hold all layers; or that
    of the link, if it is lower. SCIP takes minutes for the same (`type_count` with counting rows).

    Parameters
    ----------
    problem : Problem
        With identical layers and `LayerTimes`.

    Returns
    -------
    float or None
        In tokens/s; None where the layers do not fit at any rate.

    Raises
    ------
    NotApplicable
        Layers differ.

    Examples
    --------
    >>> from dataclasses import replace
    >>> from pipelab.course import three_sites
    >>> problem = three_sites(max_gpus_per_stage=2)
    >>> identical = replace(problem.model, weight_factors=None, work_factors=None)
    >>> round(predict_by_counts(replace(problem, model=identical)), 1)
    6692.8
    """
    model, costs = cast("Model", problem.model), cast(LayerTimes, problem.costs)
    room = max(gpu.memory_gb for gpu in problem.cluster.kinds) - costs.reserved_gb
    longest = min(model.layers, int(room / model.layer_weight_gb))
    # No stage is longer than the heuristic lets one GPU hold, and those that start later repeat those that start first.
    options = list_options(replace(problem, model=replace(model, layers=longest)))
    columns = (options.type_of, options.number, options.size)
    stages = zip(*(column[options.start == 0].tolist() for column in columns), strict=True)
    ms = {
        (of, k, n): n * costs.ms_per_layer[options.types[of]] / published_speedup(k)
        for of, k, n in stages
    }
    for limit in sorted(set(ms.values())):
        held = 0
        for kind, count in enumerate(options.counts):
            most = Counter[int]()  # layers by number of GPUs
            for (of, k, n), takes in ms.items():
                if of == kind and takes <= limit * SAME:
                    most[k] = max(most[k], n)
            best = [0]
            for gpus in range(1, count + 1):
                best.append(max([best[-1], *(best[gpus - k] + most[k] for k in most if k <= gpus)]))
            held += best[-1]
        if held >= model.layers:
            return 1000 * given(problem.workload).tokens / max(limit, average_link_ms(problem))
    return None


# The heuristic's predictions as pictures


RIGHT, TOO_MUCH, TOO_LITTLE = "right", "too much", "too little"

NOTHING, NO_ROOM = "called infeasible, but is not", "a rate, but the model does not fit"

INFEASIBLE = "infeasible, and said so"

_COLOURS = {
    RIGHT: TYPE_COLOURS[0],
    TOO_LITTLE: TYPE_COLOURS[4],
    TOO_MUCH: TYPE_COLOURS[1],
    NOTHING: TYPE_COLOURS[3],
    NO_ROOM: WRONG,
    INFEASIBLE: NEUTRAL_LIGHT,
}


def outcome_of_prediction(predicted: float | None, possible: float | None) -> str:
    """How a prediction compares with the truth.

    Parameters
    ----------
    predicted, possible : float or None
        Tokens/s; None: no placement is said to exist, or none does.

    Returns
    -------
    str
        Such as "right" or "too much".

    Examples
    --------
    >>> outcome_of_prediction(6692.8, 6321.0), outcome_of_prediction(853.3, None)
    ('too much', 'a rate, but the model does not fit')
    """
    if predicted is None:
        return INFEASIBLE if possible is None else NOTHING
    if possible is None:
        return NO_ROOM
    if predicted > possible * SAME:
        return TOO_MUCH
    return RIGHT if predicted * SAME >= possible else TOO_LITTLE


def plot_predictions(
    mixes: Sequence[str], predicted: Sequence[float | None], possible: Sequence[float | None]
) -> "Figure":
    """A point per GPU mix: what is possible to the right, what is predicted upwards, and the diagonal.

    Parameters
    ----------
    mixes : sequence of str
        Names, shown where the mouse rests.
    predicted : sequence of float or None
        Tokens/s; mixes without a prediction are left out.
    possible : sequence of float or None
        The proven optimum in tokens/s; None where the model does not fit.

    Returns
    -------
    plotly.graph_objects.Figure
        Its title says how many predictions are too high, and by how much the worst.

    Examples
    --------
    >>> figure = plot_predictions(["2 L4", "4 T4"], [300.0, 200.0], [200.0, 200.0])
    >>> figure.layout.title.text.split("<br>")[0]
    'Too much for 1 of 2 mixes that hold the model, by up to 1.50 times (2 L4)'
    """
    points = [
        (name, p, q) for name, p, q in zip(mixes, predicted, possible, strict=True) if p is not None
    ]
    top = 1.06 * max(max(p, q or 0) for _, p, q in points)
    dashed = {"dash": "dash"}
    figure = new_figure()
    figure.add_trace(line("predicted = possible", [0, top], [0, top], BOTTLENECK, 1, dashed))
    for kind in (RIGHT, TOO_LITTLE, TOO_MUCH, NO_ROOM):
        mine = [point for point in points if outcome_of_prediction(point[1], point[2]) == kind]
        look = {"color": _COLOURS[kind], "symbol": "x" if kind == NO_ROOM else "circle"}
        if mine:
            figure.add_scatter(
                x=[q or 0 for *_, q in mine],
                y=[p for _, p, _ in mine],
                mode="markers",
                name=kind,
                marker={"size": 9, "opacity": 0.85, **look},
                text=[name for name, *_ in mine],
                cliponaxis=False,
                hovertemplate="%{text}: predicted %{y:,.1f}, possible %{x:,.1f}<extra></extra>",
            )
    held = [(p / q, name, p, q) for name, p, q in points if q]
    times, worst, p, q = max(held)
    figure.add_annotation(x=q, y=p, text=worst, showarrow=False, xanchor="left", xshift=8)
    over = sum(ratio > SAME for ratio, *_ in held)
    by = f"by up to {times:.2f} times ({worst})"
    return finish(
        figure,
        f"Too much for {over} of {len(held)} mixes that hold the model, {by}",
        "above the diagonal: predicted more than any placement yields",
        height=520,
        x={"title": "possible (proven), tokens/s", "range": [-0.02 * top, top]},
        y={"title": "predicted, tokens/s", "range": [0, top]},
    )


def plot_fixes(outcomes: Mapping[str, Sequence[str]]) -> "Figure":
    """A bar per version of the heuristic: for how many mixes it is right, and how it errs elsewhere.

    Parameters
    ----------
    outcomes : mapping of name to sequence of str
        Of every version, `outcome_of_prediction` for each mix.

    Returns
    -------
    plotly.graph_objects.Figure
        Stacked bars, the first version at the top.

    Examples
    --------
    >>> figure = plot_fixes({"as written": ["too much", "right"], "fixed": ["right", "right"]})
    >>> figure.layout.title.text
    'Of 2 mixes that hold the model, 1 is right as written and 2 are after the last fix'
    """
    counts = {name: Counter(found) for name, found in outcomes.items()}
    first, *_, last = [count[RIGHT] for count in counts.values()]
    held = sum(kind not in (NO_ROOM, INFEASIBLE) for kind in next(iter(outcomes.values())))
    are = f"{first} {'is' if first == 1 else 'are'} right {next(iter(outcomes))}"
    return finish(
        plot_counts(counts, _COLOURS),
        f"Of {held} mixes that hold the model, {are} and {last} are after the last fix",
        height=150 + 52 * len(counts),
        x="GPU mixes",
        margin={"t": 100},  # a legend of several lines
    )


# Exercises


Mix = tuple[int, ...]  # how many A100, L4 and T4


@cache
def _part(mix: Mix, layers: int, max_gpus_per_stage: int) -> Problem:
    """The course's problem with identical layers, on some of its GPUs."""
    problem = three_sites(max_gpus_per_stage)
    model = cast(Model, problem.model)
    identical = replace(model, layers=layers, weight_factors=None, work_factors=None)
    cluster = problem.cluster.with_counts(dict(zip(GPUS, mix, strict=True)))
    return replace(problem, cluster=cluster, model=identical)


@cache
def _twelve_layers(max_gpus_per_stage: int = 4, **options: Any) -> float:
    """What the heuristic predicts for them on four L4."""
    part = _part((0, 4, 0), 12, max_gpus_per_stage)
    return given(solve(part, "type_count", rows="counting", **options).details["predicted"])


@cache
def _possible_rate(mix: Mix) -> float | None:
    """The optimum for all 80 layers with up to two GPUs per stage; None where they do not fit."""
    return solve(_part(mix, 80, 2)).throughput


@cache
def _held() -> tuple[int, ...]:
    """How many identical layers fit on an A100, an L4 and a T4."""
    problem = three_sites()
    reserved, layer_gb = problem.costs.reserved_gb, cast("Model", problem.model).layer_weight_gb
    return tuple(int((gpu.memory_gb - reserved) / layer_gb) for gpu in problem.cluster.kinds)


@cache
def _predicted(mix: Mix, layers: int = 80) -> float | None:
    return predict_by_counts(_part(mix, layers, 2))


def _too_much(mix: Mix) -> bool:
    """Whether the model fits and the heuristic predicts more than is possible."""
    possible = _possible_rate(mix)
    return possible is not None and given(_predicted(mix)) > possible * SAME


@cache
def _fewest() -> int:
    """GPUs of the smallest mix for which it predicts too much."""
    mixes = (mix for mix in product(range(4), range(5), range(5)) if any(mix))
    return sum(next(mix for mix in sorted(mixes, key=sum) if _too_much(mix)))


def _smallest_mix(mine: object) -> tuple[float, str]:
    """Give 1 point to a smallest mix for which the heuristic predicts too much, half a point to a larger one."""
    expected = "expected the numbers of A100, L4 and T4, such as (3, 4, 4)"
    if not (is_list(mine) and len(cast(Any, mine)) == 3):
        return 0, f"{expected}; yours is {shown(mine)}"
    mix = tuple(cast(Any, mine))
    if not all(type(n) is int and 0 <= n <= most for n, most in zip(mix, (3, 4, 4), strict=True)):
        return 0, f"{expected}, at most as many as there are; yours is {shown(mine)}"
    if not any(mix):
        return 0, f"{expected}; yours has no GPU"
    possible, predicted = _possible_rate(mix), _predicted(mix)
    if possible is None or predicted is None:
        *others, last = _held()
        fits = f"{', '.join(map(str, others))} and {last} layers fit at most"
        return 0, f"this mix does not hold the model; hint: {fits}"
    says = f"predicted {number(predicted)} tokens/s, possible {number(possible)}"
    if not _too_much(mix):
        return 0, f"{says}: not too much. Hint: {_PAIRS}"
    if sum(mix) > _fewest():
        return 0.5, f"{says}: too much, but there is a smaller mix"
    return 1, says


def _best_of_orders(x: Given) -> float:
    return min(max(_times(order, dict(x.links))) for order in permutations(x.stages))


def _times(order: Sequence[tuple[str, int]], links: Mapping[tuple[str, str], int]) -> list[int]:
    """Of the stages, and of the links between them."""
    return [ms for _, ms in order] + [links[a, b] for (a, _), (b, _) in pairwise(order)]


def _pipeline(chance: random.Random) -> Given:
    """One to five stages at one to three sites; both directions of a link may differ."""
    sites = "ABC"[: chance.randint(1, 3)]
    stages = [(chance.choice(sites), chance.randint(1, 9)) for _ in range(chance.randint(1, 5))]
    links = {pair: chance.randint(1, 30) for pair in product(sites, repeat=2)}
    return Given(stages=stages, links=links)


def _draw_best_order(failure: Failure) -> "Figure":
    """The best order, stage after link after stage, the slowest framed."""
    x = failure.given
    links, best = dict(x.links), _best_of_orders(x)
    order = min(permutations(x.stages), key=lambda order: max(_times(order, links)))
    parts = []
    for before, (site, ms) in zip([None, *order], order, strict=False):
        if before:
            parts.append((f"link {before[0]} → {site}", links[before[0], site], NEUTRAL_LIGHT))
        parts.append((f"stage at {site}", ms, colour_of("ABC".index(site))))
    rows = [
        BlockRow(name, [Block(ms, colour, f"{ms}")], framed=ms == best)
        for name, ms, colour in parts
    ]
    title = f"The best order is {' → '.join(site for site, _ in order)}: its slowest part takes {best} ms"
    return plot_rows(rows, title + failure.yours, "ms", "framed: the slowest part")


def _look_at(x: Given) -> str:
    slowest = max(ms for _, ms in x.stages)
    if len(x.stages) == 1:
        return "one stage has no link"
    if _best_of_orders(x) == slowest:
        return "here an order exists in which no link is slower than the slowest stage"
    return "here a link is the bottleneck in every order; which links does the best order cross?"


_PAIRS = "where does the heuristic form pairs?"

EXERCISES: dict[str, Exercise] = {
    "04.1": Number(
        target=_twelve_layers,
        unit="tokens/s",
        hint="with four GPUs in one stage, how many times as fast as one are they predicted to be?",
        half={
            "that is without the factor (2 - 1/k), and happens to be what is possible; use the "
            "published formula": (lambda: _twelve_layers(factor=False)),
            "that is with two GPUs per stage; allow four": (
                lambda: _twelve_layers(max_gpus_per_stage=2)
            ),
        },
        none="the heuristic names no GPU, so its result has no placement and no throughput; what it predicts is in "
        "the result's details",
    ),
    "04.2": Construction(
        asks="a mix of GPUs",
        grade=_smallest_mix,
        advice=(
            _PAIRS,
            "which mixes hold all 80 layers, and which of them are the smallest?",
        ),
    ),
    "04.3": Function(
        signature="best_of_orders(stages, links)",
        inputs=drawn(4, 300, _pipeline, lambda x: (len(x.stages), len(x.links), str(x))),
        target=_best_of_orders,
        hint=_look_at,
        picture=_draw_best_order,
        half=lambda x, answer: answer == max(_times(x.stages, dict(x.links))),
    ),
}
