"""The command line on a model and GPUs of one's own, in this process: each answer beside the package's."""

import dataclasses
import inspect
import json
import shutil
import sys
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import pipelab as pl
from pipelab.cli import command_line, health
from pipelab.cli.commands import problem_options, problems
from pipelab.display import duration, number, rate
from pipelab.engine.methods.joint import joint_size

DATA = Path(__file__).parents[1] / "data"
OWN = ("--model", "Llama-3-8B", "--gpus", "a100-sxm-40=2,l4=3", "--batch", "4", "--length", "512")
OWN += ("--phase", "decode")


@pytest.fixture
def run(monkeypatch, capsys):
    def run(*arguments):
        """Exit status, standard output, standard error."""
        problem_options._say_once.cache_clear()
        monkeypatch.setattr(sys, "argv", ["pipelab", *map(str, arguments)])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            status = command_line._run()
        return (status or 0, *capsys.readouterr())

    return run


@pytest.fixture
def heavy(tmp_path):
    """Make the folder of a case: tiny, with layers of so many GB."""

    def heavy(gb):
        tiny = pl.load_case("tiny")
        model = dataclasses.replace(tiny.model, layer_weight_gb=gb)
        return pl.writeup.save_case(dataclasses.replace(tiny, model=model), tmp_path / f"{gb} GB")

    return heavy


def _problem(**more):
    """What OWN says, made by hand: one node of two A100, one of three L4, 100 Gbit/s between them."""
    pairs = [pl.GPU("A100-SXM-40", 42.950, 1.29, "A100-SXM-40×8 no. 1", 300)] * 2
    threes = [pl.GPU("L4", 24.153, 0.98, "L4×8 no. 2", 31.5)] * 3
    of = np.array([0, 0, 1, 1, 1])
    links = np.array([[300, 12.5], [12.5, 31.5]])
    load = more.pop("load", pl.Workload(512, 4, "decode"))
    cluster = pl.Cluster((*pairs, *threes), links, of)
    return pl.Problem(cluster, pl.load_model("Llama-3-8B"), load, pl.Roofline(), **more)


def test_a_model_on_gpus_is_the_problem_made_by_hand(run):
    found = problem_options.Wanted(
        model="Llama-3-8B", gpus="a100-sxm-40=2,l4=3", batch=4, length=512, phase="decode"
    )
    by_hand = _problem(name="Llama-3-8B on 2 × A100-SXM-40, 3 × L4")
    assert found.problem(None) == by_hand  # the rules that nobody gave, too: they stand in Problem
    assert (by_hand.max_gpus_per_stage, by_hand.same_type_stages) == (3, True)  # of the L4 node
    status, out, err = run("solve", *OWN, "--json")
    answer = pl.solve(by_hand)
    assert (status, err) == (0, "")
    told = json.loads(out)
    assert told["throughput_tokens_per_s"] == pytest.approx(answer.throughput, rel=1e-12)
    assert told["placement"] == answer.placement.to_dict()


def test_every_option_reaches_its_field():
    options = problem_options.Wanted(
        model="Llama-3-8B", gpus="a100-sxm-40=5", precision="int4", kv_precision="fp8", per_node=2,
        network_gbit=40, rates="llama.cpp", batch=3, length=100, phase="mixed", output_tokens=7,
        in_flight=5, max_gpus=4, same_type=False, batch_split="balanced", link_units="tokens",
    )  # fmt: skip
    found = options.problem(None)
    assert (found.model.precision, found.model.kv_precision) == ("int4", "fp8")
    assert found.workload == pl.Workload(100, 3, "mixed", output_tokens=7, in_flight=5)
    assert found.costs.engine == "llama.cpp"
    rules = (found.max_gpus_per_stage, found.same_type_stages, found.batch_split)
    assert rules == (4, False, "balanced")
    nodes = [gpu.node for gpu in found.cluster.gpus]
    assert [nodes.count(node) for node in dict.fromkeys(nodes)] == [2, 2, 1]
    assert [found.cluster.bandwidth_between(0, i) for i in (1, 2, 4)] == [300, 5, 5]
    tiny = problem_options.Wanted(
        batch=8, length=100, max_gpus=2, same_type=True, link_units="tokens"
    )
    found = tiny.problem("tiny")
    assert (found.workload.batch_size, found.workload.sequence_length) == (8, 100)
    assert (found.max_gpus_per_stage, found.same_type_stages, found.costs.link_units) == (
        2,
        True,
        "tokens",
    )
    plain = problem_options.Wanted(model="Llama-3-8B", gpus="l4=1").problem(None)
    assert plain.workload == pl.Workload(2048, 8)
    assert plain.max_gpus_per_stage == 1


def test_the_mixed_phase_needs_its_output_and_a_batch_says_of_what(run):
    status, out, err = run("solve", "--model", "Llama-3-8B", "--gpus", "l4=1", "--phase", "mixed")
    assert (status, out) == (2, "")
    assert "--output-tokens = None: expected how many tokens are written per sequence" in err
    own = ("--model", "Llama-3-8B", "--gpus", "l4=1", "--phase", "mixed", "--output-tokens", "100")
    assert run("solve", *own)[0] == 0
    answers = "output-tokens=50,100", "--jobs", "1", "--json"
    assert run("sweep", *own[:6], "--vary", *answers)[0] == 0
    assert "of one microbatch" in run("node", "--help")[1]


def test_a_configuration_and_hosts_are_read_from_files(run, tmp_path):
    configs = json.loads((DATA / "model_configs.json").read_text(encoding="utf-8"))
    fields = configs["Mistral-7B-v0.1"]["config.json"]
    (tmp_path / "config.json").write_text(json.dumps(fields), encoding="utf-8")
    files = ("--model", tmp_path / "config.json", "--cluster", DATA / "hosts" / "h100-mesh")
    status, out, err = run("solve", *files, "--output", tmp_path / "plan.json")
    assert (status, err) == (0, "")
    assert "H100-SXM" in out
    plan = json.loads((tmp_path / "plan.json").read_text("utf-8"))
    assert plan["layers"] == 32
    status, out, err = run("evaluate", tmp_path / "plan.json", *files)
    rates = [stage["throughput_tokens_per_s"] for stage in plan["stages"]]
    slowest = f"stage {1 + rates.index(min(rates))}"
    told = f"{rate(plan['attainable_tokens_per_s'])} with {plan['in_flight']} in flight"
    assert out.startswith(f"{told}; slowest: {slowest}")


def test_a_plan_is_evaluated_with_all_its_rates(run, tmp_path):
    plan = pl.Placement.of([(20, (0, 1)), (5, (2,)), (7, (3, 4))])
    problem = _problem()
    expected = pl.evaluate(problem, plan)
    mine = tmp_path / "mine.json"
    mine.write_text(json.dumps({"stages": plan.to_dict()["stages"]}))
    saved = tmp_path / "plan.json"
    status, out, err = run("evaluate", mine, *OWN, "--json", "--output", saved)
    assert (status, err) == (0, "")
    told = json.loads(out)
    assert told == json.loads(saved.read_text("utf-8"))
    rates = [stage["throughput_tokens_per_s"] for stage in told["stages"]]
    assert rates == pytest.approx([stage.throughput for stage in expected.stages], rel=1e-12)
    assert told["rate_tokens_per_s"] == pytest.approx(expected.rate, rel=1e-12)
    assert told["attainable_tokens_per_s"] == pytest.approx(expected.attainable, rel=1e-12)
    assert told["in_flight"] == expected.in_flight
    assert told["seconds_per_token"] == pytest.approx(expected.seconds_per_token, rel=1e-12)
    assert len(told["links"]) == 2
    held = pl.hardware.capacity(problem, plan)
    out = run("evaluate", saved, *OWN)[1]
    assert f"It holds {4 * expected.in_flight} sequences of {held.context:,} tokens, " in out
    assert f" or {held.sequences:,} sequences of 512" in out
    # another batch, or other GPUs, and the plan's rates no longer hold
    for changed in (("--batch", "5"), ("--gpus", "a100-sxm-40=2,t4=3")):
        status, out, err = run("evaluate", saved, *OWN, *changed)
        assert (status, out) == (2, "")
        assert str(saved) in err
    stages = [{"first_layer": 1, "last_layer": 20, "gpus": [0, 1]}]
    stages.append({"first_layer": 22, "last_layer": 32, "gpus": [2]})
    (tmp_path / "bad.json").write_text(json.dumps({"stages": stages}))
    status, out, err = run("evaluate", tmp_path / "bad.json", *OWN)
    assert status == 2
    assert "this placement is not valid" in err


def test_a_plan_that_names_its_case_needs_nothing_else(run, tmp_path):
    assert run("solve", "tiny", "--max-gpus", "2", "--output", tmp_path / "plan.json")[0] == 0
    status, out, _ = run("evaluate", tmp_path / "plan.json")
    assert status == 0
    assert out.startswith("301.8 tokens/s with 1 in flight; slowest: stage 1\n")
    assert "any number of" not in out
    # the options count for a plan of a case, too, or are refused
    mine = tmp_path / "mine.json"
    stage = {"first_layer": 1, "last_layer": 4, "gpus": [0]}
    mine.write_text(json.dumps({"problem": "tiny", "stages": [stage]}))
    tiny = pl.load_case("tiny")
    other = dataclasses.replace(
        tiny, workload=dataclasses.replace(tiny.workload, batch_size=3, sequence_length=100)
    )
    expected = pl.evaluate(other, pl.load_placement(mine)).rate
    assert expected != pl.evaluate(tiny, pl.load_placement(mine)).rate
    out = run("evaluate", mine, "--batch", "3", "--length", "100")[1]
    assert out.startswith(f"{expected:.7g} tokens/s")
    status, _, err = run("evaluate", tmp_path / "plan.json", "--batch", "3")
    assert (status, "made with batch_size = 16; the problem has batch_size = 3" in err) == (2, True)
    status, _, err = run("evaluate", mine, "--precision", "fp8")
    assert (status, "--precision = 'fp8': expected it without a case" in err) == (2, True)


@pytest.mark.slow
def test_objectives_are_those_of_the_package(run):
    for objective in ("latency", "cost"):
        expected = pl.solve(_problem(), objective=objective, at_least=300.0)
        more = ("--objective", objective, "--at-least", 300, "--json")
        status, out, _ = run("solve", *OWN, *more)
        assert status == 0
        assert json.loads(out)["objective"] == pytest.approx(expected.objective.to_dict(), rel=1e-6)
    for objective in ("throughput", "rate"):
        expected = pl.solve(_problem(), objective=objective)
        told = json.loads(run("solve", *OWN, "--objective", objective, "--json")[1])
        assert told["throughput_tokens_per_s"] == pytest.approx(expected.throughput)
        assert told["in_flight"] == expected.in_flight
        assert told["status"] == "optimal"
        said = run("solve", *OWN, "--objective", objective)[1]
        assert said.startswith(expected.sentence.split(", proven")[0])


def test_what_a_cluster_attains_is_what_memory_holds(run, tmp_path):
    """4 L40S as four stages fill with 4 batches in flight, and hold 2: the rate is not the answer."""
    big = ("--model", "Llama-3-70B", "--gpus", "l40s=4", "--batch", "16", "--max-gpus", "1")
    big += ("--phase", "decode")
    full = json.loads(run("solve", *big, "--objective", "rate", "--json")[1])
    status, out, _ = run("solve", *big, "--json", "--output", tmp_path / "plan.json")
    told = json.loads(out)
    assert (status, told["status"]) == (0, "optimal")
    assert told["throughput_tokens_per_s"] < 0.9 * full["throughput_tokens_per_s"]
    given = run("solve", *big, "--in-flight", told["in_flight"], "--json")[1]
    assert json.loads(given)["throughput_tokens_per_s"] == pytest.approx(
        told["throughput_tokens_per_s"]
    )
    plan = json.loads((tmp_path / "plan.json").read_text("utf-8"))
    out = run("evaluate", tmp_path / "plan.json", *big)[1]
    head = (
        f"{rate(plan['attainable_tokens_per_s'])} with {told['in_flight']} in flight, of a rate of "
    )
    assert out.startswith(f"{head}{number(plan['rate_tokens_per_s'])} that ")


# Commands about a case, and parts of what they print.
SAID = {
    "the best method that there is is taken": (
        ("solve", "medium"), "264.2 tokens/s, proven optimal", "Method: aggregated, HiGHS 1",
    ),
    "stages": (
        ("solve", "tiny", "--max-gpus", "2"), "301.8 tokens/s with 1 in flight, proven optimal", "2 × A100",
    ),
    "rules": (
        ("solve", "tiny", "--max-gpus", "4", "--batch-split", "balanced", "--json"),
        '"throughput_tokens_per_s": 443.8',
    ),
    "the joint ILP": (
        ("solve", "tiny", "--max-gpus", "2", "--method", "joint", "--json"),
        '"status": "optimal"', '"variables": 1041', '"throughput_tokens_per_s": 301.78', '"bound_tokens_per_s": 301.78',
    ),
    "how large it would be": (("count", "demo", "--max-gpus", "3"), "9,887,608,011"),
    "the same for programs": (("count", "demo", "--max-gpus", "3", "--json"), '"variables": 9887608011'),
    "cases": (("cases",), "65 GPUs: 5 × A100"),
    "what is installed": (("doctor",), "SCIP through PySCIPOpt", "HiGHS through cvxpy", "tiny: 301.784 tokens/s"),
}  # fmt: skip


@pytest.mark.quick(5)
@pytest.mark.parametrize("what", SAID)
def test_a_command_about_a_case_says_what_it_found(run, what):
    command, *parts = SAID[what]
    status, out, err = run(*command)
    assert (status, err) == (0, "")
    assert [part for part in parts if part not in out] == []
    assert "NO" not in out.split()  # of the doctor


def test_a_folder_works_in_place_of_a_case_and_its_links_are_shown(run, heavy, monkeypatch):
    folder = heavy(25)
    monkeypatch.chdir(folder.parent)
    status, out, _ = run("solve", folder.name)
    assert status == 0
    assert "slowest_pair" in out
    assert "throughput_transfers_per_s" in out


TRAINED = ("--model", "Llama-3-8B", "--gpus", "h100=2,a100=2", "--batch", "1", "--length", "4096")
TRAINED += ("--phase", "training", "--microbatches", "8")


def test_a_training_step_is_solved_saved_and_launched(run, tmp_path):
    choices = ("--schedule", "ZBH1", "--recompute", "auto")
    status, out, _ = run("solve", *TRAINED, *choices, "--json", "--output", tmp_path / "plan.json")
    problem = problem_options.Wanted(
        model="Llama-3-8B", gpus="h100=2,a100=2", batch=1, length=4096, phase="training",
        microbatches=8,
    ).problem(None)  # fmt: skip
    assert problem.workload == pl.Workload(4096, 1, "training", microbatches=8)
    answer = pl.solve(problem, objective="step_time", schedule="ZBH1", recompute="auto")
    assert status == 0
    assert json.loads(out)["objective"]["seconds_per_step"] == answer.objective.value
    assert pl.load_placement(tmp_path / "plan.json", problem) == answer.placement
    status, out, _ = run("solve", *TRAINED, "--recompute", "auto")
    assert (status, "s per step" in out, "activations_gb" in out) == (0, True, True)
    one_host = ("--gpus", "h100=4", "--max-gpus", "1")
    status, out, _ = run("settings", "--engine", "torchtitan", *TRAINED, *one_host)
    assert (status, "torchrun" in out) == (0, True)


def test_the_times_of_a_sequence_are_told(run):
    """What a stream waits for: the traversal, or the interval times the number in flight."""
    answer = pl.solve(_problem())
    found = answer.evaluation
    each = max(found.seconds_per_pass, found.in_flight * found.tokens / found.rate)
    assert found.seconds_per_token == pytest.approx(each, rel=1e-12)
    told = f"gets a token every {duration(each)} (TPOT), with {found.in_flight} in flight; a pass"
    assert told in run("solve", *OWN)[1]
    assert (
        json.loads(run("solve", *OWN, "--json")[1])["seconds_per_token"] == found.seconds_per_token
    )
    prompts = pl.solve(_problem(load=pl.Workload(512, 4)))
    passed = duration(prompts.evaluation.seconds_per_pass)
    out = run("solve", *OWN, "--phase", "prefill")[1]
    assert f"A prompt has its first token after {passed} (TTFT)" in out
    assert "(TPOT)" not in run("solve", "tiny")[1]  # its links have no time


def test_a_budget_is_an_option(run):
    for objective in ("throughput", "cost"):
        expected = pl.solve(_problem(), objective=objective, budget=1.5)
        status, out, _ = run("solve", *OWN, "--objective", objective, "--budget", "1.5", "--json")
        told = json.loads(out)
        assert (status, told["under_limit"]) == (0, "at most 1.5 $ per hour")
        assert told["throughput_tokens_per_s"] == pytest.approx(expected.throughput)
    status, out, _ = run("solve", *OWN, "--budget", "0.1")
    assert (status, "more than the budget of 0.1" in out) == (1, True)


def test_a_deployment_is_found_saved_and_priced(run, tmp_path):
    more = ("--batches", "4,8", "--json", "--output", tmp_path / "several.json")
    status, out, err = run("deploy", *OWN, *more)
    assert (status, err) == (0, "")
    expected = pl.deploy(_problem(), batches=[4, 8])
    told = json.loads(out)
    assert told["throughput_tokens_per_s"] == pytest.approx(expected.throughput, rel=1e-9)
    assert [p["batch_size"] for p in told["pipelines"]] == [
        p.workload.batch_size for p in expected.pipelines
    ]
    saved = json.loads((tmp_path / "several.json").read_text("utf-8"))
    assert saved["pipelines"] == told["pipelines"]
    cheapest = pl.deploy(_problem(), 500.0)
    out = run("deploy", *OWN, "--at-least", "500")[1]
    assert out.startswith(f"{number(cheapest.usd_per_hour)} $ per hour: {cheapest.count} pipeline")
    assert f"Its GPUs cost {cheapest.usd_per_hour:.7g} $ per hour" in out
    assert run("deploy", *OWN, "--at-least", "1e9")[0] == 1


def test_requests_are_served_within_limits(run):
    limits = ("--output-tokens", "50", "--batches", "4", "--tpot-ms", "80", "--ttft-ms", "9000")
    problem = _problem(load=pl.Workload(512, 4, "decode", output_tokens=50))
    given = {"batches": [4], "tpot_ms": 80, "ttft_ms": 9000}
    for more, options in (
        (("--pools",), {"pools": True}),
        (("--pools", "--waiting-ms", "100"), {"pools": True, "waiting_ms": 100}),
        (("--pools", "--requests", "0.5"), {"pools": True, "requests_per_s": 0.5}),
    ):
        status, out, _ = run("deploy", *OWN, *limits, *more, "--json")
        expected = pl.deploy(problem, **given, **options).to_dict()
        assert status == 0
        assert json.loads(out)["requests_per_s"] == pytest.approx(expected["requests_per_s"])


@pytest.mark.parametrize("deployments", [False, True])
def test_a_trade_off_is_listed_and_its_points_saved(run, tmp_path, deployments):
    own = ("--against", "usd_per_hour", *(["--deployments"] if deployments else []))
    status, out, err = run("trade-off", *OWN, *own, "--json", "--output", tmp_path / "curve.json")
    assert (status, err) == (0, "")
    curve = pl.trade_off(_problem(), "usd_per_hour", deployments=deployments)
    rows = json.loads(out)
    assert [row["usd_per_hour"] for row in rows] == list(curve.to_frame()["usd_per_hour"])
    saved = json.loads((tmp_path / "curve.json").read_text("utf-8"))
    assert (saved["against"], saved["complete"], len(saved["points"])) == (
        "usd_per_hour",
        True,
        len(rows),
    )
    for point, row in zip(saved["points"], rows, strict=True):
        name = "throughput_tokens_per_s" if deployments else "attainable_tokens_per_s"
        assert point[name] == pytest.approx(row["throughput_tokens_per_s"])
    if not deployments:  # a point is a plan
        (tmp_path / "point.json").write_text(json.dumps(saved["points"][-1]), encoding="utf-8")
        assert pl.load_placement(tmp_path / "point.json", _problem()) == curve.points[-1].placement
    with pytest.raises(pl.errors.InvalidData, match="this is a trade-off; load one of its points"):
        pl.load_placement(tmp_path / "curve.json")
    status, out, err = run("trade-off", *OWN, *own, "--time-limit", "0")
    assert "points may be missing" in err


def test_gpus_of_ones_own_are_a_file(run, tmp_path):
    file = tmp_path / "gpus.csv"
    file.write_text(
        "gpu_type,memory_gb,memory_bandwidth_gb_per_s,fp16_tflop_per_s,usd_per_hour,link_gb_per_s\n"
        "Mine-32,32,1000,200,0.5,100\nL4,24.153,600,242,0.98,31.5\n",
        encoding="utf-8",
    )
    options = problem_options.Wanted(
        model="Llama-3-8B", gpus="mine=2,l4=2", gpu_facts=str(file), per_node=2
    )
    found = options.problem(None)
    assert [gpu.type for gpu in found.cluster.gpus] == ["Mine-32"] * 2 + ["L4"] * 2
    assert found.cluster.gpus[0] == pl.GPU("Mine-32", 32, 0.5, "Mine-32×2 no. 1", 100)
    assert (
        found.costs.gpus["L4"].memory_bandwidth_gb_per_s == 600
    )  # a type of the same name is replaced
    own = ("--model", "Llama-3-8B", "--gpus", "mine=2,l4=2", "--gpu-facts", file)
    told = json.loads(run("solve", *own, "--json")[1])
    facts = pl.hardware.load_gpus(file)
    cluster = pl.hardware.cluster_of_counts({"Mine-32": 2, "L4": 2}, gpus=facts)
    problem = pl.Problem(
        cluster, pl.load_model("Llama-3-8B"), pl.Workload(2048, 8), pl.Roofline(gpus=facts)
    )
    assert told["throughput_tokens_per_s"] == pytest.approx(pl.solve(problem).throughput)
    assert run("sweep", *own, "--vary", "mine=1,2", "--jobs", "1", "--json")[0] == 0
    status, _, err = run("solve", *own[:4], "--gpu-facts", tmp_path / "gone.csv")
    assert (status, "gone.csv: there is no such file" in err) == (2, True)


def test_settings_take_the_schedule_of_a_training_step(run, tmp_path):
    own = (*TRAINED[:2], "--gpus", "h200=4", "--max-gpus", "1", *TRAINED[4:])
    step = ("--schedule", "Interleaved1F1B", "--recompute", "full")
    solved = run("settings", "--engine", "Megatron", *own, *step)
    assert solved[0] == 0
    assert "--microbatch-group-size-per-virtual-pipeline-stage 4" in solved[1]
    assert "--recompute-granularity full" in solved[1]
    plan = tmp_path / "plan.json"
    assert run("solve", *own, *step, "--output", plan)[0] == 0
    assert run("settings", plan, "--engine", "Megatron", *own, *step)[1] == solved[1]
    plain = run("settings", plan, "--engine", "torchtitan", *own)[1]
    assert "--parallelism.pipeline_parallel_schedule 1F1B" in plain
    assert "no schedule was given" not in plain
    status, _, err = run("settings", "tiny", "--engine", "vLLM", "--schedule", "1F1B")
    assert (status, "has no option 'schedule'" in err) == (2, True)


# Commands beside what they call; an option that has another name there, or makes something else, is left out.
CALLED = {
    "solve": (pl.solve, {}),
    "deploy": (pl.deploy, {"batches"}),
    "trade_off": (pl.trade_off, set()),
    "settings": (pl.settings, {"hosts"}),
    "compare": (pl.compare, {"methods"}),
    "sweep": (pl.sweep, set()),
    "count": (joint_size, set()),
}


@pytest.mark.parametrize("name", CALLED)
def test_what_nobody_says_is_the_same_as_in_python(name):
    """A default of a command is the package's, or there is none and the package's holds."""
    function, others = CALLED[name]
    command = inspect.signature(getattr(problems, name)).parameters
    own = inspect.signature(function).parameters
    compared = [option for option in own if option in command and option not in others]
    for option in compared:
        given, default = command[option].default, own[option].default
        assert given is None or given == default, (name, option)
    assert compared or name == "settings"


def test_a_problem_that_nobody_describes_is_the_packages():
    plain = problem_options.Wanted(model="Llama-3-8B", gpus="l4=10").problem(None)
    cluster, model = pl.hardware.cluster_of_counts({"L4": 10}), pl.load_model("Llama-3-8B")
    by_hand = pl.Problem(cluster, model, pl.Workload(2048, 8), pl.Roofline(), name=plain.name)
    assert plain == by_hand


def test_methods_are_compared(run, tmp_path):
    expected = pl.compare(_problem(max_gpus_per_stage=1), ["even", "aggregated"]).to_frame()
    more = ("--max-gpus", "1", "--methods", "even, aggregated", "--output", tmp_path / "table.csv")
    status, out, _ = run("compare", *OWN, *more, "--json")
    assert status == 0
    told = pd.DataFrame(json.loads(out))
    for column in ("method", "outcome", "stages"):
        assert list(told[column]) == list(expected[column])
    rates = list(expected["throughput_tokens_per_s"])
    assert list(told["throughput_tokens_per_s"]) == pytest.approx(rates)
    written = pd.read_csv(tmp_path / "table.csv")["throughput_tokens_per_s"]
    assert list(written) == pytest.approx(rates)
    assert run("compare", "tiny")[1].count("proven") >= 3


@pytest.mark.slow
def test_a_sweep_varies_options_and_counts(run, tmp_path):
    file = tmp_path / "rows.csv"
    more = ("--vary", "l4=0,3", "--vary", "batch=4,8", "--jobs", "1", "--output", file)
    status, out, _ = run("sweep", *OWN, *more, "--json")
    assert status == 0
    rows = {(row["L4"], row["batch"]): row["throughput_tokens_per_s"] for row in json.loads(out)}
    assert list(rows) == [(0, 4), (0, 8), (3, 4), (3, 8)]
    for (_, batch), reached in list(rows.items())[2:]:
        alike = _problem(load=pl.Workload(512, batch, "decode"))
        assert reached == pytest.approx(pl.solve(alike).throughput)
    assert rows[0, 4] < rows[3, 4]
    # the same call goes on with the file; another model is refused
    assert len(pd.read_csv(file)) == 4
    run("sweep", *OWN, *more, "--json")
    assert len(pd.read_csv(file)) == 4
    status, _, err = run("sweep", "--model", "Llama-2-7B", *OWN[2:], *more)
    assert status == 2
    assert "belongs to another sweep" in err
    status, out, _ = run("sweep", "tiny", "--vary", "max-gpus=1,2,4", "--jobs", "1")
    assert out.startswith("3 points in ")
    assert all(rate in out for rate in ("217.52", "301.784", "345.4944"))
    status, out, _ = run(
        "sweep", "--model", "Llama-3-70B", "--gpus", "l4=1", "--vary", "l4=1,2", "--jobs", "1"
    )
    assert (status, out.startswith("2 points")) == (1, True)


def test_mixes_of_a_node(run):
    gpu = pl.GPU("H100-SXM", 85.521, node="a", node_gb_per_s=450)
    model, load = pl.load_model("Llama-3-70B"), pl.Workload(2048, 8)
    expected = pl.hardware.node_mixes(pl.Roofline(), model, load, gpu, 4)
    status, out, _ = run("node", "--model", "Llama-3-70B", "--gpus", "h100-sxm=4", "--json")
    assert status == 0
    pd.testing.assert_frame_equal(pd.DataFrame(json.loads(out)), expected, check_dtype=False)
    few = ("--model", "Llama-3-70B", "--gpus", "l4=2")
    assert run("node", *few)[0] == 1  # nothing fits
    for pool in ("l4=1", "l4=2,t4=2", "l4=16"):
        status, _, err = run("node", "--model", "Llama-3-8B", "--gpus", pool)
        assert status == 2
        assert "all on one node" in err


def test_settings_of_a_model_and_of_its_plan(run, tmp_path):
    plan = tmp_path / "plan.json"
    one = (*OWN, "--max-gpus", "1")
    direct = run("settings", *one, "--engine", "vLLM", "--hosts", "10.0.0.1")
    assert direct[0] == 0
    assert run("solve", *one, "--output", plan)[0] == 0
    assert run("settings", plan, *one, "--engine", "vLLM", "--hosts", "10.0.0.1")[1] == direct[1]
    layers = [
        s["last_layer"] - s["first_layer"] + 1 for s in json.loads(plan.read_text())["stages"]
    ]
    assert f"VLLM_PP_LAYER_PARTITION={','.join(map(str, layers))}\n" in direct[1]


def test_a_plan_that_names_no_case_is_told_its_case(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("solve", "tiny", "--max-gpus", "1", "--output", "plan.json")[0] == 0
    saved = json.loads(Path("plan.json").read_text("utf-8"))
    del saved["problem"]
    Path("other.json").write_text(json.dumps(saved), "utf-8")
    engine = ("--engine", "vLLM", "--hosts", "10.0.0.1")
    direct = run("settings", "tiny", *engine)[1]
    assert "export VLLM_PP_LAYER_PARTITION=4\n" in direct
    for plan in (("plan.json",), ("other.json", "--case", "tiny")):
        assert run("settings", *plan, *engine, "--output", "serve.sh") == (0, "", "")
        assert Path("serve.sh").read_text("utf-8") == direct


def test_the_best_plan_that_an_engine_can_start(run, tmp_path):
    plan = tmp_path / "plan.json"
    mixed = ("--model", "Llama-3-70B", "--gpus", "a100=4,l4=4", "--batch", "16")
    status, out, _ = run("solve", *mixed, "--runs-on", "vLLM", "--output", plan)
    assert status == 0
    assert "among plans that vLLM can start" in out
    assert "vLLM's rules cost " in out
    assert run("settings", plan, *mixed, "--engine", "vLLM")[0] == 0
    assert run("settings", *mixed, "--engine", "vLLM")[0] == 0
    assert run("solve", *mixed, "--runs-on", "vLLM", "--json")[1].count("runs_on") == 1
    status, _, err = run("solve", *mixed, "--runs-on", "vllm")
    assert status == 2
    assert "did you mean 'vLLM'" in err


NAMES = {
    "h100": ("H100-SXM", "h100 is taken for H100-SXM, of H100-SXM, H100-PCIe"),
    "A100": ("A100-SXM-80", "of A100-SXM-40, A100-SXM-80, A100-PCIe-80"),
    "v100": ("V100-SXM-32", "of V100-SXM-16, V100-SXM-32"),
    "h200": ("H200-SXM", ""),
    "L4": ("L4", ""),
    "rtx4090": ("RTX4090", ""),
    "a100-pcie-80": ("A100-PCIe-80", ""),
    "NVIDIA GeForce RTX 3090": ("RTX3090", ""),
}


@pytest.mark.parametrize("name", NAMES)
def test_a_gpu_is_known_by_several_names(name, capsys):
    problem_options._say_once.cache_clear()
    kind, said = NAMES[name]
    assert problem_options.counts_of(f"{name}=3", pl.hardware.load_gpus()) == {kind: 3}
    assert said in capsys.readouterr().err


MODEL = ("--model", "Llama-3-8B")
REFUSED = {
    "nothing": (("solve",), "case = None: expected a case (see pipelab cases), or --model and"),
    "both": (("solve", "tiny", *MODEL), "--model = 'Llama-3-8B': expected it without a case"),
    "precision of a case": (("solve", "tiny", "--precision", "fp8"), "--precision = 'fp8'"),
    "no gpus": (("solve", *MODEL), "expected --gpus or --cluster beside --model"),
    "no model": (("solve", "--gpus", "l4=1"), "--model = None: expected a model"),
    "gpus and cluster": (
        ("solve", *MODEL, "--gpus", "l4=1", "--cluster", "helix-single24"), "and not both",
    ),
    "a count": (("solve", *MODEL, "--gpus", "l4=many"), "'l4=many': expected TYPE=COUNT"),
    "too many": (("solve", *MODEL, "--gpus", "l4=1000000"), "counts up to 999999"),
    "an axis twice": (
        ("sweep", "tiny", "--vary", "batch=8", "--vary", "batch=9"), "'batch=9': expected each name once",
    ),
    "a node in training": (
        ("node", *MODEL, "--gpus", "l4=2", "--phase", "training", "--microbatches", "4"),
        "workload.phase = 'training': expected prefill, decode or mixed",
    ),
    "a plan's name": (("solve", "tiny", "--output", "plan.csv"), "expected a name that ends in .json"),
    "no count": (("solve", *MODEL, "--gpus", "l4"), "'l4': expected TYPE=COUNT"),
    "none at all": (("solve", *MODEL, "--gpus", "l4=0"), "expected at least one GPU"),
    "a type": (("solve", *MODEL, "--gpus", "l5=1"), "'l5': expected a known GPU; Known: B200"),
    "an empty type": (("solve", *MODEL, "--gpus", "=1"), "'': expected a known GPU"),
    "nodes of a cluster": (
        ("solve", *MODEL, "--cluster", "helix-single24", "--per-node", "2"), "--per-node = 2",
    ),
    "a floor": (("solve", "tiny", "--at-least", "3"), "has no option 'at_least'"),
    "a budget": (("solve", *MODEL, "--gpus", "l4=1", "--budget", "0"), "budget = 0.0: expected $ per hour"),
    "batches": (("deploy", *MODEL, "--gpus", "l4=1", "--batches", "4,x"), "--batches = 'x': expected whole"),
    "a trade-off": (("trade-off", "tiny", "--against", "gpu"), "did you mean 'gpus'"),
    "a deployment's name": (("deploy", "tiny", "--output", "d.csv"), "expected a name that ends in .json"),
    "a method": (("compare", "tiny", "--methods", "evn"), "did you mean 'even'"),
    "an axis": (("sweep", "tiny", "--vary", "btch=3"), "did you mean 'batch'"),
    "a value": (("sweep", "tiny", "--vary", "batch=x"), "expected NAME=NUMBER"),
    "a type of a case": (("sweep", "tiny", "--vary", "l4=1,2"), "'l4': expected one of these"),
    "no plan": (("evaluate", "gone.json"), "gone.json: there is no such file"),
    "a case beside a model": (
        ("evaluate", "gone.json", *MODEL, "--gpus", "l4=1", "--case", "tiny"), "--case = 'tiny'",
    ),
    "a case": (("solve", "tinny"), "did you mean 'tiny'"),
    "a program too large": (("solve", "demo", "--max-gpus", "3", "--method", "joint"), "9,887,608,011 variables"),
    "settings of a case of a case": (("settings", "tiny", "--case", "tiny", "--engine", "vLLM"), "--case"),
    "settings without a plan": (("settings", "gone.json", "--engine", "vLLM"), "gone.json"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_one_sentence(name, run):
    """Of options first; what the package refuses ends in the same way, and has its tests there."""
    arguments, message = REFUSED[name]
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert message in err
    assert err.startswith("pipelab: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("copy", ""), "expected a path that is not empty; '.' is the current folder"),
        (("static", ""), "folder = ''"),
        (("copy", "file/below"), "cannot be written (Not a directory): a part of this path is a file"),
        (("static", "file/below"), "a part of this path is a file"),
        (("copy", "file"), "is a file"),
        (("copy", "x" * 5000), "expected a shorter path"),
        (("static", "x" * 5000), "expected a shorter path"),
        (("solve", "x" * 5000), "neither a bundled case nor a folder"),
        (("solve", "tiny", "--method", "x" * 5000), "method"),
        (("reproduce", "x" * 5000), "document"),
    ],
    ids=lambda value: " ".join(value)[:20],
)  # fmt: skip
def test_odd_names_are_one_sentence(run, arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    status, out, err = run(*arguments)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("pipelab: ")
    assert message in err
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_case_that_cannot_be_read_is_one_sentence(run, heavy):
    pool = heavy(1) / "gpu_pool.csv"
    pool.unlink()
    pool.mkdir()
    status, _, err = run("solve", pool.parent)
    assert (status, err.count("\n")) == (2, 1)
    assert "gpu_pool.csv" in err
    assert "folder" in err


def test_no_placement_is_exit_status_1(run, heavy):
    none = ("--model", "Llama-3-70B", "--gpus", "l4=1")
    status, out, _ = run("solve", *none)
    assert status == 1
    assert out.startswith("No placement exists: ")
    assert run("compare", *none, "--methods", "even,aggregated")[0] == 1
    assert run("settings", *none, "--engine", "vLLM")[0] == 1
    status, out, _ = run("solve", heavy(90))
    assert (status, "No placement exists: layer 1 alone needs 91.64 GB" in out) == (1, True)
    status, out, _ = run("settings", heavy(90), "--engine", "vLLM")
    assert (status, out.startswith("No plan that vLLM can start exists")) == (1, True)


def test_the_help_names_every_command_and_every_option(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    status, out, _ = run("--help")
    assert status == 0
    commands = "solve deploy trade-off evaluate settings compare sweep node count"
    commands += " cases models gpus doctor lab reproduce copy static"
    for command in commands.split():
        assert f"│ {command} " in out
    text = run("solve", "--help")[1]
    for field in problem_options.Wanted.__dataclass_fields__:
        assert f"--{field.replace('_', '-')}" in text


@pytest.mark.slow
def test_the_commands_of_the_tour_run(run, tmp_path, monkeypatch):
    text = (DATA.parents[1] / "docs" / "using.md").read_text(encoding="utf-8")
    block = text.split("## The command line")[1].split("```")[1]
    lines = [line.partition("  #")[0].split() for line in block.splitlines()[1:]]
    monkeypatch.chdir(tmp_path)
    pl.writeup.save_case(pl.load_case("tiny"), "path/to/my_case")
    shutil.copytree(DATA / "hosts" / "h100-mesh", "my_hosts")
    configs = json.loads((DATA / "model_configs.json").read_text(encoding="utf-8"))
    Path("mine.csv").write_text(
        "gpu_type,memory_gb,memory_bandwidth_gb_per_s,fp16_tflop_per_s\nmine,32,1000,200\n"
    )
    Path("path/to/config.json").write_text(json.dumps(configs["Llama-3-8B"]["config.json"]))
    slow = ("reproduce", "static")  # with tests of their own
    tried = [arguments for _, *arguments in lines if arguments[0] not in slow]
    assert {a[0] for a in tried} >= {"solve", "deploy", "trade-off", "settings"}
    for arguments in tried:
        more = ["--jobs", "1"] if arguments[0] == "sweep" else []
        assert run(*arguments, *more)[0] == 0, arguments


def test_models_and_gpus_are_listed(run):
    out = run("models")[1]
    assert len(out.splitlines()) == len(pl.hardware.models())
    assert "Llama-3-70B" in out
    assert "70.55e9 parameters" in out
    out = run("gpus")[1]
    assert [line.split()[0] for line in out.splitlines()] == list(pl.hardware.gpus().index)


def test_doctor_tells_a_solver_that_does_not_answer(monkeypatch):
    def broken():
        raise ImportError("no such library")

    monkeypatch.setattr(health, "_with_scip", broken)
    findings = {f.what: f for f in health.examine()}
    assert not findings["SCIP through PySCIPOpt"].ok
    assert "no such library" in findings["SCIP through PySCIPOpt"].found
    assert findings["HiGHS through cvxpy"].ok


def test_a_node_says_where_nothing_measured_is_like_its_rates(run):
    own = ("--model", "DeepSeek-V3", "--gpus", "h200=8", "--precision", "fp8")
    said = "none is of prompts read by a mixture of experts"
    assert said in run("node", *own, "--phase", "prefill")[1]
    assert said not in run("node", *own, "--phase", "decode")[1]
    told = run("node", *own, "--phase", "prefill", "--json")[1]
    assert said not in told
    assert json.loads(told)


def test_the_version_is_told(run):
    assert run("--version") == (0, f"pipelab {pl.__version__}\n", "")
