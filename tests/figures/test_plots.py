"""Figures draw the numbers they are given, the same number of traces whatever the values."""

from dataclasses import replace
from pathlib import Path

import pytest

import pipelab as pl
from pipelab.course.reading_tables import show_table
from pipelab.engine.formulations.joint_ilp_forms import joint_formulation
from pipelab.engine.solvers.solver_run import Progress
from pipelab.figures.progress import progress_parts
from pipelab.figures.theme import colour_of_types
from pipelab.widgets.chart import LiveChart
from pipelab.writeup.linear_rates import with_link_units

MEASURED = Path(__file__).parents[1] / "data" / "measured"


def test_a_result_is_drawn_with_its_number_in_flight(tiny):
    problem = with_link_units(tiny, "tokens")
    result = pl.solve(problem)
    assert pl.plot(result) == pl.plot(problem, result.placement)
    heavy = replace(problem, model=replace(tiny.model, layer_weight_gb=500))
    with pytest.raises(pl.errors.InvalidValue, match="expected a result that has one"):
        pl.plot(pl.solve(heavy))
    for refused, message in (
        (lambda: pl.plot(result, colour="red"), "no option of this figure named 'colour'"),
        (lambda: pl.plot(result, 3), r"plot: others = .*too many positional arguments"),
        (lambda: pl.plot(result.to_frame()), "expected a table of against_measured, with what"),
        (lambda: pl.save(result.placement, "plan.json"), "expected a Result, a Deployment, a"),
    ):
        with pytest.raises(pl.PipelabError, match=message):
            refused()


def test_progress_is_what_the_solver_said(two_stages):
    result = pl.solve(two_stages, "joint")
    end = result.details["solve_seconds"]
    bound, found = progress_parts(result.details["progress"], end, "joint")["data"][2:]
    assert list(bound["y"]) == sorted(bound["y"], reverse=True)
    assert bound["y"][-1] == pytest.approx(found["y"][-1])
    assert bound["x"][-1] == found["x"][-1] >= end
    chart = LiveChart(progress_parts((), 0.0, "nothing yet"))
    before = [(t.type, t.name) for t in chart.data]  # however much is known, the same traces
    for moments in (
        (Progress(seconds=0.1, incumbent=None, bound=90.0, nodes=1),),
        (Progress(seconds=0.3, incumbent=60.0, bound=80.0, nodes=7),),
    ):
        chart.put(progress_parts(moments, 0.5, "now"))
        assert [(t.type, t.name) for t in chart.data] == before


def test_a_type_has_one_colour_in_every_case_and_cluster():
    groups = [[gpu.type for gpu in pl.load_case(name).cluster.gpus] for name in pl.writeup.cases()]
    clusters = pl.hardware.clusters().groupby(level="cluster")
    groups += [part["gpu_type"].tolist() for _, part in clusters]
    groups += [["mine", gpu_type, "yours"] for gpu_type in pl.hardware.gpus().index]
    seen = {}
    for types in groups:
        colours = colour_of_types(types)
        assert len(set(colours.values())) == len(colours)  # told apart within one figure
        for gpu_type in {*colours} - {"mine", "yours"}:
            assert seen.setdefault(gpu_type, colours[gpu_type]) == colours[gpu_type]
    assert seen["A100"] == seen["A100-SXM-40"] == seen["A100-SXM-80"]  # a family looks the same


def test_tables_keep_text_left_escape_it_and_may_break_long_names(tiny):
    rows = [{"<i>": "<b>x</b>", "rate": 1.23456789}, {"<i>": None, "rate": (8, "<8>")}]
    html = show_table(rows)._repr_html_()
    for part in ("&lt;i&gt;", "&lt;b&gt;x", ">1.235<", ">–<", "&lt;8&gt;", "text-align: left"):
        assert part in html
    assert ">0.273<" in show_table([{"x": 3 / 11}], digits=3)._repr_html_()
    shown = pl.evaluate(tiny, pl.Placement.of([(4, (0,))]))._repr_html_()
    assert "memory_<wbr>needed_<wbr>gb" in shown
    formulation = joint_formulation(tiny)
    frame = formulation.to_frame()
    assert list(frame["family"]) == [f.name for f in formulation.form.families]
    assert frame["rows here"].sum() == 2010
    assert "2,010 rows" in formulation._repr_html_()


def test_a_guess_shows_its_answer_beside_a_prediction_and_is_escaped():
    asked = pl.course.guess('a < "b"?', "yes & no")
    assert "a &lt; &quot;b&quot;?" in asked._repr_html_()
    assert "yes" not in asked._repr_html_() + repr(asked)
    folded = asked("  ")
    assert folded._repr_html_().index("<details>") < folded._repr_html_().index("yes &amp; no")
    assert "yes" not in repr(folded)
    said = asked("<b> & c")
    assert "<details>" not in said._repr_html_()
    assert "&lt;b&gt; &amp; c" in said._repr_html_()


def test_a_calibration_is_drawn_before_and_after():
    fit = pl.hardware.calibrate(pl.Roofline(), MEASURED / "published" / "llama-bench.csv")
    for name, trace in zip(("before", "after", "left_out"), pl.plot(fit).data, strict=True):
        assert sorted(trace.x) == sorted(fit.table[name])
