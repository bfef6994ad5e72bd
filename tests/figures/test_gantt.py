"""The Gantt chart draws the timeline's numbers, stays small for large schedules and explains every gap."""

from itertools import pairwise

import numpy as np
import pytest

import pipelab as pl
from pipelab.figures.gantt_traces import busiest_kind
from pipelab.figures.gantts import MOST_BARS, plot_timelines
from pipelab.io.chrome_traces import chrome_trace

COSTS = pl.StageCosts(1, 1, 1, unit="ms")


def timeline(name="1F1B", ranks=4, microbatches=8, costs=COSTS):
    schedule = pl.schedule(name, ranks, microbatches)
    return pl.simulate(schedule, costs.cut_for(schedule))


def trace(figure, name):
    (found,) = [t for t in figure.data if t.name == name]
    return found


def bars(figure, *names):
    """Lane, start and end of every bar of these traces, of all without a name."""
    traces = [t for t in figure.data if not names or t.name in names]
    return {
        (float(y), float(b), float(b + x))
        for t in traces
        for y, b, x in zip(t.y, t.base, t.x, strict=True)
    }


@pytest.mark.parametrize("name", ["1F1B", "ZBH2", "Interleaved1F1B", "ZBV"])
def test_bars_are_the_timelines_actions_and_gaps_fill_the_rest_of_every_lane(name):
    found = timeline(name, costs=pl.StageCosts(1, 2, 1, comm=0.3))
    figure = pl.gantt(found)
    actions = zip(found.columns.rank, found.start, found.end, strict=True)
    assert bars(figure, "forward", "backward", "input gradient", "weight gradient") == {
        tuple(map(float, action)) for action in actions
    }
    for rank in range(4):
        lane = sorted(bar[1:] for bar in bars(figure) if bar[0] == rank)
        assert lane[0][0] == 0
        assert all(a[1] == pytest.approx(b[0]) for a, b in pairwise(lane))
        assert lane[-1][1] == pytest.approx(found.makespan)


def message_lines(found, **options):
    """From, to, and the two ranks."""
    lines = trace(pl.gantt(found, transfers=True, **options), "message")
    x, y = (np.array(values).reshape(-1, 3)[:, :2] for values in (lines.x, lines.y))
    return {tuple(row) for row in np.concatenate([x, y], axis=1).tolist()}


@pytest.mark.parametrize("name", ["GPipe", "Inference"])
def test_a_trace_has_the_same_messages_as_the_figure(name):
    found = pl.simulate(pl.schedule(name, 3, 1), pl.StageCosts(1, 1, 1, comm=0.5))
    lines, arrows = message_lines(found), {}
    assert (1, 1.5, 0, 1) in lines
    for event in chrome_trace(found)["traceEvents"]:
        if event["ph"] in "sf":
            arrows.setdefault(event["id"], []).append((event["ts"], event["tid"]))
    assert {(t0, t1, r0, r1) for (t0, r0), (t1, r1) in arrows.values()} == lines
    assert message_lines(found, window=(1.25, 2)) == {(1, 1.5, 0, 1)}
    # to an action that takes no time, too
    none = timeline("Inference", 2, 1, pl.StageCosts([1, 0], comm=0.5))
    assert message_lines(none) == {(1, 1.5, 0, 1)}


def test_what_is_marked_is_the_timelines():
    found = timeline("ZBH2", costs=pl.StageCosts(1, 1, 1, weight_activation=0))
    figure = pl.gantt(found, memory=True, critical_path=True)
    path = trace(figure, "critical path").x
    assert (path[0], path[-1]) == (0, found.makespan)
    lines = [t for t in figure.data if t.name and t.name.startswith("memory")]
    assert [max(t.y) for t in lines] == list(found.peak_memory) == [7, 5, 3, 1]
    with pytest.raises(pl.errors.InvalidValue, match="weight_activation = None: ZBH2 splits its"):
        pl.gantt(timeline("ZBH2"), memory=True)
    many = pl.gantt(timeline("1F1B", 12, 12), memory=True).data
    assert [t.name for t in many if t.name.startswith("memory")] == [
        "memory of rank 0",
        "memory of rank 11",
    ]


def test_a_large_schedule_becomes_a_raster_and_a_window_of_it_bars_again():
    found = timeline("ZBH1", 16, 256)
    (raster,) = pl.gantt(found).data
    assert (raster.type, raster.z.shape) == ("heatmap", (16, 1800))
    assert len(found.columns) > MOST_BARS
    assert len(pl.gantt(found).to_json()) < 200_000
    figure = pl.gantt(timeline(ranks=2, microbatches=2), window=(4.5, 6.5))
    assert bars(figure, "forward", "backward") == {
        (1, 4, 5),
        (0, 4, 6),
        (1, 5, 7),
    }  # what touches it
    assert tuple(figure.layout.xaxis.range) == (4.5, 6.5)


@pytest.mark.parametrize("name", ["1F1B", "ZBH1", "Interleaved1F1B"])
def test_the_raster_shows_what_takes_most_of_each_column(name):
    """Against counting at many moments of every column."""
    found = timeline(name, 3, 6, pl.StageCosts(1, 2, 1, comm=0.25))
    columns, fine = 37, 400
    got = busiest_kind(found, 0, found.makespan, columns)
    place = {0: 1, 2: 2, 1: 3, 3: 4}  # codes of F, B, I, W → rows of the raster
    moments = (np.arange(columns * fine) + 0.5) * found.makespan / (columns * fine)
    for rank in range(3):
        doing = np.zeros(len(moments), dtype=int)
        for i in np.flatnonzero(found.columns.rank == rank):
            now = (moments >= found.start[i]) & (moments < found.end[i])
            doing[now] = place[int(found.columns.kind[i])]
        counts = np.stack([(doing.reshape(columns, fine) == kind).sum(axis=1) for kind in range(6)])
        # ties may go either way
        clear = np.sort(counts, axis=0)[-1] - np.sort(counts, axis=0)[-2] > 4
        assert clear.sum() > columns / 2
        assert (got[rank] == counts.argmax(axis=0))[clear].all()


ONE = timeline()


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: pl.gantt(ONE, window=(7, 3)), r"window = .*expected .*within 0 and 33"),
        (lambda: pl.gantt(ONE, window=3), r"window = 3: expected \(from, to\)"),
        (lambda: pl.gantt(ONE, memory=1), "memory = 1: expected True or False"),
        (lambda: pl.gantt(ONE, finding=3), "finding = 3: expected text"),
        (lambda: pl.gantt(None), "timeline = None: expected a Timeline; make one with pl.sim"),
        (lambda: plot_timelines([]), "0 timelines.*expected 1 to 6"),
        (lambda: plot_timelines([ONE, ONE]), "'1F1B': two timelines have this name"),
    ],
)
def test_what_cannot_be_drawn_is_refused(draw, message):
    with pytest.raises(pl.errors.InvalidValue, match=message):
        draw()
