"""One stage by the roofline, GPU by GPU: the definition, which the evaluator uses.

`execution_modes` computes the same for many candidate stages at once, in arrays, for the
formulations. Both take their formulas from `Demand` and `stage_seconds`; how a batch is shared,
which modes there are, what fits and which mode is best, each does by itself. Tests compare the two.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from pipelab.cluster import GPU
from pipelab.costs import MEMORY_SLACK, StageCost, pass_time, whole_sequences
from pipelab.hardware.roofline.arrays import Span
from pipelab.hardware.roofline.demand import Demand
from pipelab.hardware.roofline.pass_times import hardware_of, stage_seconds
from pipelab.hardware.transformer import Transformer

if TYPE_CHECKING:
    from pipelab.hardware.roofline.constants import RooflineConstants

_EXACT = {"xtol": 1e-300, "rtol": 1e-15, "maxiter": 2000}  # of a root: as far as doubles go


@dataclass(frozen=True)
class _Mode:
    """One execution mode of a stage: how its GPUs share the batch, and how many cut each layer."""

    degree: int
    batch: tuple[float, ...]  # sequences on each GPU
    memory_gb: tuple[float, ...]  # needed on each GPU
    shortfall_gb: float  # on the GPU that lacks most; 0 or less if all fits
    rate: float  # tokens/s
    pass_seconds: float


@lru_cache(maxsize=10_000)  # many placements have the same stages
def cost_of_stage(
    costs: "RooflineConstants", demand: Demand, gpus: tuple[GPU, ...], span: Span, batch_split: str
) -> StageCost:
    """The preferred mode among those that fit; if none fits, the one that lacks least memory."""
    shares = _shares(costs, demand, gpus, span, batch_split)
    modes = [_mode(costs, demand, gpus, span, shares, 1)]
    for degree in degrees_of(costs, demand.model, gpus):
        share = demand.load.batch_size * degree / len(gpus)  # of every group of GPUs
        modes.append(_mode(costs, demand, gpus, span, (share,) * len(gpus), degree))
    fitting = [mode for mode in modes if mode.shortfall_gb <= 0]
    if not fitting:
        best = min(modes, key=lambda mode: mode.shortfall_gb)
    elif costs.prefer == "rate":
        best = max(fitting, key=lambda mode: mode.rate)
    else:
        best = min(fitting, key=lambda mode: mode.pass_seconds)
    return StageCost(best.rate, best.batch, best.memory_gb, best.degree, best.pass_seconds)


def degrees_of(costs: "RooflineConstants", model: Transformer, gpus: tuple[GPU, ...]) -> list[int]:
    """How many GPUs may cut each layer among them: equal GPUs of one node, in groups of one size.

    Heads, and what is cached, must come out even.
    """
    if not costs.tensor_parallel or len(set(gpus)) > 1 or not gpus[0].node:
        return []
    parts = model.kv_parts
    return [
        t
        for t in range(2, len(gpus) + 1)
        if len(gpus) % t == 0 and model.heads % t == 0 and (parts % t == 0 or t % parts == 0)
    ]


def _mode(
    costs: "RooflineConstants",
    demand: Demand,
    gpus: tuple[GPU, ...],
    span: Span,
    batch: tuple[float, ...],
    degree: int,
) -> _Mode:
    """The slowest GPU counts for the rate, and its turn at whole sequences for the time of a pass."""
    interval = turn = 0.0
    need: dict[tuple[GPU, float], float] = {}  # GB; equal GPUs with equal shares are one case
    for gpu, share in dict.fromkeys(zip(gpus, batch, strict=True)):
        if share > 0:
            seconds = _seconds(costs, demand, gpu, span, degree)
            interval = max(interval, seconds(share))
            turn = max(turn, seconds(float(whole_sequences(share))))
        chunk = costs.constants.chunk_tokens
        kept = demand.kept_gb(span, share, degree, chunk)
        reserve = (1 - costs.memory_share) * gpu.memory_gb
        need[gpu, share] = float(sum(kept.values()) + reserve)
    shortfall = max(gb - gpu.memory_gb * MEMORY_SLACK for (gpu, _), gb in need.items())
    memory = tuple(need[pair] for pair in zip(gpus, batch, strict=True))
    rate = demand.load.tokens / interval
    return _Mode(degree, batch, memory, shortfall, rate, float(pass_time(interval, turn)))


def _seconds(
    costs: "RooflineConstants", demand: Demand, gpu: GPU, span: Span, degree: int
) -> Callable[[float], float]:
    """T_stage of this GPU as a function of its sequences."""
    hardware = hardware_of(costs, demand, [gpu]).take(0)
    return lambda b: float(stage_seconds(costs, demand, hardware, span, b, degree))


def _shares(
    costs: "RooflineConstants", demand: Demand, gpus: tuple[GPU, ...], span: Span, batch_split: str
) -> tuple[float, ...]:
    """Sequences for every GPU: equal shares, or by speed, so that all finish at the same time.

    By speed, a GPU that is still reading weights when the others have finished gets none.
    """
    from scipy.optimize import brentq

    whole = float(demand.load.batch_size)
    if batch_split == "even" or len(set(gpus)) == 1:
        return (whole / len(gpus),) * len(gpus)
    curves = {gpu: _seconds(costs, demand, gpu, span, 1) for gpu in set(gpus)}

    def done_by(time: float, gpu: GPU) -> float:
        """Sequences that a GPU finishes by then, at most all."""
        seconds = curves[gpu]
        if time <= seconds(0.0):
            return 0.0
        if time >= seconds(whole):
            return whole
        return brentq(lambda b: seconds(b) - time, 0.0, whole, **_EXACT)

    def surplus(time: float) -> float:
        return sum(done_by(time, gpu) for gpu in gpus) - whole

    earliest = min(seconds(0.0) for seconds in curves.values())
    latest = min(seconds(whole) for seconds in curves.values())
    time = brentq(surplus, earliest, latest, **_EXACT)
    finished = [done_by(time, gpu) for gpu in gpus]
    # the last bits: shares add up to the batch
    return tuple(share * whole / sum(finished) for share in finished)
