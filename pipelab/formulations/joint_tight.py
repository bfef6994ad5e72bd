"""The same joint ILP with a better bound: fewer rows, and no big-M for stages.

Three changes against `joint`. Every layer is held by exactly one chosen stage, so t is at
most the rate of that stage: one row per layer replaces one big-M row per allocation. A
chosen stage hands on exactly once, so the link variables are a flow. At most one
connection crosses each boundary, so one row per boundary bounds t by it. τ and ρ were
only names for θz and νe, and are gone.

All three hold for every placement, so no placement is lost; and a placement's t is still
its bottleneck, so the optimum is the same. On tiny with two GPUs per stage the LP bound
falls from 329.08 to the optimum itself.
"""

from collections.abc import Mapping

import numpy as np

from pipelab.formulations.candidates import Candidates
from pipelab.formulations.families import Family, Incidence
from pipelab.formulations.joint import GPU_EXCLUSIVITY, LAYER_COVERAGE, link_big_m
from pipelab.program import Columns, LinearProgram

__all__ = ["FAMILIES", "build", "columns", "incidence", "size"]


def _ones(n: int) -> np.ndarray:
    return np.ones((n, 1))


FAMILIES = (
    LAYER_COVERAGE,
    GPU_EXCLUSIVITY,
    Family(
        "flow_out", "A chosen allocation that is not the last hands on exactly once.",
        r"\sum_{b} e_{ab} = z_a \quad \forall a \text{ with a successor}",
        "logic", "allocations with a successor", lambda n: n["with_successor"],
        rows=lambda i, c: c.rows({"e": i.leaves[i.followed], "z": -i.pick(i.followed)}, lower=0, upper=0),
        state=lambda i, v: i.leaves[i.followed] @ v["e"] == i.pick(i.followed) @ v["z"],
    ),
    Family(
        "flow_in", "A chosen allocation that is not the first receives exactly once.",
        r"\sum_{a} e_{ab} = z_b \quad \forall b \text{ with a predecessor}",
        "logic", "allocations with a predecessor", lambda n: n["with_predecessor"],
        rows=lambda i, c: c.rows({"e": i.enters[i.preceded], "z": -i.pick(i.preceded)}, lower=0, upper=0),
        state=lambda i, v: i.enters[i.preceded] @ v["e"] == i.pick(i.preceded) @ v["z"],
    ),
    Family(
        "layer_rate", "t is at most the rate of whichever allocation holds layer ℓ.",
        r"t \le \sum_{a \ni \ell} \theta_a z_a \quad \forall \ell", "throughput", "M", lambda n: n["layers"],
        rows=lambda i, c: c.rows({"t": _ones(i.candidates.layers), "z": -(i.covers @ i.theta)}, upper=0),
        state=lambda i, v: v["t"] <= i.covers @ i.theta @ v["z"],
    ),
    Family(
        "boundary_rate", "t is at most the rate of the connection that crosses boundary ℓ, if one does.",
        r"t \le \sum_{(a,b) \text{ across } \ell} \nu_{ab} e_{ab} "
        r"+ M_{\mathrm{link}} \Big(1 - \sum_{(a,b) \text{ across } \ell} e_{ab}\Big) \quad \forall \ell < M",
        "throughput", "M − 1", lambda n: n["boundaries"],
        rows=lambda i, c: c.rows(
            {"t": _ones(i.candidates.layers - 1), "e": i.big_m_link * i.crosses - i.crosses @ i.nu},
            upper=i.big_m_link,
        ),
        state=lambda i, v: v["t"] <= i.crosses @ i.nu @ v["e"] + i.big_m_link * (1 - i.crosses @ v["e"]),
    ),
)  # fmt: skip


def size(counts: Mapping[str, int]) -> dict[str, int]:
    """Variables and rows from the numbers of `count_candidates`, nothing built."""
    variables = counts["allocations"] + counts["connections"] + 1
    return {"variables": variables, "rows": sum(f.count(counts) for f in FAMILIES)}


def columns(candidates: Candidates) -> Columns:
    """z, e and t side by side."""
    return Columns({"z": len(candidates.start), "e": len(candidates.tail), "t": 1})


def incidence(candidates: Candidates) -> Incidence:
    """The matrices of the formulation; `M_stage` does not occur in it."""
    return Incidence(candidates, float("nan"), link_big_m(candidates, "valid"))


def build(candidates: Candidates) -> LinearProgram:
    """The tight form as arrays.

    e need not be declared whole: once z is, a chosen stage's flow can only go to the one
    chosen stage that starts where it ends, for every other successor takes in nothing.
    """
    c, i = columns(candidates), incidence(candidates)
    lower, upper = np.zeros(c.total), np.ones(c.total)
    integer, objective = np.zeros(c.total, dtype=bool), np.zeros(c.total)
    integer[c.slices["z"]] = True
    upper[c.slices["z"]] = _can_be_chosen(candidates)
    upper[c.slices["t"]] = candidates.throughput.max(initial=0.0)  # no placement beats its fastest stage
    objective[c.slices["t"]] = 1
    return LinearProgram(c, lower, upper, integer, objective, {f.name: f.rows(i, c) for f in FAMILIES})


def _can_be_chosen(candidates: Candidates) -> np.ndarray:
    """0 for an allocation that nothing can follow or precede though something must; shape (A,)."""
    numbers = np.arange(len(candidates.start))
    follows = (candidates.stop == candidates.layers) | np.isin(numbers, candidates.tail)
    precedes = (candidates.start == 0) | np.isin(numbers, candidates.head)
    return (follows & precedes).astype(float)
