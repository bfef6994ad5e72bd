"""The best deployment in the mix explorer: it follows the best single pipeline, a first one soon, then the proof."""

import threading
from collections.abc import Iterator

from pipelab.display import counted
from pipelab.engine.deployments.deploying import deploy
from pipelab.engine.deployments.result import Deployment
from pipelab.errors import PipelabError
from pipelab.figures.deployments import deployment_parts
from pipelab.figures.theme import plain
from pipelab.widgets.mix_answer import Answer

FIRST_S = 0.4  # for a first deployment with its bound
_kept: dict = {}
_MOST_KEPT = 300


def deployments(
    found: Answer, stop: threading.Event, limit_s: float
) -> Iterator[Deployment | PipelabError]:
    """The best deployment of an answer's problem: what a moment finds, then what `limit_s` seconds prove."""
    if found.mix in _kept:
        yield _kept[found.mix]
        return
    for seconds in (FIRST_S, limit_s):
        try:
            best = deploy(found.problem, batches=found.mix.batches, time_limit=seconds, stop=stop)
        except PipelabError as error:
            yield error
            return
        if stop.is_set():
            return
        if best.status in ("optimal", "infeasible"):
            while len(_kept) >= _MOST_KEPT:
                _kept.pop(next(iter(_kept)))
            _kept[found.mix] = best
            yield best
            return
        yield best


def deployed_parts(
    best: Deployment | PipelabError | None, found: Answer | None, height: int | None = None
) -> dict:
    """The chart of a deployment beside an answer: its title says by how much it beats one pipeline.

    Parameters
    ----------
    best : Deployment, PipelabError or None
        None: not known yet; an error: why there is none.
    found : Answer or None
        The best single pipeline; None where there is no problem.
    height : int, optional
        Of a chart that waits for its deployment, in pixels: the last one's, so that nothing below
        it moves while a slider does.

    Examples
    --------
    >>> deployed_parts(None, None)["layout"]["title"]["text"]
    'Best deployment: not known yet'
    """
    if found is None or best is None:
        word = "not known yet" if found is None else "being solved …"
        parts = deployment_parts(None, f"Best deployment: {word}")
        parts["layout"]["height"] = height or parts["layout"]["height"]
        return parts
    if isinstance(best, PipelabError):
        return deployment_parts(None, f"Best deployment: {plain(best)[:80]}")
    if not best.pipelines:
        return deployment_parts(best, "Best deployment: none exists" if best.reason else "")
    rate, one = best.throughput or 0.0, found.result.throughput
    title = f"Best deployment: {rate:,.6g} tokens/s with {counted(best.count, 'pipeline')}"
    if one and rate > one * (1 + 1e-9):
        title += f", {rate / one - 1:+.1%} against one"
    if best.status == "optimal":
        return deployment_parts(best, title + ", proven")
    gap = f"; at most {best.gap:.1%} more, being proven …" if best.gap is not None else ""
    return deployment_parts(best, title + gap)
