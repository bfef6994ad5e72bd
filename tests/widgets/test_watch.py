"""Watching a solve without a browser: every incumbent has its placement, the picture is true, Stop keeps the best."""

import time
from dataclasses import replace

import pytest

import pipelab as pl
from pipelab.engine.solvers.solver_run import Progress


@pytest.mark.parametrize(
    ("method", "options"), [("joint", {}), ("joint", {"form": "tight"}), ("aggregated", {})]
)
def test_every_incumbent_brings_its_placement(method, options, two_stages):
    result = pl.solve(two_stages, method, **options)
    found = [moment for moment in result.details["progress"] if moment.incumbent is not None]
    assert found[-1].placement == result.placement
    for moment in found:
        evaluated = pl.evaluate(two_stages, moment.placement).throughput
        assert evaluated == pytest.approx(moment.incumbent)


def test_the_picture_is_what_the_result_says(tiny):
    watched = pl.watch_solve(tiny)
    assert watched._gap(()) == "gap: not known before the first bound"
    none_yet = watched._gap([Progress(seconds=0.1, incumbent=None, bound=90.0, nodes=1)])
    assert none_yet == "gap: infinite, since there is no placement yet; bound 90"
    assert watched._gap([Progress(seconds=0.1, incumbent=60.0, bound=90.0, nodes=1)]).endswith(
        "(90 − 60) / 60 = 50.00%"
    )
    result = watched.result(60)
    watched.refresh()
    last, (_, _, bound, best) = result.details["progress"][-1], watched.progress.data
    assert (bound.y[-1], best.y[-1]) == (last.bound, last.incumbent)
    assert "= 0.00%" in watched.progress.layout.title.text
    assert watched.chart.layout.title.text.startswith("301.8 tokens/s in 1 stage, proven optimal")
    assert len(watched.chart.data[0].y) == len(result.placement.gpus)
    assert "proven optimal" in watched.status.value
    assert watched.stop_button.disabled


@pytest.mark.slow
def test_stop_keeps_the_best_placement_and_says_how_far_off_it_may_be(long_solve):
    watched = pl.watch_solve(long_solve, "joint", time_limit=None)
    end = time.perf_counter() + 120
    while not any(m.placement for m in watched.solving.progress) and time.perf_counter() < end:
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


def test_what_is_too_large_or_infeasible_is_told_in_place(tiny):
    watched = pl.watch_solve(pl.load_case("demo", max_gpus_per_stage=3), "joint")
    with pytest.raises(pl.errors.TooLarge):
        watched.result(60)
    watched.refresh()
    assert "9,887,608,011 variables" in watched.status.value
    watched = pl.watch_solve(replace(tiny, model=replace(tiny.model, layer_weight_gb=500.0)))
    assert watched.result(60).status == "infeasible"
    watched.refresh()
    assert "No placement exists" in watched.status.value
    for problem, method, message in (
        ("tiny", "joint", "expected a Problem"),
        (tiny, "even", "reports its progress"),
    ):
        with pytest.raises(pl.errors.InvalidValue, match=message):
            pl.watch_solve(problem, method)
