"""What the mix explorer says in words: titles, the bottleneck, prices, what one more GPU brings."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from pipelab.display import counted, listed, outcome_of
from pipelab.engine.scoring import Score
from pipelab.engine.tolerances import ONE_ANSWER
from pipelab.errors import InvalidValue
from pipelab.evaluation import Evaluation, tally
from pipelab.fields import given
from pipelab.figures.baselines import Row
from pipelab.figures.plan import first_of, what_limits
from pipelab.figures.theme import plain
from pipelab.placement import Placement, named_layers
from pipelab.problem import Problem
from pipelab.solving import Result
from pipelab.widgets.mix_answer import Answer, Money, money, row_of, tightest
from pipelab.widgets.mix_costs import LINEAR
from pipelab.widgets.mix_pins import Pinned
from pipelab.widgets.mix_values import Mix


def headline(found: Answer) -> tuple[str, str]:
    """Title of the optimum's chart and the line below it."""
    result, count = found.result, len(found.problem.cluster)
    name = f"{plain(found.problem.name)}, {counted(count, 'GPU')}"
    if result.status == "infeasible":
        return f"{name}: no placement exists", ""
    if result.placement is None:
        return f"{name}: {outcome_of(result).word}, no placement found yet", ""
    far = f", the best may be up to {result.gap:.0%} faster" if result.gap is not None else ""
    proof = "proven optimal" if result.status == "optimal" else f"{outcome_of(result).word}{far}"
    stages = counted(len(result.placement), "stage")
    batch = f"a batch of {found.problem.workload.batch_size} and " if result.batches else ""
    flight = f"{batch}{result.in_flight} in flight"
    title = f"{name}: {result.throughput:,.6g} tokens/s in {stages} with {flight}, {proof}"
    return title, limit_of(found.problem, given(result.evaluation))


def own_headline(own: Score, found: Answer) -> tuple[str, str]:
    """Title of the chart of a plan made by hand in this answer's problem, and the line below it."""
    if not own.valid:
        return "Your plan is not valid", ""
    best = "the proven optimum" if found.result.status == "optimal" else "the optimum"
    least = "" if found.result.status == "optimal" else "at least "
    share = f", {least}{own.share:.1%} of {best}" if own.share is not None else ""
    evaluation = given(own.evaluation)
    title = (
        f"Your plan: {own.throughput:,.6g} tokens/s with {evaluation.in_flight} in flight{share}"
    )
    return title, limit_of(own.problem, evaluation)


def limit_of(problem: Problem, evaluation: Evaluation) -> str:
    """The line below a title: what limits the attainable rate, and how the chart marks it.

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


def costs_line(mix: Mix) -> str:
    """A caution for a model with the write-up's cost model; else empty."""
    if mix.is_case or mix.costs not in LINEAR:
        return ""
    return "Linear: a layer has the same synthetic rate in every model, and a stage with more layers is faster."


def batch_line(result: Result) -> str:
    """Of which batches the one in the title is the best; empty where it is given."""
    if not result.batches:
        return ""
    own, far = result.problem.workload.batch_size, "" if result.status == "optimal" else " so far"
    return f"The batch of {own} is the best{far} of {listed([str(b) for b in result.batches])}."


def unused(problem: Problem, placement: Placement | None) -> str:
    """GPUs without a stage, by type; empty where all are in use."""
    used = set(placement.gpus) if placement else set()
    left = Counter(gpu.type for g, gpu in enumerate(problem.cluster.gpus) if g not in used)
    return ", ".join(f"{n} × {gpu_type}" for gpu_type, n in left.items())


def facts_line(problem: Problem, placement: Placement, throughput: float) -> str:
    """Unused GPUs, the tightest memory, and prices where every GPU in use has one."""
    idle = unused(problem, placement)
    need, limit, stage = tightest(problem, placement)
    parts = [f"Not used: {idle}." if idle else "Every GPU is used."]
    parts += [f"Tightest memory: {need:.4g} of {limit:g} GB in stage {stage}."]
    cost = money(problem, placement, throughput)
    if cost.usd_per_hour is None:
        gpus = [problem.cluster.gpus[g] for g in placement.gpus]
        parts += [
            f"No price is known for {', '.join(dict.fromkeys(g.type for g in gpus if g.usd_per_hour is None))}."
        ]
    else:
        parts += [f"GPUs in use: {_dollars(cost)}."]
    return " ".join(parts)


def _dollars(cost: Money) -> str:
    if cost.usd_per_hour is None:
        return "–"
    return f"${cost.usd_per_hour:.2f}/h, ${cost.usd_per_million_tokens:.3g} per million tokens"


def gains_line(result: Result, gains: Mapping[str, float | None], types: Iterable[str]) -> str:
    """Which one more GPU would help most, and which types are not solved yet.

    Parameters
    ----------
    gains : mapping of type to tokens/s with one more, or None where the time ran out
    types : iterable of str
        All types of the mix.
    """
    now = result.throughput or 0.0
    known = {t: rate for t, rate in gains.items() if rate is not None}
    open_ = [t for t in types if t not in gains]
    late = [t for t, rate in gains.items() if rate is None]
    text = ""
    if known:
        best = max(known, key=known.__getitem__)
        if known[best] <= now * (1 + ONE_ANSWER):
            which = f"one more {' or '.join(known)}" if open_ or late else "any one GPU"
            text = f"Adding {which} does not help."
        else:
            tied = [t for t, rate in known.items() if rate >= known[best] * (1 - ONE_ANSWER)]
            others = [f"{t} {_gain(rate, now)}" for t, rate in known.items() if t not in tied]
            behind = f" Others: {', '.join(others)}." if others else ""
            brings = f"{known[best]:,.6g} tokens/s ({_gain(known[best], now)})"
            text = f"One more {' or '.join(tied)} would help most: {brings}.{behind}"
    if late:
        text += f" Not proven in time: {', '.join(late)}."
    if open_:
        text += f" One more of {', '.join(open_)}: being solved …"
    return text.strip()


def _gain(rate: float, now: float) -> str:
    if not now:
        return "none without it" if rate else "still none"
    return f"+{rate / now - 1:.1%}" if rate > now * (1 + ONE_ANSWER) else "±0%"


def rows_of(found: Answer, extra: Sequence[Row] = ()) -> list[Row]:
    """Rows of the baselines' chart: optimum, own and pinned plans, one GPU per stage, rules of thumb."""
    best = found.result
    name = "proven optimum" if best.status == "optimal" else "best found"
    return [row_of(name, best), *extra, *found.baselines]


def parse_layers(text: str, gpus: int, layers: int) -> tuple[int, ...]:
    """The numbers that a reader typed: layers of each stage, separated by commas or spaces.

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


_COMPARED = {
    "model": ("source",),
    "workload": ("phase", "batch", "context", "output_tokens", "in_flight"),
    "network": ("network_gb_per_s", "gpus_per_node"),
    "batch split": ("batch_split",),
    "cost model": ("costs",),
}


def compared(plans: Mapping[str, Pinned], found: Answer | None = None) -> str:
    """Pinned plans side by side as HTML: what each yielded when pinned, and yields under the present values.

    Parameters
    ----------
    plans : mapping of name to Pinned
    found : Answer or None
        Under the present values; None where these contradict each other.
    """
    head = "".join(
        f"<th scope='col' style='padding:2px 14px;text-align:right'>{escape(n)}</th>" for n in plans
    )
    names = ("tokens/s when pinned", "tokens/s now", "stages", "GPUs in use", "price", "limited by")
    rows: dict[str, list[str]] = {name: [] for name in names}
    for plan in plans.values():
        problem, placement, rate = plan.found.problem, plan.placement, plan.throughput
        rows["tokens/s when pinned"].append(f"{rate:.6g}" if rate else "not valid")
        rows["tokens/s now"].append(plan.today(found).words if found else "–")
        rows["stages"].append(str(len(placement)))
        rows["GPUs in use"].append(
            tally(tuple(problem.cluster.gpus[g].type for g in placement.gpus))
        )
        rows["price"].append(_dollars(money(problem, placement, rate)) if rate else "–")
        rows["limited by"].append(_limit(problem, placement) if rate else "–")
    body = "".join(
        f"<tr><th scope='row' style='text-align:left;padding:2px 14px 2px 0'>{name}</th>"
        + "".join(f"<td style='padding:2px 14px;text-align:right'>{escape(cell)}</td>" for cell in cells) + "</tr>"
        for name, cells in rows.items()
    )  # fmt: skip
    rates = [plan.throughput for plan in plans.values()]
    comparison = ""
    if len(rates) > 1 and rates[0] and rates[1]:
        first, second = list(plans)[:2]
        also = _changed(plans[first].found.mix, plans[second].found.mix)
        comparison = f"<p>When pinned, {escape(second)} yields {rates[1] / rates[0]:.1%} of {escape(first)}.{also}</p>"
    return f"<table><tr><th></th>{head}</tr>{body}</table>{comparison}"


def _changed(first: Mix, second: Mix) -> str:
    """What else changed between two pinned plans, so that their rates do not compare the plans alone."""
    changed = [
        word
        for word, names in _COMPARED.items()
        if any(getattr(first, n) != getattr(second, n) for n in names)
    ]
    return f" Besides the plans, {listed(changed)} changed." if changed else ""


def _limit(problem: Problem, placement: Placement) -> str:
    from pipelab.evaluation import evaluate

    found = evaluate(problem, placement)
    if found.attainable < found.rate * (1 - 1e-6):
        return f"{found.in_flight} of {found.in_flight_needed} in flight"
    return first_of(found.bottlenecks)
