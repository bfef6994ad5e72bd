"""The same joint ILP with a better bound: fewer rows, and no big-M for stages.

What differs from `joint`: every layer is held by exactly one chosen stage, so t is at
most the rate of that stage: one row per layer replaces one big-M row per allocation. A
chosen stage has exactly one successor, so the link variables are a flow. At most one
connection crosses each boundary, so one row per boundary bounds t by it. τ and ρ were
only names for θz and νe, and are gone.

All three hold for every placement, so no placement is lost; and a placement's t is still
its bottleneck, so the optimum is the same. Where heavy layers force several stages on
tiny, the LP bound is 13 % above the optimum instead of the write-up's 49 %.
"""

from collections.abc import Mapping

import numpy as np

from pipelab.engine.formulations.candidates import Candidates
from pipelab.engine.formulations.families import Domain, Family, Incidence, maximise_t
from pipelab.engine.formulations.joint import GPU_EXCLUSIVITY, LAYER_COVERAGE, link_big_m
from pipelab.engine.solvers.linear_program import Columns, LinearProgram


def _ones(n: int) -> np.ndarray:
    return np.ones((n, 1))


FAMILIES = (
    LAYER_COVERAGE,
    GPU_EXCLUSIVITY,
    Family(
        "flow_out", "A chosen allocation that is not the last has exactly one successor.",
        r"\sum_{b} e_{ab} = z_a \quad \forall a \text{ with a successor}",
        "logic", "allocations with a successor", lambda n: n["with_successor"],
        rows=lambda i, c: c.rows({"e": i.leaves[i.followed], "z": -i.pick(i.followed)}, lower=0, upper=0),
    ),
    Family(
        "flow_in", "A chosen allocation that is not the first receives exactly once.",
        r"\sum_{a} e_{ab} = z_b \quad \forall b \text{ with a predecessor}",
        "logic", "allocations with a predecessor", lambda n: n["with_predecessor"],
        rows=lambda i, c: c.rows({"e": i.enters[i.preceded], "z": -i.pick(i.preceded)}, lower=0, upper=0),
    ),
    Family(
        "layer_rate", "t is at most the rate of whichever allocation holds layer ℓ.",
        r"t \le \sum_{a \ni \ell} \theta_a z_a \quad \forall \ell", "throughput", "L", lambda n: n["layers"],
        rows=lambda i, c: c.rows({"t": _ones(i.candidates.layers), "z": -(i.covers @ i.theta)}, upper=0),
    ),
    Family(
        "boundary_rate", "t is at most the rate of the connection that crosses boundary ℓ, if one does.",
        r"t \le \sum_{(a,b) \text{ across } \ell} \nu_{ab} e_{ab} "
        r"+ M_{\mathrm{link}} \Big(1 - \sum_{(a,b) \text{ across } \ell} e_{ab}\Big) \quad \forall \ell < L",
        "throughput", "L − 1", lambda n: n["boundaries"],
        rows=lambda i, c: c.rows(
            {"t": _ones(i.candidates.layers - 1), "e": i.big_m_link * i.crosses - i.crosses @ i.nu},
            upper=i.big_m_link,
        ),
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


DOMAINS = (
    r"z_a \in \{0, 1\}", r"z_a = 0 \text{ where nothing can follow or precede}", r"0 \le e_{ab} \le 1", r"t \ge 0",
)  # fmt: skip


def domains(candidates: Candidates) -> dict[str, Domain]:
    """Upper bounds and whole-number demands by column group; lower bounds are 0.

    e need not be declared whole: once z is, nothing flows into a stage that is not chosen, so
    what leaves a chosen stage can only enter the one chosen stage that starts where it ends.
    """
    return {
        "z": Domain(_can_be_chosen(candidates), whole=True),
        "e": Domain(1.0, whole=False),
        "t": Domain(np.inf, whole=False),
    }


def build(candidates: Candidates) -> LinearProgram:
    """The tight form as arrays."""
    return maximise_t(columns(candidates), domains(candidates), FAMILIES, incidence(candidates))


def _can_be_chosen(candidates: Candidates) -> np.ndarray:
    """0 for an allocation that nothing can follow or precede though something must; shape (A,).

    Coverage and exclusivity forbid choosing it anyhow; the relaxation does not know that.
    """
    numbers = np.arange(len(candidates.start))
    follows = (candidates.stop == candidates.layers) | np.isin(numbers, candidates.tail)
    precedes = (candidates.start == 0) | np.isin(numbers, candidates.head)
    return (follows & precedes).astype(float)
