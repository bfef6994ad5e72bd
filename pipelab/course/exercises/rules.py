"""Exercises of notebooks 00 to 04: placements, splits, counting, one GPU per stage, the heuristic."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from math import comb, factorial, perm
from typing import TYPE_CHECKING, Any, cast

from pipelab.course.exercises.exercise import Exercise, Mistake
from pipelab.fields import given
from pipelab.problem import Model

if TYPE_CHECKING:
    from pipelab.evaluation import Evaluation
    from pipelab.problem import Problem

__all__ = ["RULES"]

_COSTS = (6, 2, 2, 2, 8, 1, 1, 2)  # of exercises 01.1 and 01.2
_SPEEDS = (1, 2, 1)


def _case(name: str, **options: Any) -> "Problem":
    from pipelab.io.cases_csv import load_case

    return load_case(name, **options)


@cache
def _best_of_tiny(max_gpus_per_stage: int) -> float:
    from pipelab.solving import solve

    return given(
        solve(
            _case("tiny", max_gpus_per_stage=max_gpus_per_stage), "joint", form="tight"
        ).throughput
    )


@cache
def _two_pairs() -> "list[Evaluation]":
    """Both A100 before both V100: the judge's report for one, two and three layers on the A100."""
    from pipelab.evaluation import evaluate
    from pipelab.placement import Placement

    tiny = _case("tiny", max_gpus_per_stage=2)
    return [evaluate(tiny, Placement.of([(n, (0, 1)), (4 - n, (2, 3))])) for n in (1, 2, 3)]


def _best_two_pairs() -> "Evaluation":
    return max(_two_pairs(), key=lambda report: report.throughput)


def _split(
    stages: int = 3,
    cut_for: Sequence[float] | None = None,
    judged_at: Sequence[float] | None = None,
) -> float:
    """Bottleneck of the exact cut for some speeds, as it is at others."""
    from pipelab.splits import bottleneck, split_minmax

    return bottleneck(given(split_minmax(_COSTS, stages, speeds=cut_for)), _COSTS, judged_at)


def _split_by_flops() -> float:
    from pipelab.splits import bottleneck, split_by_flops

    return bottleneck(split_by_flops(_COSTS, 3), _COSTS)


def _placements(case: str, **options: Any) -> int:
    from pipelab.engine.methods.exhaustive import count_placements

    return sum(count_placements(_case(case, **options)).values())


def _sets_in_no_order() -> float:
    """Tiny, stages of one type, with the order of the stages forgotten."""
    from pipelab.engine.methods.exhaustive import count_placements

    counts = count_placements(_case("tiny", max_gpus_per_stage=2, same_type_stages=True))
    return sum(number // factorial(stages) for stages, number in counts.items())


@cache
def _fast_layers(strictly: bool = True) -> float:
    """Layers that medium's GPUs hold at a rate above (or at) its bound."""
    import numpy as np

    from pipelab.engine.formulations.segment_rules import rules, upper_bound

    chosen = rules(_case("medium"))
    bound = given(upper_bound(chosen))
    fast = chosen.fits & ((chosen.rate > bound) if strictly else (chosen.rate >= bound - 1e-9))
    return float(np.where(fast, np.arange(1, fast.shape[1] + 1), 0).max(axis=1).sum())


@cache
def _medium_links(units: str = "tokens") -> tuple[float, float, float]:
    """The bound of medium, and its slowest and fastest link."""
    from pipelab.engine.formulations.segment_rules import rules, segments, upper_bound

    chosen = rules(_case("medium", link_units=units))
    links = segments(chosen).link_throughput
    return given(upper_bound(chosen)), float(links.min()), float(links.max())


@cache
def _promise(factor: bool = True, max_gpus_per_stage: int = 4) -> float:
    from pipelab.solving import solve

    small = _case("small", max_gpus_per_stage=max_gpus_per_stage)
    return solve(small, "type_count", factor=factor).details["promised"]


@cache
def _unlike(units: str = "tokens") -> tuple[float, float, float]:
    """Of notebook 04's three GPUs: what the chosen placement and its link yield, and the best without the A100."""
    from pipelab.cluster import Cluster
    from pipelab.evaluation import evaluate
    from pipelab.placement import Placement

    tiny = _case("tiny", link_units=units)
    links = {
        ("A100", "V100"): _SLOW_GB_PER_S,
        ("A100", "L20"): _SLOW_GB_PER_S,
        ("V100", "L20"): 400,
    }
    three = Cluster.from_counts({"A100": 1, "V100": 1, "L20": 1}, 60, links)
    hard = replace(tiny, cluster=three, model=replace(cast(Model, tiny.model), layer_weight_gb=25))
    chosen = evaluate(hard, Placement.of([(2, (2,)), (2, (0,))]))
    without = evaluate(hard, Placement.of([(2, (1,)), (2, (2,))]))
    return chosen.throughput, chosen.links[0].throughput, without.throughput


_SLOW_GB_PER_S = 12.0  # the A100's links in notebook 04


def _slow_enough(wanted: float, units: str = "tokens") -> float:
    """The speed at which the A100's link falls to a rate; links are linear in it."""
    return _SLOW_GB_PER_S * wanted / _unlike(units)[1]


RULES = {
    "00.1": Exercise(
        lambda: _best_of_tiny(4),
        "tokens/s",
        "load tiny with max_gpus_per_stage=4, solve it, and copy at least two decimals",
        (
            Mistake(lambda: _best_of_tiny(2), "that is the best with two GPUs per stage"),
            Mistake(
                lambda: _best_of_tiny(1), "that is the best with one GPU per stage; allow four"
            ),
        ),
    ),
    "00.2": Exercise(
        lambda: _best_two_pairs().throughput,
        "tokens/s",
        "four layers can be cut in three places; score each cut, and take the fastest",
        (
            Mistake(
                lambda: max(stage.throughput for stage in _best_two_pairs().stages),
                "that is the rate of the faster stage; the slower one sets the pace",
            ),
            Mistake(
                lambda: _two_pairs()[1].throughput,
                "that is the even cut; with these rates the slower pair gets faster with every layer it is given",
            ),
            Mistake(lambda: _two_pairs()[2].throughput, "that is the slowest of the three cuts"),
            Mistake(
                lambda: _best_two_pairs().links[0].throughput,
                "that is the rate of the link between the stages",
            ),
        ),
    ),
    "01.1": Exercise(
        _split,
        "",
        "the layers before the one of 8 cost 12 together",
        (
            Mistake(
                lambda: max(_COSTS),
                "that is the most expensive layer, and a third of all costs; but what is left cannot be cut to that",
            ),
            Mistake(
                _split_by_flops,
                "that is what the FLOPs rule finds; it cuts only once a fair share is reached",
            ),
        ),
    ),
    "01.2": Exercise(
        lambda: _split(cut_for=_SPEEDS, judged_at=_SPEEDS),
        "",
        "divide the cost of each stage by its speed, and give the fast node more",
        (
            Mistake(
                _split, "that is the answer of exercise 1; with other speeds other cuts are best"
            ),
            Mistake(
                lambda: _split(cut_for=_SPEEDS),
                "those are the right cuts; that is the cost of the most expensive stage, not yet divided by its speed",
            ),
            Mistake(
                lambda: sum(_COSTS) / sum(_SPEEDS),
                "that is all costs by all speeds: a bound, which whole layers do not reach here",
            ),
        ),
    ),
    "02.1": Exercise(
        lambda: _placements("medium_small"),
        "placements",
        "boundaries C(19, s-1) times ordered choices of s of 8 GPUs",
        (
            Mistake(
                lambda: sum(comb(19, s - 1) * comb(8, s) for s in range(1, 9)),
                "the order of the GPUs counts: ordered choices, not sets",
            ),
            Mistake(
                lambda: sum(comb(20, s - 1) * perm(8, s) for s in range(1, 9)),
                "twenty layers have nineteen boundaries",
            ),
            Mistake(
                lambda: sum(comb(19, s - 1) for s in range(1, 9)),
                "those are the ways to cut; each has its ways to choose GPUs",
            ),
            Mistake(
                lambda: _placements("medium_small", max_gpus_per_stage=2),
                "that is with two GPUs per stage",
            ),
        ),
    ),
    "02.2": Exercise(
        lambda: _placements("tiny", max_gpus_per_stage=2, same_type_stages=True),
        "placements",
        "six sets can be a stage: four single GPUs and two pairs. For s stages count families of s disjoint ones",
        (
            Mistake(
                lambda: _placements("tiny", max_gpus_per_stage=2), "that counts mixed pairs too"
            ),
            Mistake(
                lambda: _placements("tiny"),
                "that is with one GPU per stage; pairs of one type are allowed",
            ),
            Mistake(
                _sets_in_no_order, "the order of the stages counts: s! for each family of s sets"
            ),
        ),
    ),
    "03.1": Exercise(
        _fast_layers,
        "layers",
        "only A100 are that fast; add up the most layers of each",
        (
            Mistake(
                lambda: _fast_layers(strictly=False),
                "that includes the rate of the bound itself; strictly above",
            ),
            Mistake(lambda: _fast_layers() / 5, "that is what one A100 holds; there are five"),
        ),
    ),
    "03.2": Exercise(
        lambda: _medium_links()[1] / _medium_links()[0],
        "",
        "the slowest link may just fall to the bound; count it in tokens/s first",
        (
            Mistake(
                lambda: _medium_links()[0] / _medium_links()[1],
                "upside down: a number above 1 is asked for",
            ),
            Mistake(
                lambda: _medium_links("transfers")[1] / _medium_links()[0],
                "that compares transfers/s with tokens/s, as the write-up does; one transfer carries many tokens",
            ),
            Mistake(
                lambda: (
                    _medium_links("transfers")[1]
                    / _medium_links()[0]
                    * _case("medium").workload.batch_size
                ),
                "a transfer carries every token of its sequences, not one of each",
            ),
            Mistake(
                lambda: _medium_links()[2] / _medium_links()[0],
                "that is the fastest link; the slowest is the first to fall below the bound",
            ),
        ),
        rel=1e-3,
    ),
    "04.1": Exercise(
        _promise,
        "tokens/s",
        "solve it with method='type_count' and look for what it promises",
        (
            Mistake(
                lambda: _promise(factor=False),
                "that is without the factor (2 - 1/k); it is asked as written",
            ),
            Mistake(
                lambda: _promise(max_gpus_per_stage=2),
                "that is with two GPUs per stage; allow four",
            ),
        ),
        none="the heuristic names no GPU, so its result has no placement and no throughput; what it promises is in "
        "the result's details",
    ),
    "04.2": Exercise(
        lambda: _slow_enough(_unlike()[2]),
        "GB/s",
        "find the speed at which the link between L20 and A100 carries just the rate of the placement without the A100",
        (
            Mistake(
                lambda: _slow_enough(_unlike()[2], "transfers"),
                "that counts transfers/s; one transfer carries batch × sequence tokens",
            ),
            Mistake(
                lambda: _slow_enough(_unlike()[0]),
                "there the choice still yields all that it promised; it may fall to the placement without the A100",
            ),
            Mistake(
                lambda: _SLOW_GB_PER_S / _slow_enough(_unlike()[2]),
                "that is how many times slower, not GB/s",
            ),
            Mistake(
                lambda: _SLOW_GB_PER_S * _unlike()[1] / _unlike()[2],
                "upside down: the links must get slower",
            ),
        ),
        rel=1e-3,
    ),
}
