"""The mix explorer's own plans, and for how many batches in flight it calls an answer proven."""

import re

import pytest

import pipelab as pl
from pipelab.display import rate as tokens_per_s
from pipelab.widgets.mix_answers import answer
from pipelab.widgets.mix_values import beginning


def test_any_list_of_layers_that_can_be_placed_is_taken_and_others_are_refused_with_a_way_back():
    mix = pl.explore_mix("tiny", gpus_per_stage=2)
    own = mix.own
    for text, rate in (("1,1,1,1", 133.116), ("3,1", 136.116), ("2 1 1", 133.116), ("0,4", None)):
        own.layers.value = text
        assert own.why.value == ""
        numbers = [int(n) for n in re.split("[ ,]", text) if n != "0"]
        assert [len(s.layers) for s in own.score.placement.stages] == numbers
        assert own.score.valid
        assert rate is None or mix.found.result.throughput > own.score.throughput
    for text, why in (
        ("1,1,1,1,0", "5 stages need as many GPUs, and there are 4"),
        ("1,1,1", "these add up to 3, and the model has 4 layers"),
        ("four", "expected whole numbers that add up to 4, such as 3,1; got four"),
    ):
        own.back.click()
        assert not own.back.disabled
        own.layers.value = text
        assert why in own.why.value
        assert not own.back.disabled
        own.back.click()
        assert (own.layers.value, own.why.value, own.score) == ("4", "", None)


def flagship(**values):
    counts = {"A100-SXM-40": 4, "L4": 8, "T4": 12}
    return beginning("Llama-3-70B", counts, phase="decode", network_gb_per_s=1.0, **values)


@pytest.mark.slow
def test_what_is_proven_has_memory_for_everything_in_flight():
    mix = pl.explore_mix(
        "Llama-3-70B", dict(flagship().counts), phase="decode", batch=16, network_gb_per_s=1.0
    )
    found, title = mix.found.result, mix.chart.layout.title.text
    assert mix.found.problem.workload.in_flight is None
    number = found.in_flight
    assert f"{tokens_per_s(found.throughput)} in" in title
    assert f"with {number} in flight, proven optimal" in title
    run = pl.timeline_of(mix.found.problem, found)
    assert run.fits
    assert run.steady_rate == pytest.approx(found.throughput, rel=1e-9)
    assert mix.controls.in_flight.max >= number
    mix.controls.in_flight.value = 1  # a number that is given stays
    assert mix.found.problem.workload.in_flight == 1
    assert "with 1 in flight, proven optimal<br><sup>limited by 1 in flight" in (
        mix.chart.layout.title.text
    )
    assert mix.found.result.throughput < 0.5 * found.throughput
    mix.controls.in_flight.value = 0
    assert mix.chart.layout.title.text == title


def test_where_memory_is_short_the_answer_is_what_is_attained():
    """1 A100, 4 L4 and 6 T4 at a context of 16,384: the greatest rate needs far more in flight than memory holds."""
    counts = {"A100-SXM-40": 1, "L4": 4, "T4": 6}
    mix = pl.explore_mix("Llama-3-8B", counts, phase="decode", batch=16, context=16_384)
    found = mix.found.result
    full = pl.solve(mix.found.problem, objective="rate")
    assert found.status == full.status == "optimal"
    assert found.throughput < 0.7 * full.throughput
    assert "proven optimum" in mix.baselines.layout.yaxis.ticktext
    best = found.throughput * (1 + 1e-9)
    bars = [x for trace in mix.baselines.data if trace.type == "bar" for x in trace.x]
    assert max(bars) <= best  # the rules of thumb show what they attain, too
    plan = pl.evaluate(mix.found.problem, found.placement)
    if plan.attainable < plan.rate * (1 - 1e-6):
        told = f"limited by {plan.in_flight} in flight, where {plan.in_flight_needed} would reach"
        assert told in mix.chart.layout.title.text


def test_where_memory_counts_no_batch_but_one_all_that_are_needed_are_in_flight():
    found = answer(beginning("medium"))
    again = answer(beginning("medium", in_flight=9))
    assert found.result.in_flight == again.result.in_flight == 9
    assert again.result.throughput == pytest.approx(found.result.throughput, rel=1e-9)
    assert "with 9 in flight, proven optimal" in pl.explore_mix("medium").chart.layout.title.text


@pytest.mark.slow
def test_the_control_of_batches_in_flight_reaches_what_a_placement_needs():
    mix = pl.explore_mix(
        "Llama-3-70B", {"T4": 200}, phase="decode", batch=1, context=128, network_gb_per_s=0.01
    )
    needed = pl.timeline_of(mix.found.problem, mix.found.result).in_flight_needed
    assert mix.controls.in_flight.max >= needed > 32
    both = pl.explore_pipeline(
        "Llama-3-70B", {"T4": 200}, phase="decode", batch=1, context=128, network_gb_per_s=0.01
    )
    assert both.in_flight.max >= both.placed.in_flight_needed == needed


def test_what_was_stopped_early_is_not_called_the_optimum(monkeypatch):
    from pipelab.widgets import mix_explorer as mix

    monkeypatch.setattr(mix, "_LIMIT_S", 0.0)
    shown = pl.explore_mix("medium", context=300)
    assert shown.found.result.stopped_by == "time limit"
    assert "stopped early" in shown.chart.layout.title.text
    assert "proven optimum" not in shown.baselines.layout.yaxis.ticktext
