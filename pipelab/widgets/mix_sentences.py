"""What the mix explorer says in words: titles, the bottleneck, prices, what one more GPU brings."""

import math
import re
from collections.abc import Iterable, Mapping

from pipelab.display import counted, listed, outcome_of, rate
from pipelab.engine.answers import Result
from pipelab.engine.deployments.result import Deployment
from pipelab.engine.prices import price_per_hour, usd_per_million_tokens
from pipelab.engine.tolerances import ONE_ANSWER
from pipelab.errors import InvalidValue, PipelabError
from pipelab.evaluation import Evaluation, evaluate, tally
from pipelab.fields import given
from pipelab.figures.placements import what_limits
from pipelab.figures.theme import plain
from pipelab.hardware.measurements import expected_rate
from pipelab.placement import Placement, named_layers
from pipelab.problem import Problem
from pipelab.widgets.mix_answers import MixAnswer, MixState


def chart_title(state: MixState) -> tuple[str, str]:
    """Return the title of the placement's chart and the line below it."""
    if state.answer is None:
        return "These values contradict each other" if state.refusal else "No placement yet", ""
    return headline(state.answer) if state.plan is None else plan_headline(state)


def lines(state: MixState, types: Iterable[str]) -> list[str]:
    """Return what stands below the placement's chart; empty lines say nothing.

    `types` are those of which one GPU more is said to be solved.
    """
    answer, plan = state.answer, state.plan
    if answer is None:
        return []
    if plan is not None and not plan.valid:
        return list(plan.reasons[:4])
    result = answer.result
    gains = gains_line(answer.nominal, state.gains, types)
    if result.placement is None:
        said = result.status == "infeasible" and not answer.mix.limits  # by the chart
        return ["" if said else result.reason, gains]
    shown = plan or result
    expected = expected_rate(shown.problem, given(shown.evaluation))
    return [
        promise_line(answer),
        f"{result.reason[0].upper()}{result.reason[1:]}." if result.objective and not plan else "",
        batch_line(result),
        facts_line(shown.problem, given(shown.placement), given(shown.throughput)),
        gains if plan is None else "",
        expected.sentence if expected else "",
        state.other_plans if plan is None else "",
    ]


def headline(answer: MixAnswer) -> tuple[str, str]:
    """Return the title of the optimum's chart and the line below it."""
    result, count = answer.result, len(answer.problem.cluster)
    name = f"{plain(answer.problem.name)}, {counted(count, 'GPU')}"
    if result.status == "infeasible" and answer.mix.limits:
        return f"{name}: no pipeline keeps the limits", ""  # the reason is long: it is said below
    if result.status == "infeasible":
        return f"{name}: no placement exists", plain(result.reason)
    if result.placement is None:
        return f"{name}: {outcome_of(result).word}, no placement found yet", ""
    far = f", the best may be up to {result.gap:.0%} faster" if result.gap is not None else ""
    proof = "proven optimal" if result.status == "optimal" else f"{outcome_of(result).word}{far}"
    proof += f" for {result.runs_on}" if result.runs_on else ""
    if goal := result.objective:
        least = ", proven least" if proof == "proven optimal" else ""
        proof = f"loses at most {goal.value:.1f}%{least}"
    stages = counted(len(result.placement), "stage")
    batch = f"a batch of {answer.problem.workload.batch_size} and " if result.batches else ""
    flight = f"{batch}{result.in_flight} in flight"
    title = f"{name}: {rate(given(result.throughput))} in {stages} with {flight}, {proof}"
    return title, limit_of(answer.problem, given(result.evaluation))


def plan_headline(state: MixState) -> tuple[str, str]:
    """Return the title of the chart of a plan made by hand, and the line below it."""
    plan, proven = given(state.plan), given(state.answer).nominal.status == "optimal"
    if not plan.valid:
        return "Your plan is not valid", ""
    best, least = ("the proven optimum", "") if proven else ("the optimum", "at least ")
    share = f", {least}{plan.share:.1%} of {best}" if plan.share is not None else ""
    evaluation = given(plan.evaluation)
    reached = rate(given(plan.throughput))
    title = f"Your plan: {reached} with {evaluation.in_flight} in flight{share}"
    return title, limit_of(plan.problem, evaluation)


def limit_of(problem: Problem, evaluation: Evaluation) -> str:
    """Return the line below a title: what limits the attainable rate, and how the chart marks it.

    Examples
    --------
    >>> import pipelab as pl
    >>> tiny = pl.load_case("tiny", link_units="tokens")
    >>> print(limit_of(tiny, pl.evaluate(tiny, pl.Placement.of([(1, (0,)), (3, (2,))]))))
    limited by stage 2 (framed): layers 2–4 on 1 × V100
    """
    first, *others = evaluation.bottlenecks
    if first.startswith("stage"):
        report = evaluation.stages[int(first.split()[1]) - 1]
        what = f"{named_layers(report.stage.layers)} on {tally(report.gpu_types)}"
    else:
        link = evaluation.links[int(first.split()[1].split("→")[0]) - 1]
        gpus = [f"GPU {g} ({problem.cluster.gpus[g].type})" for g in (link.sender, link.receiver)]
        what = f"{' to '.join(gpus)}, {link.bandwidth_gb_per_s:g} GB/s"
    return what_limits(evaluation) + ("" if others else f": {plain(what)}")


def promise_line(answer: MixAnswer) -> str:
    """Say what requests get, and how far that is from the limits; empty where there are none."""
    service = answer.service
    if service is None:
        return ""
    load, what = answer.problem.workload, ("an output token every", "the first token after")
    said = [
        f"{name} {ms:,.4g} ms" + (f" (limit {limit:,.7g})" if limit < math.inf else "")
        for name, (ms, limit) in zip(what, answer.times_of(service), strict=True)
        if ms
    ]
    answers = "" if load.phase == "prefill" else f" and answers of {load.output_tokens:,}"
    size = f"prompts of {load.sequence_length:,}{answers} tokens"
    return f"{service.requests_per_s:,.4g} requests/s of {size}: {', '.join(said)}."


def batch_line(result: Result) -> str:
    """Say among which batches the one in the title is the best; nothing if it is given."""
    if not result.batches:
        return ""
    size, far = result.problem.workload.batch_size, "" if result.status == "optimal" else " so far"
    return f"The batch of {size} is the best{far} of {listed([str(b) for b in result.batches])}."


def facts_line(problem: Problem, placement: Placement, throughput: float) -> str:
    """Return unused GPUs, the tightest memory, and prices if every GPU in use has one."""
    gpus, used = problem.cluster.gpus, set(placement.gpus)
    unused = tally(tuple(gpu.type for g, gpu in enumerate(gpus) if g not in used))
    parts = [f"Not used: {unused}." if unused else "Every GPU is used."]
    _, need, limit, stage = min(
        (limit - need, need, limit, number)
        for number, report in enumerate(evaluate(problem, placement).stages, start=1)
        for need, limit in zip(report.memory_gb, report.memory_limit_gb, strict=True)
    )
    parts += [f"Tightest memory: {need:.4g} of {limit:g} GB in stage {stage}."]
    per_hour = price_per_hour(problem, placement)
    if per_hour is None:
        unknown = dict.fromkeys(gpus[g].type for g in used if gpus[g].usd_per_hour is None)
        parts += [f"No price is known for {', '.join(unknown)}."]
    else:
        per_million = usd_per_million_tokens(per_hour, throughput)
        parts += [f"GPUs in use: ${per_hour:.2f}/h, ${per_million:.3g} per million tokens."]
    return " ".join(parts)


def gains_line(result: Result, gains: Mapping[str, float | None], types: Iterable[str]) -> str:
    """Say which additional GPU would help most, and which types are not solved yet.

    Parameters
    ----------
    gains : mapping of type to tokens/s with one more, or None where the time ran out
    types : iterable of str
        All types of the mix.
    """
    now = result.throughput or 0.0
    known = {t: more for t, more in gains.items() if more is not None}
    open_ = [t for t in types if t not in gains]
    late = [t for t, more in gains.items() if more is None]
    text = ""
    if known:
        best = max(known, key=known.__getitem__)
        if known[best] <= now * (1 + ONE_ANSWER):
            which = f"one more {' or '.join(known)}" if open_ or late else "any one GPU"
            text = f"Adding {which} does not help."
        else:
            tied = [t for t, more in known.items() if more >= known[best] * (1 - ONE_ANSWER)]
            others = [f"{t} {_gain(more, now)}" for t, more in known.items() if t not in tied]
            behind = f" Others: {', '.join(others)}." if others else ""
            brings = f"{rate(known[best])} ({_gain(known[best], now)})"
            text = f"One more {' or '.join(tied)} would help most: {brings}.{behind}"
    if late:
        text += f" Not proven in time: {', '.join(late)}."
    if open_:
        text += f" One more of {', '.join(open_)}: being solved …"
    return text.strip()


def _gain(more: float, now: float) -> str:
    if not now:
        return "none without it" if more else "still none"
    return f"+{more / now - 1:.1%}" if more > now * (1 + ONE_ANSWER) else "±0%"


def deployment_title(best: Deployment | PipelabError | None, answer: MixAnswer | None) -> str:
    """Return the title of the best deployment: by how much it is better than one pipeline.

    Parameters
    ----------
    best : Deployment, PipelabError or None
        None: not known yet; an error: why there is none.
    answer : MixAnswer or None
        The best single pipeline; None where there is no problem.

    Examples
    --------
    >>> deployment_title(None, None)
    'Best deployment: not known yet'
    """
    if answer is None or best is None:
        said = "not known yet" if answer is None else "being solved …"
    elif isinstance(best, PipelabError):
        said = plain(best)
    elif not best.pipelines:
        said = "none exists" if best.status == "infeasible" else f"none found; {plain(best.reason)}"
    else:
        total, one = given(best.throughput), answer.result.throughput
        said = f"{rate(total)} with {counted(best.count, 'pipeline')}"
        if one and total > one * (1 + 1e-9):
            said += f", {total / one - 1:+.1%} against one"
        if best.status == "optimal":
            said += ", proven"
        elif best.gap is not None:
            said += f"; at most {best.gap:.1%} more, being proven …"
    return f"Best deployment: {said}"


def parse_layers(text: str, gpus: int, layers: int) -> tuple[int, ...]:
    """Read the layers of each stage that a reader typed, separated by commas or spaces.

    Raises
    ------
    InvalidValue
        Not whole numbers, more stages than GPUs, or not the model's number of layers in all.

    Examples
    --------
    >>> parse_layers("8, 8 16", gpus=3, layers=32)
    (8, 8, 16)
    """
    parts = text.replace(",", " ").split()
    if not parts or not all(re.fullmatch("[0-9]{1,6}", part) for part in parts):
        wrong = next((part for part in parts if not re.fullmatch("[0-9]{1,6}", part)), "nothing")
        expected = (
            f"expected whole numbers that add up to {layers}, such as {layers - 1},1; got {wrong}"
        )
    elif len(parts) > gpus:
        expected = f"{len(parts)} stages need as many GPUs, and there are {gpus}"
    elif (total := sum(map(int, parts))) != layers:
        expected = f"these add up to {total}, and the model has {counted(layers, 'layer')}"
    else:
        return tuple(map(int, parts))
    raise InvalidValue("your plan", [("layers of each stage", text, expected)])
