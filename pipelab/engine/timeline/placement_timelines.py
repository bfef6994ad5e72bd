"""A placement run as a pipeline (`timeline_of`): inference with so many in flight, or a training step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import accumulate, pairwise, zip_longest
from math import ceil
from typing import Any, Literal, NamedTuple, cast, overload

import numpy as np

from pipelab import fields
from pipelab.costs import TrainingCost, refuse_filling, refuse_transfers
from pipelab.display import NO_FORMULAS, DataFrame, counted, data_frame, number, rate, table
from pipelab.engine.answers import Result, placement_in
from pipelab.engine.schedules.columns import columns_of
from pipelab.engine.schedules.named_schedules import schedule as make_schedule
from pipelab.engine.timeline.costs import StageCosts
from pipelab.engine.timeline.timeline import Timeline, simulate, simulate_in_flight
from pipelab.errors import InvalidPlacement, InvalidValue
from pipelab.evaluation import Evaluation, StageReport, evaluate, stage_report, tally
from pipelab.flows import link_between
from pipelab.hardware.transformer import Transformer
from pipelab.placement import Placement, Stage
from pipelab.problem import ModelLike, Problem, answered, fits_in
from pipelab.schedules import Schedule

_RATE_TOLERANCE_SHARE = 1e-6  # of a rate: what is as close has it
_MOST_POINTS_OF_A_FIGURE = 40  # of a figure; more would only be slower to look at


class Lane(NamedTuple):
    """What works on one microbatch at a time: a stage, or the link between two stages."""

    name: str  # "stage 1", "link 1→2", as `Evaluation.bottlenecks` has them
    label: str  # "stage 1: 20 layers on 2 × A100"
    link: bool
    seconds: float  # for which one microbatch takes it up
    bottleneck: bool
    # seconds from there until the microbatch is handed on, with the next one already at work
    wait: float = 0.0


@dataclass(frozen=True, eq=False, kw_only=True)
class PlacedTimeline(fields.Frozen):
    """A placement's pipeline in inference; made by `pl.timeline_of`. Times are in seconds, rates in tokens/s.

    Attributes
    ----------
    problem : Problem
        Its rules and rates count.
    placement : Placement
        What runs as a pipeline.
    evaluation : Evaluation
        The evaluated placement, with memory for `in_flight` or for as many as it holds.
    in_flight : int
        Most microbatches in the pipeline at any time.
    timeline : Timeline
        The simulated passes; its ranks are the lanes: stage 1, link 1→2, stage 2, …
    leaving : float
        Seconds from the end of the last lane to the moment a microbatch has left.

    Examples
    --------
    >>> import pipelab as pl
    >>> medium = pl.load_case("medium", link_units="tokens")
    >>> placed = pl.timeline_of(medium, pl.solve(medium, "aggregated"))
    >>> placed.in_flight_needed, round(placed.steady_rate, 3), round(placed.predicted_rate, 3)
    (9, 264.236, 264.236)
    """

    problem: Problem
    placement: Placement
    evaluation: Evaluation
    in_flight: int
    timeline: Timeline
    leaving: float = 0.0

    @property
    def microbatches(self) -> int:
        """Passes that `timeline` shows."""
        return self.timeline.schedule.microbatches

    @property
    def returns(self) -> bool:
        """Whether the microbatches go round (decode and mixed): each pass of one waits for its pass before."""
        return self.problem.workload.phase in ("decode", "mixed")

    @fields.derived
    def lanes(self) -> tuple[Lane, ...]:
        """Stages and links in pipeline order, one for each rank of `timeline`."""
        costs, lanes = self.timeline.costs, []
        waits = [*costs.arrays(np.size(costs.forward), None)["comm"].tolist(), self.leaving]
        times = zip(np.atleast_1d(costs.forward).tolist(), waits, strict=True)
        for position, (seconds, wait) in enumerate(times):
            stage, link = divmod(position, 2)
            name = f"link {stage + 1}→{stage + 2}" if link else f"stage {stage + 1}"
            label = name if link else stage_label(self.evaluation, stage)
            slowest = name in self.evaluation.bottlenecks
            lanes.append(
                Lane(
                    name=name,
                    label=label,
                    link=bool(link),
                    seconds=seconds,
                    bottleneck=slowest,
                    wait=wait,
                )
            )
        return tuple(lanes)

    @property
    def predicted_rate(self) -> float:
        """What a full pipeline yields (`Evaluation.rate`), in tokens/s: the rate of its slowest lane."""
        return self.evaluation.rate

    @property
    def fits(self) -> bool:
        """Whether memory holds `in_flight` microbatches on every stage."""
        return self.in_flight <= fields.given(self.evaluation.in_flight)

    @fields.derived
    def steady_rate(self) -> float:
        """Tokens/s of the full pipeline; filling and draining do not count.

        The tokens of `in_flight` microbatches over the time between two completions that lie so
        many apart (`round_time`).
        """
        return self._rate(self.in_flight)

    def _rate(self, in_flight: int) -> float:
        seconds = round_time(self.timeline.costs, in_flight, self.leaving)
        return in_flight * self.problem.workload.tokens / seconds

    @property
    def reaches_predicted_rate(self) -> bool:
        """Whether the steady rate equals the predicted rate to 1e-6."""
        return abs(self.steady_rate / self.predicted_rate - 1) <= _RATE_TOLERANCE_SHARE

    @property
    def latency_s(self) -> float:
        """From a microbatch's entry into an empty pipeline to its exit: every stage and link once, no waiting."""
        lanes = self.timeline.schedule.ranks
        return float(self.timeline.end.reshape(lanes, self.microbatches)[-1, 0]) + self.leaving

    @property
    def time_per_token_s(self) -> float | None:
        """From one token of a sequence to its next, waiting included; None in prefill, which writes none."""
        if not self.returns:
            return None
        return round_time(self.timeline.costs, self.in_flight, self.leaving)

    @fields.derived
    def in_flight_needed(self) -> int:
        """Return the fewest microbatches in flight for which the steady rate equals the predicted rate to 1e-6."""
        passes_per_s = self.predicted_rate / self.problem.workload.tokens
        return least_in_flight(self.timeline.costs, passes_per_s, self.leaving)

    def sweep(self) -> DataFrame:
        """Return the steady rate against microbatches in flight, from 1 to some more than are needed.

        Stages have the times that they have with `in_flight`.

        Returns
        -------
        pandas.DataFrame
            `in_flight`, `steady_rate_tokens_per_s`, `bound_tokens_per_s` (no more than the rate of
            the slowest lane, and no more than that many microbatches per latency), and `fits`:
            whether memory holds so many.
        """
        counts = self._counts()
        alone = self.problem.workload.tokens / self.latency_s
        held = [with_memory_for(self.problem, self.placement, count) for count in counts]
        columns = {
            "in_flight": counts,
            "steady_rate_tokens_per_s": [self._rate(count) for count in counts],
            "bound_tokens_per_s": [min(self.predicted_rate, count * alone) for count in counts],
            "fits": [evaluation is not None for evaluation in held],
        }
        return data_frame(columns)

    def _counts(self) -> list[int]:
        last = self.in_flight_needed + max(2, self.in_flight_needed // 4)
        every = -(-last // _MOST_POINTS_OF_A_FIGURE)
        return sorted({1, *range(every, last + 1, every), self.in_flight_needed, self.in_flight})

    @property
    def sentence(self) -> str:
        """The finding in words."""
        several = "microbatches" if self.in_flight > 1 else "microbatch"
        reached = f"{self.in_flight} {several} in flight: {rate(self.steady_rate)}"
        if self.reaches_predicted_rate:
            text = f"{reached}, the rate of its slowest lane; {self.in_flight_needed} are needed for that."
        else:
            share = self.steady_rate / self.predicted_rate
            full = f"the rate of {number(self.predicted_rate)}, which {self.in_flight_needed} would reach"
            text = f"{reached}, {share:.1%} of {full}."
        if not self.fits:
            text += f" Memory does not hold {self.in_flight}."
        return text

    def to_frame(self) -> DataFrame:
        """Return the lanes as a table, one row each.

        Returns
        -------
        pandas.DataFrame
            Columns `lane`, `seconds_per_microbatch`, `rate_tokens_per_s`, `busy_when_full` (share
            of the time it works once the pipeline is full) and `bottleneck`; where some lane hands
            a microbatch on later than it takes the next one, also `handed_on_after_seconds`.
        """
        tokens = self.problem.workload.tokens
        frame = data_frame(
            {
                "lane": [lane.label for lane in self.lanes],
                "seconds_per_microbatch": [lane.seconds for lane in self.lanes],
                "rate_tokens_per_s": [tokens / lane.seconds for lane in self.lanes],
                "busy_when_full": [lane.seconds * self.steady_rate / tokens for lane in self.lanes],
                "bottleneck": ["◀" if lane.bottleneck else "" for lane in self.lanes],
            }
        )
        if any(lane.wait for lane in self.lanes):
            handed_on = [lane.seconds + lane.wait for lane in self.lanes]
            frame.insert(2, "handed_on_after_seconds", handed_on)
        return frame

    def __repr__(self) -> str:
        return f"<PlacedTimeline {self.problem.name}: {self.sentence}>"

    def _repr_html_(self) -> str:
        return _paragraph(self.problem, self.sentence) + table(self.to_frame())


def _paragraph(problem: Problem, text: str) -> str:
    """Return a finding as HTML, after the problem's name."""
    return f"<p class='{NO_FORMULAS}'><b>{escape(problem.name)}:</b> {escape(text)}</p>"


def stage_label(evaluation: Evaluation, index: int) -> str:
    """Return a stage in words, such as "stage 1: 20 layers on 2 × A100"."""
    report = evaluation.stages[index]
    layers = len(report.stage.layers)
    return f"stage {index + 1}: {counted(layers, 'layer')} on {tally(report.gpu_types)}"


def with_memory_for(problem: Problem, placement: Placement, number: int) -> Evaluation | None:
    """Return the evaluation with so many in flight; None where memory does not hold them."""
    try:
        return evaluate(problem.with_in_flight(number), placement)
    except InvalidPlacement:
        return None


def round_time(costs: StageCosts, in_flight: int, leaving: float = 0.0) -> float:
    """Return how long a full pipeline takes for `in_flight` completions, in the costs' unit.

    No shorter than the slowest lane works on them, and no shorter than one microbatch's traversal,
    after which the next may enter in its place; and as long as the longer of the two, as whatever
    leaves was delayed either by the slowest lane, which then never idles, or by nothing but its own
    traversal. `simulate_in_flight` shows the same.
    """
    return max(in_flight * float(np.max(costs.forward)), _traversal(costs, leaving))


def least_in_flight(costs: StageCosts, rate: float, leaving: float = 0.0) -> int:
    """Return the fewest microbatches in flight with which a full pipeline completes `rate` per unit of time.

    Little's law: the rate times the traversal.

    Raises
    ------
    InvalidValue
        The rate is beyond the slowest lane's.
    """
    slowest = float(np.max(costs.forward))
    if rate * slowest * (1 - _RATE_TOLERANCE_SHARE) > 1:
        expected = f"expected at most {1 / slowest:.9g}"
        raise InvalidValue("least_in_flight", [("rate", rate, expected)])
    return max(1, ceil(rate * (1 - _RATE_TOLERANCE_SHARE) * _traversal(costs, leaving)))


def _traversal(costs: StageCosts, leaving: float) -> float:
    """Return the seconds from the entry into an empty pipeline to the exit."""
    lanes = np.size(costs.forward)
    return float(np.sum(costs.forward) + np.sum(costs.arrays(lanes, None)["comm"])) + leaving


def lane_costs(evaluation: Evaluation) -> tuple[StageCosts, float]:
    """Return the lanes' times, and how long after the end of the last lane a microbatch has left the pipeline.

    Lanes are stage 1, link 1→2, stage 2, …: a link carries one microbatch at a time, just as a stage
    computes one, and can therefore be the bottleneck. `comm` is how much longer a microbatch takes,
    while the next one may begin: a stage whose GPUs take turns (`costs.pass_time`) is free again
    before it has finished a microbatch.

    Raises
    ------
    InvalidValue
        Links are counted in transfers, which have no size in tokens.
    """
    if evaluation.links:
        refuse_transfers("timeline_of", evaluation.link_unit)
    pairs = zip_longest(evaluation.stages, evaluation.links)
    lanes = [lane for pair in pairs for lane in pair if lane is not None]
    busy = [evaluation.tokens / lane.throughput for lane in lanes]
    waits = [lane.seconds - time for lane, time in zip(lanes, busy, strict=True)]
    # Where a lane is busy for as long as a microbatch is on it, the difference is a rounding error.
    waits = [wait if wait > 1e-9 * time else 0.0 for wait, time in zip(waits, busy, strict=True)]
    *between, leaving = waits
    comm = tuple(between) if any(between) else 0.0
    return StageCosts(tuple(busy), comm=comm, unit="s"), leaving


@dataclass(frozen=True, eq=False, kw_only=True)
class TrainingTimeline(fields.Frozen):
    """One training step of a placement's pipeline; made by `pl.timeline_of(…, training=True)`.

    Attributes
    ----------
    problem : Problem
        Its rules and rates count.
    placement : Placement
        What runs as a pipeline.
    evaluation : Evaluation
        The evaluated placement.
    timeline : Timeline
        In seconds; its ranks are the placement's stages. `pl.gantt` and every measure take it. Its
        memory is in GB, where the cost model says what training keeps.
    stages : tuple of TrainingCost or None
        What each stage takes and keeps; None where the cost model does not say.
    recompute : tuple of str or None
        What each stage computes a second time: "none", "selective" or "full"; None as `stages`.

    Examples
    --------
    >>> import pipelab as pl
    >>> tiny = pl.load_case("tiny", link_units="tokens")
    >>> halves = pl.Placement.of([(2, (0,)), (2, (1,))])
    >>> step = pl.timeline_of(tiny, halves, microbatches=8, training=True)
    >>> step.timeline.schedule.name, round(step.rate, 1), round(step.bound, 1)
    ('1F1B', 63.3, 71.2)
    """

    problem: Problem
    placement: Placement
    evaluation: Evaluation
    timeline: Timeline
    stages: tuple[TrainingCost, ...] | None = None
    recompute: tuple[str, ...] | None = None

    @property
    def memory_gb(self) -> tuple[float, ...] | None:
        """What each rank's fullest GPU needs: state of its parameters, activations in flight.

        None where the cost model does not say.
        """
        if self.stages is None:
            return None
        peaks = self.timeline.peak_memory
        stages = zip(self.stages, peaks, strict=True)
        return tuple(stage.state_gb + stage.working_gb + peak for stage, peak in stages)

    @property
    def shortfall(self) -> str:
        """Which rank lacks memory, and how much, or has fewer layers than chunks; empty where all fits.

        Memory is compared where the cost model says what training needs.
        """
        chunks = self.timeline.schedule.chunks
        stages = zip(self.labels, self.placement.stages, strict=True)
        uncut = [label for label, stage in stages if len(stage.layers) < chunks]
        memory = zip(self.labels, self.memory_gb or (), self.limits_gb, strict=False)
        lacking = [row for row in memory if not fits_in(*row[1:])]
        said = [f"{label} cannot be {chunks} chunks" for label in uncut]
        said += [f"{label} needs {need:.1f} GB of {limit:.1f}" for label, need, limit in lacking]
        return "; ".join(said)

    @property
    def limits_gb(self) -> tuple[float, ...]:
        """What each rank's smallest GPU has."""
        return tuple(min(report.memory_limit_gb) for report in self.evaluation.stages)

    @property
    def rate(self) -> float:
        """Tokens/s of training: those of all microbatches over the time of one step."""
        return self._tokens / self.timeline.iteration_time

    @property
    def bound(self) -> float:
        """Tokens/s if the busiest rank never idled: no schedule of these stages trains faster."""
        return self._tokens / self.timeline.ideal

    @property
    def _tokens(self) -> float:
        """Of all microbatches of a step."""
        return self.timeline.schedule.microbatches * self.problem.workload.tokens

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilization (`Roofline.mfu`); None where the cost model does not count FLOPs."""
        return self.problem.costs.mfu(self.problem, self.placement, self.rate)

    @fields.derived
    def labels(self) -> tuple[str, ...]:
        """Return every rank in words, such as "stage 1: 20 layers on 2 × A100"."""
        return tuple(stage_label(self.evaluation, i) for i in range(len(self.placement)))

    @property
    def sentence(self) -> str:
        """The finding in words."""
        schedule = self.timeline.schedule
        used = "" if self.mfu is None else f" ({self.mfu:.0%} MFU)"
        text = f"{schedule.name} with {schedule.microbatches} microbatches trains {rate(self.rate)}"
        return f"{text}{used}, {self.rate / self.bound:.0%} of what the busiest stage allows"

    def to_frame(self) -> DataFrame:
        """Return the ranks as a table, one row each.

        Returns
        -------
        pandas.DataFrame
            Columns `stage` (what the rank holds, in words), `forward_s` and `backward_s` of one
            microbatch, and `busy`, the share of the makespan that it works. Where the cost model
            says what training keeps: `state_gb`, `activations_gb` at their peak,
            `memory_offered_gb`, what the GPU has, and what is computed a second time (`recompute`).
        """
        timeline, ranks = self.timeline, self.timeline.schedule.ranks
        table_of, of_rank = timeline.costs.tables(timeline.schedule), timeline.columns.holder
        back = table_of["backward_input"] + table_of["backward_weight"]
        columns = {
            "stage": self.labels,
            "forward_s": np.bincount(of_rank, table_of["forward"], ranks),
            "backward_s": np.bincount(of_rank, back, ranks),
            "busy": timeline.busy / timeline.makespan,
        }
        if self.stages is not None:
            columns["state_gb"] = [stage.state_gb for stage in self.stages]
            peaks = zip(self.stages, timeline.peak_memory, strict=True)
            columns["activations_gb"] = [stage.working_gb + peak for stage, peak in peaks]
            columns["memory_offered_gb"] = self.limits_gb
            columns["recompute"] = fields.given(self.recompute)
        return data_frame(columns)

    def __repr__(self) -> str:
        return f"<TrainingTimeline {self.problem.name}: {self.sentence}>"

    def _repr_html_(self) -> str:
        lacking = f"<p>It does not fit: {escape(self.shortfall)}.</p>" if self.shortfall else ""
        return _paragraph(self.problem, f"{self.sentence}.") + lacking + table(self.to_frame())


def training_timeline(
    problem: Problem,
    placement: Placement | Result,
    microbatches: int | None = None,
    *,
    schedule: str | Schedule = "1F1B",
    recompute: str | Sequence[str] | None = None,
    bytes_per_parameter: float | None = None,
) -> TrainingTimeline:
    """Run one training step of a placement: forward and backward over its stages, simulated.

    Messages between two ranks go one at a time, at the speed of the slower direction.
    With `Roofline` the times of both gradients, of the step at the end and what is kept in memory
    come from `Roofline.training_cost`. Other cost models give the forward alone; each gradient is then
    taken to last as long, being a product of the same size. The placement must
    fit in memory for inference; for training, `TrainingTimeline.to_frame` shows what it needs.

    Parameters
    ----------
    problem : Problem
        With a workload of training or of prefill, and with `link_units="tokens"`, unless there is no link.
    placement : Placement or Result
        A reader's own, or what `pl.solve` returned.
    microbatches : int, optional
        By default the workload's where its phase is "training", else four for each stage.
    schedule : str or Schedule
        Any name that `pl.schedule` knows, or what it returns for these ranks and microbatches, such
        as more chunks than two. With several chunks per rank, every rank deals its layers
        out to chunks as equal as can be, larger ones first, and the chunks have the model's layers
        in their own sequence: in a V, embedding and head are both on the first rank.
    recompute : {"none", "selective", "full", "auto"} or a sequence of them, optional
        Which activations are computed a second time instead of kept, as for
        `Roofline.training_cost`; none by default. "auto": full on the stages that do not fit
        otherwise. Of a sequence, one for each stage.
    bytes_per_parameter : float, optional
        Of weights, gradients and the optimizer's state; by default 18, as Adam in mixed precision
        in Megatron, which adds gradients up in fp32 (`Engine.gradient_bytes`).

    Returns
    -------
    TrainingTimeline
        Times in seconds, rates in tokens/s, memory in GB.

    Raises
    ------
    InvalidPlacement
        The placement breaks a rule or does not fit; names stage, GPU, need and offer.
    InvalidValue
        Links are counted in transfers/s, there is no placement, the workload is of decode or mixed,
        the schedule has no backward, or a number does not fit.
    UnknownName
        There is no schedule of this name.
    TooLarge
        More than 5 million forwards, or one million in a V.

    Examples
    --------
    >>> import pipelab as pl
    >>> tiny = pl.load_case("tiny", link_units="tokens")
    >>> step = training_timeline(tiny, pl.Placement.of([(2, (0,)), (2, (1,))]), schedule="ZBH1")
    >>> print(step.sentence)
    ZBH1 with 8 microbatches trains 68.33 tokens/s, 96% of what the busiest stage allows
    """
    what = "timeline_of"
    placement = placement_in(placement, what)
    evaluation = evaluate(problem, placement)
    if evaluation.links:
        refuse_transfers(what, evaluation.link_unit)
    load = problem.workload
    if load.phase not in ("prefill", "training"):
        expected = "expected 'training', or 'prefill': training reads whole sequences"
        raise InvalidValue(what, [("problem.workload.phase", load.phase, expected)])
    if microbatches is None:
        microbatches = load.microbatches if load.phase == "training" else 4 * len(placement)
    microbatches = fields.whole_number(what, "microbatches", microbatches)
    asked = len(placement), microbatches
    order = schedule if isinstance(schedule, Schedule) else make_schedule(schedule, *asked)
    if (order.ranks, order.microbatches) != asked:
        expected = f"expected one of {len(placement)} ranks and {microbatches} microbatches"
        raise InvalidValue(what, [("schedule", order, expected)])
    if columns_of(order).forward_only:
        expected = "expected a schedule with backwards, such as '1F1B'; without training=True, forwards run alone"
        raise InvalidValue(what, [("schedule", schedule, expected)])
    recipe = {} if bytes_per_parameter is None else {"bytes_per_parameter": bytes_per_parameter}
    parts, how = _of_parts(problem, evaluation, order, recompute, recipe)
    held = [np.equal(order.stage_rank, rank) for rank in range(order.ranks)]
    stages = tuple(TrainingCost(*on_rank(parts[:, mine]).tolist()) for mine in held)
    forward, back, weight, _, _, kept, rest, _ = parts.tolist()
    costs = StageCosts(
        forward,
        back,
        weight,
        hops(in_training(problem), placement, order),
        activation=kept,
        weight_activation=rest if how else None,
        optimizer=max(stage.step for stage in stages),
        unit="s",
    )
    timeline = simulate(order, costs, transfers="queued")
    return TrainingTimeline(
        problem=problem,
        placement=placement,
        evaluation=evaluation,
        timeline=timeline,
        stages=stages if how else None,
        recompute=how,
    )


def _of_parts(
    problem: Problem,
    evaluation: Evaluation,
    order: Schedule,
    recompute: str | Sequence[str] | None,
    recipe: Mapping[str, Any],
) -> tuple[np.ndarray, tuple[str, ...] | None]:
    """Return what each stage of the schedule takes and keeps, shape (8, stages), and what each rank recomputes.

    Where the cost model does not say, each gradient takes as long as the forward, and None is recomputed.
    """
    known, stages = problem.costs.knows_training, evaluation.stages
    stated = recipe if recompute is None else {"recompute": recompute, **recipe}
    if stated and not known:
        name = next(iter(stated))
        expected = "expected a cost model that knows what training keeps, such as Roofline"
        raise InvalidValue("timeline_of", [(name, stated[name], expected)])
    modes = [cast(str, recompute or "none")] * len(stages)
    if fields.is_list(recompute):
        modes = list(recompute or ())
        if len(modes) != len(stages):
            expected = f"expected one for each of {len(stages)} stages, or one for all"
            raise InvalidValue("timeline_of", [("recompute", recompute, expected)])
    columns = columns_of(order)
    sizes = columns.part_layers([len(report.stage.layers) for report in stages]).tolist()
    ends, taken = list(accumulate(sizes)), np.zeros((len(TrainingCost._fields), order.stages))

    def ask(rank: int, how: str) -> np.ndarray:
        mine, more = np.flatnonzero(columns.holder == rank).tolist(), dict(recipe)
        if how != "none":
            more["recompute"] = how
        for part in mine:
            if not sizes[part]:
                continue
            layers = range(ends[part] - sizes[part], ends[part])
            report = report_of(problem, Stage(layers, stages[rank].stage.gpus))
            taken[:, part] = problem.costs.training_cost(problem, report, **more)
            if not known:  # a microbatch counts once, however many parts share it
                taken[5, part] /= len(mine)
        if columns.holder[0] == columns.holder[-1] == rank:
            taken[3:5, -1] *= not_shared(problem.model, sizes[-1])
        return taken[:, mine]

    for rank, held in enumerate(columns.held_counts):
        if modes[rank] == "auto":
            need, offer = needed_gb(ask(rank, "none"), held), min(stages[rank].memory_limit_gb)
            modes[rank] = "none" if fits_in(need, offer) else "full"
        ask(rank, modes[rank])
    return taken, tuple(modes) if known else None


def report_of(problem: Problem, stage: Stage) -> StageReport:
    """Return what the cost model says of a stage, whatever memory there is."""
    gpus, load = [problem.cluster.gpus[g] for g in stage.gpus], problem.workload
    asked = problem.model, load, gpus, stage.layers, problem.batch_split
    return stage_report(problem, stage, answered(problem.costs, *asked))


def not_shared(model: ModelLike, last: int) -> float:
    """Return the share of parameters of last layers and head that whoever holds the embedding must add to it.

    Less than 1 where embedding and head are one matrix, which one rank holds once.
    """
    layers = range(model.layers - last, model.layers)
    if last and isinstance(model, Transformer) and model.tied_embeddings and 0 not in layers:
        return 1 - model.vocab * model.d_model / model.parameters(layers)
    return 1.0


def on_rank(parts: np.ndarray) -> np.ndarray:
    """Return fields of `TrainingCost` of a rank, shape (8, …), from those of its parts, shape (8, …, parts)."""
    return np.concatenate([parts[:-1].sum(axis=-1), parts[-1:].max(axis=-1)])


def needed_gb(parts: np.ndarray, held: np.ndarray) -> np.ndarray:
    """Return GB on a rank's fullest GPU with these parts, shape (8, …, parts), for its `ScheduleArrays.held_counts`."""
    kept = np.concatenate([parts[5], parts[6]], axis=-1)
    most = np.zeros(kept.shape[:-1])
    for numbers in held:
        np.maximum(most, kept @ numbers, out=most)
    state, working = on_rank(parts)[[4, 7]]
    return state + working + most


def in_training(problem: Problem) -> Problem:
    """Return the problem with links that carry what stages send in training, where costs tell it from inference."""
    costs = problem.costs.for_training()
    return problem if costs is problem.costs else replace(problem, costs=costs)


def hops(problem: Problem, placement: Placement, order: Schedule) -> list[float]:
    """Return seconds of the message between each stage of the schedule and the next; 0 within a rank."""
    stages, pairs = placement.stages, pairwise(order.stage_rank)
    # A stage's link to itself is left out: a GPU's bandwidth to itself may be any number.
    return [0.0 if a == b else _hop(problem, stages[a], stages[b]) for a, b in pairs]


def _hop(problem: Problem, one: Stage, other: Stage) -> float:
    """Return the slower direction of a hop: activations go forward, gradients of the same size back."""
    return max(link_between(problem, *ends)[1] for ends in ((one, other), (other, one)))


@overload
def timeline_of(
    problem: Problem,
    placement: Placement | Result,
    microbatches: int | None = None,
    in_flight: int | None = None,
    *,
    training: Literal[False] = False,
) -> PlacedTimeline: ...
@overload
def timeline_of(
    problem: Problem,
    placement: Placement | Result,
    microbatches: int | None = None,
    *,
    training: Literal[True],
    **step: Any,
) -> TrainingTimeline: ...
def timeline_of(
    problem: Problem,
    placement: Placement | Result,
    microbatches: int | None = None,
    in_flight: int | None = None,
    *,
    training: bool = False,
    **step: Any,
) -> PlacedTimeline | TrainingTimeline:
    """Run a placement as an inference pipeline: its stage and link times as a schedule, simulated.

    Every stage and every link is a lane that works on one microbatch (the workload's batch) at a
    time. At most `in_flight` of them are in the pipeline: the next enters when one has left. In
    decode it is the same one that comes back for its next token, so that they go round in a closed
    loop; the token itself is assumed to reach the first stage in no time. A lane is busy for as
    long as its rate says; a stage whose GPUs take turns at whole sequences finishes a microbatch
    later than that, while the next one is already on it.

    Parameters
    ----------
    problem : Problem
        With `link_units="tokens"`, unless there is no link.
    placement : Placement or Result
        A reader's own, or what `pl.solve` returned.
    microbatches : int, optional
        How many to show: by default three times as many as are in flight.
    in_flight : int, optional
        By default the number with which the placement attains its rate (`Evaluation.in_flight`).
        Of more than memory holds, the sentence says so; stages then have the times they have with
        what it holds.
    training : bool
        Run one training step instead, forward and backward: see `training_timeline`. So it does
        wherever the workload's phase is "training".
    **step
        Options of a training step, such as `schedule="ZBH1"`.

    Returns
    -------
    PlacedTimeline, or TrainingTimeline
        Times in seconds, rates in tokens/s.

    Raises
    ------
    InvalidPlacement
        The placement breaks a rule or does not fit; names stage, GPU, need and offer.
    InvalidValue
        Links are counted in transfers/s, there is no placement, or a count is not a whole number of
        at least 1.
    TooLarge
        More than 5 million forwards.

    Examples
    --------
    >>> import pipelab as pl
    >>> tiny = pl.load_case("tiny", link_units="tokens")
    >>> placed = pl.timeline_of(tiny, pl.Placement.of([(2, (0,)), (2, (2,))]))
    >>> placed.in_flight_needed, round(placed.steady_rate, 3), round(placed.predicted_rate, 3)
    (2, 134.616, 134.616)
    >>> print(pl.timeline_of(tiny, placed.placement, in_flight=1).sentence)
    1 microbatch in flight: 82.56 tokens/s, 61.3% of the rate of 134.6, which 2 would reach.
    """
    trains = isinstance(problem, Problem) and problem.workload.phase == "training"
    if fields.checked_value("timeline_of", "training", training, fields.Flag) or trains:
        if in_flight is not None:
            expected = "expected None: a training step holds what its schedule says"
            raise InvalidValue("timeline_of", [("in_flight", in_flight, expected)])
        return training_timeline(problem, placement, microbatches, **step)
    if step:
        expected = "expected training=True: it is an option of a training step"
        raise InvalidValue("timeline_of", [(name, value, expected) for name, value in step.items()])
    placement = placement_in(placement, "timeline_of")
    evaluation = evaluate(problem, placement)
    if problem.costs.filling == "micro_batches" and (evaluation.in_flight, problem.parts) != (1, 1):
        refuse_filling("timeline_of", problem.costs)
    if in_flight is not None:
        in_flight = fields.whole_number("timeline_of", "in_flight", in_flight)
        evaluation = with_memory_for(problem, placement, in_flight) or evaluation
    costs, leaving = lane_costs(evaluation)
    if in_flight is None:
        in_flight = fields.given(evaluation.in_flight)
    if microbatches is None:
        microbatches = 3 * in_flight
    microbatches = fields.whole_number("timeline_of", "microbatches", microbatches)
    timeline = simulate_in_flight(costs, microbatches, in_flight, leaving)
    return PlacedTimeline(
        problem=problem,
        placement=placement,
        evaluation=evaluation,
        in_flight=in_flight,
        timeline=timeline,
        leaving=leaving,
    )
