"""What exercises of notebooks 02 and 04 compute: the targets, and what common mistakes lead to."""

from dataclasses import replace
from functools import cache
from math import factorial
from typing import TYPE_CHECKING, Any, cast

from pipelab.problem import Model

if TYPE_CHECKING:
    from pipelab.problem import Problem


def loaded_case(name: str, **options: Any) -> "Problem":
    from pipelab.io.cases_csv import load_case

    return load_case(name, **options)


def placements(case: str, **options: Any) -> int:
    from pipelab.engine.methods.exhaustive import count_placements

    return sum(count_placements(loaded_case(case, **options)).values())


def sets_in_no_order() -> float:
    """Tiny, stages of one type, with the order of the stages forgotten."""
    from pipelab.engine.methods.exhaustive import count_placements

    counts = count_placements(loaded_case("tiny", max_gpus_per_stage=2, same_type_stages=True))
    return sum(number // factorial(stages) for stages, number in counts.items())


@cache
def predicted_rate(factor: bool = True, max_gpus_per_stage: int = 4) -> float:
    from pipelab.solving import solve

    small = loaded_case("small", max_gpus_per_stage=max_gpus_per_stage)
    return solve(small, "type_count", factor=factor).details["predicted"]


@cache
def unlike(units: str = "tokens") -> tuple[float, float, float]:
    """Of notebook 04's three GPUs: what the chosen placement and its link yield, and the best without the A100."""
    from pipelab.cluster import Cluster
    from pipelab.evaluation import evaluate
    from pipelab.placement import Placement

    tiny = loaded_case("tiny", link_units=units)
    links = {
        ("A100", "V100"): SLOW_GB_PER_S,
        ("A100", "L20"): SLOW_GB_PER_S,
        ("V100", "L20"): 400,
    }
    three = Cluster.from_counts({"A100": 1, "V100": 1, "L20": 1}, 60, links)
    hard = replace(tiny, cluster=three, model=replace(cast(Model, tiny.model), layer_weight_gb=25))
    chosen = evaluate(hard, Placement.of([(2, (2,)), (2, (0,))]))
    without = evaluate(hard, Placement.of([(2, (1,)), (2, (2,))]))
    return chosen.throughput, chosen.links[0].throughput, without.throughput


SLOW_GB_PER_S = 12.0  # the A100's links in notebook 04


def slow_enough(wanted: float, units: str = "tokens") -> float:
    """The speed at which the A100's link falls to a rate; links are linear in it."""
    return SLOW_GB_PER_S * wanted / unlike(units)[1]
