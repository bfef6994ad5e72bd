"""From a placement to the times of its pipeline: what the judge says of stages and links, as costs."""

from pipelab.checked import instance, real_number
from pipelab.errors import InvalidValue
from pipelab.evaluate import evaluate
from pipelab.placement import Placement
from pipelab.problem import Problem
from pipelab.timeline.costs import StageCosts

__all__ = ["inference_costs"]


def inference_costs(problem: Problem, placement: Placement, tokens: float) -> StageCosts:
    """Forward times of a placement's stages and links, for microbatches of so many tokens.

    Every link is a stage of its own here: it carries one microbatch at a time, just as a stage computes one, and
    can therefore be the bottleneck. (`comm` is a latency; messages do not queue for it.)

    Parameters
    ----------
    problem : Problem
    placement : Placement
        Checked by `pl.evaluate`, whose rates are used.
    tokens : float
        Tokens of one microbatch.

    Returns
    -------
    StageCosts
        In seconds: stage 1, link 1→2, stage 2, …

    Raises
    ------
    InvalidValue
        `tokens` is not positive, or the problem counts links in transfers, which have no size in tokens.

    Examples
    --------
    >>> import pipelab as pl
    >>> tiny = pl.load_case("tiny", link_units="tokens")
    >>> costs = pl.inference_costs(tiny, pl.Placement.of([(2, (0,)), (2, (2,))]), tokens=1000)
    >>> len(costs.forward)
    3
    >>> many = pl.simulate(pl.schedule("Inference", 3, 10_000), costs)
    >>> round(10_000 * 1000 / many.makespan, 1)  # tokens/s
    134.6
    """
    instance("inference_costs", "problem", problem, Problem, "a Problem; load one with pl.load_case(...)")
    instance("inference_costs", "placement", placement, Placement, "a Placement, such as pl.solve(problem).placement")
    if real_number("inference_costs", "tokens", tokens) <= 0:
        raise InvalidValue("inference_costs", [("tokens", tokens, "expected more than 0")])
    judged = evaluate(problem, placement)
    if judged.links and judged.link_unit != "tokens":
        expected = "expected 'tokens': the time of a message of so many tokens is not known from transfers/s"
        raise InvalidValue("inference_costs", [("problem.link_units", problem.link_units, expected)])
    times = []
    for i, report in enumerate(judged.stages):
        times.append(tokens / report.throughput)
        if i < len(judged.links):
            times.append(tokens / judged.links[i].throughput)
    return StageCosts(tuple(times), unit="s")
