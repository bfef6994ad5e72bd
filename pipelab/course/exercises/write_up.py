"""Exercises of notebook 13: a claim to refute, printed digits, and a weight that nobody wrote down."""

import random
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from pipelab.course.exercises.bisection import where_it_turns
from pipelab.course.exercises.exercise import Exercise, Mistake
from pipelab.course.exercises.puzzle import Puzzle
from pipelab.course.exercises.refutation import Refutation
from pipelab.problem import Model

if TYPE_CHECKING:
    from pipelab.placement import Placement
    from pipelab.problem import Problem

_INPUTS = 200


@cache
def _demo(**rules: Any) -> "Problem":
    from pipelab.io.cases_csv import load_case

    return load_case("demo", **{"max_gpus_per_stage": 3, **rules})


def _drawn() -> "Placement":
    """The write-up's "balanced pipeline"."""
    from pipelab.placement import Placement

    return Placement.of([(8, (0,)), (4, (10, 11)), (2, (20, 21, 22, 23))])


@cache
def _heaviest_layer(more: int) -> float:
    """Of the demo: the weight at which a number of GPUs of one type holds fewer layers than with the bundled weight."""
    from pipelab.engine.formulations.count import count_candidates

    demo = _demo()

    def allocations(weight: float) -> int:
        return count_candidates(
            replace(demo, model=replace(cast(Model, demo.model), layer_weight_gb=weight))
        )["allocations"]

    as_bundled = allocations(demo.model.layer_weight_gb)
    heaviest = where_it_turns(
        lambda w: allocations(w) == as_bundled, demo.model.layer_weight_gb, 3.0
    )
    if not more:
        return heaviest
    next_count = allocations(heaviest * (1 + 1e-9))
    return where_it_turns(lambda w: allocations(w) >= next_count, heaviest, 3.0)


def _step(text: str) -> float:
    """Place value of the last significant digit of a printed number."""
    from pipelab.course.ledger.comparisons import numbers_in

    return numbers_in(text)[0].step


@cache
def _printed() -> tuple[str, ...]:
    """Numbers as texts print them, short ones first."""
    chance, found = random.Random(4), {"5", "10", "~10", "0.5", "2K"}
    while len(found) < _INPUTS:
        whole = chance.randint(1, 999) * 10 ** chance.choice((0, 0, 1, 2, 3))
        decimals = chance.choice(("", "", ".5", ".78", ".784"))
        suffix = chance.choice(("", "", "K", "M")) if whole < 1000 else ""
        found.add(f"{chance.choice(('', '~'))}{whole:,}{decimals}{suffix}")
    return tuple(sorted(found, key=lambda text: (len(text), text)))


def _look_at(text: str) -> str:
    if text.startswith("~") and "." not in text:
        return "behind a ~, zeros at the end of a whole number say nothing"
    if text[-1] in "KM":
        return "one in the last digit is that much larger: K is a thousand, M a million"
    return "how much larger is the number when its last digit is one more?"


WRITE_UP: dict[str, Exercise | Puzzle | Refutation] = {
    "13.1": Refutation(lambda: _demo(max_gpus_per_stage=4, link_units="tokens"), _drawn),
    "13.2": Puzzle(
        "step(text)", _printed, _step, _look_at, apply=lambda mine, text: mine(text), rel=1e-9
    ),
    "13.3": Exercise(
        lambda: _heaviest_layer(0),
        "GB",
        "move the slider until the count falls, then halve the interval",
        (
            Mistake(
                lambda: _heaviest_layer(1), "that is where the count falls for the second time"
            ),
            Mistake(
                lambda: _demo().model.layer_weight_gb,
                "that is the bundled weight; how much heavier may it be?",
            ),
            Mistake(lambda: 2.1, "there the count has fallen already"),
        ),
        rel=2e-4,  # 2.059 is right; with 2.06 the count has fallen already
    ),
}
