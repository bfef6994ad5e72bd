"""Exercises of notebook 05: the joint integer program, with families of constraints to write."""

import random
from collections.abc import Callable
from functools import cache
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from pipelab.course.exercises.exercise import Exercise, Mistake
from pipelab.course.exercises.puzzle import Claim, Failure, Puzzle
from pipelab.course.exercises.small_placements import (
    Case,
    allocations_of,
    allowed,
    best_rate,
    connections_of,
    cost_of,
    placements_of,
    problem_of,
)  # fmt: skip
from pipelab.fields import given

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

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

    allocations = allocations_of(case)
    connections = connections_of(case, allocations)
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
    used = np.flatnonzero(np.asarray(z.value) > 0.5).tolist()
    chosen = Chosen(tuple(used), () if e is None else tuple(np.asarray(e.value).tolist()))
    return Claim.of(float(program.value), chosen)


class Chosen(NamedTuple):
    """What a program answers: indices of allocations, and a value for every connection."""

    allocations: tuple[int, ...]
    e: tuple[float, ...]


def _plot(case: Case, chosen: Chosen, claim: float, title: str) -> "Figure":
    from pipelab.course.figures.choice import plot_choice

    allocations = allocations_of(case)
    connections = connections_of(case, allocations) if chosen.e else []
    z = [i in chosen.allocations for i in range(len(allocations))]
    figure = plot_choice(problem_of(case), allocations, z, claim, connections, chosen.e)
    note = "boxes: stages, with their rates per second; arrows: chosen links; dotted: not chosen"
    return figure.update_layout(title={"text": f"{title}<br><sup>{note}</sup>"})


def _best_choice(case: Case) -> Chosen:
    """The best placement that is allowed, as a program should have chosen it."""
    allocations = allocations_of(case)
    _, stages = max(allowed(case), key=lambda p: (p[0], -len(p[1])))
    picked = [allocations.index(stage) for stage in stages]
    links = set(pairwise(picked))
    e = tuple(float(c[:2] in links) for c in connections_of(case, allocations))
    return Chosen(tuple(picked), e)


def _drawn(failure: Failure) -> "Figure":
    """What the reader's program chooses where it claims too much, else what it does not allow."""
    case, claim, best = failure.given, failure.answer, best_rate(failure.given)
    if not isinstance(claim, Claim) or claim < best:
        title = f"Your rows do not allow this placement: {best:,.1f} per second"
        return _plot(case, _best_choice(case), best, title + failure.yours)
    title = f"Your program claims {claim:,.1f} per second; no placement has more than {best:,.1f}"
    if case.price:
        used = [allocations_of(case)[i] for i in claim.chosen.allocations]
        title = f"Your program pays {cost_of(case, used)} for this placement; at most {case.most} are allowed"
    return _plot(case, claim.chosen, claim, title)


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
    best = max(placements_of(case), key=lambda p: (p[0], -len(p[1])))
    if len(best[1]) == 1:
        return "here one stage is best: it needs no link, and all others must pay for theirs"
    return "here the best placement has a link: which two stages does it join, and can the program avoid it?"


def _look_at_budget(case: Case) -> str:
    best = max(allowed(case), key=lambda p: (p[0], -cost_of(case, p[1])))
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
        "linked(z, e, connections)",
        _cases(False),
        best_rate,
        _look_at_links,
        apply=_with_links,
        picture=_drawn,
    ),
    "05.4": Puzzle(
        "budget(z, allocations, price, most)",
        _cases(True),
        best_rate,
        _look_at_budget,
        apply=_with_budget,
        picture=_drawn,
    ),
}
