"""The Gantt chart draws the timeline's numbers, stays small for large schedules and explains every gap."""

from itertools import pairwise

import numpy as np
import pytest

import pipelab as pl
from pipelab.display import KIND_COLOURS
from pipelab.figures.gantt_traces import busiest_kind
from pipelab.figures.gantts import MOST_BARS, gantt_widget
from pipelab.io.chrome_traces import chrome_trace

COSTS = pl.StageCosts(1, 1, 1, unit="ms")


def timeline(name="1F1B", ranks=4, microbatches=8, costs=COSTS, **options):
    schedule = pl.schedule(name, ranks, microbatches)
    return pl.simulate(schedule, costs.split(schedule.chunks), **options)


def trace(figure, name):
    (found,) = [t for t in figure.data if t.name == name]
    return found


def bars(figure, name):
    """Lane, start and end of every bar of a trace."""
    t = trace(figure, name)
    return {(float(y), float(b), float(b + x)) for y, b, x in zip(t.y, t.base, t.x, strict=True)}


def test_every_action_is_a_bar_on_its_ranks_lane():
    figure = pl.gantt(timeline(ranks=2, microbatches=2))
    assert bars(figure, "forward") == {(0, 0, 1), (0, 1, 2), (1, 1, 2), (1, 4, 5)}
    assert bars(figure, "backward") == {(0, 4, 6), (0, 7, 9), (1, 2, 4), (1, 5, 7)}
    assert figure.layout.yaxis.ticktext == ("rank 0", "rank 1")
    assert figure.layout.yaxis.range[0] > figure.layout.yaxis.range[1]  # rank 0 on top
    assert figure.layout.xaxis.title.text == "time (ms)"


def test_idle_time_and_work_fill_every_lane():
    """The bars of one lane, gaps included, meet without overlap."""
    for name in ("1F1B", "ZBH2", "Interleaved1F1B", "ZBV"):
        found = timeline(name, costs=pl.StageCosts(1, 2, 1, comm=0.3))
        figure = pl.gantt(found)
        for rank in range(4):
            lane = sorted(b[1:] for t in figure.data for b in bars(figure, t.name) if b[0] == rank)
            assert lane[0][0] == 0
            assert all(a[1] == pytest.approx(b[0]) for a, b in pairwise(lane))
            assert lane[-1][1] == pytest.approx(found.makespan)


def test_hover_says_what_an_action_and_a_gap_waited_for():
    figure = pl.gantt(timeline(ranks=2, microbatches=2))
    backward = trace(figure, "backward")
    at = [tuple(row) for row in backward.customdata].index((0, 0, 0))  # stage, microbatch, rank
    assert backward.hovertext[at] == "waited for 1B0 on rank 1"
    forward = trace(figure, "forward")
    assert forward.hovertext[0] == "waited for nothing"
    assert forward.hovertext[1] == "its rank was busy with 0F0"
    assert all(
        part in forward.hovertemplate
        for part in ("stage", "microbatch", "rank", "%{base", "%{value", "ms")
    )
    idle = trace(figure, "idle")
    gaps = list(zip(idle.hovertext, idle.text, strict=True))
    assert ("rank 0 idle before 0B0", "waited for 1B0 on rank 1") in gaps
    assert ("rank 1 idle at the end", "nothing left to do") in gaps


def test_one_trace_and_one_colour_per_kind():
    names = {
        name: [t.name for t in pl.gantt(timeline(name)).data]
        for name in ("GPipe", "ZBH1", "DualPipeV")
    }
    assert names == {
        "GPipe": ["idle", "forward", "backward"],
        "ZBH1": ["idle", "forward", "input gradient", "weight gradient"],
        "DualPipeV": ["idle", "forward", "backward", "input gradient", "weight gradient"],
    }
    colours = [KIND_COLOURS[kind] for kind in ("F", "B", "I", "W", "message")]
    assert len(set(colours)) == 5
    # In grey print neighbours in a lane differ by brightness or by hatching.
    grey = {
        c: sum(w * int(c[i : i + 2], 16) for w, i in ((0.299, 1), (0.587, 3), (0.114, 5)))
        for c in colours
    }
    assert abs(grey[KIND_COLOURS["F"]] - grey[KIND_COLOURS["I"]]) > 40
    assert trace(pl.gantt(timeline("ZBH1")), "weight gradient").marker.pattern.shape == "/"
    assert trace(pl.gantt(timeline("ZBH1", 8, 64)), "weight gradient").marker.pattern.shape is None


def test_later_chunks_are_lighter():
    marker = trace(pl.gantt(timeline("Interleaved1F1B")), "forward").marker
    assert set(marker.color) == {KIND_COLOURS["F"], "#BBE1F6"}


def test_a_pair_shares_its_lane():
    figure = pl.gantt(timeline("DualPipeV", 2, 4))
    halves = [
        {(b, x) for b, x, width in zip(t.base, t.x, t.width, strict=True) if width == 0.4}
        for t in (trace(figure, name) for name in ("forward", "backward"))
    ]
    assert halves[0] == halves[1] != set()
    idle = trace(figure, "idle")
    assert len(set(idle.hovertext)) == len(idle.hovertext)  # a gap before a pair is drawn once


def test_hover_names_the_half_of_a_pair_that_is_meant():
    rows = [row.split() for row in ("0F0 0F1 0B0 0B1", "1F0 (1F1;1B0)OVERLAP_F_B 1B1")]
    figure = pl.gantt(pl.simulate(pl.Schedule.of("pairs", rows), pl.StageCosts(1, 2, 1)))
    idle, backward = trace(figure, "idle"), trace(figure, "backward")
    gaps = dict(zip(idle.hovertext, idle.text, strict=True))
    assert gaps["rank 0 idle before 0B0"] == "waited for 1B0 on rank 1"
    assert "rank 1 idle before (1F1;1B0)OVERLAP_F_B" not in gaps  # there is no gap
    slow = pl.gantt(pl.simulate(pl.Schedule.of("pairs", rows), pl.StageCosts([2, 1], 2, 1)))
    gaps = dict(zip(trace(slow, "idle").hovertext, trace(slow, "idle").text, strict=True))
    assert gaps["rank 1 idle before (1F1;1B0)OVERLAP_F_B"] == "waited for 0F1 on rank 0"
    assert "its rank was busy with (1F1;1B0)OVERLAP_F_B" in backward.hovertext


def test_labels_are_microbatches_while_they_can_be_read():
    assert list(trace(pl.gantt(timeline(ranks=2, microbatches=2)), "forward").text) == [
        "0",
        "1",
        "0",
        "1",
    ]
    assert trace(pl.gantt(timeline(ranks=8, microbatches=64)), "forward").text is None


def test_messages_run_from_maker_to_user():
    found = timeline(ranks=2, microbatches=1, costs=pl.StageCosts(1, 1, 1, comm=0.5))
    assert message_lines(found) == {(1, 1.5, 0, 1), (4.5, 5, 1, 0)}


def message_lines(found, **options):
    """From, to, and the two ranks."""
    lines = trace(pl.gantt(found, transfers=True, **options), "message")
    x, y = (np.array(values).reshape(-1, 3)[:, :2] for values in (lines.x, lines.y))
    return {tuple(row) for row in np.concatenate([x, y], axis=1).tolist()}


@pytest.mark.parametrize("name", ["GPipe", "Inference"])
def test_a_trace_has_the_same_messages_as_the_figure(name):
    found = pl.simulate(pl.schedule(name, 3, 1), pl.StageCosts(1, 1, 1, comm=0.5))
    lines = message_lines(found)
    assert (1, 1.5, 0, 1) in lines
    arrows = {}
    for event in chrome_trace(found)["traceEvents"]:
        if event["ph"] in "sf":
            arrows.setdefault(event["id"], []).append((event["ts"], event["tid"]))
    assert {(t0, t1, r0, r1) for (t0, r0), (t1, r1) in arrows.values()} == lines
    assert message_lines(found, window=(1.25, 2)) == {(1, 1.5, 0, 1)}


def test_a_message_to_an_action_that_takes_no_time_is_drawn():
    found = timeline("Inference", 2, 1, pl.StageCosts([1, 0], comm=0.5))
    assert message_lines(found) == {(1, 1.5, 0, 1)}


def test_the_critical_path_ends_at_the_makespan():
    found = timeline()
    line = trace(pl.gantt(found, critical_path=True), "critical path")
    assert (line.x[0], line.x[-1]) == (0, found.makespan)


def test_one_microbatch_is_followed_down_and_back():
    figure = pl.gantt(timeline(ranks=3, microbatches=4), follow=2)
    assert list(trace(figure, "microbatch 2").y) == [0, 1, 2, 2, 1, 0]
    opacity = trace(figure, "forward").marker.opacity
    assert sorted(set(opacity)) == [0.25, 1.0]
    assert sum(np.array(opacity) == 1) == 3


def test_memory_stands_below_on_the_same_time_axis():
    found = timeline("ZBH2", costs=pl.StageCosts(1, 1, 1, weight_activation=0, unit="ms"))
    figure = pl.gantt(found, memory=True)
    with pytest.raises(
        pl.errors.InvalidValue, match="weight_activation = None: ZBH2 splits its backward"
    ):
        pl.gantt(timeline("ZBH2"), memory=True)
    lines = [t for t in figure.data if t.name and t.name.startswith("memory")]
    assert [max(t.y) for t in lines] == list(found.peak_memory) == [7, 5, 3, 1]
    assert all(t.yaxis == "y2" and t.xaxis is None for t in lines)
    assert figure.layout.xaxis.anchor == "y2"
    many = pl.gantt(timeline("1F1B", 12, 12), memory=True)
    assert [t.name for t in many.data if t.name.startswith("memory")] == [
        "memory of rank 0",
        "memory of rank 11",
    ]


def test_a_window_shows_the_bars_that_touch_it():
    figure = pl.gantt(timeline(ranks=2, microbatches=2), window=(4.5, 6.5))
    assert bars(figure, "forward") == {(1, 4, 5)}
    assert bars(figure, "backward") == {(0, 4, 6), (1, 5, 7)}
    assert tuple(figure.layout.xaxis.range) == (4.5, 6.5)


def test_a_large_schedule_becomes_a_raster_and_a_window_of_it_bars_again():
    found = timeline("ZBH1", 16, 256)
    assert len(found.columns) > MOST_BARS
    (raster,) = pl.gantt(found).data
    assert raster.type == "heatmap"
    assert raster.z.shape == (16, 1800)
    assert len(pl.gantt(found).to_json()) < 200_000
    assert pl.gantt(found, window=(100, 120)).data[0].type == "bar"
    assert pl.gantt(timeline(), overview=True).data[0].type == "heatmap"
    assert pl.gantt(found, overview=False).data[0].type == "bar"


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
            doing[(moments >= found.start[i]) & (moments < found.end[i])] = place[
                int(found.columns.kind[i])
            ]
        counts = np.stack([(doing.reshape(columns, fine) == kind).sum(axis=1) for kind in range(6)])
        # ties may go either way
        clear = np.sort(counts, axis=0)[-1] - np.sort(counts, axis=0)[-2] > 4
        assert clear.sum() > columns / 2
        assert (got[rank] == counts.argmax(axis=0))[clear].all()


@pytest.mark.slow
def test_titles_say_what_is_seen():
    title = pl.gantt(timeline()).layout.title.text
    assert title.startswith("1F1B: 27.3% of all ranks' time is idle")
    assert "makespan 33" in title
    assert pl.gantt(timeline(ranks=1)).layout.title.text.startswith("1F1B: no rank is idle")


def test_a_single_rank_is_one():
    alone = pl.simulate(pl.schedule("GPipe", 1, 1), pl.StageCosts(1, 1, 1))
    assert "<sup>1 rank, 1 microbatch; " in pl.gantt(alone).layout.title.text


def test_a_bad_window_or_microbatch_is_refused():
    for window in (
        (5, 5),
        (7, 3),
        (40, 50),
        3,
        ("a", "b"),
        "12",
        (1, 2, 3),
        (True, 5),
        (0, float("nan")),
    ):
        with pytest.raises(
            pl.errors.InvalidValue,
            match=r"gantt: window = .*: expected \(from, to\) with from < to, within 0 and 33",
        ):
            pl.gantt(timeline(), window=window)
    for follow in (-1, 8, 1.5, True, "a"):
        with pytest.raises(
            pl.errors.InvalidValue,
            match=r"gantt: follow = .*: expected (at most 7|at least 0|a whole number)",
        ):
            pl.gantt(timeline(), follow=follow)


@pytest.mark.parametrize("name", ["transfers", "memory", "critical_path", "overview"])
def test_options_that_are_neither_true_nor_false_are_refused(name):
    for value in ("x", 1, []):
        with pytest.raises(
            pl.errors.InvalidValue, match=rf"gantt: {name} = .*: expected True or False"
        ):
            pl.gantt(timeline(), **{name: value})


def test_what_is_no_timeline_is_not_drawn():
    for draw in (pl.gantt, gantt_widget):
        for value in (3, None, pl.schedule("1F1B", 2, 2)):
            with pytest.raises(
                pl.errors.InvalidValue,
                match=r"gantt: timeline = .*: expected a Timeline; make one with pl.sim",
            ):
                draw(value)
    for option in ("window", "overview"):
        with pytest.raises(
            pl.errors.InvalidValue, match=rf"gantt_widget: {option} = .*: not an option here"
        ):
            gantt_widget(timeline(), **{option: True})
    with pytest.raises(pl.errors.InvalidValue, match="gantt: finding = 3: expected text"):
        pl.gantt(timeline(), finding=3)


def test_costs_of_zero_and_small_numbers_of_numpy_are_drawn():
    assert pl.gantt(timeline(costs=pl.StageCosts(0, 0, 0))).layout.title.text.startswith(
        "1F1B: no rank is idle"
    )
    assert (
        pl.gantt(timeline(costs=pl.StageCosts(0, 0, 0)), overview=True, memory=True).data[0].type
        == "heatmap"
    )
    assert trace(pl.gantt(timeline(), follow=np.int8(2)), "microbatch 2").y[0] == 0


def test_the_widget_changes_to_bars_and_back_with_the_zoom():
    found = timeline("ZBH1", 16, 256)
    widget = gantt_widget(found)
    assert [t.type for t in widget.data] == ["heatmap"]
    widget.layout.xaxis.range = (100, 120)
    near = [t.type for t in widget.data]
    assert set(near) == {"bar"}
    assert {t.name for t in widget.data} == {"idle", "forward", "input gradient", "weight gradient"}
    widget.layout.xaxis.range = (-50, 2 * found.makespan)
    assert [t.type for t in widget.data] == ["heatmap"]
    widget.layout.xaxis.range = (2 * found.makespan, 3 * found.makespan)  # dragged beyond the end
    assert {t.type for t in widget.data} == {"bar"}
