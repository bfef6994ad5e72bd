"""Notebook 14, Training: what a step keeps and takes, predicted and measured; layers to recompute; copies that fit."""

import math
import random
from dataclasses import replace
from typing import Any

from pipelab.cluster import GPU
from pipelab.course.exercises import Exercise, Failure, Function, Given, drawn
from pipelab.course.pictures import Block, BlockRow, plot_rows, plot_what_fits
from pipelab.display import DataFrame, Figure, Series, counted, data_frame
from pipelab.engine.schedules import schedule
from pipelab.engine.timeline import StageCosts, simulate
from pipelab.engine.timeline.placement_timelines import TrainingTimeline
from pipelab.errors import InvalidValue
from pipelab.figures.theme import NEUTRAL_LIGHT, TYPE_COLOURS
from pipelab.files.csv_rows import bundled_frame
from pipelab.hardware.known_models import load_model
from pipelab.hardware.pass_times import Demand, Span
from pipelab.hardware.roofline import UNFUSED, Roofline, gradients, training_flops, update_seconds
from pipelab.hardware.training_memory import activation_bytes, head_bytes
from pipelab.hardware.transformer import Transformer
from pipelab.problem import Workload

# Published times: profiles of one stage, and whole steps (`data/training_times.csv`)


OF_GPT = {"fused_attention": False, "gate": False, "dropout": True}

TIMES = ("forward_ms", "backward_input_ms", "backward_weight_ms", "step_s")


def training_errors(costs: Roofline | None = None) -> DataFrame:
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
    costs, rows = (costs or Roofline()).for_training(), []
    for row in bundled_frame("training_times.csv").itertuples():
        for what, predicted in _predicted(costs, row).items():
            measured = getattr(row, what)
            found = {"model": row.model, "recompute": row.recompute, "what": what}
            found |= {"measured": measured, "predicted": predicted}
            found |= {"error": predicted / measured - 1, "fitted": row.fitted}
            if what == "step_s":
                found["mfu"] = _mfu(costs, row, measured)
                found["mfu_predicted"] = _mfu(costs, row, predicted)
            rows.append(found)
    return data_frame(rows)


def layer_errors() -> DataFrame:
    """Return the rows of `data/layer_step_times.csv` beside what the roofline says: single layers on H100 and H200.

    The roofline trains as Megatron does.

    Returns
    -------
    pandas.DataFrame
        One row per layer and what it does: `model`, `gpu_type`, `microbatch`, `sequence`, `what`
        ("forward_ms", "backward_input_ms" or "backward_weight_ms"), `measured` and `predicted` in
        ms, and `error` = predicted / measured - 1. No constant was fitted to them.

    Raises
    ------
    InvalidValue, UnknownName
        The file names a model or a GPU that is not known.

    Examples
    --------
    >>> table = layer_errors()
    >>> len(table), bool(table[table["what"] == "backward_weight_ms"]["error"].abs().max() < 0.07)
    (24, True)
    """
    costs, rows = Roofline().for_training(), []
    for row in bundled_frame("layer_step_times.csv").itertuples():
        model = load_model(row.model)
        demand = Demand(model, Workload(row.sequence, row.microbatch, "training"))
        stored = activation_bytes(model, row.microbatch * row.sequence, sequence=row.sequence)
        gpu = GPU(row.gpu_type, costs.gpus[row.gpu_type].memory_gb)
        layer = Span.of(model, range(1, 2))
        seconds = gradients(costs, demand, gpu, layer, row.microbatch, 1, stored)
        for what, took in zip(TIMES, seconds, strict=False):
            found = {name: getattr(row, name) for name in ("model", "gpu_type", "microbatch")}
            found |= {"sequence": row.sequence, "what": what, "measured": getattr(row, what)}
            predicted = 1000 * float(took)
            error = predicted / found["measured"] - 1
            rows.append(found | {"predicted": predicted, "error": error})
    return data_frame(rows)


def gpt(row: Series) -> Transformer:
    """The model of a row."""
    wide, each = round(8 / 3 * row.d_model), row.d_model // row.heads
    return Transformer(
        row.model, row.layers, row.d_model, wide, row.heads, row.heads, each, row.vocab
    )


def _predicted(costs: Roofline, row: Series) -> dict[str, float]:
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


def _of_layers(costs: Roofline, row: Series, layers: int, *, head: bool) -> tuple[Any, Any, Any]:
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


def _demand(row: Series) -> Demand:
    return Demand(gpt(row), Workload(row.sequence, row.microbatch, "training"))


def _gpu(costs: Roofline, row: Series) -> GPU:
    inside = row.node_gb_per_s if row.tensor_parallel > 1 else None
    memory = costs.gpus[row.gpu_type].memory_gb
    return GPU(row.gpu_type, memory, None, "node" if inside else "", inside)


def _mfu(costs: Roofline, row: Series, seconds: float) -> float:
    step = row.microbatches * training_flops(gpt(row), _demand(row).load)
    peak = row.ranks * row.tensor_parallel * costs.gpus[row.gpu_type].fp16_tflop_per_s * 1e12
    return step / (seconds * peak)


# What every GPU keeps in training


ACTIVATIONS = TYPE_COLOURS[0]

_NARROW = 0.1  # of the picture: too narrow for more than a number


def plot_training_memory(step: TrainingTimeline, finding: str = "") -> Figure:
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
        rows.append(BlockRow(name, blocks, mark=limit, wrong=need > limit))
    state = sum(cost.state_gb for cost in step.stages) / sum(step.memory_gb)
    fit = "does not fit" if lacking == 1 else "do not fit"
    fits = f"{lacking} of {counted(len(rows), 'stage')} {fit}" if lacking else "all fits"
    title = (
        finding or f"{step.timeline.schedule.name}: {fits}; {state:.0%} of what they keep is state"
    )
    return plot_rows(rows, title, "GB", "the line is the end of the GPU's memory")


# Exercises


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


def _draw_stage(failure: Failure) -> Figure:
    given, fewest = failure.given, _fewest(failure.given)
    text = "Even with all layers recomputed, the stage does not fit"
    if not math.isinf(fewest):
        text = f"The stage fits with {fewest} of {given.layers} layers recomputed"
    kept = {n: _need(given, n) for n in range(given.layers + 1)}
    axes = ("layers recomputed", "memory kept at the peak")
    return plot_what_fits(kept, given.room, fewest, text + failure.yours, axes)


def _look_at_stage(given: Given) -> str:
    fewest = _fewest(given)
    if fewest == 0:
        return "everything fits as it is, and nothing is recomputed"
    if math.isinf(fewest):
        return "not even with all layers recomputed does it fit: the answer is infinite"
    return "while one layer is recomputed, all its activations are there once more"


# Bytes of a parameter's state in mixed precision with Adam: weight, gradient, optimizer.
_WEIGHT, _GRADIENT, _OPTIMIZER = 2, 4, 12
_MOST_COPIES = 64  # that are drawn


def _shared(chance: random.Random) -> Given:
    """Parameters in 10^9, GB of activations, GB of room, and a stage of ZeRO from 0 to 3."""
    parameters, kept = chance.randint(1, 20), chance.randint(0, 20)
    return Given(
        parameters=parameters,
        kept=kept,
        room=chance.randint(2, 20) * 10,
        stage=chance.randint(0, 3),
    )


def _parts(given: Given) -> tuple[int, int]:
    """Bytes per parameter that every copy keeps whole, and those that all copies share."""
    each = (_OPTIMIZER, _GRADIENT, _WEIGHT)
    return sum(each[given.stage :]), sum(each[: given.stage])


def _gb(given: Given, copies: int) -> float:
    whole, shared = _parts(given)
    return given.kept + given.parameters * (whole + shared / copies)


def _copies(given: Given) -> float:
    """The fewest copies with which it fits; infinite if it never does."""
    whole, shared = _parts(given)
    spare = given.room - given.kept - whole * given.parameters
    if spare < 0 or (spare == 0 and shared):
        return math.inf
    return max(1, math.ceil(shared * given.parameters / spare)) if shared else 1


def _draw_copies(failure: Failure) -> Figure:
    given, fewest = failure.given, _copies(failure.given)
    text = "However many copies share, it does not fit"
    if not math.isinf(fewest):
        text = f"It fits from {int(fewest)} copies on"
    kept = {copies: _gb(given, copies) for copies in range(1, _MOST_COPIES + 1)}
    axes = ("copies", "GB kept by each GPU")
    return plot_what_fits(kept, given.room, fewest, text + failure.yours, axes)


def _look_at_copies(given: Given) -> str:
    whole, _ = _parts(given)
    if _copies(given) == 1:
        return "here one copy fits; can fewer than one be the answer?"
    if math.isinf(_copies(given)):
        return "what is not shared is too much already: the answer is infinite"
    return f"{whole} bytes of a parameter are kept whole here, and the others are shared"


EXERCISES: dict[str, Exercise] = {
    "14.1": Function(
        signature="recomputed_layers(layers, whole, kept, held, room)",
        inputs=drawn(122, 200, _stage, lambda given: given.layers),
        target=_fewest,
        hint=_look_at_stage,
        picture=_draw_stage,
        half=lambda given, answer: answer == _fewest(given, back=0),
    ),
    "14.2": Function(
        signature="copies_needed(parameters, kept, room, stage)",
        inputs=drawn(201, 200, _shared, lambda given: given.parameters),
        target=_copies,
        hint=_look_at_copies,
        picture=_draw_copies,
        half=lambda given, _: math.isinf(_copies(given)),
    ),
}
