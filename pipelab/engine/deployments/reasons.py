"""What `deploy` says beside its pipelines: sizes, dual prices, and why there is none or no proof."""

import math
from collections.abc import Sequence

from pipelab.engine.deployments.generation import Generation
from pipelab.engine.deployments.offers import Offer
from pipelab.engine.formulations.aggregated.rates import StageRates
from pipelab.engine.infeasible import why_too_few
from pipelab.engine.tolerances import SOLVER
from pipelab.problem import Problem


def dual_prices(offers: Sequence[Offer], generation: Generation | None) -> dict[str, float]:
    """What one more GPU of each type brings by the best bound; of several classes of a type the most."""
    if generation is None or generation.prices is None or generation.demand.load:
        return {}
    out: dict[str, float] = {}
    classes = offers[0].rates.classes
    for a, price in enumerate(generation.prices.per_gpu.tolist()):
        kind = classes.gpu(a).type
        out[kind] = max(price, out.get(kind, 0.0))
    return out


def size(offers: Sequence[Offer], generation: Generation | None) -> dict[str, int]:
    """Classes of GPUs, columns and rounds."""
    if generation is None or not offers:
        return {}
    columns = len(generation.columns) + len(generation.beyond)
    classes = len(offers[0].rates.classes)
    return {"classes": classes, "columns": columns, "rounds": generation.rounds}


def why_open(unpacked: bool) -> str:
    """Why a deployment is not proven best, where nothing ended it early."""
    if unpacked:
        return "the bound leaves out that stages must be packed into nodes"
    return "there are too many ways to divide the GPUs to list what is left"


def why_none(problem: Problem, offers: Sequence[Offer]) -> str:
    """The reason where stages fit but no pipeline does."""
    rates: StageRates = offers[0].rates
    return why_too_few(problem, rates.holdable(rates.thresholds[:1])[0], "listing every pipeline")


def too_much(load: float, greatest: float, bound: float) -> str:
    """The reason where a load cannot be served."""
    if not greatest:
        return f"no pipeline fits, so {load:.7g} tokens/s cannot be served"
    most = (
        f"the most that these GPUs serve is {greatest:.7g} tokens/s"
        if bound <= greatest * (1 + SOLVER)
        else f"these GPUs serve at most {bound:.7g} tokens/s (found: {greatest:.7g})"
    )
    clusters = math.ceil(load / greatest * (1 - SOLVER))
    short = f"{load - greatest:.7g} fewer than the load of {load:.7g}"
    return f"{most}, {short}; {clusters} such clusters would serve it"
