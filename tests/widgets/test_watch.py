"""Watching a solve without a browser: every incumbent has its placement, the picture is true, Stop keeps the best."""

import dataclasses
import time

import pytest

import pipelab as pl
from pipelab.engine.solvers.solver_run import Progress
from pipelab.figures.progress import progress_parts
from pipelab.widgets.chart import LiveChart


@pytest.mark.parametrize(
    ("method", "options"), [("joint", {}), ("joint", {"form": "tight"}), ("aggregated", {})]
)
def test_every_incumbent_brings_its_placement(method, options):
    problem = pl.load_case("tiny", link_units="tokens", max_gpus_per_stage=2)
    heavy = dataclasses.replace(
        problem, model=dataclasses.replace(problem.model, layer_weight_gb=25.0)
    )
    result = pl.solve(heavy, method, **options)
    found = [moment for moment in result.details["progress"] if moment.incumbent is not None]
    assert found
    assert found[-1].placement == result.placement
    for moment in found:
        assert pl.evaluate(heavy, moment.placement).throughput == pytest.approx(moment.incumbent)


def test_the_picture_is_what_the_result_says():
    watched = pl.watch_solve(pl.load_case("tiny", max_gpus_per_stage=2))
    result = watched.result(60)
    watched.refresh()
    moments = result.details["progress"]
    bound, best = watched.progress.data[2], watched.progress.data[3]
    assert (bound.y[-1], best.y[-1]) == (moments[-1].bound, moments[-1].incumbent)
    assert best.line.shape == "hv"
    assert watched.progress.data[1].fill == "tonexty"
    assert watched.progress.layout.title.text.startswith("tiny, aggregated: ✓ proven")
    assert "= 0.00%" in watched.progress.layout.title.text
    assert watched.chart.layout.title.text.startswith("301.8 tokens/s in 1 stage, proven optimal")
    assert len(watched.chart.data[0].y) == len(result.placement.gpus)
    assert "proven optimal" in watched.status.value
    assert watched.stop_button.disabled


@pytest.mark.slow
def test_stop_keeps_the_best_placement_and_says_how_far_off_it_may_be(long_solve):
    watched = pl.watch_solve(long_solve, "joint", time_limit=None)
    end = time.perf_counter() + 120
    while (
        not any(moment.placement for moment in watched.solving.progress)
        and time.perf_counter() < end
    ):
        watched.refresh()
        time.sleep(0.05)
    watched.refresh()
    assert watched.chart.layout.title.text.split("<br>")[0].endswith("best so far")
    assert len(watched.chart.data[0].y) > 0
    watched.stop_button.click()
    result = watched.result(30)
    watched.refresh()
    assert (result.status, result.stopped_by) == ("feasible", "stop")
    assert result.throughput == pl.evaluate(result.problem, result.placement).throughput
    assert "stopped on request" in watched.status.value
    assert "up to" in watched.status.value
    assert "the best that was found" in watched.chart.layout.title.text


def test_what_is_too_large_or_infeasible_is_told_in_place():
    watched = pl.watch_solve(pl.load_case("demo", max_gpus_per_stage=3), "joint")
    with pytest.raises(pl.errors.TooLarge):
        watched.result(60)
    watched.refresh()
    assert "9,887,608,011 variables" in watched.status.value
    assert watched.progress.layout.title.text.startswith("demo, joint: ⊘ refused")
    tiny = pl.load_case("tiny")
    heavy = dataclasses.replace(tiny, model=dataclasses.replace(tiny.model, layer_weight_gb=500.0))
    watched = pl.watch_solve(heavy)
    assert watched.result(60).status == "infeasible"
    watched.refresh()
    assert watched.chart.layout.title.text.startswith("No placement")
    assert "No placement exists" in watched.status.value
    for problem, method, message in (
        ("tiny", "joint", "expected a Problem"),
        (tiny, "even", "reports its progress"),
    ):
        with pytest.raises(pl.errors.InvalidValue, match=message):
            pl.watch_solve(problem, method)


def test_the_gap_has_its_numbers_put_in_and_is_infinite_before_the_first_placement():
    watched = pl.watch_solve(pl.load_case("tiny"))
    assert watched._gap(()) == "gap: not known before the first bound"
    assert watched._gap([Progress(0.1, None, 90.0, 1)]) == (
        "gap: infinite, since there is no placement yet; bound 90"
    )
    assert (
        watched._gap([Progress(0.1, 60.0, 90.0, 1)])
        == "gap = (bound − best) / best = (90 − 60) / 60 = 50.00%"
    )
    watched.result(60)


def test_the_traces_are_the_same_however_much_is_known():
    chart = LiveChart(progress_parts((), 0.0, "nothing yet"))
    before = [(t.type, t.name) for t in chart.data]
    for moments in (
        (),
        (Progress(0.1, None, 90.0, 1),),
        (Progress(0.1, None, 90.0, 1), Progress(0.3, 60.0, 80.0, 7)),
    ):
        chart.put(progress_parts(moments, 0.5, "now"))
        assert [(t.type, t.name) for t in chart.data] == before
    assert chart.data[3].x == (0.3, 0.5)
    assert chart.data[2].y == (90.0, 80.0, 80.0)
