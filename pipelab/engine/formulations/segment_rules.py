"""Segments: the layers that one GPU may hold in the original MILP, all that fit or those of its author's run."""

from dataclasses import dataclass, replace

import numpy as np

from pipelab.costs import MEMORY_SLACK
from pipelab.engine.deadline import NEVER, Deadline
from pipelab.engine.formulations.aggregated.classes import gpu_classes
from pipelab.engine.formulations.candidates import Candidates, list_candidates, stage_rates
from pipelab.engine.layer_runs import runs_of
from pipelab.errors import NotApplicable
from pipelab.hardware.linear_rates import LinearThroughput
from pipelab.problem import Problem, require_identical_layers


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
        require_identical_layers(problem, "single_gpu, segments='as_run'")
        if not isinstance(problem.costs, LinearThroughput):
            expected = "expected LinearThroughput: the author's sizes rest on its memory; take segments='all'"
            raise NotApplicable(
                "single_gpu, segments='as_run'", [("costs", type(problem.costs).__name__, expected)]
            )
    problem = replace(problem, max_gpus_per_stage=1)
    sets = tuple((g,) for g in range(len(problem.cluster)))
    rate, fits = stage_rates(problem, sets, deadline)
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


def _sizes_as_run(problem: Problem, memory_gb: float) -> tuple[int, int]:
    weight = problem.model.layer_weight_gb
    activations = problem.costs.activation_gb(problem.model, problem.workload)
    most = max(1, min(problem.model.layers, int((memory_gb * MEMORY_SLACK - activations) / weight)))
    half = max(1, int((memory_gb / 2 - activations) / weight))
    return min(half, most, max(1, most // 3)), most


def count_segments(chosen: SegmentRules) -> dict[str, int]:
    """Segments, connections and what the families count, without listing a connection."""
    layers, gpus = chosen.problem.model.layers, len(chosen.problem.cluster)
    starts, ends = (
        np.zeros((gpus, layers + 1), dtype=np.int64),
        np.zeros((gpus, layers + 1), dtype=np.int64),
    )
    for first in chosen.starts:
        sizes = chosen.allowed[:, runs_of(chosen.problem.model).kind[first, : layers - first]]
        starts[:, first] = sizes.sum(axis=1)
        ends[:, first + 1 :] += sizes
    # At a boundary every segment that ends meets every one that starts, but for its own GPU's.
    met, new = ends[:, 1:layers], starts[:, 1:layers]
    followed = (new.sum(axis=0) - new) > 0
    preceded = (met.sum(axis=0) - met) > 0
    return {
        "layers": layers,
        "gpus": gpus,
        "segments": int(starts.sum()),
        "connections": int((met.sum(axis=0) * new.sum(axis=0) - (met * new).sum(axis=0)).sum()),
        "with_successor": int((met * followed).sum()),
        "with_predecessor": int((new * preceded).sum()),
        "twins": len(twins(chosen.problem)),
        "inner_starts": int((new.sum(axis=0) > 0).sum()),
    }


def segments(chosen: SegmentRules, deadline: Deadline = NEVER) -> Candidates:
    """The segments as candidates over single GPUs, with every connection."""
    sets = tuple((g,) for g in range(len(chosen.problem.cluster)))
    return list_candidates(
        chosen.problem, sets, chosen.rate, chosen.allowed, chosen.starts, deadline
    )


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
