"""`pl.serve`: requests through plans, beside what the evaluator, the timeline and the formulas for requests say."""

import dataclasses
import io
import math
import random
import re
import time
from itertools import repeat

import numpy as np
import pytest
from small_problems import random_placement, three_types, tight

import pipelab as pl
from clone import text_of
from pipelab.costs import filled
from pipelab.deployment_and_flow import DeploymentPlan, Replicas
from pipelab.engine.serving.arrivals import from_file
from pipelab.engine.serving.line_times import LineTimes
from pipelab.engine.serving.lines import lines_of
from pipelab.engine.serving.served import _columns, chunk_advice
from pipelab.engine.timeline.placement_timelines import lane_costs
from pipelab.hardware.engine_rules import known_rules
from pipelab.requests import for_phase, times
from pipelab.serving import Request, Simulation, Visit, Work


def placed(seed, **load):
    """A problem with memory to spare and a valid placement of it."""
    rng = np.random.default_rng([57, seed])
    problem = tight(seed, late=seed % 2 == 0)
    cluster = problem.cluster
    gpus = [dataclasses.replace(gpu, memory_gb=50 * gpu.memory_gb) for gpu in cluster.gpus]
    unequal = rng.uniform(0.3, 3, cluster.bandwidth_matrix().shape)
    unequal = unequal * unequal.T
    cluster = pl.Cluster(
        gpus, cluster.bandwidth_matrix() * unequal, None, cluster.latency_matrix() * unequal
    )
    number = int(rng.integers(1, 5))
    given = {"phase": "prefill", "output_tokens": 20, "in_flight": number, "timed_at": None}
    load = dataclasses.replace(problem.workload, **given | load)
    problem = dataclasses.replace(problem, cluster=cluster, workload=load)
    # of two stages, and with two GPUs in one of them, where such a plan is drawn
    plans = [random_placement(problem, rng) for _ in range(60)]
    plans.sort(key=lambda plan: -len(plan.gpus) * (len(plan) > 1))
    return problem, next(plan for plan in plans if pl.score(problem, plan).valid)


@pytest.mark.quick(45)
@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("phase", ["prefill", "decode", "mixed"])
def test_even_batches_take_what_the_evaluator_says(seed, phase):
    problem, plan = placed(seed, phase=phase)
    load, evaluation = problem.workload, pl.evaluate(problem, plan)
    work = {
        "prefill": Work(load.batch_size * load.sequence_length, load.batch_size),
        "decode": Work(writes=load.batch_size, context=load.sequence_length),
        "mixed": Work(
            load.tokens_passed - load.batch_size, 1, load.batch_size,
            context=load.sequence_length + load.written / 2,
        ),
    }[phase]  # fmt: skip
    seconds, waits = LineTimes(problem, evaluation.stages)(work)
    costs, _ = lane_costs(evaluation)
    assert seconds == pytest.approx(
        np.atleast_1d(costs.forward), rel=0.02 if phase == "mixed" else 1e-9
    )
    through = (seconds + waits).sum()
    assert through == pytest.approx(
        evaluation.seconds_per_pass, rel=0.02 if phase == "mixed" else 1e-9
    )


@pytest.mark.quick(12)
@pytest.mark.parametrize("seed", range(60))
def test_prompts_beside_answers_take_what_a_mixed_microbatch_says(seed):
    """Of answers of another length than those of the problem: more or fewer tokens of prompts in a pass."""
    problem, plan = placed(seed, phase="mixed")
    times = LineTimes(problem, pl.evaluate(problem, plan).stages)
    for answer in (5, 60):
        other = dataclasses.replace(problem.workload, output_tokens=answer)
        evaluation = pl.evaluate(dataclasses.replace(problem, workload=other), plan)
        reads = other.tokens_passed - other.batch_size
        work = Work(reads, 1, other.batch_size, other.sequence_length + answer / 2)
        seconds, waits = times(work)
        assert (seconds + waits).sum() == pytest.approx(evaluation.seconds_per_pass, rel=0.08)
    alone, *whole = (
        times(work._replace(reads=n * 2**20))[0] for n in (0, 1, 3)
    )  # more than all can read
    assert whole[1] - alone == pytest.approx(3 * (whole[0] - alone), rel=1e-6)


@pytest.mark.quick(8)
@pytest.mark.parametrize("seed", range(40))
def test_parts_of_a_prompt_take_no_less_than_the_whole(seed):
    """Each part looks back at those before it; together they take what the whole takes, and what begins a pass."""
    problem, plan = placed(seed)
    model = dataclasses.replace(problem.model, window=None, full_layers=())
    problem = dataclasses.replace(
        problem, model=model, workload=pl.Workload(20_000, 1, in_flight=1)
    )
    cluster = problem.cluster
    gpus = [dataclasses.replace(gpu, memory_gb=1e6) for gpu in cluster.gpus]
    problem = dataclasses.replace(problem, cluster=dataclasses.replace(cluster, gpus=tuple(gpus)))
    times = [
        pl.serve(problem, plan, 1, clients=1, chunk=chunk).requests["ttft_ms"][0]
        for chunk in (20_000, 5_000, 1_000)
    ]
    alone = pl.serve(problem, plan, 1, clients=1, prompt=1).requests["ttft_ms"][0]
    assert times[0] <= times[1] * (1 + 1e-6)
    assert times[1] <= times[2] * (1 + 1e-6)
    assert times[2] <= (times[0] + 19 * alone) * 1.1


@pytest.mark.quick(8)
@pytest.mark.parametrize("seed", range(40))
def test_prompts_of_one_size_end_when_the_timeline_has_it(seed):
    """To 1e-9: a closed loop of as many batches as are in flight."""
    problem, plan = placed(seed)
    load = problem.workload
    clients = load.in_flight * load.batch_size
    served = pl.serve(problem, plan, 40 * clients, clients=clients)
    assert served.settled
    ends = served.requests["ended_s"].reshape(-1, load.batch_size)
    begin = served.warm_up // load.batch_size
    passes = begin + len(ends)
    run = pl.timeline_of(problem, plan, microbatches=passes, in_flight=load.in_flight)
    timeline = run.timeline
    known = np.sort(timeline.node_end[timeline.node_rank == timeline.schedule.ranks - 1])
    assert ends[:, 0] == pytest.approx(known[begin:] + run.leaving, rel=1e-9)


@pytest.mark.quick(8)
@pytest.mark.parametrize("filling", ["synchronous", "by_stages", "micro_batches", "one", "dynamic"])
@pytest.mark.parametrize("seed", range(30))
def test_a_full_pipeline_has_the_rate_that_was_evaluated(seed, filling):
    """Answers without end at one context, and tokens that are back at once."""
    problem, plan = placed(seed, phase="decode")
    problem = dataclasses.replace(problem, costs=filled(problem.costs, filling))
    evaluation, load = pl.evaluate(problem, plan), problem.workload
    (line,), _, takes_all = lines_of(problem, plan, None)
    at = {"context": load.sequence_length}
    line = line._replace(
        times=lambda work, of=line.times: of(work._replace(**at)), back_seconds=0.0
    )
    clients = evaluation.in_flight * load.batch_size
    endless = repeat(Request(0.0, load.sequence_length, 10**7, written=1))
    run = Simulation([line._replace(room=math.inf)], endless, takes_all, clients=clients)
    run.run(lambda at: at.tokens >= 100 * clients)
    if filling != "dynamic":  # a message for each token there
        assert run.tokens / run.now == pytest.approx(evaluation.attainable, rel=0.03)
    assert run.tokens / run.now <= 1.001 * evaluation.rate * (
        load.batch_size if filling == "dynamic" else 1
    )


@pytest.mark.parametrize("seed", range(20))
def test_a_request_alone_gets_what_was_promised_of_two_pools(seed):
    problem = three_types(sequence_length=512, batch_size=1, output_tokens=64)
    chance = random.Random(seed)
    gpus, cut = chance.sample(range(10), 4), chance.randint(8, 24)
    pipelines, promised = [], []
    for phase, (first, last) in (("prefill", gpus[:2]), ("decode", gpus[2:])):
        plan = pl.Placement.of([(cut, [first]), (32 - cut, [last])])
        alone = for_phase(problem, phase, 1).with_in_flight(1)
        pipelines.append(Replicas(replicas=(plan,), workload=alone.workload))
        promised.append(times(alone, plan, 1))
    served = pl.serve(problem, DeploymentPlan(pipelines=tuple(pipelines)), 5, clients=1)
    assert served.requests["ttft_ms"] == pytest.approx(1000 * promised[0].first, rel=1e-9)
    assert served.requests["tpot_ms"] == pytest.approx(1000 * promised[1].traversal, rel=0.01)


def test_requests_in_the_system_are_rate_times_time():
    """Little's law, and GPUs that are as busy as the rate asks for."""
    problem = three_types(phase="mixed", batch_size=8, output_tokens=40)
    deployed = pl.deploy(problem, tpot_ms=200, batches=[8])
    served = pl.serve(problem, deployed, 1500, rate=0.7 * deployed.requests_per_s)
    columns = served.requests
    stay = columns["ended_s"] - columns["came_s"]
    moments = np.linspace(columns["came_s"][150], columns["came_s"][-150], 1000)
    present = [np.sum((columns["came_s"] <= t) & (columns["ended_s"] > t)) for t in moments]
    assert np.mean(present) == pytest.approx(served.requests_per_s * stay.mean(), rel=0.05)
    assert not served.falls_behind
    assert served.requests_per_s == pytest.approx(
        0.7 * deployed.requests_per_s, abs=4 * served.requests_error
    )


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_shown_on_a_terminal_alone(monkeypatch, terminal):
    said = io.StringIO()
    said.isatty = lambda: terminal
    monkeypatch.setattr("sys.stderr", said)
    monkeypatch.setattr("pipelab.engine.serving.served._SILENT_S", 0)
    problem = three_types(phase="mixed", batch_size=8, sequence_length=500, output_tokens=20)
    pl.serve(problem, pl.solve(problem), 40, rate=1)
    assert (" requests" in said.getvalue()) == terminal


def test_broken_limits_and_queues_that_grow_are_said():
    problem = three_types(phase="mixed", batch_size=8, output_tokens=40)
    deployed = pl.deploy(problem, ttft_ms=3000, batches=[8])
    served = pl.serve(problem, deployed, 1000, rate=1.3 * deployed.requests_per_s)
    assert served.falls_behind
    assert "the queue grows" in served.sentence
    assert "TTFT at the 99th percentile is" in served.sentence
    calm = pl.serve(problem, deployed, 500, rate=0.05 * deployed.requests_per_s)
    assert "above the limit" not in calm.sentence
    assert calm.requests["ttft_ms"].max() <= 3000


def served_in_chunks(requests, *chunks):
    """The plan of vLLM with ten stages, and what it yields when it is full with so many tokens in a batch."""
    problem = three_types(phase="mixed", batch_size=16, sequence_length=1000, output_tokens=200)
    result = pl.solve(problem, runs_on="vLLM")
    clients = 16 * result.in_flight
    of_chunks = [
        pl.serve(result.problem, result, requests, clients=clients, chunk=chunk) for chunk in chunks
    ]
    return result, of_chunks


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "batch", "tokens", "load"),
    [("vLLM", 16, 1000, 0.7), ("SGLang", 16, 1000, 0.4), ("TensorRT-LLM", 16, 500, 0.3), ("vLLM", 3000, 4, 0.5)],
)  # fmt: skip
def test_smaller_batches_that_serve_better_are_named_and_started(engine, batch, tokens, load):
    """Each number is tried here, too: what is named is as quick as the quickest, but for a twentieth."""
    workload = {"batch_size": batch, "sequence_length": tokens, "output_tokens": tokens // 10 + 1}
    problem = three_types((1, 4, 2), phase="mixed", **workload)
    found, seconds = pl.solve(problem, runs_on=engine), {}
    least, option = batch * found.in_flight, known_rules()[engine].tokens_option
    sent = {"rate": load * found.throughput / workload["output_tokens"]}
    whole = pl.serve(problem, found, 300, **sent)
    most = int(whole.lines.lines[0].tokens)
    for chunk in (most >> halvings for halvings in range(7) if most >> halvings >= least):
        one = pl.serve(problem, found, 300, **sent, chunk=chunk)
        seconds[chunk] = (one.requests["ended_s"] - one.requests["came_s"]).mean()
        assert f"{option} {chunk} " in f"{' '.join(pl.settings(problem, one, engine).arguments)} "
        assert chunk_advice(one).endswith(f"{option} {chunk}.")
    named = int(re.search(r"(\d+)\.$|$", chunk_advice(whole))[1] or most)
    assert named == max(
        chunk for chunk in seconds if 0.95 * seconds[chunk] <= min(seconds.values())
    )
    assert f"{option} {most} " in f"{' '.join(pl.settings(problem, whole, engine).arguments)} "
    for chunk in (least - 1, most + 1):
        with pytest.raises(pl.errors.NotApplicable, match=f"expected {least}, one .* to {most}"):
            pl.settings(problem, pl.serve(problem, found, 1, **sent, chunk=chunk), engine)


@pytest.mark.slow
@pytest.mark.nightly
def test_the_page_has_what_chunks_do():
    """As stated: the proven rate, four simulated ones, and how long the slowest stage works with whole prompts."""
    text = " ".join(text_of("docs/requests.md").split("**Chunks decide")[1].split())
    result, of_chunks = served_in_chunks(1000, 96, 256, 512, 2048)
    known = [result.throughput, *(served.tokens_per_s for served in of_chunks)]
    stated = [float(re.search(rf"\b{said}", text)[1].replace(",", "")) for said in (
        r"yield ([\d,]+) tokens", r"has them, ([\d,]+) are", r"of 256, ([\d,]+);", r"of 512, ([\d,]+);",
        r"and ([\d,]+) where",
    )]  # fmt: skip
    assert stated == pytest.approx(known, rel=0.02)
    assert f"works {of_chunks[-1].busy.max():.0%}".replace("%", " %") in text


@pytest.mark.slow
@pytest.mark.nightly
def test_engines_differ_in_who_joins_a_batch_and_who_loses_the_cache():
    """One A100, and answers three times as long as the plan's."""
    problem = three_types(phase="mixed", batch_size=96, sequence_length=1000, output_tokens=200)
    problem = dataclasses.replace(problem, cluster=problem.cluster.only([0]))
    served = {}
    for engine in ("vLLM", "TensorRT-LLM", "transformers"):
        result = pl.solve(problem, runs_on=engine)
        options = {"clients": 150, "answer": ("exponential", 600)}
        served[engine] = pl.serve(result.problem, result, 200, **options)
    assert served["vLLM"].requests["preempted"].sum() > 0
    assert "lost the cache" in served["vLLM"].sentence
    assert served["TensorRT-LLM"].requests["preempted"].sum() == 0
    assert served["transformers"].tokens_per_s < 0.7 * served["TensorRT-LLM"].tokens_per_s


def test_a_flow_carries_what_it_was_found_for():
    problem = three_types(sequence_length=1000, batch_size=1)
    flow = pl.flow(problem, time_limit=20, stop=lambda progress: progress.incumbent is not None)
    served = pl.serve(problem, flow, 3000, rate=0.8 * flow.throughput / 1000)
    assert not served.falls_behind
    shares = np.bincount(served.requests["line"].astype(int) - 1) / 3000
    rates = np.array([way.rate for way in flow.ways])
    assert shares == pytest.approx(rates / rates.sum(), abs=0.01)


def test_who_is_rejected_by_the_pool_for_answers_has_no_time_between_tokens():
    """Its prompt was read, so it has a first token; it does not count as an answer without waiting."""
    visit = Visit(Request(0.0, 9, 5), 0.0, 0, admitted=1.0, first=2.0, ended=2.0, rejected=True)
    columns = _columns([visit])
    assert columns["ttft_ms"][0] == 2000
    assert np.isnan([columns["tpot_ms"][0], columns["ended_s"][0]]).all()


# Files, and what is refused


TRACES = {
    "ours": ("seconds,prompt,answer", "{0},{1},{2}"),
    "Azure": ("TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:15:{0:010.7f},{1},{2}"),
    "BurstGPT": (
        "Timestamp,Model,Request tokens,Response tokens,Log Type",
        "{0},GPT-4,{1},{2},API",
    ),
}


def written(path, name, sizes):
    header, row = TRACES[name]
    path.write_text("\n".join([header, *(row.format(*size) for size in sizes)]), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", TRACES)
def test_public_traces_are_read(tmp_path, name):
    chance = random.Random(5)
    seconds = sorted(chance.uniform(0, 59) for _ in range(30))
    sizes = [(s, chance.randint(1, 900), chance.randint(1, 30)) for s in seconds]
    problem = three_types(phase="mixed", batch_size=8, output_tokens=40)
    plan = pl.Placement.of([(32, [0])])
    served = pl.serve(problem, plan, written(tmp_path / "trace.csv", name, sizes))
    columns = served.requests
    assert columns["came_s"] == pytest.approx(np.array(seconds) - seconds[0], abs=1e-5)
    assert list(zip(columns["prompt"], columns["answer"], strict=True)) == [s[1:] for s in sizes]


@pytest.mark.parametrize("name", TRACES)
@pytest.mark.parametrize("column", [0, 1, 2])
@pytest.mark.parametrize("value", ["", "-1", "x", "0.5", "nan", "inf", "1e99"])
def test_a_cell_that_is_no_time_or_length_is_named(tmp_path, name, column, value):
    path = written(tmp_path / "trace.csv", name, [(1.0, 5, 5), (2.0, 5, 5), (3.0, 5, 5)])
    lines = path.read_text(encoding="utf-8").split("\n")
    cells, at = (
        lines[2].split(","),
        {0: 0, 1: 1, 2: 2}[column] + (name == "BurstGPT" and column > 0),
    )
    cells[at] = value
    path.write_text("\n".join([*lines[:2], ",".join(cells), *lines[3:]]), encoding="utf-8")
    problem, plan = three_types(phase="mixed", output_tokens=9), pl.Placement.of([(32, [0])])
    with pytest.raises(pl.errors.InvalidData, match="row 3, column"):
        pl.serve(problem, plan, path)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({}, "rate"), ({"rate": 1, "clients": 2}, "rate"), ({"rate": 0}, "rate"), ({"clients": 1.5}, "clients"),
        ({"rate": 1, "requests": 0}, "requests"), ({"rate": 1, "prompt": 0}, "prompt"),
        ({"rate": 1, "answer": ("uniform", 1)}, "answer"), ({"rate": 1, "prompt": ("normal", 1)}, "prompt"),
        ({"rate": 1, "chunk": 0}, "chunk"), ({"rate": math.inf}, "rate"), ({"rate": 1, "seed": -1}, "seed"),
        ({"rate": 1, "prompt": ()}, "prompt"), ({"rate": 1, "prompt": ([1], 1)}, "prompt"),
        ({"rate": 1, "prompt": ("uniform", 9, 1)}, "prompt"), ({"rate": 1, "answer": ("exponential", 1e300)}, "answer"),
        ({"rate": 1, "prompt": ("lognormal", 9, 1e300)}, "prompt"), ({"rate": 1e-300}, "rate"),
        ({"clients": 10**9}, "clients"),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_named(options, field):
    problem, plan = three_types(phase="mixed", output_tokens=9), pl.Placement.of([(32, [0])])
    with pytest.raises(pl.errors.InvalidValue, match=f"serve: {field} ="):
        pl.serve(problem, plan, **options)


def test_a_workload_of_training_is_named():
    problem, plan = three_types(phase="training"), pl.Placement.of([(32, [0])])
    with pytest.raises(pl.errors.InvalidValue, match="phase = 'training'"):
        pl.serve(problem, plan, rate=1)


@pytest.mark.parametrize("options", [{"rate": 1e9}, {"rate": 300}, {"clients": 1}, {"clients": 40}])
@pytest.mark.parametrize("requests", [1, 30])
def test_few_requests_of_many_end_and_have_a_rate(options, requests):
    """Also where far more come than can end, and where one wave of clients comes at once."""
    problem, plan = three_types(phase="mixed", output_tokens=9), pl.Placement.of([(32, [0])])
    served = pl.serve(problem, plan, requests, **options)
    assert np.isfinite(served.requests["ended_s"]).all()
    assert served.requests_per_s > 0 or served.falls_behind or (requests == 1 and "rate" in options)


@pytest.mark.parametrize("first", ["2024-03-10 01:59:59", "2024-03-10T01:59:59.5+00:00"])
def test_clocks_that_change_do_not_matter_to_traces(tmp_path, monkeypatch, first):
    path = tmp_path / "trace.csv"
    later = [first.replace("01:59", f"{hour:02}:{hour}0") for hour in (2, 3, 4)]
    rows = [f"{when},5,5" for when in (first, *later)]
    path.write_text("\n".join(["seconds,prompt,answer", *rows]), encoding="utf-8")
    monkeypatch.setenv("TZ", "America/New_York")
    getattr(time, "tzset", bool)()
    known = [request.seconds for request in from_file(path)]
    monkeypatch.undo()
    getattr(time, "tzset", bool)()
    assert known == pytest.approx([0, 1260, 5460, 9660])


@pytest.mark.parametrize("number", [1, 3])
def test_memory_for_so_many_prompts_holds_so_many(number):
    """Of a prompt that is read for others, or whose answer is one token, memory holds no answer."""
    problem, plan = placed(3)
    (line,), *_ = lines_of(problem, plan, None)
    size = problem.workload.sequence_length
    assert math.isinf(line.room) or line.room % (size + 1) == 0
    line = line._replace(room=number * (size + 1), sequences=number, tokens=math.inf)
    for answer, hands_on in ((1, None), (99, lambda prompt: 1.0)):
        lines = [line._replace(hands_on=hands_on)] + [line._replace(room=math.inf)] * bool(hands_on)
        run = Simulation(lines, [Request(0.0, size, answer)] * number)
        run.run(lambda at: not at.events)
        assert [visit.admitted for visit in run.visits] == [0.0] * number


def test_requests_larger_than_memory_are_counted():
    problem, plan = three_types(phase="mixed", output_tokens=9), pl.Placement.of([(32, [0])])
    served = pl.serve(problem, plan, 200, rate=1, prompt=("uniform", 1, 400_000))
    assert 0 < served.rejected < 200
    assert f"{served.rejected} requests need more memory" in served.sentence


# The page


@pytest.mark.slow
@pytest.mark.nightly
def test_the_page_has_what_asking_for_more_brings():
    """Its code for the first fleet, and the same loop for the second."""
    page, space = text_of("docs/requests.md"), {}
    (block,) = re.findall(r"```python\n(.*?)```", page, re.S)
    exec(block, space)
    node = pl.hardware.cluster_of_counts({"H100-SXM": 8})
    gpus = [dataclasses.replace(gpu, usd_per_hour=2.5) for gpu in node.gpus]
    node = dataclasses.replace(node, gpus=tuple(gpus))
    large = pl.load_model("Llama-3-70B")
    other = dataclasses.replace(space["problem"], cluster=node, model=large, max_gpus_per_stage=8)
    begin = block.index("limits, asked")
    again = block[begin:].replace(
        '"ttft_ms": 2000, "tpot_ms": 100}, 20.0', '"ttft_ms": 1000, "tpot_ms": 40}, 5.0'
    )
    second = {"pl": pl, "problem": other}
    exec(again.replace("rate=20,", "rate=5,"), second)
    known = [
        [r["asked for"], r["dollars per hour"], r["ttft_ms, 99 %"]]
        for r in space["rows"] + second["rows"]
    ]
    cells = [
        line.strip("| ").split(" | ")
        for line in page.split("\n")
        if line.startswith(("| this one", "| |", "| 8 × H100 at"))
    ]
    stated = [
        [float(cell.replace(",", "")) for cell in (*row[-4:-2], row[-1])]
        for row in cells[: len(known)]
    ]
    assert np.array(stated) == pytest.approx(np.array(known), rel=0.05)
    assert (
        min(second["rows"][-1]["ttft_ms, 99 %"], 1000) < 1000 < second["rows"][0]["ttft_ms, 99 %"]
    )
