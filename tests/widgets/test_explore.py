"""Schedules side by side, the explorer's widget, and the contests that the simulator decides."""

import base64
import json
from dataclasses import replace

import numpy as np
import pytest

import pipelab as pl
from pipelab.course.reading_tables import show_table
from pipelab.engine.schedules import RULES
from pipelab.engine.schedules.columns import columns_of
from pipelab.figures.gantts import gantt_parts, plot_timelines
from pipelab.figures.html_charts import as_json
from pipelab.figures.makespans import plot_makespans
from pipelab.io.chrome_traces import chrome_trace
from pipelab.widgets.chart import LiveChart
from pipelab.widgets.schedule_explorer import (
    Measure,
    ScheduleValues,
    measures,
    measures_html,
    timeline_for,
)

ONES = pl.StageCosts(1, 1, 1)


def run(name, costs=ONES, ranks=4, microbatches=8):
    schedule = pl.schedule(name, ranks, microbatches)
    return pl.simulate(schedule, costs.cut_for(schedule))


def family(lead, delay, microbatches=8):
    """1F1B and ZB-H1 and what lies between: forwards ahead and weight gradients held back, for every rank."""
    rows = []
    for rank, (ahead, back) in enumerate(zip(lead, delay, strict=True)):
        waits = {"F": 0, "I": ahead, "W": ahead + back}
        slots = [
            (i - wait, kind)
            for i in range(microbatches + ahead + back)
            for kind, wait in waits.items()
        ]
        rows.append([f"{rank}{kind}{i}" for i, kind in slots if 0 <= i < microbatches])
    return pl.Schedule.of("mine", rows)


# costs of ranks


def test_a_ranks_work_is_cut_into_equal_chunks():
    costs = pl.StageCosts([1, 2], 3, [4, 5], comm=0.5, activation=2)
    assert costs.cut_for(pl.schedule("1F1B", 2, 2)) is costs
    loop = costs.cut_for(pl.schedule("Interleaved1F1B", 2, 4, 2))
    assert (loop.forward, loop.backward_input, loop.comm, loop.activation) == (
        (0.5, 1, 0.5, 1),
        1.5,
        0.5,
        1,
    )
    assert costs.cut_for(pl.schedule("ZBV", 2, 4)).forward == (0.5, 1, 1, 0.5)
    for name in ("Interleaved1F1B", "ZBV", "DualPipeV"):
        timeline = run(name, costs, 2, 4)
        assert timeline.busy.tolist() == pytest.approx([4 * (1 + 3 + 4), 4 * (2 + 3 + 5)])


UNEVEN = {
    "two and one": ([["0F0", "2F0", "2B0", "0B0"], ["1F0", "1B0"]], (0, 1, 0)),
    "one idle rank": ([["0F0", "0B0"], [], ["1F0", "1B0"]], (0, 2)),
    "only idle ranks but one": ([[], ["0F0", "1F0", "1B0", "0B0"], []], (1, 1)),
    "in another order": ([["1F0", "1B0"], ["0F0", "0B0"]], (1, 0)),
    "three ranks of two stages": ([["0F0", "0B0"], ["1F0", "1B0"], []], (0, 1)),
}


@pytest.mark.parametrize(("rows", "stage_rank"), UNEVEN.values(), ids=UNEVEN)
def test_a_ranks_work_is_cut_by_the_stages_that_it_holds(rows, stage_rank):
    """However stages are spread: a rank that holds any does its whole work, one that holds none does nothing."""
    order = pl.Schedule.of("spread", rows, stage_rank=stage_rank)
    whole = [float(3 + rank) for rank in range(order.ranks)]
    for costs, each in (
        (pl.StageCosts(whole, 0, 0), whole),
        (pl.StageCosts(6, 0, 0), [6.0] * order.ranks),
    ):
        timeline = pl.simulate(order, costs.cut_for(order))
        assert timeline.busy.tolist() == [
            work if rank in stage_rank else 0 for rank, work in enumerate(each)
        ]
        assert timeline.idle.total.tolist() == (timeline.makespan - timeline.busy).tolist()
        figure = pl.gantt(timeline, transfers=True, memory=True, critical_path=True, follow=0)
        assert len(next(t for t in figure.data if t.name == "forward").y) == order.stages
        assert pl.gantt(timeline, overview=True).data[0].z.shape[0] == order.ranks
        assert len(chrome_trace(timeline)["traceEvents"]) > order.ranks
    assert columns_of(order).chunk.tolist() == [
        stage_rank[:s].count(rank) for s, rank in enumerate(stage_rank)
    ]
    assert order.chunks == max(map(stage_rank.count, stage_rank))


def test_costs_are_not_cut_for_what_cannot_be_run():
    for rows, stage_rank in (([["0F0", "0B0"]], [5]), ([["0F0"], ["1F0", "1B0"]], None)):
        with pytest.raises(pl.errors.InvalidSchedule, match="cannot be run"):
            pl.StageCosts(1, 1, 1).cut_for(pl.Schedule.of("broken", rows, stage_rank=stage_rank))


def test_costs_that_cannot_be_cut_are_refused():
    loop = pl.schedule("Interleaved1F1B", 2, 4, 2)
    with pytest.raises(
        pl.errors.InvalidValue, match=r"comm = .*: expected one number for all links"
    ):
        pl.StageCosts(1, 1, 1, comm=[1]).cut_for(loop)
    with pytest.raises(
        pl.errors.InvalidValue, match="expected one number, or 2 for 2 ranks; got 3"
    ):
        pl.StageCosts([1, 2, 3], 1, 1).cut_for(loop)


# charts


def test_charts_below_each_other_share_the_time_axis_and_the_legend():
    two = [run("1F1B"), run("ZBH1")]
    figure = plot_timelines(two)
    single = [pl.gantt(t) for t in two]
    assert len(figure.data) == sum(len(f.data) for f in single)
    assert [t.name for t in figure.data if t.showlegend] == [
        "idle", "forward", "backward", "input gradient", "weight gradient",
    ]  # fmt: skip
    assert {t.yaxis for t in figure.data} == {"y", "y2"}
    assert tuple(figure.layout.xaxis.range) == (0, 33)
    assert figure.layout.yaxis.domain[0] > figure.layout.yaxis2.domain[1]  # the first on top
    assert figure.layout.xaxis.anchor == "y2"
    captions = [note.text for note in figure.layout.annotations]
    assert (
        captions[1]
        == "<b>ZBH1</b>: makespan 27, longest span 27, 11.1% idle, at most 4, 3, 2, 1 in flight"
    )
    known = run("ZBH1", pl.StageCosts(1, 1, 1, weight_activation=32 / 34))
    captions = [note.text for note in plot_timelines([run("1F1B"), known]).layout.annotations]
    assert captions[0].endswith("at most 4, 3, 2, 1 held")
    assert captions[1].endswith("at most 4, 3.941, 3.882, 3.824 held")


def test_the_title_says_who_ends_first():
    assert (
        plot_timelines([run("GPipe"), run("1F1B")]).layout.title.text == "GPipe and 1F1B end at 33"
    )
    assert plot_timelines([run("GPipe")]).layout.title.text == "GPipe ends at 33"
    slow = {
        f"rank {r}": run("1F1B", pl.StageCosts(*3 * [[1 + (i == r) for i in range(4)]]))
        for r in (0, 3)
    }
    assert plot_timelines(slow).layout.title.text == "rank 0 ends at 51, 11% before rank 3"
    assert plot_timelines(slow, finding="seen").layout.title.text == "seen"
    with pytest.raises(pl.errors.InvalidValue, match=r"0 timelines.*expected 1 to 6"):
        plot_timelines([])
    for wrong in (3, [3], {"a": 3}, "ab"):
        with pytest.raises(
            pl.errors.InvalidValue,
            match=r"plot_timelines: timelines = .*: expected Timelines, or a mapping",
        ):
            plot_timelines(wrong)
    with pytest.raises(
        pl.errors.InvalidValue,
        match=r"'1F1B': two timelines have this name; expected a mapping of label",
    ):
        plot_timelines([run("1F1B"), run("1F1B", microbatches=4)])
    with pytest.raises(pl.errors.InvalidValue, match="plot_timelines: finding = 3: expected text"):
        plot_timelines([run("1F1B")], finding=3)
    with pytest.raises(
        pl.errors.InvalidValue, match=r"memory = True: expected transfers, critical_path or follow"
    ):
        plot_timelines([run("1F1B")], memory=True)


def test_lines_that_others_cover_are_wider_and_the_legend_follows_the_right_end():
    figure = plot_makespans(
        [0, 1], {"a": [1, 3], "b": [2, 4], "c": [1, 3], "lower bound": [1, 1]}, "x"
    )
    assert [t.name for t in figure.data] == ["b", "a", "c", "lower bound"]
    widths = {t.name: t.line.width for t in figure.data}
    assert widths["a"] > widths["b"] == widths["c"]
    assert (
        len({t.line.color for t in figure.data[:3]})
        == len({t.marker.symbol for t in figure.data[:3]})
        == 3
    )
    assert (
        figure.layout.title.text
        == "x 0: a and c are fastest; x 1: a and c are, and b takes 1.33 times as long"
    )
    with pytest.raises(
        pl.errors.InvalidValue, match=r"10 of them.*expected 1 to 9 lines that are no bound"
    ):
        plot_makespans([0], {str(i): [1] for i in range(10)}, "x")
    with pytest.raises(
        pl.errors.InvalidValue,
        match=r"makespans\['a'\] = \[1\]: expected one number for each of 2 values",
    ):
        plot_makespans([0, 1], {"a": [1]}, "x")
    for values, makespans, axis, finding in (
        (3, {"a": [1]}, "x", None), ([0], 3, "x", None), ([0], {"a": 1}, "x", None), ([0], {"a": ["1"]}, "x", None),
        ([0], {"a": [-1]}, "x", None),
        ([0], {"a": [float("nan")]}, "x", None), ([0], {"a": [1]}, 3, None), ([0], {"a": [1]}, "x", 3),
    ):  # fmt: skip
        with pytest.raises(
            pl.errors.InvalidValue,
            match=r"plot_makespans: (values|makespans.*|axis|finding) = .*: expected",
        ):
            plot_makespans(values, makespans, axis, finding=finding)
    # where all costs are 0
    still = plot_makespans([0], {"a": [0], "b": [2]}, "x").layout.title.text
    assert still == "x 0: a is fastest; x 0: a is, and b takes 2"
    with pytest.raises(pl.errors.InvalidValue, match="1 to 9 lines that are no bound"):
        plot_makespans([0], {"lower bound": [1]}, "x")


def test_a_schedule_keeps_its_colour_from_chart_to_chart():
    """In whatever order and company; other names take what is left."""

    def looks(*names):
        lines = plot_makespans([0, 1], {name: [1, n + 1] for n, name in enumerate(names)}, "x").data
        return {line.name: (line.line.color, line.marker.symbol) for line in lines}

    one, two = looks("GPipe", "1F1B", "ZBV"), looks("mine", "ZBV", "<b>", "1F1B")
    assert one["1F1B"] == two["1F1B"]
    assert one["ZBV"] == two["ZBV"]
    assert len({*one.values(), *two.values()}) == 5 - (one["GPipe"] in two.values())


def test_a_gantt_chart_can_be_given_its_finding():
    title = pl.gantt(run("1F1B", microbatches=1), finding="nothing overlaps").layout.title.text
    assert title.startswith("nothing overlaps<br><sup>4 ranks, 1 microbatch; makespan 12")


def test_a_column_of_text_shows_its_numbers_like_all_others():
    table = show_table(
        [{"value": 33.0}, {"value": None}, {"value": (8, "<8>")}], digits=3
    )._repr_html_()
    assert ">33<" in table
    assert ">–<" in table
    assert "&lt;8&gt;" in table
    assert ">0.273<" in show_table([{"x": 3 / 11}], digits=3)._repr_html_()


# the explorer


def test_the_explorer_redraws_what_its_controls_say():
    explorer = pl.explore_schedules("ZBH2")
    controls, chart = explorer.controls, explorer.chart
    assert [t.name for t in chart.data] == ["idle", "forward", "input gradient", "weight gradient"]
    assert explorer.timelines[0].zb_bubble_rate == 0
    controls["name"].value = "1F1B"
    controls["slowness"].value = 2
    controls["slow_rank"].value = 3
    assert [t.name for t in chart.data] == ["idle", "forward", "backward"]
    assert "<b>57</b>" in explorer.measures.value
    assert tuple(chart.layout.xaxis.range) == (0, 57)
    controls["message"].value = 0.5
    controls["critical_path"].value = True
    assert chart.data[-1].name == "critical path"
    controls["weight"].value = 0
    controls["ranks"].value = 2  # a slow rank that is gone becomes the last one
    assert controls["slow_rank"].value == 1
    assert len(chart.layout.yaxis.ticktext) == 2
    controls["memory"].value = True
    assert chart.layout.yaxis2.title.text == "activations held"


def test_the_controls_of_schedules_are_in_three_groups_and_the_simple_preset_has_three():
    every, simple = pl.explore_schedules("ZBH2"), pl.explore_schedules("ZBH2", simple=True)
    groups = every.panel.children[0].children
    assert [group.children[0].value for group in groups] == [
        "<b>Pipeline</b>",
        "<b>Times</b>",
        "<b>Memory and display</b>",
    ]
    inside = [c for group in groups for c in group.children[1:]]
    assert sorted(c.description for c in inside) == sorted(
        c.description for c in every.controls.values()
    )
    assert simple.panel.children[0].children == tuple(
        simple.controls[name] for name in ("name", "microbatches", "message")
    )
    assert simple.values == every.values
    simple.panel.more.value = True
    assert len(simple.panel.children[0].children) == 3
    assert simple.controls["kept"] in simple.panel.children[0].children[2].children


def test_the_explorer_says_why_there_is_no_such_schedule_and_recovers():
    explorer = pl.explore_schedules("DualPipeV")
    explorer.controls["ranks"].value = 8
    assert explorer.chart.data == ()
    assert "There is no DualPipeV" in explorer.chart.layout.title.text
    assert "needs at least 16 microbatches" in explorer.words.value
    assert explorer.timelines == ()
    explorer.controls["microbatches"].value = 16
    assert len(explorer.chart.data) > 3
    assert explorer.words.value == ""


def test_the_explorer_asks_what_a_weight_gradient_needs_and_says_what_is_held_then():
    explorer = pl.explore_schedules("ZBH1")
    kept, held = (
        explorer.controls["kept"],
        "held at most, per rank: <b>{}</b>, if W needs {} of the activations",
    )
    assert held.format("4 3.941 3.882 3.824", "0.9412") in explorer.measures.value
    assert "weight_activation=32 / 34)" in explorer.code.code
    assert [value for _, value in kept.options] == sorted({0, 0.25, 0.5, 0.75, 32 / 34, 1})
    for value, peaks in ((0, "4 3 2 1"), (1, "4 4 4 4")):
        kept.value = value
        assert held.format(peaks, value) in explorer.measures.value
        assert not kept.disabled
        space = {}
        exec(explorer.code.code, space)
        assert space["timelines"][0].peak_memory == explorer.timelines[0].peak_memory
    explorer.controls["name"].value = "1F1B"
    assert kept.disabled
    assert "per rank" not in explorer.measures.value  # the same as in flight


def test_two_schedules_share_the_time_axis_and_large_ones_say_so():
    explorer = pl.explore_schedules("1F1B", other="Interleaved1F1B")
    assert explorer.chart.layout.title.text == "Interleaved1F1B ends at 28.5, 14% before 1F1B"
    assert {t.yaxis for t in explorer.chart.data} == {"y", "y2"}
    assert explorer.measures.value.count("<table>") == 2
    explorer.controls["other"].value = "1F1B"
    assert explorer.chart.layout.title.text == "1F1B and 1F1B again end at 33"
    explorer.controls["other"].value = "none"
    assert {t.yaxis for t in explorer.chart.data} == {None}
    explorer.controls["ranks"].value = 32
    explorer.controls["microbatches"].value = 256
    assert explorer.chart.data[0].type == "heatmap"
    explorer.chart.zoomed = [100, 130]  # as a reader zooms in
    assert "bar" in {t.type for t in explorer.chart.data}
    assert tuple(explorer.chart.layout.xaxis.range) == (100, 130)
    explorer.chart.zoomed = None  # and out again
    assert explorer.chart.data[0].type == "heatmap"
    explorer.controls["other"].value = "ZBH1"
    assert "Too many bars" in explorer.words.value
    assert explorer.measures.value.count("<table>") == 2


@pytest.mark.quick(43)
@pytest.mark.parametrize("name", [n for n in RULES if n != "Inference"])
@pytest.mark.parametrize(
    "changes", [{}, {"weight": 0.5}, {"message": 0.25}, {"slowness": 2.0}, {"chunks": 3}]
)
def test_measures_are_the_simulators_and_ticks_are_true(name, changes):
    values = replace(ScheduleValues(name), **changes)
    timeline, space = timeline_for(values), {}
    exec(values.code, space)
    assert space["timelines"][0].makespan == timeline.makespan
    rows = {m.name: m for m in measures(timeline)}
    assert set(rows) == {
        "makespan",
        "span",
        "peak_in_flight",
        "bubble_fraction",
        "bubble_ratio",
        "zb_bubble_rate",
    }
    for measure in rows.values():
        assert measure.simulated == getattr(timeline, measure.name)
        assert measure.agrees in (True, None)
    holds = {
        f.quantity
        for f in pl.closed_forms(timeline.schedule, timeline.costs)
        if f.value is not None
    }
    assert (rows["bubble_ratio"].closed is not None) == ("makespan" in holds)
    assert (rows["zb_bubble_rate"].closed is not None) == ("span" in holds)


def test_a_closed_form_that_is_wrong_is_not_ticked():
    assert Measure("makespan", 33.0, 34.0, "").agrees is False
    html = measures_html(timeline_for(ScheduleValues("1F1B")))
    assert html.count("✓ agree") == 4
    assert "✗" not in html
    assert "(m+p-1)(F+B) (holds: equal stages, no communication time" in html


def test_the_explorer_refuses_what_its_controls_cannot_show():
    with pytest.raises(pl.errors.UnknownName, match="schedule 'Inference' is not known here"):
        pl.explore_schedules("Inference")
    with pytest.raises(
        pl.errors.InvalidValue, match="explore_schedules: ranks = 33: expected at most 32"
    ):
        pl.explore_schedules(ranks=33)
    with pytest.raises(
        pl.errors.InvalidValue,
        match="explore_schedules: microbatches = 'a': expected a whole number",
    ):
        pl.explore_schedules(microbatches="a")


# contests


@pytest.mark.parametrize(
    ("mine", "verdict"),
    [
        (None, 'exercise 08.2: not attempted yet; course.hint("08.2") gives a hint'),
        (52, "not yet. Expected a schedule, as pl.Schedule.of('mine', rows) makes it; yours is 52"),
        (pl.schedule("1F1B", 4, 8), "not yet. Makespan 60, and 1F1B takes 60"),
        (pl.schedule("1F1B", 4, 8), "Hint: split backwards"),
        (pl.schedule("1F1B", 4, 8).actions, "not yet. Expected a schedule, as pl.Schedule.of("),
        (pl.schedule("ZBH1", 4, 8), "not yet. Rank 1 holds 3.5 at its peak and has room for 3"),
        (
            pl.schedule("ZBV", 4, 8),
            "not yet. Expected 8 microbatches forward and back, stage s on rank s of 4",
        ),
        (pl.schedule("1F1B", 4, 4), "not yet. Expected 8 microbatches forward and back"),
        (pl.schedule("Inference", 4, 8), "not yet. Expected 8 microbatches forward and back"),
        (
            pl.Schedule.of("half", pl.schedule("1F1B", 4, 8).actions[:3] + (("3F7",),)),
            "3F0 is missing on rank 3",
        ),
        (
            family((3, 2, 1, 0), (0, 0, 0, 0)),
            "right, makespan 56 against 60; no order takes less than 52",
        ),
        (family((3, 2, 1, 0), (0, 0, 0, 2)), "right, makespan 52 against 60; no order takes less"),
    ],
)
def test_a_contest_is_decided_by_the_simulator(mine, verdict):
    said = str(pl.course.check("08.2", mine))
    assert verdict in said
    assert len(said) < 300


def test_the_family_holds_zbh1():
    assert family((3, 2, 1, 0), (0, 1, 2, 3)) == pl.schedule("ZBH1", 4, 8)


# live charts


def test_a_live_chart_tells_the_page_what_the_still_figure_holds():
    """Arrays arrive as plotly itself would have written them, whatever numbers they are of."""
    arrays = {
        "i1": np.array([1, -2], dtype="i1"), "i4": np.array([1, 2**31 - 1]), "f8": np.array([2**40, 1]),
        "f4": np.array([0.5, 1], dtype="f4"), "two": np.arange(6).reshape(2, 3), "text": np.array(["a", "b"]),
        "gap": np.array([1.0, np.nan]), "one": np.float64(0.25), "yes": np.array([True, False]), "none": np.arange(0),
    }  # fmt: skip
    told = json.loads(as_json({"data": [arrays], "layout": {}}))["data"][0]
    assert {name: value["dtype"] for name, value in told.items() if isinstance(value, dict)} == {
        "i1": "i1", "i4": "i4", "f8": "f8", "f4": "f4", "two": "i4", "gap": "f8", "none": "i4",
    }  # fmt: skip
    for name, value in told.items():
        if isinstance(value, dict):
            flat = np.frombuffer(base64.b64decode(value["bdata"]), dtype="<" + value["dtype"])
            shape = [int(n) for n in value["shape"].split(",")] if "shape" in value else [-1]
            assert np.array_equal(flat.reshape(shape), arrays[name], equal_nan=True), name
    assert (told["text"], told["one"], told["yes"]) == (["a", "b"], 0.25, [True, False])
    with pytest.raises(TypeError, match="cannot hold a set"):
        as_json({"data": [{"x": {1}}], "layout": {}})
    with pytest.raises(ValueError, match="not JSON compliant"):
        as_json({"data": [{"x": [float("nan")]}], "layout": {}})


@pytest.mark.parametrize("options", [{}, {"memory": True}, {"critical_path": True, "follow": 1, "transfers": True},
                                     {"overview": True}, {"window": (3.0, 9.0)}])  # fmt: skip
def test_gantt_is_its_parts_in_the_packages_template(options):
    timeline = run("ZBH1", pl.StageCosts(1, 1, 1, weight_activation=1))
    figure, parts = pl.gantt(timeline, **options), gantt_parts(timeline, **options)
    assert "template" not in parts["layout"]
    assert LiveChart(parts).figure == figure
    live = LiveChart(figure)
    assert live.figure == figure
    assert json.loads(live.drawing)["layout"].keys() == parts["layout"].keys()
    assert (
        json.loads(live.look)["layout"]["font"]
        == figure.layout.template.layout.font.to_plotly_json()
    )
