"""Notebook 12, Training: memory of a step, an order of GPUs in which 1F1B fits, and layers to recompute."""

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import combinations, pairwise, permutations, product
from math import floor
from typing import TYPE_CHECKING, Any, NamedTuple

from pipelab.cluster import GPU
from pipelab.costs import TrainingCost
from pipelab.course.exercises import Exercise, Failure, Function, Given, drawn, gives
from pipelab.course.pictures import Block, Row, colour_of, plot_lines, plot_rows
from pipelab.display import counted
from pipelab.engine.best_schedules import best_schedule
from pipelab.engine.methods.step_time import solve_for_step_time
from pipelab.engine.schedules import schedule
from pipelab.engine.timeline import StageCosts, Timeline, simulate
from pipelab.engine.timeline.formulas import lower_bound
from pipelab.engine.timeline.placement_timelines import TrainingTimeline, in_training
from pipelab.errors import InvalidValue
from pipelab.figures.theme import NEUTRAL_LIGHT, TYPE_COLOURS
from pipelab.files.bundled_folders import data_dir
from pipelab.hardware.pass_times import Demand, Span
from pipelab.hardware.roofline import UNFUSED, Roofline, gradients, training_flops, update_seconds
from pipelab.hardware.training_memory import activation_bytes, head_bytes
from pipelab.hardware.transformer import Transformer
from pipelab.placement import Placement
from pipelab.problem import Problem, Workload

if TYPE_CHECKING:
    from pandas import DataFrame, Series
    from plotly.graph_objects import Figure


# Placement and order of actions together


class Pair(NamedTuple):
    """A placement and an order of its actions."""

    seconds: float  # of a step
    placement: Placement
    timeline: Timeline


def best_pair(problem: Problem) -> Pair:
    """Find the placement and the order whose step takes least time, one GPU and one chunk per stage.

    Placements are taken in the order of `pl.lower_bound`; CP-SAT proves the best order of each,
    until the next bound is no shorter than the best step found.

    Parameters
    ----------
    problem : Problem
        Of training, with `Roofline` and few GPUs and layers: every placement gets a bound.

    Returns
    -------
    Pair
        No other pair takes less, with nothing recomputed.

    Raises
    ------
    InvalidValue
        No placement fits, or an order could not be proven within its time.
    """
    microbatches = problem.workload.microbatches
    bounded = [(each.bound(microbatches), each) for each in _candidates(problem)]
    best: Pair | None = None
    for bound, candidate in sorted(bounded, key=lambda pair: (pair[0], pair[1].parts)):
        if math.isinf(bound) or (best and best.seconds <= bound):
            break
        pair = candidate.proven(problem)
        if best is None or pair.seconds < best.seconds:
            best = pair
    if best is None:
        raise InvalidValue("best_pair", [("problem", problem.name, "expected more memory")])
    return best


class _Candidate(NamedTuple):
    """A placement with one GPU per stage, and what its stages take and keep."""

    parts: tuple[tuple[int, int, int], ...]  # of each stage: GPU, first layer, number of layers
    stages: list[TrainingCost]
    costs: StageCosts
    room: list[float]  # GB for activations

    @property
    def update(self) -> float:
        return max(stage.step for stage in self.stages)

    def bound(self, microbatches: int) -> float:
        kept = [stage.activation_gb for stage in self.stages]
        held = [floor(room / each) for room, each in zip(self.room, kept, strict=True)]
        if min(held) < 1:
            return math.inf
        return lower_bound(self.costs, microbatches, len(held), max_in_flight=held) + self.update

    def proven(self, problem: Problem) -> Pair:
        best = best_schedule(self.costs, problem.workload.microbatches, memory=self.room)
        expected = "expected an order that is proven, with messages that queue as well"
        refused = InvalidValue("best_pair", [("problem", problem.name, expected)])
        if best.status != "optimal" or best.schedule is None or best.bound is None:
            raise refused
        timeline = simulate(best.schedule, self.costs, transfers="queued")
        if timeline.makespan > best.bound * (1 + 1e-6):
            raise refused
        placement = Placement.of([(n, (g,)) for g, _, n in self.parts])
        return Pair(timeline.makespan + self.update, placement, timeline)


def _candidates(problem: Problem) -> Iterator[_Candidate]:
    """A placement for every order of types and every cut."""
    gpus, layers, cluster = problem.cluster.gpus, problem.model.layers, problem.cluster
    tables = [problem.costs.training_table(problem, [g]) for g in range(len(gpus))]
    sends, kind = in_training(problem), problem.model.spans.kind

    def hop(one: int, other: int) -> float:
        ways = ((one, other), (other, one))
        links = [(cluster.bandwidth_between(*w), cluster.latency_between(*w)) for w in ways]
        return max(float(sends.message_seconds(*link)) for link in links)

    for n in range(1, min(len(gpus), layers) + 1):
        # of identical GPUs the first come first
        orders = {
            tuple(gpus[g].type for g in order): order
            for order in sorted(permutations(range(len(gpus)), n), reverse=True)
        }
        for order, inner in product(orders.values(), combinations(range(1, layers), n - 1)):
            ends = pairwise((0, *inner, layers))
            parts = tuple((g, low, high - low) for g, (low, high) in zip(order, ends, strict=True))
            stages = [
                TrainingCost(*tables[g][:, kind[low, size - 1]].tolist()) for g, low, size in parts
            ]
            costs = StageCosts(
                [stage.forward for stage in stages],
                [stage.backward_input for stage in stages],
                [stage.backward_weight for stage in stages],
                comm=[hop(one, other) for one, other in pairwise(order)] or 0.0,
                activation=[stage.activation_gb for stage in stages],
                weight_activation=[stage.weight_activation_gb for stage in stages],
                unit="s",
            )
            room = [
                gpus[g].memory_gb - stage.state_gb - stage.working_gb
                for g, stage in zip(order, stages, strict=True)
            ]
            yield _Candidate(parts, stages, costs, room)


def training_conclusions(problem: Problem, variants: "Mapping[str, Roofline]") -> "DataFrame":
    """Compare what is concluded from several cost models: placements, step times, and the gain of the best pair.

    Parameters
    ----------
    problem : Problem
        As for `best_pair`.
    variants : mapping of str to Roofline
        Names, and cost models that train.

    Returns
    -------
    pandas.DataFrame
        One row per cost model: `times`, its name; `under 1F1B` and `under any order`, the placements in
        words; seconds of the proven placement under 1F1B, under ZB-H1, and of the best pair; its
        `gain` over ZB-H1, and `mfu` under 1F1B, as shares.

    Raises
    ------
    InvalidValue
        Nothing fits, or an order could not be proven within its time.
    """
    import pandas as pd

    rows = []
    for name, costs in variants.items():
        where = replace(problem, costs=costs, name=name)
        pair = best_pair(where)
        one, rule = (solve_for_step_time(where, schedule=rule).step for rule in ("1F1B", "ZBH1"))
        if one is None or rule is None:
            expected = "expected a cost model with which a placement fits"
            raise InvalidValue("training_conclusions", [("variants", name, expected)])
        rows.append(
            {
                "times": name,
                "under 1F1B": _words(where, one.placement),
                "under any order": _words(where, pair.placement),
                "1F1B, s": one.timeline.iteration_time,
                "ZB-H1, s": rule.timeline.iteration_time,
                "any order, s": pair.seconds,
                "gain": 1 - pair.seconds / rule.timeline.iteration_time,
                "mfu": one.mfu,
            }
        )
    return pd.DataFrame(rows)


def _words(problem: Problem, placement: Placement) -> str:
    """Such as "12 A100, 5 A40"."""
    gpus = problem.cluster.gpus
    return ", ".join(
        f"{len(s.layers)} {gpus[s.gpus[0]].type.split('-')[0]}" for s in placement.stages
    )


# Published times: profiles of one stage, and whole steps (`data/training_times.csv`)


OF_GPT = {"fused_attention": False, "gate": False, "dropout": True}

TIMES = ("forward_ms", "backward_input_ms", "backward_weight_ms", "step_s")


def training_errors(costs: "Roofline | None" = None) -> "DataFrame":
    """Return the rows of `data/training_times.csv` beside what the roofline says.

    Parameters
    ----------
    costs : Roofline, optional
        By default `Roofline()`, which trains as Megatron does.

    Returns
    -------
    pandas.DataFrame
        One row per measured time: `model`, `recompute`, `what` ("forward_ms", "backward_input_ms",
        "backward_weight_ms" or "step_s"), `measured` and `predicted` in its unit, `error` =
        predicted / measured - 1, `fitted` (whether a constant was fitted to it), and of steps `mfu`
        and `mfu_predicted`, model FLOPs over what the GPUs could compute in that time.

    Examples
    --------
    >>> table = training_errors()
    >>> held_out = table[~table["fitted"]]
    >>> len(table), len(held_out), bool(held_out["error"].abs().max() < 0.14)
    (20, 14, True)
    """
    import pandas as pd

    costs, rows = (costs or Roofline()).for_training(), []
    for row in pd.read_csv(data_dir() / "training_times.csv").itertuples():
        for what, predicted in _predicted(costs, row).items():
            measured = getattr(row, what)
            found = {"model": row.model, "recompute": row.recompute, "what": what}
            found |= {"measured": measured, "predicted": predicted}
            found |= {"error": predicted / measured - 1, "fitted": row.fitted}
            if what == "step_s":
                found["mfu"], found["mfu_predicted"] = (
                    _mfu(costs, row, seconds) for seconds in (measured, predicted)
                )
            rows.append(found)
    return pd.DataFrame(rows)


def gpt(row: "Series") -> Transformer:
    """The model of a row."""
    wide, each = round(8 / 3 * row.d_model), row.d_model // row.heads
    return Transformer(
        row.model, row.layers, row.d_model, wide, row.heads, row.heads, each, row.vocab
    )


def _predicted(costs: "Roofline", row: "Series") -> dict[str, float]:
    """Milliseconds of a microbatch on one rank in the mean, or seconds of a whole step."""
    if row.forward_ms > 0:
        whole = _of_layers(costs, row, row.layers, head=True)
        return {name: 1000 * t / row.ranks for name, t in zip(TIMES[:3], whole, strict=True)}
    stages = row.ranks * row.chunks
    ordinary, last = (
        _of_layers(costs, row, row.layers // stages, head=head) for head in (False, True)
    )
    forward, back, weight = zip(*[*[ordinary] * (stages - 1), last], strict=True)
    sent = 2 * row.microbatch * row.sequence * row.d_model / row.tensor_parallel
    message = costs.hop_latency_s + sent / (row.network_gb_per_s * 1e9)
    name = "1F1B" if row.chunks == 1 else "Interleaved1F1B"
    order = schedule(name, row.ranks, int(row.microbatches), row.chunks)
    times = StageCosts(forward, back, weight, comm=message, unit="s")
    share = gpt(row).parameters() / (row.ranks * row.tensor_parallel)
    hardware = costs.hardware(_demand(row), [_gpu(costs, row)]).take(0)
    update = update_seconds(costs, float(hardware.bandwidth), share)
    return {"step_s": float(simulate(order, times).makespan + update)}


def _of_layers(
    costs: "Roofline", row: "Series", layers: int, *, head: bool
) -> tuple[Any, Any, Any]:
    """Seconds of forward, input gradient and weight gradient of a microbatch; recomputation is in the second."""
    t, demand, gpu = int(row.tensor_parallel), _demand(row), _gpu(costs, row)
    tokens, options = row.microbatch * row.sequence, {"sequence": row.sequence, "degree": t}
    options |= OF_GPT | {"sequence_parallel": bool(row.sequence_parallel)}
    layer = activation_bytes(demand.model, tokens, **options)
    stored = layers * layer + head * head_bytes(demand.model, tokens, t)
    span = replace(Span.of(demand.model, range(layers)), last=float(head))
    forward, back, weight = gradients(
        costs, demand, gpu, span, row.microbatch, t, stored, attention=UNFUSED
    )
    if row.recompute == "full":
        back = back + forward
    elif row.recompute == "selective":
        thin = activation_bytes(demand.model, tokens, recompute="selective", **options)
        hardware = costs.hardware(demand, [gpu]).take(0)
        flops = UNFUSED.forward * row.microbatch * demand.attention_flops() / t
        moved = hardware.moving_seconds(layer - thin)
        back = back + layers * (flops / hardware.head_flops + moved)
    return forward, back, weight


def _demand(row: "Series") -> Demand:
    return Demand(gpt(row), Workload(row.sequence, row.microbatch, "training"))


def _gpu(costs: "Roofline", row: "Series") -> GPU:
    inside = row.node_gb_per_s if row.tensor_parallel > 1 else None
    memory = costs.gpus[row.gpu_type].memory_gb
    return GPU(row.gpu_type, memory, None, "node" if inside else "", inside)


def _mfu(costs: "Roofline", row: "Series", seconds: float) -> float:
    step = row.microbatches * training_flops(gpt(row), _demand(row).load)
    peak = row.ranks * row.tensor_parallel * costs.gpus[row.gpu_type].fp16_tflop_per_s * 1e12
    return step / (seconds * peak)


# What every GPU keeps in training


ACTIVATIONS = TYPE_COLOURS[0]

_NARROW = 0.1  # of the picture: too narrow for more than a number


def plot_training_memory(step: "TrainingTimeline", finding: str = "") -> "Figure":
    """A row per stage: state of its parameters, then activations at their peak; a line at the end of memory.

    Parameters
    ----------
    step : TrainingTimeline
        Made by `pl.timeline_of(…, training=True)`, with a cost model that says what training keeps.
    finding : str
        The title; by default how many stages do not fit, and how much of all is state.

    Returns
    -------
    plotly.graph_objects.Figure
        In GB; stages that do not fit are framed.

    Raises
    ------
    InvalidValue
        The cost model does not say what training keeps.

    Examples
    --------
    >>> import pipelab as pl
    >>> cluster = pl.Cluster.from_counts({"A40": 2}, {"A40": 48}, 12.5)
    >>> model, load = pl.load_model("Llama-3-8B"), pl.Workload(2048, 1)
    >>> problem = pl.Problem(cluster, model, load, pl.Roofline())
    >>> halves = pl.Placement.of([(16, (0,)), (16, (1,))])
    >>> figure = plot_training_memory(pl.timeline_of(problem, halves, 4, training=True))
    >>> figure.layout.title.text.split("<br>")[0]
    '1F1B: 2 of 2 stages do not fit; 89% of what they keep is state'
    """
    if step.stages is None or step.memory_gb is None:
        expected = "expected a cost model that says what training keeps, such as Roofline"
        raise InvalidValue("plot_training_memory", [("step", step.problem.name, expected)])
    limits = step.to_frame()["memory_offered_gb"].tolist()
    rows, lacking, widest = [], 0, max(*limits, *step.memory_gb)
    for name, cost, need, held, limit in zip(
        step.labels, step.stages, step.memory_gb, step.timeline.peak_in_flight, limits, strict=True
    ):
        kept = need - cost.state_gb
        blocks = [
            Block(cost.state_gb, NEUTRAL_LIGHT, f"state {cost.state_gb:.0f}"),
            Block(kept, ACTIVATIONS, f"{held} in flight" if kept > _NARROW * widest else f"{held}"),
        ]
        lacking += need > limit
        rows.append(Row(name, blocks, mark=limit, wrong=need > limit))
    state = sum(cost.state_gb for cost in step.stages) / sum(step.memory_gb)
    fit = "does not fit" if lacking == 1 else "do not fit"
    fits = f"{lacking} of {counted(len(rows), 'stage')} {fit}" if lacking else "all fits"
    title = (
        finding or f"{step.timeline.schedule.name}: {fits}; {state:.0%} of what they keep is state"
    )
    return plot_rows(rows, title, "GB", "the line is the end of the GPU's memory")


# Exercises


def _rooms(chance: random.Random) -> Given:
    """For how many microbatches of activations each GPU has room, and how many a step has."""
    p = chance.randint(1, 5)
    rooms = [chance.randint(1, p + 1) for _ in range(p)]
    return Given(rooms=rooms, m=chance.randint(1, 6))


def held_by_1f1b(given: Given) -> list[int]:
    """What 1F1B holds on each rank."""
    ranks = len(given.rooms)
    return [min(given.m, ranks - rank) for rank in range(ranks)]


def _first_that_fits(given: Given) -> list[int] | None:
    """By trying all orders; None where none fits."""
    needs = held_by_1f1b(given)
    for order in permutations(range(len(given.rooms))):
        if all(given.rooms[g] >= need for g, need in zip(order, needs, strict=True)):
            return list(order)
    return None


def _off_order(given: Given, order: Any) -> str:
    return gives(order, _why_not(given, order))


def _why_not(given: Given, order: Any) -> str:
    right, needs = _first_that_fits(given), held_by_1f1b(given)
    if order is None:
        return "" if right is None else "it says that no order fits, and one does"
    if not isinstance(order, list) or sorted(order) != list(range(len(needs))):
        return f"it is no order of the GPUs 0 to {len(needs) - 1}"
    for rank, (gpu, need) in enumerate(zip(order, needs, strict=True)):
        if given.rooms[gpu] < need:
            holds = f"rank {rank} holds {need} microbatches, and GPU {gpu} has room for"
            none = "; no order fits here" if right is None else ""
            return f"{holds} {given.rooms[gpu]}{none}"
    return ""


def _draw_order(failure: Failure) -> "Figure":
    given, order = failure.given, failure.answer
    right = _first_that_fits(given)
    if not isinstance(order, list) or sorted(order) != list(range(len(given.rooms))):
        order = right or list(range(len(given.rooms)))
    rows = []
    for rank, (gpu, need) in enumerate(zip(order, held_by_1f1b(given), strict=True)):
        blocks = [Block(1, colour_of(gpu), str(i)) for i in range(need)]
        room = given.rooms[gpu]
        rows.append(Row(f"rank {rank}: GPU {gpu}", blocks, mark=room, wrong=room < need))
    wrong = sum(row.wrong for row in rows)
    text = f"1F1B does not fit on {wrong} of {len(rows)} ranks in this order"
    if not wrong:
        text = "In this order 1F1B fits on every rank"
    elif right is None:
        text = "1F1B fits in no order of these GPUs; this is one of them"
    return plot_rows(rows, text, "microbatches held", "the line is what the GPU has room for")


def _look_at_order(given: Given) -> str:
    if _first_that_fits(given) is None:
        return "here no order fits: return None"
    if given.m < len(given.rooms):
        return "a rank never holds more microbatches than there are"
    return "which rank holds most, and which GPU should it be?"


def _stage(chance: random.Random) -> Given:
    """A stage's layers, what one of them keeps of a microbatch (whole, or its input alone), and more."""
    layers, whole, held = chance.randint(1, 8), chance.randint(2, 9), chance.randint(1, 5)
    kept = chance.randint(0, min(2, whole - 1))
    most = layers * whole * held
    room = chance.randint(max(1, most // 4), most + whole)
    return Given(layers=layers, whole=whole, kept=kept, held=held, room=room)


def _need(given: Given, again: int, back: int = 1) -> int:
    """What the stage keeps at its peak with so many layers recomputed, of which `back` is back."""
    each = (given.layers - again) * given.whole + again * given.kept
    return given.held * each + (back * given.whole if again else 0)


def _fewest(given: Given, back: int = 1) -> float:
    fitting = (n for n in range(given.layers + 1) if _need(given, n, back) <= given.room)
    return next(fitting, math.inf)


def _draw_stage(failure: Failure) -> "Figure":
    given, fewest = failure.given, _fewest(failure.given)
    numbers = list(range(given.layers + 1))
    lines: dict[str, list[float]] = {
        "kept at the peak": [_need(given, n) for n in numbers],
        "room": [given.room] * len(numbers),
    }
    text, at = "Even with all layers recomputed, the stage does not fit", None
    if not math.isinf(fewest):
        text = f"The stage fits with {fewest} of {given.layers} layers recomputed"
        at = (fewest, _need(given, int(fewest)))
    return plot_lines(numbers, lines, text + failure.yours, ("layers recomputed", "memory"), at)


def _look_at_stage(given: Given) -> str:
    fewest = _fewest(given)
    if fewest == 0:
        return "everything fits as it is, and nothing is recomputed"
    if math.isinf(fewest):
        return "not even with all layers recomputed does it fit: the answer is infinite"
    return "while one layer is recomputed, all its activations are there once more"


EXERCISES: dict[str, Exercise] = {
    "12.1": Function(
        signature="order_of(rooms, m)",
        inputs=drawn(121, 150, _rooms, lambda given: (len(given.rooms), given.m)),
        target=_first_that_fits,
        off=_off_order,
        hint=_look_at_order,
        picture=_draw_order,
        half=lambda given, _: _first_that_fits(given) is None or given.m < len(given.rooms),
    ),
    "12.2": Function(
        signature="recomputed_layers(layers, whole, kept, held, room)",
        inputs=drawn(122, 200, _stage, lambda given: given.layers),
        target=_fewest,
        hint=_look_at_stage,
        picture=_draw_stage,
        half=lambda given, answer: answer == _fewest(given, back=0),
    ),
}
