"""Exercises of notebook 04: what a heuristic of counts and averages predicts, and what is true."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise, permutations, product
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from pipelab.course.exercises.exercise import Exercise, Mistake
from pipelab.course.exercises.puzzle import Failure, Puzzle
from pipelab.errors import shown
from pipelab.fields import given, is_list

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from pipelab.problem import Model, Problem

Mix = tuple[int, ...]  # how many A100, L4 and T4

_INPUTS = 300
_SAME = 1 + 1e-9


@cache
def _problem(mix: Mix, layers: int, max_gpus_per_stage: int) -> "Problem":
    """The course's problem with identical layers, on some of its GPUs."""
    from pipelab.course.main_problem import GPUS, three_sites

    problem = three_sites(max_gpus_per_stage)
    model = cast("Model", problem.model)
    identical = replace(model, layers=layers, weight_factors=None, work_factors=None)
    cluster = problem.cluster.with_counts(dict(zip(GPUS, mix, strict=True)))
    return replace(problem, cluster=cluster, model=identical)


@cache
def _twelve_layers(max_gpus_per_stage: int = 4, **options: Any) -> float:
    """What the heuristic predicts for them on four L4."""
    from pipelab.solving import solve

    part = _problem((0, 4, 0), 12, max_gpus_per_stage)
    return given(solve(part, "type_count", rows="counting", **options).details["predicted"])


@cache
def _possible(mix: Mix) -> float | None:
    """The optimum for all 80 layers with up to two GPUs per stage; None where they do not fit."""
    from pipelab.solving import solve

    return solve(_problem(mix, 80, 2)).throughput


@cache
def _held() -> tuple[int, ...]:
    """How many identical layers fit on an A100, an L4 and a T4."""
    from pipelab.course.main_problem import three_sites

    problem = three_sites()
    reserved, layer_gb = problem.costs.reserved_gb, cast("Model", problem.model).layer_weight_gb
    return tuple(int((gpu.memory_gb - reserved) / layer_gb) for gpu in problem.cluster.kinds)


@cache
def _predicted(mix: Mix, layers: int = 80) -> float | None:
    """As `type_count` with counting rows and up to two GPUs per stage, by counting: SCIP takes minutes."""
    from pipelab.engine.formulations.type_count import average_link, list_options

    # No stage is longer than memory allows, and those that start later repeat those that start first.
    problem = _problem(mix, min(layers, max(_held())), 2)
    options = list_options(problem)
    first = options.start == 0
    columns = (options.type_of, options.number, options.size, options.throughput)
    stages = list(zip(*(column[first].tolist() for column in columns), strict=True))
    for rate in sorted({stage[3] for stage in stages}, reverse=True):
        held = 0
        for kind, count in enumerate(options.counts):
            most = {1: 0, 2: 0}
            for of, number, size, throughput in stages:
                if of == kind and throughput >= rate:
                    most[number] = max(most[number], size)
            held += max(p * most[2] + (count - 2 * p) * most[1] for p in range(count // 2 + 1))
        if held >= layers:
            return float(min(rate, average_link(problem)))
    return None


def _too_much(mix: Mix) -> bool:
    """Whether the model fits and the heuristic predicts more than is possible."""
    possible = _possible(mix)
    return possible is not None and given(_predicted(mix)) > possible * _SAME


@cache
def _fewest() -> int:
    """GPUs of the smallest mix for which it predicts too much."""
    mixes = (mix for mix in product(range(4), range(5), range(5)) if any(mix))
    return sum(next(mix for mix in sorted(mixes, key=sum) if _too_much(mix)))


@dataclass(frozen=True)
class SmallestMix:
    """A mix of GPUs as the answer: it must be a counterexample, and none may be smaller."""

    none = ""  # None means not attempted, always

    def grade(self, mine: object) -> tuple[bool, str]:
        """Whether the heuristic predicts too much for the reader's mix, and for no smaller one."""
        expected = "expected the numbers of A100, L4 and T4, such as (3, 4, 4)"
        if not (is_list(mine) and len(cast(Any, mine)) == 3):
            return False, f"{expected}; yours is {shown(mine)}"
        mix = tuple(cast(Any, mine))
        if not all(
            type(n) is int and 0 <= n <= most for n, most in zip(mix, (3, 4, 4), strict=True)
        ):
            return False, f"{expected}, at most as many as there are; yours is {shown(mine)}"
        if not any(mix):
            return False, f"{expected}; yours has no GPU"
        possible, predicted = _possible(mix), _predicted(mix)
        if possible is None:
            *others, last = _held()
            fits = f"{', '.join(map(str, others))} and {last} layers fit at most"
            return False, f"this mix does not hold the model; hint: {fits}"
        says = f"predicted {predicted:,.1f} tokens/s, possible {possible:,.1f}"
        if not _too_much(mix):
            return False, f"{says}: not too much. Hint: where does the heuristic form pairs?"
        if sum(mix) > _fewest():
            return False, f"{says}: too much, but there is a smaller mix"
        return True, says


class Stages(NamedTuple):
    """Stages in no order, and the time of a link from site to site; the sites are letters."""

    stages: tuple[tuple[str, int], ...]
    links: tuple[tuple[tuple[str, str], int], ...]

    def __repr__(self) -> str:
        return f"stages={list(self.stages)}, links={dict(self.links)}"


def _best_of_orders(x: Stages) -> float:
    return min(max(_times(order, dict(x.links))) for order in permutations(x.stages))


def _times(order: Sequence[tuple[str, int]], links: Mapping[tuple[str, str], int]) -> list[int]:
    """Of the stages, and of the links between them."""
    return [ms for _, ms in order] + [links[a, b] for (a, _), (b, _) in pairwise(order)]


@cache
def _pipelines() -> tuple[Stages, ...]:
    """One to five stages at one to three sites; both directions of a link may differ."""
    chance, found = random.Random(4), set[Stages]()
    while len(found) < _INPUTS:
        sites = "ABC"[: chance.randint(1, 3)]
        stages = tuple(
            (chance.choice(sites), chance.randint(1, 9)) for _ in range(chance.randint(1, 5))
        )
        links = tuple(((a, b), chance.randint(1, 30)) for a, b in product(sites, repeat=2))
        found.add(Stages(stages, links))
    return tuple(sorted(found, key=lambda x: (len(x.stages), len(x.links), repr(x))))


def _drawn(failure: Failure) -> "Figure":
    """The best order, stage after link after stage, the slowest framed."""
    from pipelab.course.figures.rows import Block, Row, colour_of, plot_rows
    from pipelab.figures.theme import NEUTRAL_LIGHT

    x: Stages = failure.given
    links, best = dict(x.links), _best_of_orders(x)
    order = min(permutations(x.stages), key=lambda order: max(_times(order, links)))
    parts = []
    for before, (site, ms) in zip([None, *order], order, strict=False):
        if before:
            parts.append((f"link {before[0]} → {site}", links[before[0], site], NEUTRAL_LIGHT))
        parts.append((f"stage at {site}", ms, colour_of("ABC".index(site))))
    rows = [
        Row(name, [Block(ms, colour, f"{ms}")], framed=ms == best) for name, ms, colour in parts
    ]
    title = f"The best order is {' → '.join(site for site, _ in order)}: its slowest part takes {best} ms"
    return plot_rows(rows, title + failure.yours, "ms", "framed: the slowest part")


def _look_at(x: Stages) -> str:
    slowest = max(ms for _, ms in x.stages)
    if len(x.stages) == 1:
        return "one stage has no link"
    if _best_of_orders(x) == slowest:
        return "here an order exists in which no link is slower than the slowest stage"
    return "here a link is the bottleneck in every order; which links does the best order cross?"


def _with_copies(mine: Callable[..., Any], x: Stages) -> Any:
    return mine(list(x.stages), dict(x.links))


AVERAGES: dict[str, Exercise | Puzzle | SmallestMix] = {
    "04.1": Exercise(
        _twelve_layers,
        "tokens/s",
        "with four GPUs in one stage, how many times as fast as one are they predicted to be?",
        (
            Mistake(
                lambda: _twelve_layers(factor=False),
                "that is without the factor (2 - 1/k), and happens to be what is possible; use the published formula",
            ),
            Mistake(
                lambda: _twelve_layers(max_gpus_per_stage=2),
                "that is with two GPUs per stage; allow four",
            ),
        ),
        none="the heuristic names no GPU, so its result has no placement and no throughput; what it predicts is in "
        "the result's details",
    ),
    "04.2": SmallestMix(),
    "04.3": Puzzle(
        "best_of_orders(stages, links)",
        _pipelines,
        _best_of_orders,
        _look_at,
        apply=_with_copies,
        picture=_drawn,
    ),
}
