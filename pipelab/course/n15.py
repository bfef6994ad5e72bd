"""Notebook 15, A pipeline that runs: what was measured, and a loop to write; `processes` has the processes."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from random import Random
from statistics import median
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import MinLen
from pydantic import BeforeValidator, InstanceOf

from pipelab.course.exercises import Exercise, Function, Given, drawn
from pipelab.course.pictures import ARROW, EMPTY, Block, BlockRow, colour_of, finish, plot_rows
from pipelab.course.processes import (
    Circulating,
    Job,
    Report,
    RingProcess,
    Row,
    StageProcess,
    run_jobs,
    source_of,
)
from pipelab.display import DataFrame, Figure, listed
from pipelab.engine.schedules import schedule
from pipelab.engine.timeline import StageCosts, simulate
from pipelab.engine.timeline.timeline import Timeline
from pipelab.errors import InvalidValue, PipelabError
from pipelab.fields import (
    Count,
    Natural,
    NotNegative,
    checked_arguments,
    checked_value,
    described,
    is_list,
    python_value,
)
from pipelab.figures.gantts import plot_timelines
from pipelab.figures.theme import NEUTRAL, WRONG, new_figure, plain
from pipelab.schedules import Schedule

# A run


@dataclass(frozen=True, eq=False, repr=False)
class MeasuredTimeline(Timeline):
    """A timeline whose actions start when they did, not as soon as they could.

    Attributes
    ----------
    starts : array of float, shape (actions,)
        When every action started.
    """

    starts: np.ndarray = field(kw_only=True)

    @cached_property
    def node_start(self) -> np.ndarray:
        """When every action started, shape (actions,)."""
        return self.starts


@dataclass(frozen=True)
class Run:
    """What processes did, beside what the simulator says of the same order.

    Attributes
    ----------
    measured, simulated : Timeline
        Times in ms, from the common start.
    startup : float
        Seconds until all processes had started; no timeline counts them.
    transit : float
        Of a message that was waited for, the median ms from sending to receiving, its stated delay
        not counted; NaN if there was none.
    """

    measured: Timeline
    simulated: Timeline
    startup: float
    transit: float

    @property
    def excess(self) -> float:
        """By which share the measured makespan is longer than the simulated one."""
        return self.measured.makespan / self.simulated.makespan - 1


_Costs = Annotated[StageCosts, InstanceOf(), described('StageCosts(..., unit="ms")')]
_Name = Annotated[str, described("text")]
_LayersOfStages = Annotated[list[Count], MinLen(2), described("layers of at least two stages")]

_Action = Annotated[
    tuple[Literal["F", "I", "B", "W"], Annotated[Natural, BeforeValidator(python_value)]],
    BeforeValidator(lambda action: tuple(action) if is_list(action) else action),
    described('an action such as ("F", 0)'),
]
_SomeActions = Annotated[list[_Action], MinLen(1), described("at least one action")]
_Rows = Annotated[list[_SomeActions], MinLen(1), described("at least one rank's row of actions")]


@checked_arguments
def run_stages(
    program: Sequence[Row] | Callable[[StageProcess], object],
    costs: _Costs,
    microbatches: Count = 8,
    ranks: Count = 4,
    *,
    name: _Name = "",
    message_bytes: Natural = 0,
    timeout: NotNegative = 2.0,
) -> Run:
    """Run a pipeline in processes, one per rank, and measure when each of them does what.

    Parameters
    ----------
    program : sequence of rows, or callable
        The actions of every rank in order, each as `(kind, microbatch)`. Or a function of a `StageProcess`
        that calls `recv`, `compute` and `send` itself: its source runs in every process, so it has
        to contain whatever it uses.
    costs : StageCosts
        What every action takes, and every message, in ms.
    microbatches, ranks : int
        Of a function; rows say themselves.
    name : str, optional
        Of the schedule, for figures.
    message_bytes : int
        What every message carries besides. What a pipe does not hold makes the sender wait until
        it is received.
    timeout : float
        Seconds after which a program that does not go on is ended; the longest actions and the
        longest message count in addition.

    Returns
    -------
    Run
        What was measured, and what the simulator says of the order that was run.

    Raises
    ------
    InvalidSchedule
        No process goes on: says what each of them waits for. Or the rows repeat an action, or the
        order that was run lacks actions.
    InvalidValue
        An argument does not fit: rows without actions or with an unknown kind, costs that are not in
        ms or not one per rank, a function without source.
    PipelabError
        A process failed: says which, and why. Or the processes have not started within a minute.
    """
    if costs.unit != "ms":
        raise InvalidValue("run_stages", [("costs", costs.unit, 'expected costs with unit="ms"')])
    programs: Sequence[Any]
    if callable(program):
        programs = [source_of(program)] * ranks
        name = name or program.__name__
    else:
        programs = _checked_rows(program)
        ranks, microbatches = len(programs), 1 + max(i for row in programs for _, i in row)
    times, link = _seconds(costs, ranks)
    jobs = [
        Job(
            rank,
            ranks,
            microbatches,
            programs[rank],
            {kind: float(of[rank]) for kind, of in times.items()},
            delays={n: float(link[min(n, rank)]) for n in (rank - 1, rank + 1) if 0 <= n < ranks},
            message_bytes=message_bytes,
        )
        for rank in range(ranks)
    ]
    longest = max(max(of) for of in times.values())
    patience = timeout + 3 * ranks * longest + link.max(initial=0.0)
    reports, startup = run_jobs(jobs, patience)
    rows = [[f"{r}{kind}{i}" for kind, i, *_ in of.actions] for r, of in enumerate(reports)]
    order = Schedule.of(name or "yours", rows, microbatches=microbatches, stage_rank=range(ranks))
    simulated = simulate(order, costs)
    transits = [1000 * transit for report in reports for transit in report.transits]
    return Run(
        _measured(simulated, reports), simulated, startup, median(transits) if transits else np.nan
    )


def _checked_rows(program: Any) -> list[list[tuple[str, int]]]:
    """Return rows that processes can follow; they may still hang, or lack actions."""
    rows = [list(row) if is_list(row) else row for row in program] if is_list(program) else program
    return checked_value("run_stages", "program", rows, _Rows)


def _seconds(costs: StageCosts, ranks: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return the seconds of every kind of action on every rank, and of every link."""
    table = {name: of / 1000 for name, of in costs.arrays(ranks, None).items()}
    times = {"F": table["forward"], "I": table["backward_input"], "W": table["backward_weight"]}
    return times | {"B": times["I"] + times["W"]}, table["comm"]


def _measured(simulated: Timeline, reports: Sequence[Report]) -> MeasuredTimeline:
    """Return the measured times in the place of the simulated ones; a message arrives after its delay."""
    times = [(start, end) for report in reports for *_, start, end in report.actions]
    starts, ends = 1000 * np.array(times).T
    n, graph = len(starts), simulated.graph
    makers = graph.waits[1][n:]
    delays = simulated.ends[n:] - simulated.ends[makers]
    return MeasuredTimeline(
        schedule=simulated.schedule,
        costs=simulated.costs,
        transfers=simulated.transfers,
        synchronous_optimizer=simulated.synchronous_optimizer,
        graph=graph,
        ends=np.append(ends, ends[makers] + delays),
        starts=starts,
    )


def plot_measured(run: Run) -> Figure:
    """Draw the measured timeline above the simulated one, on one axis.

    Parameters
    ----------
    run : Run
        As `run_stages` returns it.

    Returns
    -------
    plotly.graph_objects.Figure
        In ms from the common start; the title says how much longer the measured makespan is.
    """
    ends = run.measured.makespan, run.simulated.makespan
    above = f"{run.excess:.1%} above the simulated {ends[1]:,.0f}"
    said = f"{run.measured.schedule.name}: measured {ends[0]:,.0f} ms, {above}"
    return plot_timelines({"measured": run.measured, "simulated": run.simulated}, finding=said)


_WAITS = re.compile(r"rank \d+ (?:waits for the )?(?P<what>.+) (?:from|to) rank (?P<whom>\d+)")


def plot_waits(says: Sequence[str]) -> Figure:
    """Draw the wait-for graph of a program that hangs: an arrow from every rank to the one it waits for.

    Parameters
    ----------
    says : sequence of str
        A sentence for each rank: the `defects` of the error that `run_stages` raises.

    Returns
    -------
    plotly.graph_objects.Figure
        The cycle of ranks that wait for each other is red; its ranks are named in the title.

    Examples
    --------
    >>> says = ["rank 0 sends F1 to rank 1", "rank 1 sends B0 to rank 0", "rank 2 has ended"]
    >>> plot_waits(says).layout.title.text.split("<br>")[0]
    'Ranks 0 and 1 wait for each other'
    """
    found = [_WAITS.fullmatch(said) for said in says]
    waits = [int(said["whom"]) if said else None for said in found]
    cycle = _cycle(Given(waits=waits))
    ranks = list(range(len(waits)))
    colours = [WRONG if rank in cycle else NEUTRAL for rank in ranks]
    figure = new_figure()
    figure.add_scatter(
        x=ranks,
        y=[0] * len(ranks),
        mode="markers+text",
        text=[f"<b>{rank}</b>" for rank in ranks],
        textfont={"color": "white", "size": 16},
        marker={"size": 44, "color": colours},
        hovertext=list(map(plain, says)),
        hoverinfo="text",
        showlegend=False,
    )
    for rank, said in enumerate(found):
        if said is None:
            continue
        whom = int(said["whom"])
        # Two that wait for each other have an arrow above and one below.
        side = 1 if whom > rank else -1
        ends = {"ax": rank + 0.1 * side, "x": whom - 0.1 * side, "ay": 0.3 * side, "y": 0.3 * side}
        head = {"arrowcolor": colours[rank], "arrowwidth": 2.5, "standoff": 0}
        figure.add_annotation(**ARROW, **ends, **head)
        figure.add_annotation(
            x=(rank + whom) / 2, y=0.65 * side, text=plain(said["what"]), showarrow=False
        )
    title = f"Ranks {listed(list(map(str, cycle)))} wait for each other" if cycle else "No cycle"
    if rest := [str(rank) for rank in ranks if waits[rank] is not None and rank not in cycle]:
        title += f"; {listed(rest)} only wait{'s' * (len(rest) == 1)} for them" if cycle else ""
    bare = {"showgrid": False, "zeroline": False, "showticklabels": False}
    return finish(
        figure,
        title,
        "an arrow leads from a rank to the one it waits for",
        height=260,
        x={**bare, "range": [-0.4, len(ranks) - 0.6]},
        y={**bare, "range": [-1, 1]},
    )


# A ring


@checked_arguments
def run_ring(
    loop: Callable[[RingProcess], object],
    layers: _LayersOfStages,
    ms_per_layer: Callable[[int], float],
    sequences: Count = 12,
    rounds: Count = 12,
    *,
    pause: tuple[Natural, Natural, NotNegative] = (0, 0, 0.0),
    timeout: NotNegative = 2.0,
) -> DataFrame:
    """Let sequences circulate through stages, each a process, and measure when each of them is where.

    Parameters
    ----------
    loop : callable
        A function of a `RingProcess` that calls `take_one` or `take_all`, `serve` and `pass_on`, until it has taken
        an empty batch. Its source runs in every process.
    layers : sequence of int
        Of each stage, at least two.
    ms_per_layer : callable
        The milliseconds of a layer, by the number of sequences of a batch.
    sequences : int
        In all; in the beginning equally many wait in front of each stage, as one batch.
    rounds : int
        How often each sequence passes each stage.
    pause : (int, int, float)
        Which rank pauses, after how many batches, and for how many ms.
    timeout : float
        As of `run_stages`.

    Returns
    -------
    pandas.DataFrame
        A row for each pass of a sequence through a stage: `stage` (from 1 on), `sequence`, `start` and `end` (ms
        from the common start), and `batch`, how many sequences went through it together.

    Raises
    ------
    InvalidSchedule, InvalidValue, PipelabError
        As of `run_stages`.
    """
    import pandas as pd

    ranks, source = len(layers), source_of(loop)
    rings = []
    for rank, held in enumerate(layers):
        waiting = range(rank * sequences // ranks, (rank + 1) * sequences // ranks)
        seconds = [held * ms_per_layer(batch) / 1000 for batch in range(1, sequences + 1)]
        rest = pause[2] / 1000 if rank == pause[0] else 0.0
        ring = Circulating(
            waiting=list(waiting),
            passes=sequences * rounds,
            seconds=seconds,
            pause=(pause[1], rest),
        )
        rings.append(ring)
    jobs = [Job(rank, ranks, 0, source, {}, circulating=ring) for rank, ring in enumerate(rings)]
    longest = max(ring.seconds[-1] for ring in rings)
    reports, _ = run_jobs(jobs, timeout + pause[2] / 1000 + 3 * ranks * longest)
    rows = [
        (rank + 1, sequence, 1000 * start, 1000 * end)
        for rank, report in enumerate(reports)
        for _, sequence, start, end in report.actions
    ]
    passes = pd.DataFrame(rows, columns=["stage", "sequence", "start", "end"])
    passes["batch"] = passes.groupby(["stage", "start"])["sequence"].transform("size")
    return passes


def plot_ring(runs: Mapping[str, DataFrame], title: str, until: float) -> Figure:
    """Draw which stage is busy when, with the number of sequences of each batch.

    Parameters
    ----------
    runs : mapping of str to DataFrame
        As `run_ring` returns them, by the name of the loop.
    title : str
        What is to be seen.
    until : float
        Batches that have started by then, in ms, are drawn.

    Returns
    -------
    plotly.graph_objects.Figure
        A row for each stage of each run; where several batches went on as one, its colour is another.
    """
    rows = []
    for name, passes in runs.items():
        drawn = passes[passes["start"] < until]
        for stage, of in drawn.drop_duplicates(["stage", "start"]).groupby("stage"):
            blocks, now = list[Block](), 0.0
            for start, end, size in zip(of["start"], of["end"], of["batch"], strict=True):
                blocks.append(Block(start - now, EMPTY))
                blocks.append(Block(end - start, colour_of(size), str(size)))
                now = end
            rows.append(BlockRow(f"{name}, stage {stage}", blocks))
    return plot_rows(rows, title, "ms", "numbers are sequences in a batch")


# Exercises


def _waits(chance: Random) -> Given:
    """For every rank the one it waits for; None if it has ended."""
    n = chance.randint(1, 6)
    others = [[None, *(r for r in range(n) if r != rank)] for rank in range(n)]
    return Given(waits=[chance.choice(of) for of in others])


def _size(given: Given) -> tuple[int, list[int]]:
    return len(given.waits), [-1 if at is None else at for at in given.waits]


def _cycle(given: Given) -> list[int]:
    """Return the ranks that wait for each other in a cycle; of several cycles, that of the lowest rank."""
    for rank in range(len(given.waits)):
        seen, at = list[int](), rank
        while at is not None and at not in seen:
            seen.append(at)
            at = given.waits[at]
        if at is not None:
            return sorted(seen[seen.index(at) :])
    return []


def _off_cycle(given: Given, answer: Any) -> str:
    right = _cycle(given)
    return "" if answer == right else f"yours gives {answer}, expected {right}"


def _look_at_waits(given: Given) -> str:
    right = _cycle(given)
    if not right:
        return "nobody waits in a cycle here: every chain ends at a rank that has ended"
    if len(right) < sum(at is not None for at in given.waits):
        return "some ranks wait for the cycle and are not in it"
    return "follow the chain from a rank until one comes again: from there on it is the cycle"


def _forgets_the_tail(given: Given, answer: Any) -> bool:
    """Whether the cycle is among what is named, together with ranks that only wait for it."""
    right = _cycle(given)
    return bool(right) and set(right) < set(answer)


_COSTS = StageCosts(10, 10, 10, unit="ms")


def _sizes(hidden: int = 0) -> tuple[Given, ...]:
    """Return the pipelines that a loop has to run: one with fewer microbatches than ranks among them."""
    shown, chance = [Given(ranks=4, microbatches=8), Given(ranks=4, microbatches=2)], Random(hidden)
    for _ in range(2 if hidden else 0):
        shown.append(Given(ranks=chance.randint(2, 5), microbatches=chance.randint(3, 10)))
    return tuple(shown)


def _ran(loop: Callable[[StageProcess], object], given: Given) -> Any:
    """Run a loop in processes; the order that was run, or an error.

    Its time does not count: on a busy machine a right loop may take longer than simulated.
    """
    try:
        run = run_stages(loop, _COSTS, given.microbatches, given.ranks, timeout=1.0)
    except PipelabError as error:
        return str(error)
    return [list(map(str, row)) for row in run.measured.schedule.actions]


def _off_1f1b(given: Given, answer: Any) -> str:
    """Say what is wrong with a run: memory first, then the first other action."""
    if isinstance(answer, str):
        return f"yours fails: {answer}. Hint: {_hint_of(answer)}"
    right = schedule("1F1B", given.ranks, given.microbatches)
    return _wrong_order(Schedule.of("yours", answer), right)


def _is_gpipe(given: Given, answer: Any) -> bool:
    gpipe = schedule("GPipe", given.ranks, given.microbatches)
    return answer == [list(map(str, row)) for row in gpipe.actions]


def _wrong_order(order: Schedule, right: Schedule) -> str:
    held, most = (simulate(of, _COSTS).peak_in_flight for of in (order, right))
    if order == schedule("GPipe", right.ranks, right.microbatches) != right:
        hint = "that is GPipe; 1F1B runs a backward as soon as it can"
        return f"the last rank holds {min(held)} microbatches. Hint: {hint}"
    for rank, (yours, allowed) in enumerate(zip(held, most, strict=True)):
        if yours != allowed:
            return (
                f"rank {rank} holds {yours} microbatches, and 1F1B {allowed}. Hint: how many "
                "forwards run before the first backward?"
            )
    for rank, rows in enumerate(zip(order.actions, right.actions, strict=True)):
        for did, wanted in zip(*rows, strict=False):
            if did != wanted:
                return (
                    f"rank {rank} runs {did.kind}{did.microbatch} where 1F1B runs "
                    f"{wanted.kind}{wanted.microbatch}. Hint: after the first forwards, one forward and "
                    "one backward in turn, then the other backwards"
                )
    return ""


def _hint_of(said: str) -> str:
    """Return what to look at for a loop that hangs, fails or leaves actions out."""
    for part, hint in _HINTS.items():
        if part in said:
            return hint
    return "run your loop with course.run_stages, and read what every rank waits for"


_NOT_YOURS = "this is not the fault of your loop; check again"
_HINTS: Mapping[str, str] = {
    "before recv": "a rank receives what an action needs before it computes it",
    "is computed before": "a microbatch goes forward before it goes backward",
    "before it is computed": "compute first, then send",
    "a second time": "every rank computes every action once and sends its result once",
    "there is no action": "microbatches count from 0 to stage.microbatches - 1",
    "have not started": _NOT_YOURS,
    "NameError": "your loop has to contain whatever it uses: its source runs in other processes",
    "has ended": "one rank has ended and others still wait: did it send every result, and run every microbatch?",
    "this program hangs": "which result does a rank wait for, and what would its maker have to do first?",
    "no action": "every rank runs a forward and a backward of every microbatch",
    "missing": "every rank runs a forward and a backward of every microbatch",
}


EXERCISES: dict[str, Exercise] = {
    "15.1": Function(
        signature="cycle(waits)",
        inputs=drawn(151, 200, _waits, _size),
        off=_off_cycle,
        hint=_look_at_waits,
        half=_forgets_the_tail,
    ),
    "15.2": Function(
        signature="my_1f1b(stage)",
        inputs=_sizes,
        off=_off_1f1b,
        call=_ran,
        half=_is_gpipe,
        advice=tuple(hint for hint in dict.fromkeys(_HINTS.values()) if hint != _NOT_YOURS),
    ),
}
