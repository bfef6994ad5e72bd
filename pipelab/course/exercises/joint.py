"""Exercises of notebook 05: the joint integer program, with families of constraints to write."""

import math
import random
from collections.abc import Callable, Sequence
from functools import cache
from itertools import combinations
from typing import Any, NamedTuple

from pipelab.candidates import Allocation, Connection
from pipelab.course.exercises.exercise import Exercise, Mistake
from pipelab.course.exercises.puzzle import Puzzle
from pipelab.display import counted
from pipelab.fields import given

_INPUTS = 40
_MARGIN = 1.1  # the author's code: M of an unused connection is this times the fastest link


def _optimum(**changes: Any) -> float:
    from pipelab.course.blocks_problem import seven_gpus
    from pipelab.solving import solve

    return given(solve(seven_gpus(**changes)).throughput)


def _link_as_slow_as(rate: float) -> float:
    """Gb/s of a link with this many tokens/s."""
    from pipelab.course.blocks_problem import seven_gpus

    return 8 * rate / given(seven_gpus().link_throughput(1.0))


def _slowdown(margin: float, optimum: float) -> float:
    """By what factor links are slower once margin × the fastest of them falls below the optimum."""
    from pipelab.course.blocks_problem import seven_gpus

    problem = seven_gpus()
    fastest = problem.link_throughput(problem.cluster.bandwidth_between(0, 1))
    return margin * float(fastest) / optimum


def _without_links() -> float:
    """The optimum when all links are too slow to be used."""
    return _optimum(gbps=(1e-3, 1e-3, 1e-3))


class Case(NamedTuple):
    """A small placement problem: a stage takes layers × the slowest GPU's ms, over its GPUs."""

    layers: int
    ms: tuple[int, ...]  # per layer, of each GPU
    link_ms: tuple[int, ...]  # of every pair of GPUs: 0–1, 0–2, …, 1–2, …
    price: tuple[int, ...] = ()
    most: int = 0

    def __repr__(self) -> str:
        gpus = range(len(self.ms))
        links = ", ".join(
            f"{a}–{b} {ms}" for (a, b), ms in zip(combinations(gpus, 2), self.link_ms, strict=True)
        )
        said = f"{counted(self.layers, 'layer')}, GPUs with {list(self.ms)} ms per layer"
        said += f", links of {links} ms" if links else ""
        return said + (f", prices {list(self.price)}, most={self.most}" if self.price else "")


def _allocations(case: Case) -> list[Allocation]:
    """Every run of layers on every set of one or two GPUs; rates in microbatches per second."""
    gpus = range(len(case.ms))
    sets = [ids for size in (1, 2) for ids in combinations(gpus, size)]
    runs = [range(a, b) for a, b in combinations(range(case.layers + 1), 2)]
    return [
        Allocation(run, ids, 1000 * len(ids) / (len(run) * max(case.ms[g] for g in ids)))
        for run in runs
        for ids in sets
    ]


def _connections(case: Case, allocations: Sequence[Allocation]) -> list[Connection]:
    pairs = combinations(range(len(case.ms)), 2)
    link = {frozenset(pair): ms for pair, ms in zip(pairs, case.link_ms, strict=True)}
    return [
        Connection(i, j, 1000 / max(link[frozenset((g, h))] for g in a.gpus for h in b.gpus))
        for i, a in enumerate(allocations)
        for j, b in enumerate(allocations)
        if a.layers.stop == b.layers.start and not {*a.gpus} & {*b.gpus}
    ]


def _placements(case: Case) -> list[tuple[float, tuple[Allocation, ...]]]:
    """Rate and stages of every placement, by trying all."""
    allocations = _allocations(case)
    rate_of = {
        (allocations[c.sender], allocations[c.receiver]): c.rate
        for c in _connections(case, allocations)
    }

    def extend(stages: tuple[Allocation, ...], rate: float) -> list[Any]:
        at = stages[-1].layers.stop if stages else 0
        if at == case.layers:
            return [(rate, stages)]
        used = {g for stage in stages for g in stage.gpus}
        found = []
        for a in allocations:
            if a.layers.start == at and not used & {*a.gpus}:
                link = rate_of[stages[-1], a] if stages else math.inf
                found += extend((*stages, a), min(rate, a.rate, link))
        return found

    return extend((), math.inf)


def _cost(case: Case, stages: Sequence[Allocation]) -> int:
    return sum(case.price[g] for stage in stages for g in stage.gpus)


def _allowed(case: Case) -> list[tuple[float, tuple[Allocation, ...]]]:
    return [p for p in _placements(case) if not case.price or _cost(case, p[1]) <= case.most]


def _best(case: Case) -> float:
    return max(rate for rate, _ in _allowed(case))


def _cases(priced: bool) -> Callable[[], tuple[Case, ...]]:
    @cache
    def cases() -> tuple[Case, ...]:
        chance, found = random.Random(2), set[Case]()
        while len(found) < _INPUTS:
            ms = tuple(chance.randint(1, 9) for _ in range(chance.randint(1, 3)))
            links = tuple(chance.randint(1, 20) for _ in combinations(ms, 2))
            case = Case(chance.randint(1, 3), ms, links)
            if priced:
                price = tuple(chance.randint(1, 5) for _ in ms)
                case = case._replace(price=price, most=chance.randint(min(price), sum(price)))
            found.add(case)
        return tuple(sorted(found, key=lambda c: (len(c.ms) + c.layers, sum(c.ms), repr(c))))

    return cases


def _claim(case: Case, families: Callable[..., Any]) -> float:
    """What the program claims with the reader's families in it; they are given z, e and the lists."""
    import cvxpy as cp
    import numpy as np

    allocations = _allocations(case)
    connections = _connections(case, allocations)
    z, t = cp.Variable(len(allocations), boolean=True), cp.Variable()
    e = cp.Variable(len(connections), boolean=True) if connections else None
    covers = np.array([[layer in a.layers for a in allocations] for layer in range(case.layers)])
    uses = np.array([[g in a.gpus for a in allocations] for g in range(len(case.ms))])
    theta = np.array([a.rate for a in allocations])
    top = theta.max()
    rows = [covers @ z == 1, uses @ z <= 1, t <= cp.multiply(theta, z) + top * (1 - z)]
    if e is not None:
        nu = np.minimum([c.rate for c in connections], top)
        rows += [t <= cp.multiply(nu, e) + top * (1 - e)]
    mine = families(z, e, allocations, connections)
    rows += list(mine) if isinstance(mine, list | tuple) else [mine]
    program = cp.Problem(cp.Maximize(t), rows)
    program.solve(solver=cp.HIGHS)
    if program.status != cp.OPTIMAL:
        raise ValueError("your constraints leave no placement")
    return float(program.value)


def _with_links(mine: Callable[..., Any], case: Case) -> float:
    def families(z: Any, e: Any, allocations: Any, connections: Any) -> Any:
        return mine(z, e, connections) if connections else []

    return _claim(case, families)


def _with_budget(mine: Callable[..., Any], case: Case) -> float:
    def families(z: Any, e: Any, allocations: Any, connections: Any) -> Any:
        linked = [e[i] >= z[c.sender] + z[c.receiver] - 1 for i, c in enumerate(connections)]
        return [mine(z, allocations, list(case.price), case.most), *linked]

    return _claim(case, families)


def _look_at_links(case: Case) -> str:
    best = max(_placements(case), key=lambda p: (p[0], -len(p[1])))
    if len(best[1]) == 1:
        return "here one stage is best: it needs no link, and all others must pay for theirs"
    return "here the best placement has a link: which two stages does it join, and can the program avoid it?"


def _look_at_budget(case: Case) -> str:
    best = max(_allowed(case), key=lambda p: (p[0], -_cost(case, p[1])))
    if any(len(stage.gpus) > 1 for stage in best[1]):
        return "here two GPUs share a stage; which of them does your sum pay for?"
    return "write down which GPUs are paid for when this placement is chosen"


JOINT: dict[str, Exercise | Puzzle] = {
    "05.1": Exercise(
        lambda: _link_as_slow_as(_optimum(t4s=0)),
        "Gb/s",
        "how long does the slowest stage take without the T4s, and how large is the message?",
        (
            Mistake(
                lambda: _link_as_slow_as(_optimum()),
                "that link takes as long as the slowest stage today; may it not take longer?",
            ),
            Mistake(
                lambda: _link_as_slow_as(_optimum(max_gpus_per_stage=1)),
                "you compare with one GPU per stage; the A10s may still share one",
            ),
            Mistake(
                lambda: _link_as_slow_as(_optimum(t4s=0)) / 8,
                "that is in GB/s; one byte has eight bits",
            ),
        ),
        rel=1e-3,
    ),
    "05.2": Exercise(
        lambda: _slowdown(_MARGIN, _without_links()),
        "",
        "with links that slow, which placement is best, and which links does it use?",
        (
            Mistake(
                lambda: _slowdown(1.0, _without_links()),
                "that M is max ν; theirs is 1.1 times as large",
            ),
            Mistake(
                lambda: _slowdown(_MARGIN, _optimum()),
                "you divide by today's optimum; with slower links the best placement is another",
            ),
            Mistake(
                lambda: 1 / _slowdown(_MARGIN, _without_links()),
                "upside down: slowing the links down divides max ν",
            ),
        ),
        rel=1e-3,
    ),
    "05.3": Puzzle(
        "linked(z, e, connections)", _cases(False), _best, _look_at_links, apply=_with_links
    ),
    "05.4": Puzzle(
        "budget(z, allocations, price, most)",
        _cases(True),
        _best,
        _look_at_budget,
        apply=_with_budget,
    ),
}
