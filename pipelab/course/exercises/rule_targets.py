"""What exercises of notebooks 03 and 04 compute: the targets, and what common mistakes lead to."""

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from pipelab.fields import given
from pipelab.problem import Model

if TYPE_CHECKING:
    from pipelab.problem import Problem


def loaded_case(name: str, **options: Any) -> "Problem":
    from pipelab.io.cases_csv import load_case

    return load_case(name, **options)


@cache
def fast_layers(strictly: bool = True) -> float:
    """Layers that medium's GPUs hold at a rate above (or at) its bound."""
    import numpy as np

    from pipelab.engine.formulations.segment_rules import rules, upper_bound

    chosen = rules(loaded_case("medium"))
    bound = given(upper_bound(chosen))
    fast = chosen.fits & ((chosen.rate > bound) if strictly else (chosen.rate >= bound - 1e-9))
    return float(np.where(fast, np.arange(1, fast.shape[1] + 1), 0).max(axis=1).sum())


@cache
def medium_links(units: str = "tokens") -> tuple[float, float, float]:
    """The bound of medium, and its slowest and fastest link."""
    from pipelab.engine.formulations.segment_rules import rules, segments, upper_bound

    chosen = rules(loaded_case("medium", link_units=units))
    links = segments(chosen).link_throughput
    return given(upper_bound(chosen)), float(links.min()), float(links.max())


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
