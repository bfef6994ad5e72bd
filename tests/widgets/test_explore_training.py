"""The pipeline explorer, serving and in training: a first answer, then the proof."""

import asyncio
from dataclasses import replace

import pytest

import pipelab as pl
from pipelab.display import duration
from pipelab.figures.training_step import training_memory_parts
from pipelab.widgets import training_half
from pipelab.widgets.background import at_rest
from pipelab.widgets.mix_values import beginning
from pipelab.widgets.training_half import (
    TrainingValues,
    code_of_training,
    trained,
    training_problem,
)

TWO = {"A100-SXM-80": 2}


def _title(chart):
    return chart.layout.title.text.split("<br>")[0]


@pytest.fixture(scope="module")
def shown():
    both = pl.explore_pipeline("Llama-3-8B", TWO)
    both.training.microbatches.value = 8
    both.view.value = "train"
    return both


def test_the_pipeline_is_that_of_the_placement_that_the_mix_shows():
    both = pl.explore_pipeline("tiny")
    both.mix.own.layers.value = "2,2"
    plan = pl.Placement.of([(2, (0,)), (2, (1,))])
    alone = pl.timeline_of(both.mix.found.problem, plan)
    assert both.placed.placement == plan
    assert both.placed.steady_rate == alone.steady_rate
    both.in_flight.value = 1
    assert both.placed.in_flight == 1
    assert "1 in flight" in _title(both.gantt)
    both.mix.controls.fields["phase"].value = "decode"  # of which tiny's cost model knows nothing
    assert both.placed is None
    assert "No pipeline" in _title(both.rate)


def test_the_step_is_that_of_solve_and_of_the_code(shown):
    found = shown.training.found
    load = pl.Workload(2048, 1, "training", microbatches=8)
    assert found.problem.workload == load
    again = pl.solve(found.problem, objective="step_time", schedule="1F1B")
    assert (found.status, found.objective.value) == ("optimal", again.objective.value)
    space = {}
    exec(shown.training.code.code, space)
    assert space["step"].timeline.iteration_time == found.objective.value
    assert space["problem"].workload == load
    assert f"a step takes {duration(found.objective.value)} on" in _title(shown.training.gantt)
    assert _title(shown.training.gantt).endswith("proven least")


def test_it_follows_its_controls_and_those_of_the_mix(shown):
    half, counts = shown.training, shown.mix.controls.counts["A100-SXM-80"]
    before = half.found.objective.value
    half.schedule.value = "ZBH1"
    assert half.found.schedule == "ZBH1"
    assert half.found.objective.value < before
    half.recompute.value = "full"
    assert set(half.found.recompute) == {"full"}
    assert "recompute='full'" in half.code.code
    counts.value = 0
    assert half.found is None
    assert "expected at least one" in half.words.value
    assert not half.memory.data[0].y
    counts.value = 1
    assert half.found.status == "infeasible"
    assert "no placement can be trained" in _title(half.gantt)
    half.recompute.value, half.schedule.value, counts.value = "none", "1F1B", 2
    assert half.found.objective.value == before


@pytest.mark.slow
def test_serving_comes_back_with_what_was_set_meanwhile(shown):
    controls = shown.mix.controls
    assert controls.fields["batch"].layout.display == "none"
    controls.fields["context"].value = 1024
    assert shown.mix.found.problem.workload.sequence_length == 2048  # it rests
    assert shown.training.found.problem.workload.sequence_length == 1024
    shown.view.value = "serve"
    assert shown.mix.found.problem.workload.sequence_length == 1024
    assert shown.mix.found.problem.workload.phase == "prefill"
    assert controls.fields["batch"].layout.display is None
    assert shown.gantt in shown.children
    shown.view.value = "place"
    assert shown.mix.chart in shown.children
    assert shown.gantt not in shown.children
    last = shown.training.found
    controls.fields["context"].value = 2048
    assert shown.training.found is last
    shown.view.value = "train"
    assert shown.training.found.problem.workload.sequence_length == 2048


@pytest.mark.slow
def test_the_newest_answer_is_drawn_last(monkeypatch):
    seen = []

    def slowly(mix, values, stop, limit):
        found = trained(mix, values, stop, None)
        return replace(found, status="feasible") if limit < 1 else found

    monkeypatch.setattr(training_half, "trained", slowly)
    monkeypatch.setattr(training_half, "_IDLE_S", 0.0)

    async def moved():
        both = pl.explore_pipeline("Llama-3-8B", TWO)
        both.view.value, half = "train", both.training
        seen.append(_title(half.gantt))
        await at_rest()
        seen.append(_title(half.gantt))
        half.microbatches.value = 8
        half.microbatches.value = 4
        await at_rest()
        seen.append(_title(half.gantt))
        half.microbatches.value = 12
        half.at_work = False
        await at_rest()
        assert half.found.problem.workload.microbatches == 4

    asyncio.run(moved())
    for title, part in zip(seen, ("being solved", *["proven least"] * 2), strict=True):
        assert part in title


def test_a_case_without_memory_of_training_is_trained_too():
    shown = pl.explore_pipeline("tiny")
    shown.view.value = "train"
    assert shown.training.found.status == "optimal"
    assert "does not say what training keeps" in _title(shown.training.memory)
    nodes = beginning("Llama-3-8B", {"H100-SXM": 8}, gpus_per_node=8, gpus_per_stage=4)
    for mix in (beginning("tiny"), nodes):
        values, space = TrainingValues("GPipe", 4, 2), {}
        exec(code_of_training(mix, values).split("result = ")[0], space)
        mine, theirs = training_problem(mix, values), space["problem"]
        assert (theirs.workload, theirs.cluster.gpus) == (mine.workload, mine.cluster.gpus)
        assert theirs.max_gpus_per_stage == mine.max_gpus_per_stage


def test_the_memory_chart_has_what_each_gpu_holds():
    mix = beginning("Llama-3-8B", {"A100-SXM-80": 14})
    problem = training_problem(mix, TrainingValues(microbatches=20))
    layers = [3, 3, 3, 3, *[2] * 10]
    plan = pl.Placement.of([(n, (g,)) for g, n in enumerate(layers)])
    step = pl.timeline_of(problem, plan)
    parts = training_memory_parts(step)
    *lines, limit = parts["data"]
    assert list(limit["y"]) == [100, 100]
    shares = {}
    for drawn in lines:
        rank = int(drawn["name"].split()[1]) - 1
        need = max(drawn["customdata"])
        assert need == pytest.approx(step.memory_gb[rank])
        shares[rank] = max(drawn["y"])
        assert shares[rank] == pytest.approx(100 * need / problem.cluster.gpus[rank].memory_gb)
    most_first = sorted(shares, key=shares.get, reverse=True)
    title = parts["layout"]["title"]["text"]
    assert title.startswith(f"The fullest GPU is in stage {most_first[0] + 1}: ")
    grey = {int(drawn["name"].split()[1]) - 1 for drawn in lines if not drawn["showlegend"]}
    assert grey == set(most_first[12:])
