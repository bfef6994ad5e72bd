"""The original MILP: one GPU per stage, a variable for every segment and every pair that can follow.

Maximise t such that every layer is in one chosen segment, a GPU holds at most one, chosen
neighbours are linked, and t is at most the rate of every used GPU and link.

As its author ran it, segments start on a grid only, have at least some length, and every
GPU may hold one layer even where that does not fit; the model is then a restriction of the
problem, and its optimum no bound on it. `segments` lists both.

A segment is an allocation of one GPU, so families of the joint ILP serve here as they are.

Source: the write-up, "Original Solver Analysis", and the rows counted in its author's code.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import scipy.sparse as sp

from pipelab.engine.formulations.candidates import Candidates
from pipelab.engine.formulations.families import Domain, Family, Incidence, maximise_t
from pipelab.engine.formulations.joint import FAMILIES as JOINT_FAMILIES
from pipelab.engine.formulations.joint import fastest
from pipelab.engine.formulations.segment_rules import twins
from pipelab.engine.solvers.linear_program import Columns, LinearProgram


@dataclass(frozen=True, eq=False)
class GpuIncidence(Incidence):
    """The matrices of the joint ILP, and the pairs of GPUs whose order of use is fixed."""

    bound: float = np.inf  # no placement with one GPU per stage is faster

    @cached_property
    def twins(self) -> np.ndarray:
        """(first, second) of neighbouring ids of identical GPUs; shape (P, 2)."""
        return twins(self.candidates.problem)

    @property
    def inner_starts(self) -> np.ndarray:
        """First layers, but for layer 0, at which some segment starts."""
        return np.unique(self.candidates.start[self.candidates.start > 0])

    @cached_property
    def balance(self) -> sp.csr_array:
        """Per such layer: +1 for segments that start there, -1 for those that end before it; (B, A)."""
        c, at = self.candidates, self.inner_starts[:, None]
        return sp.csr_array((c.start == at).astype(float) - (c.stop == at).astype(float))

    def each_gpu(self) -> sp.dia_array:
        """One row per GPU; shape (N, N)."""
        return sp.eye_array(self.candidates.gpus)

    def twin_rows(self, sign_first: float, sign_second: float) -> sp.csr_array:
        """One row per pair of twins; shape (P, N)."""
        pairs = len(self.twins)
        rows = np.repeat(np.arange(pairs), 2)
        values = np.tile([sign_first, sign_second], pairs)
        return sp.csr_array(
            (values, (rows, self.twins.reshape(-1))), shape=(pairs, self.candidates.gpus)
        )


def _ones(n: int) -> np.ndarray:
    return np.ones((n, 1))


_JOINT = {family.name: family for family in JOINT_FAMILIES}

FAMILIES = (
    _JOINT["layer_coverage"],
    Family(
        "gpu_capacity", "GPU g holds at most one segment.",
        r"\sum_{a \ni g} z_a \le 1 \quad \forall g", "logic", "N", lambda n: n["gpus"],
        rows=lambda i, c: c.rows({"z": i.uses}, upper=1),
    ),
    Family(
        "gpu_used", "u is 1 when GPU g holds a segment.",
        r"u_g = \sum_{a \ni g} z_a \quad \forall g", "logic", "N", lambda n: n["gpus"],
        rows=lambda i, c: c.rows({"u": i.each_gpu(), "z": -i.uses}, lower=0, upper=0),
    ),
    _JOINT["link_needs_sender"],
    _JOINT["link_needs_receiver"],
    Family(
        "link_forced", "Two chosen neighbours are linked.",
        r"e_{ab} \ge z_a + z_b - 1 \quad \forall (a, b)", "logic", "E", lambda n: n["connections"],
        rows=lambda i, c: c.rows({"e": i.each_connection(), "z": -i.leaves.T - i.enters.T}, lower=-1),
    ),
    Family(
        "gpu_rate", "τ is the rate of the segment that GPU g holds, or 0.",
        r"\tau_g = \sum_{a \ni g} \theta_a z_a \quad \forall g", "throughput", "N", lambda n: n["gpus"],
        rows=lambda i, c: c.rows({"tau": i.each_gpu(), "z": -(i.uses @ i.theta)}, lower=0, upper=0),
    ),
    _JOINT["link_rate"],
    Family(
        "gpu_bottleneck", "t is at most the rate of a used GPU.",
        r"t \le \tau_g + M_{\mathrm{stage}} (1 - u_g) \quad \forall g", "throughput", "N", lambda n: n["gpus"],
        rows=lambda i, c: c.rows(
            {"t": _ones(i.candidates.gpus), "tau": -i.each_gpu(), "u": i.big_m_stage * i.each_gpu()},
            upper=i.big_m_stage,
        ),
    ),
    _JOINT["link_bottleneck"],
    _JOINT["pipeline_start"],
    _JOINT["successor"],
    _JOINT["predecessor"],
    Family(
        "twins_in_order", "Of two identical GPUs, the first is used first.",
        r"u_g \ge u_{g+1} \quad \forall g \sim g+1", "strengthening", "pairs of twins",
        lambda n: n["twins"],
        rows=lambda i, c: c.rows({"u": i.twin_rows(1.0, -1.0)}, lower=0),
    ),
    Family(
        "upper_bound", "t is at most a rate at which the GPUs could still hold all layers.",
        r"t \le \bar t", "strengthening", "1", lambda n: 1,
        rows=lambda i, c: c.rows({"t": _ones(1)}, upper=i.bound),
    ),
    Family(
        "boundary_balance", "As many chosen segments end before a layer as start there.",
        r"\sum_{a:\,\mathrm{first}(a) = \ell + 1} z_a = \sum_{a:\,\mathrm{last}(a) = \ell} z_a",
        "strengthening", "first layers but the first", lambda n: n["inner_starts"],
        rows=lambda i, c: c.rows({"z": i.balance}, lower=0, upper=0),
    ),
)  # fmt: skip

# With only some of the connections in the model, the link to a successor may be one that is left out.
_NEED_ALL_LINKS = ("successor", "predecessor")


def size(counts: Mapping[str, int]) -> dict[str, int]:
    """Variables and rows of the model with every connection."""
    segments, connections, gpus = counts["segments"], counts["connections"], counts["gpus"]
    return {
        "variables": segments + 2 * connections + 2 * gpus + 1,
        "rows": sum(f.count(counts) for f in FAMILIES),
    }


def build(candidates: Candidates, bound: float, all_links: bool = True) -> LinearProgram:
    """The MILP as arrays.

    Parameters
    ----------
    candidates : Candidates
    bound : float
        From `upper_bound`.
    all_links : bool
        False leaves out every connection that is at least as fast as `bound`: t cannot
        exceed `bound`, so such a link is never the bottleneck.
    """
    if not all_links:
        slow = candidates.link_throughput < bound
        candidates = replace(
            candidates, tail=candidates.tail[slow], head=candidates.head[slow],
            link_throughput=candidates.link_throughput[slow],
        )  # fmt: skip
    links, gpus = len(candidates.tail), candidates.gpus
    c = Columns(
        {"z": len(candidates.start), "e": links, "u": gpus, "rho": links, "tau": gpus, "t": 1}
    )
    # valid for both: no placement beats its fastest stage. The author's original solver has
    # max(1000, 3 · max θ, 2 · max ν) for links, which is valid, too.
    big_m = fastest(candidates.throughput)
    i = GpuIncidence(candidates, big_m, big_m, bound=bound)
    binary, free = Domain(1.0, whole=True), Domain(np.inf, whole=False)
    domains = {group: binary if group in ("z", "e", "u") else free for group in c.sizes}
    return maximise_t(
        c, domains, [f for f in FAMILIES if all_links or f.name not in _NEED_ALL_LINKS], i
    )
