"""What exercises of notebook 03 compute: the targets, and what common mistakes lead to."""

from functools import cache
from typing import TYPE_CHECKING, Any

from pipelab.fields import given

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
