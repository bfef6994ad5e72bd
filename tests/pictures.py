"""A hundred figures, and what is drawn in each: a digest of its layout and of every trace.

    python tests/pictures.py show            # an HTML page with all of them; what changed comes first
    python tests/pictures.py show gantt mix  # those with one of these words in their name
    python tests/pictures.py renew           # what is drawn now is right from now on: look at it first

Numbers are rounded to six digits, and the template of all figures is left out. Only figures that
follow from what they are given: a solver's choice among equals, and seconds, are none.
"""

import hashlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go

import pipelab as pl
from pipelab import course
from pipelab.candidates import list_allocations, list_connections
from pipelab.course.checks import EXERCISES
from pipelab.engine.solvers.solver_run import Progress
from pipelab.figures.placements import placement_parts
from pipelab.figures.progress import progress_parts
from pipelab.figures.theme import figure_of, finish
from pipelab.splits import split_even, split_proportional

DIGESTS = Path(__file__).parent / "data" / "pictures.json"


@cache
def tiny() -> pl.Problem:
    """The write-up's tiny case, two GPUs per stage."""
    return pl.load_case("tiny", link_units="tokens", max_gpus_per_stage=2)


@cache
def heavy() -> pl.Problem:
    """tiny with layers of which an A100 holds three and a V100 one."""
    return replace(tiny(), model=replace(tiny().model, layer_weight_gb=25))


@cache
def rented() -> pl.Problem:
    """GPUs that have a price, on the roofline."""
    names = {"A100-SXM-80": 2, "L4": 2}
    facts = pl.hardware.load_gpus()
    memory = {name: facts[name].memory_gb for name in names}
    price = {name: facts[name].usd_per_hour for name in names}
    cluster = pl.Cluster.from_counts(names, memory, 12.5, price)
    model = pl.load_model("Llama-3-8B")
    return pl.Problem(cluster, model, pl.Workload(512, 8, "decode"), pl.Roofline())


@cache
def placed(in_flight: int | None = None) -> Any:
    """A pipeline of five GPUs, in time."""
    plan = pl.Placement.of([(9, (0,)), (9, (1,)), (6, (2,)), (8, (3, 4))])
    cluster = rented().cluster.with_counts({"A100-SXM-80": 2, "L4": 3})
    problem = replace(rented(), cluster=cluster, max_gpus_per_stage=2)
    return pl.timeline_of(problem, plan, in_flight=in_flight)


@cache
def served() -> Any:
    """Requests at random to four stages."""
    run = placed()
    return pl.serve(run.problem, run.placement, 60, rate=30, prompt=("uniform", 100, 500), answer=9)


@cache
def step() -> Any:
    """A step of training on four GPUs."""
    cluster = pl.Cluster.from_counts({"A100-SXM-80": 4}, {"A100-SXM-80": 80}, 25)
    model, load = pl.load_model("Llama-2-7B"), pl.Workload(2048, 1)
    problem = pl.Problem(cluster, model, load, pl.Roofline())
    plan = pl.Placement.of([(8, (i,)) for i in range(4)])
    return pl.timeline_of(problem, plan, training=True)


def run(
    name: str, ranks: int = 4, microbatches: int = 8, chunks: int | None = None, **costs: Any
) -> Any:
    """A schedule by its name, in time; each part of a microbatch takes 1."""
    schedule = pl.schedule(name, ranks, microbatches, chunks)
    return pl.simulate(schedule, pl.StageCosts(**{**dict.fromkeys(PARTS, 1), **costs}))


PARTS = ("forward", "backward_input", "backward_weight")


def _weights(layers: int) -> list[int]:
    return [2 + (i * 7) % 5 for i in range(layers)]


def _sweep() -> Any:
    def problem(A100: int, V100: int) -> pl.Problem:
        return replace(tiny(), cluster=tiny().cluster.with_counts({"A100": A100, "V100": V100}))

    return pl.sweep(problem, pl.grid(A100=(0, 1, 2), V100=(1, 2)), jobs=1, progress=False)


def _tree() -> list[dict[str, Any]]:
    rows = [
        (None, "", 400.0, 0.0, "branched"),
        (0, "stage 1: yes", 380.0, 0.0, "branched"),
        (0, "stage 1: no", 320.0, 300.0, "placement"),
        (1, "stage 2: yes", 290.0, 300.0, "cut off"),
        (1, "stage 2: no", 0.0, 300.0, "infeasible"),
    ]
    return [
        dict(zip(("parent", "choice", "bound", "best", "fate"), row, strict=True)) for row in rows
    ]


def _choice(*chosen: tuple[range, tuple[int, ...]], claim: float, linked: bool = False) -> Any:
    """What a program of notebook 05 chose, be it a placement or not."""
    problem = course.seven_gpus()
    candidates = list_allocations(problem)
    z = [(a.layers, a.gpus) in chosen for a in candidates]
    if not linked:
        return course.plot_choice(problem, candidates, z, claim)
    connections = list_connections(problem, candidates)
    e = [candidates[c.sender].gpus == chosen[0][1] for c in connections]
    return course.plot_choice(problem, candidates, z, claim, connections, e)


def rings(*links: tuple[int, ...]) -> list[tuple[int, int]]:
    return [pair for path in links for pair in pairwise(path)]


_STAGES = [(0,), (0,), (0,), (1, 1), (1, 1), (2, 2), (2, 2)]
HELD = [19, 19, 19, 4, 4, 4, 4, 2, 2, 2, 1]
CUT = [(10, (3,)), (20, (0,)), (20, (1,)), (20, (2,)), (10, (4,))]
PICTURES: dict[str, Callable[[], Any]] = {
    # placements, clusters and searches
    "problem": lambda: pl.plot(tiny()),
    "placement": lambda: pl.plot(tiny(), pl.Placement.of([(3, (0, 1)), (1, (2,))])),
    "empty where nothing fits": lambda: figure_of(placement_parts(tiny(), None, "no placement")),
    "narrow blocks": lambda: pl.plot(
        replace(pl.load_case("medium"), cluster=pl.Cluster.from_counts({"A100": 17}, 800, 400)),
        pl.Placement.of([(n, (i,)) for i, n in enumerate([60, 6, *[1] * 14])]),
    ),
    "a plan that does not fit": lambda: figure_of(
        placement_parts(heavy(), pl.Placement.of([(1, (0,)), (3, (2,))]), "mine", fits=False)
    ),
    "slow link": lambda: pl.plot(
        replace(tiny(), cluster=tiny().cluster.scaled_bandwidth(0.001)),
        pl.Placement.of([(2, (0,)), (2, (1,))]),
    ),
    "large cluster": lambda: pl.plot(
        pl.load_case("medium"), pl.Placement.of([(8, (0,)), *[(9, (25 + i,)) for i in range(8)]])
    ),
    "classes": lambda: pl.plot(course.three_sites().cluster),
    "classes of types": lambda: pl.plot(pl.load_case("medium").cluster),
    "progress": lambda: figure_of(
        progress_parts(
            [
                Progress(seconds=0.1, incumbent=None, bound=90.0, nodes=1),
                Progress(seconds=0.3, incumbent=60.0, bound=80.0, nodes=7),
            ],
            0.5,
            "now",
        )
    ),
    # deployments, trade-offs and sweeps
    "deployment": lambda: pl.plot(pl.deploy(rented())),
    "trade-off of dollars": lambda: pl.plot(
        replace(pl.trade_off(rented(), "usd_per_hour"), seconds=1.0)
    ),
    "trade-off of seconds": lambda: pl.plot(
        replace(pl.trade_off(rented(), "seconds_per_pass"), seconds=1.0)
    ),
    "sweep": lambda: pl.plot(_sweep()),
    # schedules
    "gantt of 1F1B": lambda: pl.plot(run("1F1B")),
    "gantt with memory": lambda: pl.plot(run("GPipe"), memory=True, finding="a finding"),
    "gantt with a critical path": lambda: pl.plot(run("1F1B", comm=0.5), critical_path=True),
    "gantt with messages": lambda: pl.plot(run("1F1B", comm=0.5), transfers=True),
    "gantt of numbers without room": lambda: pl.plot(run("1F1B", 4, 14)),
    "gantt of chunks": lambda: pl.plot(run("Interleaved1F1B", chunks=2)),
    "gantt of ZBV": lambda: pl.plot(run("ZBV"), window=(3, 11)),
    "gantt of pairs": lambda: pl.plot(run("DualPipeV")),
    "gantt of a large one": lambda: pl.plot(run("ZBH1", 32, 64), critical_path=True),
    "gantts": lambda: pl.plot({name: run(name) for name in ("GPipe", "1F1B", "ZBH2")}),
    "makespans": lambda: course.plot_lines(
        [0, 1], {"GPipe": [33, 39], "1F1B": [33, 49], "bound": [33, 39]}, "", ("comm", "makespan")
    ),
    # placements in time
    "placed": lambda: pl.plot(placed()),
    "placed, one in flight": lambda: pl.plot(placed(1)),
    "in flight": lambda: pl.plot(placed(), kind="in_flight"),
    "stage groups": lambda: course.plot_stage_groups(placed()),
    "training": lambda: pl.plot(step()),
    "memory of training": lambda: course.plot_training_memory(step()),
    # requests
    "percentiles": lambda: pl.plot(served()),
    "requests": lambda: pl.plot(served(), kind="requests"),
    "way of a request": lambda: pl.plot(served(), kind="way"),
    # hardware
    "against measured": lambda: pl.plot(pl.hardware.against_measured()),
    "layer times": lambda: course.plot_layer_times(
        pl.Roofline(),
        pl.load_model("Llama-3-8B"),
        {t: (pl.GPU(t, 80), [pl.Workload(n, 1) for n in (1, 64, 4096)]) for t in ("L4", "T4")},
    ),
    "roofline": lambda: course.plot_roofline(
        pl.Roofline(),
        pl.load_model("Llama-3-8B"),
        ["A100-SXM-80", "L4"],
        {"prefill": pl.Workload(1024, 1), "decode": pl.Workload(1024, 8, "decode")},
    ),
    # the course's own
    "cut": lambda: course.plot_cut(course.three_sites(), pl.Placement.of(CUT)),
    "cut at a link": lambda: course.plot_cut(
        course.three_sites(), pl.Placement.of([*CUT[1:4], (10, (3,)), (8, (4,)), (2, (7,))])
    ),
    "cut that does not fit": lambda: course.plot_cut(
        course.three_sites(), pl.Placement.of([*[(7, (g,)) for g in range(10)], (10, (10,))])
    ),
    "moving": lambda: course.plot_moving(course.three_sites(), pl.Placement.of(CUT)),
    "splits": lambda: course.plot_splits(
        course.three_sites(),
        {"even": split_even(80, 11), "proportional": split_proportional(80, _weights(11))},
    ),
    "splits of which none fits": lambda: course.plot_splits(
        course.three_sites(), {"<i>": (*split_even(70, 10), range(70, 80))}
    ),
    "rates": lambda: course.plot_rates([0, 100, 200, 200, 400], {"even": 200, "odd": 0}),
    "staircase": lambda: course.plot_staircase(
        course.three_sites(), lambda gpu, rate: int(40000 / rate), 6000
    ),
    "split table": lambda: course.plot_split_table(
        np.array([[0, np.inf, np.inf], [np.inf, 3, 5], [np.inf, np.inf, 4]]),
        np.array([[0, 0, 0], [0, 0, 0], [0, 0, 1]]),
        ["a", "b"],
    ),
    "half a split table": lambda: course.plot_split_table(
        np.array([[0, np.inf, np.inf], [np.inf, 3, np.inf], [np.inf, np.inf, 4]]),
        np.array([[0, 0, 0], [0, 0, 0], [0, 0, 1]]),
        ["a", "b"],
        1,
    ),
    "a split table without its last row": lambda: course.plot_split_table(
        np.array([[0, np.inf, np.inf], [np.inf, 3, 5], [np.inf, np.inf, 4], [np.inf] * 3]),
        np.array([[0, 0, 0], [0, 0, 0], [0, 0, 1], [0, 0, 0]]),
        ["a", "b", "c"],
        2,
    ),
    "answer": lambda: course.plot_answer(course.three_sites(), 0, [0] * 11, []),
    "answer with rings": lambda: course.plot_answer(
        course.three_sites(), 342, HELD, rings((3, 4, 5, 6, 0, 1, 2), (7, 8, 7), (9, 10, 9))
    ),
    "choice of a GPU twice": lambda: _choice((range(1), (0,)), (range(1, 2), (0,)), claim=6400),
    "choice of GPUs apart": lambda: _choice((range(1), (3, 4, 6)), claim=100),
    "choice with a link": lambda: _choice((range(1), (0,)), claim=1, linked=True),
    "tree": lambda: course.plot_tree(_tree()),
    "prices": lambda: course.plot_prices(
        course.three_sites(), {6321.0: [19, 4, 2], 6340.6: [19, 3.5, 2]}, 6321
    ),
    "lines": lambda: course.plot_lines(
        [1, 2], {"a": [1, 4]}, "a grows by more than twice", ("n", "s"), (2, 4)
    ),
    "lines with ranges": lambda: course.plot_lines(
        [0, 20], {"a": [1, 4]}, "a grows", ("n", "s"), ranges={"a": [(0.5, 3), (4, 4)]}
    ),
    "a long title": lambda: figure_of(finish([], ", ".join(["what is to be seen"] * 8), "a note")),
    # explorers
    "mix explorer": lambda: pl.explore_mix("tiny", gpus_per_stage=2).chart.figure,
    "pipeline explorer": lambda: pl.explore_pipeline("tiny").gantt.figure,
    "schedule explorer": lambda: pl.explore_schedules("1F1B", other="ZBH1").chart.figure,
}


def _wrong_answer(name: str) -> Any:
    """Draw an exercise's input with its right answer, as below one that raises."""
    exercise = EXERCISES[name]
    inputs = exercise.inputs()
    failure = exercise.smallest_failure(lambda *given: 1 / 0)
    return exercise.picture(failure._replace(given=inputs[len(inputs) // 3]))


SOLVED = ("03.1", "05.2")  # by a solver, which chooses among equals
DRAWN = [name for name, one in EXERCISES.items() if getattr(one, "picture", None)]
PICTURES |= {
    f"exercise {name}": partial(_wrong_answer, name) for name in DRAWN if name not in SOLVED
}


def rounded(value: Any) -> Any:
    """What JSON can hold, without noise."""
    if isinstance(value, np.ndarray):
        return rounded(value.tolist())
    if isinstance(value, Mapping):
        return {key: rounded(one) for key, one in value.items() if key not in ("template", "uid")}
    if isinstance(value, list | tuple):
        return [rounded(one) for one in value]
    if isinstance(value, np.generic):
        return rounded(value.item())
    if isinstance(value, float):
        # a little more than it is: what lies in the middle of two goes up, with noise or without
        return float(f"{value * (1 + 3e-10):.6g}")
    return value if isinstance(value, str | int | bool | None) else str(value)


def digest(part: Any) -> str:
    """Tell whether a part of a figure is as it was."""
    text = json.dumps(rounded(part), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def digests(figure: Any) -> dict[str, str]:
    """Of the layout and of every trace."""
    drawn = figure.to_plotly_json()
    traces = {f"trace {i}": digest(trace) for i, trace in enumerate(drawn["data"])}
    return {"layout": digest(drawn["layout"]), **traces}


def known() -> dict[str, dict[str, str]]:
    """What was right when it was last renewed."""
    return json.loads(DIGESTS.read_text(encoding="utf-8")) if DIGESTS.exists() else {}


def changed(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """The parts that are not as they were, came or went."""
    return [part for part in {**before, **now} if before.get(part) != now.get(part)]


def renew() -> None:
    """Write what is drawn now."""
    before, now = known(), {name: digests(make()) for name, make in PICTURES.items()}
    for name, parts in now.items():
        if different := changed(before.get(name, {}), parts):
            print(f"{name}: {', '.join(different)}")
    DIGESTS.write_text(json.dumps(now, indent=1) + "\n", encoding="utf-8")


def show(words: Iterable[str]) -> Path:
    """Write an HTML page of the figures with one of these words in their name; the changed ones first."""
    wanted, right = list(words) or [""], known()
    figures = {n: make() for n, make in PICTURES.items() if any(word in n for word in wanted)}
    off = {name: changed(right.get(name, {}), digests(figure)) for name, figure in figures.items()}
    parts = ["<!doctype html><meta charset='utf-8'><title>Pictures</title>"]
    for place, name in enumerate(sorted(figures, key=lambda name: not off[name])):
        said = f"changed: {', '.join(off[name])}" if off[name] else "as it was"
        parts.append(f"<h2>{name}</h2><p>{said}</p>")
        drawn = go.Figure(figures[name])
        parts.append(drawn.to_html(full_html=False, include_plotlyjs=place == 0))
    page = Path(tempfile.mkdtemp(prefix="pictures-")) / "pictures.html"
    page.write_text("\n".join(parts), encoding="utf-8")
    return page


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["renew"]:
            renew()
        case ["show", *names]:
            print(show(names))
        case _:
            sys.exit(__doc__)
