"""The schedule explorer's widget, the chart that stays on the page, and contests that the simulator decides."""

import base64
import json
from dataclasses import replace
from random import Random

import numpy as np
import pytest

import pipelab as pl
from pipelab.engine.schedules import RULES
from pipelab.engine.schedules.columns import columns_of
from pipelab.figures.gantts import gantt_parts
from pipelab.figures.html_charts import as_json
from pipelab.widgets.chart import LiveChart
from pipelab.widgets.schedule_explorer import (
    Measure,
    ScheduleExplorer,
    ScheduleValues,
    measures,
    measures_html,
    timeline_for,
)

# costs of ranks


@pytest.mark.parametrize(
    "order",
    [
        *(pl.schedule(name, 2, 4) for name in ("1F1B", "ZBV", "DualPipeV")),
        pl.schedule("Interleaved1F1B", 3, 6, 3),
        pl.Schedule.of("spread", [["0F0", "2F0", "2B0", "0B0"], ["1F0", "1B0"]], stage_rank=(0, 1, 0)),
        pl.Schedule.of("idle", [["0F0", "0B0"], [], ["1F0", "1B0"]], stage_rank=(0, 2)),
        pl.Schedule.of("turned", [["1F0", "1B0"], ["0F0", "0B0"]], stage_rank=(1, 0)),
    ],
    ids=lambda order: order.name,
)  # fmt: skip
def test_a_ranks_work_is_cut_by_the_stages_that_it_holds(order):
    """However stages are spread: a rank that holds any does its whole work, one that holds none does nothing."""
    whole = np.arange(3.0, 3 + order.ranks)
    costs = pl.StageCosts(whole.tolist(), 0, 0, comm=0.5, activation=2, weight_activation=1)
    cut, held = costs.cut_for(order), np.bincount(order.stage_rank, minlength=order.ranks)
    assert (cut is costs) == (order.name == "1F1B")
    assert cut.comm == 0.5
    timeline = pl.simulate(order, cut)
    assert timeline.busy == pytest.approx(np.where(held > 0, whole * order.microbatches, 0))
    assert timeline.idle.total == pytest.approx(timeline.makespan - timeline.busy)
    activation = costs.cut_for(order).tables(order)["activation"]
    assert activation == pytest.approx(2 / held[list(order.stage_rank)])
    figure = pl.gantt(timeline, transfers=True, memory=True, critical_path=True)
    forwards = next(t for t in figure.data if t.name == "forward")
    assert len(forwards.y) == order.stages * order.microbatches
    chunk = [order.stage_rank[:s].count(rank) for s, rank in enumerate(order.stage_rank)]
    assert columns_of(order).chunk.tolist() == chunk


@pytest.mark.parametrize(
    ("costs", "order", "message"),
    [
        (pl.StageCosts(1, 1, 1, comm=[1]), pl.schedule("ZBV", 2, 4), "comm = .*: expected one number for all links"),
        (pl.StageCosts([1, 2, 3], 1, 1), pl.schedule("ZBV", 2, 4), "expected one number, or 2 for 2 ranks; got 3"),
        (pl.StageCosts(1, 1, 1), pl.Schedule.of("broken", [["0F0", "0B0"]], stage_rank=[5]), "cannot be run"),
    ],
)  # fmt: skip
def test_what_cannot_be_cut_is_refused(costs, order, message):
    with pytest.raises(pl.PipelabError, match=message):
        costs.cut_for(order)


# the explorer

NAMES = [name for name in RULES if name != "Inference"]


def page_of(explorer):
    parts = explorer.chart.drawing, explorer.measures.value, explorer.words.value
    disabled = [name for name, control in explorer.controls.items() if control.disabled]
    return [*parts, disabled, explorer.code.code, explorer.controls["slow_rank"].max]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "changes", [{"weight": 0.5}, {"message": 0.25, "chunks": 3}, {"slowness": 2.0}]
)
def test_measures_are_the_simulators_and_ticks_are_true(name, changes):
    values = replace(ScheduleValues(name), **changes)
    timeline, space = timeline_for(values), {}
    exec(values.code, space)
    assert space["timelines"][0].makespan == timeline.makespan
    rows = {m.name: m for m in measures(timeline)}
    assert len(rows) == 6
    for measure in rows.values():
        assert measure.simulated == getattr(timeline, measure.name)
        assert measure.agrees in (True, None)
    forms = pl.closed_forms(timeline.schedule, timeline.costs)
    holds = {form.quantity for form in forms if form.value is not None}
    assert (rows["bubble_ratio"].closed is not None) == ("makespan" in holds)
    assert (rows["zb_bubble_rate"].closed is not None) == ("span" in holds)


def test_a_closed_form_that_is_wrong_is_not_ticked():
    assert Measure("makespan", 33.0, 34.0, "").agrees is False
    html = measures_html(timeline_for(ScheduleValues("1F1B")))
    assert (html.count("✓ agree"), html.count("✗")) == (4, 0)


@pytest.mark.quick(4)
@pytest.mark.parametrize("seed", range(40))
def test_the_page_follows_from_the_values_alone(seed):
    """However they came about, also by way of schedules that do not exist."""
    random = Random(seed)
    explorer = pl.explore_schedules(random.choice(NAMES))
    for _ in range(8):
        values = {
            "name": NAMES, "other": ["none", *NAMES], "ranks": [1, 2, 4], "microbatches": [2, 8], "chunks": [1, 3],
            "forward": [0.25, 2.0], "message": [0.0, 0.5], "slow_rank": [0, 1, 3], "slowness": [1.0, 2.0],
            "critical_path": [False, True], "memory": [False, True], "kept": [0.0, 0.5, 1.0],
        }  # fmt: skip
        name = random.choice([*values])
        explorer.controls[name].value = random.choice(values[name])
        fresh = ScheduleExplorer(explorer.values)
        assert page_of(explorer) == page_of(fresh), explorer.values
        made = [timeline.makespan for timeline in explorer.timelines]
        if len(made) == len(explorer.values.names):
            assert made == [
                timeline_for(explorer.values, n).makespan for n in explorer.values.names
            ]


def test_the_simple_preset_has_three_controls():
    simple = pl.explore_schedules("ZBH2", simple=True)
    few = tuple(simple.controls[name] for name in ("name", "microbatches", "message"))
    assert simple.panel.children[0].children == few
    simple.panel.more.value = True
    shown = [c for group in simple.panel.children[0].children for c in group.children[1:]]
    assert {*shown} == {*simple.controls.values()}


def test_the_explorer_says_why_there_is_no_such_schedule_and_recovers():
    explorer = pl.explore_schedules("DualPipeV")
    explorer.controls["ranks"].value = 8
    assert (explorer.chart.data, explorer.timelines) == ((), ())
    assert "needs at least 16 microbatches" in explorer.words.value
    explorer.controls["microbatches"].value = 16
    assert len(explorer.chart.data) > 3
    assert explorer.words.value == ""
    for values, message in (
        ({"name": "Inference"}, "no schedule to explore named 'Inference'"),
        ({"ranks": 33}, "explore_schedules: ranks = 33: expected at most 32"),
    ):
        with pytest.raises(pl.PipelabError, match=message):
            pl.explore_schedules(**values)


def test_the_explorer_asks_what_a_weight_gradient_needs_and_says_what_is_held_then():
    explorer = pl.explore_schedules("ZBH1")
    kept = explorer.controls["kept"]
    for value, peaks in ((None, "4 3.941 3.882 3.824"), (0, "4 3 2 1"), (1, "4 4 4 4")):
        kept.value = kept.value if value is None else value
        assert f"per rank: <b>{peaks}</b>" in explorer.measures.value
        space = {}
        exec(explorer.code.code, space)
        assert space["timelines"][0].peak_memory == explorer.timelines[0].peak_memory
    explorer.controls["name"].value = "1F1B"
    assert kept.disabled
    assert "per rank" not in explorer.measures.value  # the same as in flight


def test_no_control_is_dead():
    """Memory is drawn of one schedule: two leave no control for it."""
    explorer = pl.explore_schedules("1F1B", other="ZBH1")
    for other in ("ZBH1", "none"):
        explorer.controls["other"].value = other
        memory, drawn = explorer.controls["memory"], len(explorer.chart.data)
        memory.value = True
        assert memory.disabled == (len(explorer.chart.data) == drawn)
        memory.value = False


def test_two_schedules_share_the_time_axis_and_large_ones_say_so():
    explorer = pl.explore_schedules("1F1B", other="Interleaved1F1B")
    chart, controls = explorer.chart, explorer.controls
    assert {t.yaxis for t in chart.data} == {"y", "y2"}
    assert explorer.measures.value.count("<table>") == 2
    controls["other"].value = "none"
    controls["ranks"].value, controls["microbatches"].value = 32, 256
    assert chart.data[0].type == "heatmap"
    chart.zoomed = [100, 130]  # as a reader zooms in
    assert "bar" in {t.type for t in chart.data}
    assert tuple(chart.layout.xaxis.range) == (100, 130)
    chart.zoomed = [10_000, 20_000]  # dragged beyond the end
    assert "bar" in {t.type for t in chart.data}
    chart.zoomed = None  # and out again
    assert chart.data[0].type == "heatmap"


# contests


def family(delay, microbatches=8):
    """ZB-H1 and what lies before it: weight gradients held back, for every rank."""
    rows = []
    for rank, back in enumerate(delay):
        ahead = 3 - rank
        waits = {"F": 0, "I": ahead, "W": ahead + back}
        count = range(microbatches + ahead + back)
        slots = [(i - wait, kind) for i in count for kind, wait in waits.items()]
        rows.append([f"{rank}{kind}{i}" for i, kind in slots if 0 <= i < microbatches])
    return pl.Schedule.of("mine", rows)


@pytest.mark.parametrize(
    ("mine", "verdict"),
    [
        (pl.schedule("1F1B", 4, 8), "not yet. Makespan 60, and 1F1B takes 60"),
        (pl.schedule("1F1B", 4, 8).actions, "not yet. Expected a schedule, as pl.Schedule.of("),
        (pl.schedule("ZBH1", 4, 8), "not yet. Rank 1 holds 3.5 at its peak and has room for 3"),
        (pl.schedule("ZBV", 4, 8), "not yet. Expected 8 microbatches forward and back, stage s on"),
        (pl.schedule("1F1B", 4, 4), "not yet. Expected 8 microbatches forward and back"),
        (pl.Schedule.of("half", pl.schedule("1F1B", 4, 8).actions[:3] + (("3F7",),)), "3F0 is missing"),
        (family((0, 0, 0, 0)), "right, makespan 56 against 60; no order takes less than 52"),
        (family((0, 0, 0, 2)), "right, makespan 52 against 60; no order takes less"),
    ],
)  # fmt: skip
def test_a_contest_is_decided_by_the_simulator(mine, verdict):
    assert verdict in str(pl.course.check("08.2", mine))
    assert family((0, 1, 2, 3)) == pl.schedule("ZBH1", 4, 8)


# live charts


def test_a_live_chart_tells_the_page_what_the_still_figure_holds():
    """Arrays arrive as plotly itself would have written them, whatever numbers they are of."""
    arrays = {
        "i1": np.array([1, -2], dtype="i1"), "i4": np.array([1, 2**31 - 1]), "f8": np.array([2**40, 1]),
        "f4": np.array([0.5, 1], dtype="f4"), "two": np.arange(6).reshape(2, 3), "text": np.array(["a", "b"]),
        "gap": np.array([1.0, np.nan]), "one": np.float64(0.25), "yes": np.array([True, False]), "none": np.arange(0),
    }  # fmt: skip
    told = json.loads(as_json({"data": [arrays], "layout": {}}))["data"][0]
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


def test_a_live_chart_draws_the_figure_in_the_packages_template():
    timeline = timeline_for(ScheduleValues("ZBH1"))
    for options in ({"memory": True}, {"critical_path": True, "transfers": True}):
        figure, parts = pl.gantt(timeline, **options), gantt_parts(timeline, **options)
        live = LiveChart(figure)
        assert live.figure == LiveChart(parts).figure == figure
        assert json.loads(live.drawing)["layout"].keys() == parts["layout"].keys()
        font = figure.layout.template.layout.font.to_plotly_json()
        assert json.loads(live.look)["layout"]["font"] == font
