"""The GPU mix explorer without a browser: values in, problem, numbers, words and traces out."""

import asyncio
import dataclasses
import math
import re
import threading

import ipywidgets as widgets
import pytest

import pipelab as pl
from pipelab.display import NOT_PROVEN, PROVEN
from pipelab.display import rate as tokens_per_s
from pipelab.figures.methods_against_optimum import Row, baseline_parts, row_of
from pipelab.figures.placements import placement_parts
from pipelab.requests import Limits, best_service, for_phase
from pipelab.widgets import mix_answers, mix_explorer
from pipelab.widgets.background import SIGN_AFTER_S, Beside, at_rest
from pipelab.widgets.chart import LiveChart
from pipelab.widgets.mix_answers import (
    answer,
    kept,
    money,
    one_gpu_per_stage,
    one_more,
    own_plan,
    plan_within,
    stage_gpus,
)
from pipelab.widgets.mix_controls import MixControls
from pipelab.widgets.mix_sentences import gains_line, headline, parse_layers, promise_line
from pipelab.widgets.mix_values import (
    BATCHES,
    Mix,
    beginning,
    code_of,
    cost_models,
    problem_of,
    sources,
    types_of,
)


def rows_of(found):
    """The optimum and the rules of thumb, as the explorer shows them."""
    return [row_of("proven optimum", found.result), *found.baselines]


STATES = [
    beginning("tiny"),
    beginning("tiny", {"A100": 0}, gpus_per_stage=2),
    beginning("small", {"H100": 0, "A100": 1}, network_gb_per_s=1.0, batch=64),
    beginning("medium", {"T4": 12, "A100": 2}, gpus_per_stage=2),
    beginning("medium_small", gpus_per_stage=3, batch_split="balanced"),
    beginning("Llama-3-70B"),
    beginning("Llama-3-70B", phase="decode", in_flight=4, context=1024, gpus_per_stage=2),
    beginning("Llama-3-8B", {"L4": 1, "H100-SXM": 1}, phase="mixed", network_gb_per_s=0.05),
    beginning("Llama-3.1-405B", {"T4": 2}),  # does not fit
    beginning("medium", gpus_per_stage=2, costs="linear, no loss"),
    beginning("Llama-3-70B", phase="decode", costs="Roofline, eager"),
    beginning("Llama-3-8B", {"L4": 1, "T4": 2}, phase="mixed", costs="Roofline, llama.cpp"),
    beginning("Llama-3-8B", {"A100-SXM-40": 2, "T4": 2, "L4": 0}, costs="linear"),
    beginning(
        "Llama-3-8B", {"A40": 2, "V100-SXM-16": 2}, gpus_per_stage=2, costs="linear, no loss"
    ),
    beginning(
        "Llama-3-70B", {"A100-SXM-40": 24, "L4": 0}, phase="decode", batch=32, gpus_per_node=8,
        gpus_per_stage=8,
    ),
    beginning(
        "Llama-3-70B", {"A100-SXM-80": 4, "L4": 4}, phase="decode", batch=16, gpus_per_node=4,
        gpus_per_stage=4, runs_on="vLLM",
    ),
]  # fmt: skip


@pytest.mark.quick(4)
@pytest.mark.parametrize(
    "mix", STATES, ids=lambda m: f"{m.source}-{sum(n for _, n in m.counts)}-{m.costs}"
)
def test_the_numbers_are_those_of_solve_and_the_code_makes_the_same(mix):
    found, space = answer(mix), {}
    exec(code_of(mix), space)
    assert space["problem"] == problem_of(mix)
    assert space["result"].problem == found.problem
    assert mix.batch in (None, found.problem.workload.batch_size)
    same = ("status", "throughput", "bound", "placement", "reason")
    assert [getattr(space["result"], f) for f in same] == [getattr(found.result, f) for f in same]
    assert found.result.status in ("optimal", "infeasible")
    for rule in found.baselines:
        assert rule.throughput == pl.solve(found.problem, rule.name).throughput
        assert rule.throughput is None or rule.throughput <= found.result.throughput * (1 + 1e-9)


def test_the_best_plan_of_an_engine_has_its_cost_said():
    mix = STATES[-1]
    found = answer(mix)
    assert headline(found)[0].endswith("proven optimal for vLLM")
    (sentence,) = plan_within(found, threading.Event(), 30)
    assert sentence.startswith("vLLM's rules cost ")
    free = answer(dataclasses.replace(mix, runs_on=None)).result
    assert f"{1 - found.result.throughput / free.throughput:.1%}" in sentence
    controls = MixControls(mix, lambda: None)
    assert controls.mix == mix
    controls.runs_on.value = None
    assert controls.mix.runs_on is None
    with pytest.raises(pl.errors.UnknownName, match="there is no engine 'vllm'"):
        dataclasses.replace(mix, runs_on="vllm")


WITHIN = beginning(
    "Llama-3-8B", {"A100-SXM-40": 1, "L4": 2, "T4": 1}, phase="mixed", tpot_ms=50, ttft_ms=20_000
)


def test_with_limits_the_single_pipeline_keeps_them():
    """It serves as much as the best of all placements, batches and numbers in flight; the words say by how much."""
    mix = dataclasses.replace(WITHIN, batch=16)
    found, space = answer(mix), {}
    exec(code_of(mix), space)
    assert found.result.status == "optimal"
    assert found.result.throughput == space["best"].throughput
    assert found.service == space["best"].pipelines[0].service
    limits = Limits(ttft_ms=20_000, tpot_ms=50)
    assert found.service.keeps(limits)
    assert found.result.in_flight == found.service.in_flight
    said = promise_line(found, found.service)
    late = 1000 * max(found.service.tpot_s, found.service.last_tpot_s)
    assert f"an output token every {late:,.4g} ms (limit 50)" in said
    assert "prompts of 2,048 and answers of 256 tokens" in said
    for rule in found.baselines:
        assert rule.throughput is None or rule.throughput <= found.result.throughput * (1 + 1e-9)
    own = for_phase(problem_of(mix), "mixed")
    layers = own.model.layers
    whole = pl.Placement.of([(layers, (0,))])
    plan = own_plan(found, (layers, *[0] * (len(stage_gpus(found)) - 1)))
    placed = best_service(own, plan.placement, limits)
    assert plan.placement.gpus == whole.gpus
    assert plan.throughput == pytest.approx(placed.requests_per_s * 256)
    (cost,) = plan_within(found, threading.Event(), 30)
    free = answer(dataclasses.replace(mix, tpot_ms=1e6, ttft_ms=1e9)).result.throughput
    assert f"The limits cost {1 - found.result.throughput / free:.1%}" in cost


def test_a_limit_that_cannot_be_kept_says_what_prevents_it():
    shown = pl.explore_mix(
        "Llama-3-8B", {"T4": 3}, phase="decode", batch=8, tpot_ms=20, gpus_per_stage=1
    )
    assert shown.found.result.status == "infeasible"
    assert "no pipeline keeps the limits" in shown.chart.layout.title.text
    assert "above the limit of 20: stage" in shown.text.value
    assert "what helps: faster GPUs there" in shown.text.value
    shown.controls.tpot_ms.value = 1000
    assert shown.found.result.status == "optimal"
    assert "(limit 1,000)" in shown.text.value
    plan = own_plan(shown.found, (30, 1, 1))
    assert not plan.valid


def test_an_own_plan_that_breaks_a_limit_says_which():
    mix = beginning("Llama-3-8B", {"A100-SXM-40": 1, "T4": 1}, phase="decode", batch=8, tpot_ms=20)
    found = answer(mix)
    assert found.result.status == "optimal"
    plan = own_plan(found, (20, 12))
    assert not plan.valid
    assert re.search(
        r"TPOT is [\d.]+ ms with one microbatch in flight, above the limit of 20", plan.reasons[0]
    )


def test_a_phase_has_only_the_limits_on_its_own_times():
    controls = MixControls(WITHIN, lambda: None)
    assert controls.mix == WITHIN
    for phase, tpot, ttft in (
        ("decode", 50, None),
        ("prefill", None, 20_000),
        ("mixed", 50, 20_000),
    ):
        controls.phase.value = phase
        assert (controls.mix.tpot_ms, controls.mix.ttft_ms) == (tpot, ttft)
    with pytest.raises(pl.errors.InvalidValue, match="the phase prefill has no such time"):
        beginning("Llama-3-8B", tpot_ms=50)


@pytest.mark.slow
def test_the_batch_is_chosen_where_none_is_given():
    """It attains most of all that the slider has, and the title names it; a case keeps its own."""
    mix = beginning("Llama-3-8B", {"A100-SXM-40": 1, "L4": 2}, phase="decode")
    assert mix.batch is None
    found = answer(mix)
    each = {b: answer(dataclasses.replace(mix, batch=b)).result.throughput for b in BATCHES}
    best = max(each, key=lambda b: each[b] or 0.0)
    assert found.problem.workload.batch_size == best != 16
    assert found.result.status == "optimal"
    assert found.result.throughput == pytest.approx(each[best], rel=1e-9)
    assert f"with a batch of {best} and {found.result.in_flight} in flight" in headline(found)[0]
    controls = MixControls(mix, lambda: None)
    assert controls.batch.label == "chosen"
    assert controls.mix == mix
    controls.batch.value = 64
    assert controls.mix.batch == 64
    assert beginning("Llama-3-8B", costs="linear").batch == beginning("tiny").batch == 16


@pytest.mark.slow
def test_where_the_batch_is_chosen_the_proof_may_follow_the_first_answer(monkeypatch):
    monkeypatch.setattr(mix_explorer, "_FIRST_S", 0.0)
    monkeypatch.setattr(mix_explorer, "one_more", lambda *_: ())
    asked = []
    monkeypatch.setattr(
        mix_answers, "deploy", lambda *_, batches, **__: asked.append(batches) or pl.deploy(*_)
    )

    async def watched():
        shown = pl.explore_mix("Llama-3-8B", {"A100-SXM-40": 1, "L4": 1}, phase="decode")
        first = shown.found.result
        await at_rest()
        return first, shown

    first, shown = asyncio.run(watched())
    proven = shown.found.result
    assert first.status == "feasible"
    assert proven.status == "optimal"
    assert (first.throughput or 0.0) <= proven.throughput <= (first.bound or math.inf)
    assert "proven optimal" in shown.chart.layout.title.text
    assert (
        f"The batch of {proven.problem.workload.batch_size} is the best of 1, 2,"
        in shown.text.value
    )
    assert asked == [BATCHES]  # each pipeline of a deployment may have another one


def test_nodes_are_a_control():
    """Its GPUs lie in nodes of that many, with their own links inside; a case keeps its own."""
    mix = beginning("Llama-3-8B", {"A100-SXM-40": 4, "T4": 3}, gpus_per_node=2)
    nodes = [gpu.node for gpu in problem_of(mix).cluster.gpus]
    assert [nodes.count(node) for node in dict.fromkeys(nodes)] == [2, 2, 2, 1]
    cluster = problem_of(mix).cluster
    assert cluster.bandwidth_between(0, 1) > cluster.bandwidth_between(1, 2) == 12.5
    controls = MixControls(mix, lambda: None)
    assert controls.mix == mix
    controls.gpus_per_node.value = 4
    assert controls.mix == dataclasses.replace(mix, gpus_per_node=4)
    controls.show(beginning("tiny"))
    assert controls.gpus_per_node.disabled
    assert controls.mix.gpus_per_node == 1


def test_a_case_that_nobody_touched_is_the_case():
    for name in pl.writeup.cases():
        assert problem_of(beginning(name)) == pl.load_case(name, link_units="tokens")


@pytest.mark.slow
def test_a_cost_model_changes_what_it_says_and_nothing_else():
    def of(source, costs, **values):
        return answer(beginning(source, {"A100-SXM-40": 2, "T4": 2} if source == "Llama-3-8B" else None, costs=costs,
                                **values))  # fmt: skip

    whole, lossy = (
        of("tiny", name, gpus_per_stage=2).result for name in ("linear, no loss", "linear")
    )
    # one stage of two GPUs in both
    assert lossy.throughput == pytest.approx(0.85 * whole.throughput)
    graphs, eager, apart = (
        of("Llama-3-8B", name, phase="decode") for name in cost_models("Llama-3-8B")[:3]
    )
    assert (graphs.problem.costs, eager.problem.costs) == (
        pl.Roofline(),
        pl.Roofline(engine="vLLM 0.2"),
    )
    assert apart.problem.costs == pl.Roofline(engine="llama.cpp")
    assert graphs.result.throughput > max(eager.result.throughput, apart.result.throughput)
    linear = of("Llama-3-8B", "linear").problem.costs
    known = pl.writeup.load_coefficients()
    assert linear.coefficients == {
        "A100-SXM-40": known.coefficients["A100"],
        "T4": known.coefficients["T4"],
    }
    for source in sources():
        for name in cost_models(source):
            assert (
                beginning(source, costs=name) != beginning(source) or name == cost_models(source)[0]
            )


def test_every_source_has_a_beginning_that_makes_a_problem():
    assert set(sources()) == {*pl.writeup.cases(), *pl.hardware.models().index}
    for source in sources():
        mix = beginning(source)
        assert set(dict(mix.counts)) <= set(types_of(source))
        assert len(problem_of(mix).cluster) == sum(dict(mix.counts).values())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: beginning("tyny"), r"no case or model 'tyny'.*tiny"),
        (lambda: beginning("tiny", {"H100": 1}), r"tiny knows no GPU type 'H100'"),
        (lambda: beginning("tiny", batches=3), r"no control 'batches'.*batch"),
        (
            lambda: problem_of(beginning("tiny", {"A100": 0, "V100": 0})),
            "GPUs = 0: expected at least one",
        ),
        (lambda: problem_of(beginning("tiny", phase="decode")), "expected 'prefill'"),
        (
            lambda: beginning("tiny", costs="Roofline"),
            r"costs = 'Roofline': tiny has 'linear', 'linear, no loss'",
        ),
        (
            lambda: problem_of(beginning("Llama-3-8B", costs="linear")),
            r"no coefficients for L4: set to 0, or choose a Roofline",
        ),
        (lambda: problem_of(Mix("Llama-3-8B", (("L4", 1),))), "have links of their own"),
        (
            lambda: parse_layers("3,x", 2, 4),
            r"expected whole numbers that add up to 4, such as 3,1; got x",
        ),
        (
            lambda: parse_layers("", 2, 4),
            r"expected whole numbers that add up to 4, such as 3,1; got nothing",
        ),
        (
            lambda: parse_layers("1,1,2", 2, 4),
            r"'1,1,2': 3 stages need as many GPUs, and there are 2",
        ),
        (lambda: parse_layers("0 3", 2, 4), r"these add up to 3, and the model has 4 layers"),
    ],
)
def test_what_does_not_go_together_is_one_clear_error(call, message):
    with pytest.raises(pl.PipelabError, match=message):
        call()


def test_one_gpu_more_is_solved_for_every_type_and_kept():
    mix = beginning("small", {"A100": 1, "V100": 2, "H100": 0})
    gains = dict(one_more(mix, threading.Event(), 30))
    assert list(gains) == ["A100", "V100", "H100"]
    for gpu_type, rate in gains.items():
        more = dataclasses.replace(
            mix, counts=tuple((t, n + (t == gpu_type)) for t, n in mix.counts)
        )
        assert (
            kept(more).result.throughput
            == rate
            == pl.solve(problem_of(more), "aggregated").throughput
        )
    stopped = threading.Event()
    stopped.set()
    assert dict(one_more(mix, stopped, 30)) == {}
    text = gains_line(answer(mix).result, gains, gains)
    best = max(gains, key=gains.get)
    assert text.startswith(f"One more {best} would help most: {tokens_per_s(gains[best])} (+")
    assert "being solved" in gains_line(answer(mix).result, {"A100": gains["A100"]}, gains)
    assert (
        gains_line(answer(mix).result, {"A100": 0.0}, ["A100"])
        == "Adding any one GPU does not help."
    )
    tied = gains_line(answer(mix).result, {"A100": 900.0, "V100": 900.0, "H100": 0.0}, gains)
    assert tied.startswith("One more A100 or V100 would help most: 900 tokens/s (+")
    assert tied.endswith("Others: H100 ±0%.")
    assert "Not proven in time: V100" in gains_line(answer(mix).result, {"V100": None}, ["V100"])


@pytest.mark.slow
def test_one_more_of_a_type_that_the_cost_model_does_not_know_is_not_asked_for():
    mix = beginning("Llama-3-8B", {"L4": 0, "A100-SXM-40": 2, "T4": 2}, costs="linear")
    assert list(dict(one_more(mix, threading.Event(), 30))) == ["A100-SXM-40", "T4"]

    async def reader():
        shown = pl.explore_mix("Llama-3-8B", {"L4": 0, "A100-SXM-40": 2, "T4": 2}, costs="linear")
        await at_rest()
        assert "being solved" not in shown.text.value
        assert "Linear: a layer has the same synthetic rate" in shown.text.value

    asyncio.run(reader())
    assert "Linear:" not in pl.explore_mix("tiny").text.value


def test_what_fails_while_nobody_waits_is_told():
    async def reader():
        told = []
        asyncio.get_running_loop().set_exception_handler(
            lambda loop, context: told.append(context["exception"])
        )
        Beside(lambda on: None).later(lambda stop: iter([1 / 0]), lambda item: None, wait_s=0.0)
        await at_rest()
        await asyncio.sleep(0.05)
        assert [type(error) for error in told] == [ZeroDivisionError]

    asyncio.run(reader())


def test_one_gpu_per_stage_is_the_original_formulations_optimum():
    mix = beginning("tiny", {"A100": 1, "V100": 2}, gpus_per_stage=2)
    alone = dataclasses.replace(problem_of(mix), max_gpus_per_stage=1)
    assert one_gpu_per_stage(mix).throughput == pytest.approx(
        pl.solve(alone, "single_gpu").throughput
    )


@pytest.mark.slow
def test_prices_are_per_hour_and_per_million_tokens():
    found = answer(beginning("Llama-3-70B"))
    facts = pl.hardware.load_gpus()
    used = [found.problem.cluster.gpus[g].type for g in found.result.placement.gpus]
    cost = money(found.problem, found.result.placement, found.result.throughput)
    assert cost.usd_per_hour == pytest.approx(sum(facts[t].usd_per_hour for t in used))
    hours = 1e6 / found.result.throughput / 3600
    assert cost.usd_per_million_tokens == pytest.approx(cost.usd_per_hour * hours)
    tiny = answer(beginning("tiny"))
    assert money(tiny.problem, tiny.result.placement, 1.0).usd_per_hour is None


def test_layers_dealt_by_hand_are_evaluated_with_their_deficit():
    found = answer(beginning("Llama-3-70B", batch=16))
    groups = stage_gpus(found)
    assert sorted(g for group in groups for g in group) == list(range(len(found.problem.cluster)))
    layers = [len(stage.layers) for stage in found.result.placement.stages]
    assert own_plan(found, tuple(layers)).share == 1.0
    t4 = next(
        i for i, gpus in enumerate(groups) if found.problem.cluster.gpus[gpus[0]].type == "T4"
    )
    layers[0], layers[t4] = 1, layers[t4] + layers[0] - 1
    own = own_plan(found, tuple(layers))
    assert not own.valid
    assert own.misfits[0].stage == t4 + 1
    assert own.misfits[0].deficit_gb > 1
    parts = placement_parts(found.problem, own.placement, "mine", fits=False)
    blocks = parts["data"][0]
    assert [i for i, shape in enumerate(blocks["marker"]["pattern"]["shape"]) if shape] == [t4]
    assert f"{own.misfits[0].deficit_gb:.3g} GB too much" in blocks["hovertext"][t4]
    assert blocks["text"][t4] == f"✗ stage {t4 + 1}"
    assert [text for text in blocks["text"] if text.isdigit()] == [
        str(i + 1) for i, n in enumerate(n for n in layers if n) if n < 0.07 * 80
    ]
    assert parts["data"][1]["y"] == []  # nothing limits what does not run


@pytest.mark.slow
def test_the_chart_has_the_same_traces_whatever_the_values():
    first = answer(STATES[0])
    chart = LiveChart(placement_parts(first.problem, first.result.placement, "first"))
    baselines = LiveChart(baseline_parts(rows_of(first), first.result.throughput))
    before = [[t.type for t in c.data] for c in (chart, baselines)]
    for mix in STATES:
        found = answer(mix)
        chart.put(placement_parts(found.problem, found.result.placement, "now"))
        baselines.put(baseline_parts(rows_of(found), found.result.throughput))
        assert [[t.type for t in c.data] for c in (chart, baselines)] == before
        used = found.result.placement.gpus if found.result.placement else ()
        assert len(chart.data[0].y) == len(used)
        layers = sum(chart.data[0].x[i] / len(s.gpus) for i, s in _rows(found))
        assert layers == pytest.approx(found.problem.model.layers if used else 0)


def _rows(found):
    stages = found.result.placement.stages if found.result.placement else ()
    return enumerate(stage for stage in stages for _ in stage.gpus)


def test_the_bottleneck_is_framed_and_a_slow_link_drawn():
    found = answer(beginning("Llama-3-8B", {"L4": 2, "T4": 1}, network_gb_per_s=0.01, context=1024))
    parts = placement_parts(found.problem, found.result.placement, "x")
    names = found.result.evaluation.bottlenecks
    framed = [row for row, (i, s) in enumerate((i, s) for i, s in enumerate(found.result.placement.stages))
              if f"stage {i + 1}" in names]  # fmt: skip
    assert parts["data"][1]["y"] == framed
    assert sum("◀" in label for label in parts["layout"]["yaxis"]["ticktext"]) == len(framed)
    forced = pl.Placement.of([(16, (0,)), (16, (1,))])
    slow = placement_parts(found.problem, forced, "x")["data"][2]
    assert slow["x"] == [16.5, 16.5, None]
    assert "slowest link 1→2" in slow["hovertext"][0]


def test_baselines_are_compared_with_the_optimum_and_say_why_they_are_missing():
    found = answer(beginning("Llama-3-70B", batch=64))
    parts = baseline_parts(rows_of(found), found.result.throughput)
    assert parts["layout"]["title"]["text"] == "No rule of thumb finds a placement that fits"
    assert all("GB" in note for note in parts["data"][5]["hovertext"])
    assert all(text.startswith("✗ does not fit: ") for text in parts["data"][5]["text"])
    tiny = answer(beginning("tiny", gpus_per_stage=2))
    parts = baseline_parts(rows_of(tiny), tiny.result.throughput)
    assert parts["data"][1]["x"] == [r.throughput for r in tiny.baselines]
    assert (
        parts["layout"]["title"]["text"]
        == "even, proportional and 2 more are closest without a proof: 56% below the optimum (dotted)"
    )


def test_the_title_of_the_baselines_names_all_that_come_nearest():
    def title(*rates):
        rows = [Row("proven optimum", 100.0, PROVEN)]
        rows += [Row(name, rate, NOT_PROVEN) for name, rate in zip("abcd", rates, strict=False)]
        return baseline_parts(rows, 100.0)["layout"]["title"]["text"]

    assert title(60, 40) == "a is closest without a proof: 40% below the optimum (dotted)"
    assert (
        title(60, 60, 40) == "a and b are closest without a proof: 40% below the optimum (dotted)"
    )
    assert (
        title(99.9, 40) == "a is closest without a proof: less than 1% below the optimum (dotted)"
    )
    assert title(100, 40) == "a reaches the optimum, without a proof"
    assert title(100, 100, 100, 40) == "a, b and 1 more reach the optimum, without a proof"


# work beside the kernel's loop


@pytest.mark.slow
def test_what_takes_longer_says_so_and_only_the_newest_answer_arrives():
    signs, answers = [], []

    async def reader():
        beside = Beside(signs.append)
        beside.run(lambda stop: "quick", lambda value, error: answers.append(value))
        await asyncio.sleep(SIGN_AFTER_S / 2)
        assert (answers, signs) == (["quick"], [False])
        beside.run(lambda stop: stop.wait(60), lambda value, error: answers.append("unwanted"))
        await asyncio.sleep(SIGN_AFTER_S * 2)
        assert signs == [False, True]  # at work
        beside.run(lambda stop: 1 / 0, lambda value, error: answers.append(type(error)))
        await asyncio.sleep(SIGN_AFTER_S)
        assert (answers, signs) == (["quick", ZeroDivisionError], [False, True, False])

    asyncio.run(reader())


@pytest.mark.slow
def test_at_rest_is_only_who_has_shown_everything():
    async def reader():
        mix = pl.explore_mix("tiny", gpus_per_stage=2)
        assert "being solved" in mix.text.value
        await at_rest()
        assert "being solved" not in mix.text.value
        assert "Adding any one GPU does not help" in mix.text.value
        beside, answers = Beside(lambda on: None), []
        beside.later(lambda stop: ["unwanted"], answers.append, wait_s=0.2)
        beside.run(lambda stop: stop.wait(0.5), lambda value, error: answers.append(value))
        await at_rest()
        assert answers == [False]
        watched = pl.watch_solve(pl.load_case("tiny", max_gpus_per_stage=2))
        await at_rest()
        assert not watched.solving.running

    asyncio.run(reader())


@pytest.mark.slow
def test_how_far_the_rate_may_be_off_is_said_and_whether_the_plan_stays_the_best():
    async def reader():
        mix = pl.explore_mix("Llama-3-8B", {"A100-SXM-40": 1, "L4": 1, "T4": 0})
        result = mix.found.result
        expected = pl.hardware.expected_rate(mix.found.problem, result.evaluation)
        assert expected.sentence in mix.text.value
        await at_rest()
        within = pl.sensitivity(mix.found.problem, result, expected.within)
        assert within.sentence in mix.text.value
        tiny = pl.explore_mix("tiny", gpus_per_stage=2)  # of whose rates nothing is known
        await at_rest()
        assert "Expect" not in tiny.text.value
        assert "Another plan" not in tiny.text.value

    asyncio.run(reader())


def test_a_plan_is_not_called_the_best_where_time_ran_out_or_it_was_stopped():
    found, stop = (
        answer(beginning("Llama-3-8B", {"A100-SXM-40": 1, "L4": 2, "T4": 2})),
        threading.Event(),
    )
    (late,) = plan_within(found, stop, 0.0)
    assert "not proven in time" in late
    stop.set()
    assert list(plan_within(found, stop, 5.0)) == []


# the widget


@pytest.mark.slow
def test_the_explorer_follows_its_controls_and_explains_what_cannot_be():
    mix = pl.explore_mix("tiny", gpus_per_stage=2)
    heard = []
    mix.on_answer(lambda found: heard.append(found and found.problem.name))
    assert mix.chart.layout.title.text.startswith(
        "tiny, 4 GPUs: 301.8 tokens/s in 1 stage with 1 in flight, proven optimal"
    )
    mix.controls.counts["A100"].value = 1
    assert (
        mix.found.result.throughput
        == pl.solve(problem_of(mix.controls.mix), "aggregated").throughput
    )
    assert "limited by stage 1 (framed): layers 1–4 on " in mix.chart.layout.title.text
    assert "Not used:" in mix.text.value
    mix.controls.phase.value = "decode"
    assert "expected &#x27;prefill&#x27;" in mix.refusal.value
    assert mix.text.value == ""
    assert mix.chart.layout.title.text.startswith("These values contradict each other")
    assert mix.found is None
    assert len(mix.chart.data[0].y) == 0
    mix.controls.phase.value = "prefill"
    assert mix.found.result.status == "optimal"
    assert mix.refusal.value == ""
    mix.controls.source.value = "Llama-3-70B"
    assert list(mix.controls.counts) == ["A100-SXM-40", "L4", "T4"]
    assert mix.controls.costs.value == "Roofline"
    assert len(mix.controls.costs.options) == 5
    assert "$" in mix.text.value
    mix.controls.more.value = "H100-SXM"
    assert dict(mix.controls.mix.counts)["H100-SXM"] == 1
    mix.controls.source.value = "Llama-3-8B"  # from model to model the mix stays
    assert dict(mix.controls.mix.counts)["H100-SXM"] == 1
    rate = mix.found.result.throughput
    mix.controls.costs.value = "Roofline, eager"
    assert mix.found.result.throughput < rate
    mix.controls.costs.value = "linear"
    assert "no coefficients for L4: set to 0" in mix.refusal.value  # it has them for an H100
    with pytest.raises(pl.PipelabError, match="not a GPU type the cost model knows"):
        exec(mix.code.code, {})
    mix.controls.costs.value = "Roofline, llama.cpp"
    mix.controls.source.value = "Llama-3-70B"  # and so does the cost model
    assert mix.controls.mix.costs == "Roofline, llama.cpp"
    eight, seventy = "Llama-3-8B", "Llama-3-70B"
    assert heard == ["tiny", None, "tiny", seventy, seventy, eight, eight, None, eight, seventy]
    space = {}
    exec(mix.code.code, space)
    assert space["result"].throughput == mix.found.result.throughput


def all_on_one(kind, placement):
    """What to type so that the first GPU of this type of these stages has every layer."""
    stages, gpus = placement.stages, problem_of(beginning("Llama-3-8B", MIXED)).cluster.gpus
    alone = [gpus[stage.gpus[0]].type for stage in stages].index(kind)
    return ",".join("32" if i == alone else "0" for i in range(len(stages)))


MIXED = {"A100-SXM-40": 2, "L4": 2, "T4": 2}


@pytest.mark.slow
def test_boundaries_move_by_hand_and_the_way_back_is_there():
    mix = pl.explore_mix("Llama-3-8B", MIXED)
    own, best = mix.own, mix.found.result
    layers = own.layers.value
    assert layers == ",".join(str(len(s.layers)) for s in best.placement.stages)
    own.boundary.value = 2
    own.where.value -= 2
    assert mix.own.score.throughput < best.throughput
    assert mix.chart.layout.title.text.startswith("Your plan: ")
    assert "of the proven optimum" in mix.chart.layout.title.text
    assert "your plan" in mix.baselines.layout.yaxis.ticktext
    space = {}
    exec(mix.code.code, space)
    assert space["score"].throughput == own.score.throughput
    own.layers.value = all_on_one("T4", best.placement)
    assert not own.score.valid
    assert "too much" in mix.text.value
    assert mix.chart.layout.title.text.startswith("Your plan is not valid")
    own.layers.value = "eighty"
    assert "expected whole numbers that add up to 32" in own.why.value
    own.back.click()
    assert own.layers.value == layers
    assert own.score is None
    assert mix.chart.layout.title.text.startswith("Llama-3-8B, 6 GPUs: ")


def test_a_last_boundary_gives_layers_to_an_unused_gpu():
    mix = pl.explore_mix("tiny")
    assert mix.own.layers.value == "4"
    mix.own.where.value = 3
    assert mix.own.layers.value == "3,1"
    assert mix.own.score.placement == pl.Placement.of([(3, (0,)), (1, (1,))])
    mix.own.where.value = 4
    assert mix.own.score is None


# the simple preset


def shown(panel):
    """Labels of the controls on the page, group by group; one list alone is the simple preset."""
    grid = panel.children[0].children
    groups = [c for c in grid if isinstance(c, widgets.VBox)]
    if not groups:
        return [c.description for c in grid]
    return {
        re.sub("<.*?>", "", group.children[0].value): [
            c.description
            for part in group.children[1:]
            for c in (part.children if isinstance(part, widgets.VBox) else [part])
        ]
        for group in groups
    }


def test_the_controls_are_in_four_groups_and_the_simple_preset_has_three():
    every, simple = pl.explore_mix("small"), pl.explore_mix("small", simple=True)
    assert shown(every.panel) == {
        "Cluster": ["A100", "V100", "H100"],
        "Model and workload": [
            "model or case", "cost model", "phase", "batch (sequences)", "context (tokens)",
            "answer (tokens)", "in flight (0: chosen)",
        ],
        "Limits for requests": ["TPOT, at most", "TTFT, at most"],
        "Network and stages": ["network, any to any",
            "nodes of … GPUs", "GPUs per stage, up to", "batch is split", "runs on"],
    }  # fmt: skip
    assert shown(simple.panel) == ["A100", "V100", "H100"]
    assert simple.controls.mix == every.controls.mix
    assert simple.own.panel.layout.display == "none"
    simple.controls.counts["A100"].value = 1
    assert dict(simple.found.mix.counts)["A100"] == 1
    simple.panel.more.value = True
    assert shown(simple.panel) == shown(every.panel)
    assert simple.own.panel.layout.display is None
    simple.controls.source.value = "tiny"
    simple.panel.more.value = False
    assert shown(simple.panel) == ["A100", "V100", "GPUs per stage, up to"]


def test_the_pipeline_has_the_simple_preset_too():
    simple = pl.explore_pipeline("tiny", {"A100": 1, "V100": 0}, simple=True)
    assert shown(simple.mix.panel) == ["A100", "V100", "GPUs per stage, up to"]
    assert simple.in_flight.layout.display == "none"
    simple.mix.panel.more.value = True
    assert simple.in_flight.layout.display is None


def test_a_finding_is_said_once():
    """What the title says is not in the text below it."""
    mix = pl.explore_mix("Llama-3-8B", MIXED)
    best = mix.found.result.placement
    for _ in range(2):
        title, text = mix.chart.layout.title.text, mix.text.value
        assert "tokens/s in" in title or "Your plan" in title
        assert "limited by" in title
        assert not re.search("limit|optimal|optimum|in [0-9]+ stages", text)
        mix.own.boundary.value = 2
        mix.own.where.value -= 2
    mix.own.layers.value = all_on_one("T4", best)
    assert mix.chart.layout.title.text == "Your plan is not valid"
    assert "not valid" not in mix.text.value
    assert "GB too much" in mix.text.value
    mix = pl.explore_mix("Llama-3.1-405B", {"T4": 2})
    assert "no placement exists" in mix.chart.layout.title.text
    assert "placement exists" not in mix.text.value
    assert mix.found.result.reason[:30] in mix.chart.layout.title.text
