"""The original MILP, one GPU per stage: the joint program with other families of rows, and how large it was.

A segment is an allocation of one GPU. With k = 1 four families more hold for every placement, and most
links can be left out: those at least as fast as a bound on all placements are never the bottleneck.

As its author ran it, segments start on a grid only, have at least some length, and every GPU may hold one
layer even where that does not fit; the model is then a restriction of the problem, and its optimum no bound
on it. `SegmentRules` lists both.

Source: the write-up, "Original Solver Analysis", and the rows counted in its author's code.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import scipy.sparse as sp

from pipelab.costs import MEMORY_SLACK
from pipelab.engine.classes import gpu_classes
from pipelab.engine.deadline import NEVER, Deadline
from pipelab.engine.formulations import joint
from pipelab.engine.formulations.candidates import Candidates, list_candidates, stage_rates
from pipelab.engine.formulations.joint import Family, Incidence
from pipelab.engine.layer_runs import runs_of
from pipelab.engine.solvers.linear_program import LinearProgram
from pipelab.errors import NotApplicable
from pipelab.hardware.linear_rates import LinearThroughput
from pipelab.problem import Problem, require_identical_layers

_AS_RUN = "single_gpu, segments='as_run'"


@dataclass(frozen=True, eq=False)
class SegmentRules:
    """Which segments exist: kinds of span per GPU (identical layers: numbers of them), and first layers."""

    problem: Problem  # with one GPU per stage
    rate: np.ndarray  # (N, U) tokens/s
    fits: np.ndarray  # (N, U) whether memory holds each kind of span
    allowed: np.ndarray  # (N, U) whether the model has such segments
    starts: np.ndarray  # first layers, from 0

    @property
    def restricted(self) -> bool:
        """Whether segments that fit are left out of the model."""
        return len(self.starts) < self.problem.model.layers or bool(
            (self.fits & ~self.allowed).any()
        )


def rules(problem: Problem, as_run: bool = False, deadline: Deadline = NEVER) -> SegmentRules:
    """Which segments there are: all that fit, or those of the author's run.

    `as_run` restates three habits of that run: first layers on a grid of max(1, M // 20)
    where M > 40; at least min(half of the memory's worth, a third of the most) layers; and at
    least one layer allowed on every GPU, whether it fits or not.
    """
    if as_run:
        require_identical_layers(problem, _AS_RUN)
        if not isinstance(problem.costs, LinearThroughput):
            expected = "expected LinearThroughput: the author's sizes rest on its memory; take segments='all'"
            raise NotApplicable(_AS_RUN, [("costs", type(problem.costs).__name__, expected)])
    problem = replace(problem, max_gpus_per_stage=1)
    rate, fits = stage_rates(problem, _alone(problem), deadline)
    layers = problem.model.layers
    if not as_run:
        return SegmentRules(problem, rate, fits, fits, np.arange(layers))
    step = max(1, layers // 20) if layers > 40 else 1
    sizes = np.arange(1, layers + 1)
    allowed = np.zeros_like(fits)
    for g, gpu in enumerate(problem.cluster.gpus):
        least, most = _sizes_as_run(problem, gpu.memory_gb)
        allowed[g] = (least <= sizes) & (sizes <= most)
    return SegmentRules(problem, rate, fits, allowed, np.arange(0, layers, step))


def _alone(problem: Problem) -> tuple[tuple[int, ...], ...]:
    return tuple((g,) for g in range(len(problem.cluster)))


def _sizes_as_run(problem: Problem, memory_gb: float) -> tuple[int, int]:
    weight = problem.model.layer_weight_gb
    activations = problem.costs.activation_gb(problem.model, problem.workload)
    most = max(1, min(problem.model.layers, int((memory_gb * MEMORY_SLACK - activations) / weight)))
    half = max(1, int((memory_gb / 2 - activations) / weight))
    return min(half, most, max(1, most // 3)), most


def segments(chosen: SegmentRules, deadline: Deadline = NEVER) -> Candidates:
    """The segments as candidates over single GPUs, with every connection."""
    return list_candidates(
        chosen.problem, _alone(chosen.problem), chosen.rate, chosen.allowed, chosen.starts, deadline
    )


def size(chosen: SegmentRules) -> dict[str, int]:
    """Segments and connections, and variables and rows of the model as written, nothing listed.

    As written, z and e stand beside u (a GPU is used), τ of every GPU, ρ of every connection, and t. Rows per
    GPU: at most one segment, u, τ, and t ≤ τ; per connection: needs its sender, needs its receiver, is used
    between chosen neighbours, ρ, and t ≤ ρ; per segment with a neighbour: has a successor, a predecessor;
    and the coverage of layers, a start, a bound on t, the order of identical GPUs, and for every first layer
    as many segments that end before it as start there.
    """
    layers, gpus = chosen.problem.model.layers, len(chosen.problem.cluster)
    starts, ends = np.zeros((2, gpus, layers + 1), dtype=np.int64)
    for first in chosen.starts:
        sizes = chosen.allowed[:, runs_of(chosen.problem.model).kind[first, : layers - first]]
        starts[:, first] = sizes.sum(axis=1)
        ends[:, first + 1 :] += sizes
    # At a boundary every segment that ends meets every one that starts, but for its own GPU's.
    met, new = ends[:, 1:layers], starts[:, 1:layers]
    followed = (new.sum(axis=0) - new) > 0
    preceded = (met.sum(axis=0) - met) > 0
    number = int(starts.sum())
    links = int((met.sum(axis=0) * new.sum(axis=0) - (met * new).sum(axis=0)).sum())
    neighbours = int((met * followed).sum()) + int((new * preceded).sum())
    inner_starts = int((new.sum(axis=0) > 0).sum())
    return {
        "segments": number,
        "connections": links,
        "variables": number + 2 * links + 2 * gpus + 1,
        "rows": layers
        + 4 * gpus
        + 5 * links
        + neighbours
        + 2
        + len(twins(chosen.problem))
        + inner_starts,
    }


def upper_bound(chosen: SegmentRules, deadline: Deadline = NEVER) -> float | None:
    """A rate that no placement with one GPU per stage exceeds; None if no placement exists.

    At a rate t, GPU g holds at most the most layers with which it still reaches t. The
    fastest t at which these add up to all layers is a bound, whatever the links.
    """
    sizes = np.where(chosen.fits, runs_of(chosen.problem.model).layers, 0)
    rates = np.unique(chosen.rate[chosen.fits])[::-1]
    for t in rates:
        deadline.check()
        if (np.where(chosen.rate >= t, sizes, 0).max(axis=1)).sum() >= chosen.problem.model.layers:
            return float(t)
    return None


def twins(problem: Problem) -> np.ndarray:
    """Pairs of neighbouring GPU ids that are interchangeable; shape (P, 2)."""
    of = gpu_classes(problem.cluster).of
    first = np.flatnonzero(of[:-1] == of[1:])
    return np.stack([first, first + 1], axis=1)


@dataclass(frozen=True, eq=False)
class _Segments(Incidence):
    """The matrices of the joint ILP, and what is there with one GPU per stage."""

    @cached_property
    def balance(self) -> sp.csr_array:
        """Per first layer but the first: +1 for segments that start there, -1 for those that end before it."""
        c = self.candidates
        at = np.unique(c.start[c.start > 0])[:, None]
        return sp.csr_array((c.start == at).astype(float) - (c.stop == at).astype(float))

    @cached_property
    def first_twin_less_second(self) -> sp.csr_array:
        """Per pair of neighbouring identical GPUs; shape (P, A)."""
        first, second = twins(self.candidates.problem).T
        return self.uses[first] - self.uses[second]


_TIGHT = {family.name: family for family in joint.TIGHT}

FAMILIES = (
    _TIGHT["layer_coverage"],
    _TIGHT["gpu_exclusivity"],
    Family(
        "link_forced",
        "Two chosen neighbours are linked.",
        r"e_{ab} \ge z_a + z_b - 1 \quad \forall (a, b)",
        "logic",
        "E",
        lambda n: n["connections"],
        rows=lambda i, c: c.rows(
            {"e": i.each_connection(), "z": -i.leaves.T - i.enters.T}, lower=-1
        ),
    ),
    Family(
        "gpu_bottleneck",
        "t is at most the rate of the segment that GPU g holds, if it holds one.",
        r"t \le \sum_{a \ni g} \theta_a z_a + M_{\mathrm{stage}} \Big(1 - \sum_{a \ni g} z_a\Big) \quad \forall g",
        "throughput",
        "N",
        lambda n: n["gpus"],
        rows=lambda i, c: c.rows(
            {"t": np.ones((i.candidates.gpus, 1)), "z": i.big_m_stage * i.uses - i.uses @ i.theta},
            upper=i.big_m_stage,
        ),
    ),
    _TIGHT["boundary_rate"],
    Family(
        "twins_in_order",
        "Of two identical GPUs, the first is used first.",
        r"\sum_{a \ni g} z_a \ge \sum_{a \ni g+1} z_a \quad \forall g \sim g+1",
        "strengthening",
        "pairs of twins",
        lambda n: n["twins"],
        rows=lambda i, c: c.rows({"z": i.first_twin_less_second}, lower=0),
    ),
    Family(
        "boundary_balance",
        "As many chosen segments end before a layer as start there.",
        r"\sum_{a:\,\mathrm{first}(a) = \ell + 1} z_a = \sum_{a:\,\mathrm{last}(a) = \ell} z_a",
        "strengthening",
        "first layers but the first",
        lambda n: n["inner_starts"],
        rows=lambda i, c: c.rows({"z": i.balance}, lower=0, upper=0),
    ),
)


def build(candidates: Candidates, bound: float) -> LinearProgram:
    """The MILP as arrays.

    Parameters
    ----------
    candidates : Candidates
        With one GPU per stage.
    bound : float
        From `upper_bound`. Connections at least as fast are left out.
    """
    slow = candidates.link_throughput < bound
    candidates = replace(
        candidates,
        tail=candidates.tail[slow],
        head=candidates.head[slow],
        link_throughput=candidates.link_throughput[slow],
    )
    columns = joint.FORMS["tight"].columns(candidates)
    big_m = joint.fastest(candidates.throughput)  # no placement beats its fastest stage
    incidence = _Segments(candidates, big_m, big_m)
    upper = {"z": 1.0, "e": 1.0, "t": bound}
    return joint.maximise_t(columns, upper, ("z",), FAMILIES, incidence)
