"""The command line on a model and GPUs of one's own, in this process: each answer beside the package's."""

import dataclasses
import json
import shutil
import sys
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import pipelab as pl
from pipelab.cli import command_line
from pipelab.cli.commands import problem_options
from pipelab.display import duration, number, rate
from pipelab.engine.methods.joint import joint_size
from pipelab.io.plans import document_of

DATA = Path(__file__).parents[1] / "data"
MODEL = ("--model", "Llama-3-8B")
OWN = (*MODEL, "--gpus", "a100-sxm-40=2,l4=3", "--batch", "4", "--length", "512")
OWN += ("--phase", "decode")
TRAINED = (*MODEL, "--gpus", "h200=4", "--max-gpus", "1", "--batch", "1", "--length", "4096")
TRAINED += ("--phase", "training", "--microbatches", "8")
LITTLE = (*MODEL, "--gpus", "l4=2")
BIG = ("--model", "Llama-3-70B")


@pytest.fixture
def run(monkeypatch, capsys):
    def run(*arguments):
        """Exit status, standard output, standard error."""
        problem_options._say_once.cache_clear()
        monkeypatch.setattr(sys, "argv", ["pipelab", *map(str, arguments)])
        with warnings.catch_warnings(action="ignore"), pytest.raises(SystemExit) as ended:
            command_line.main()
        return (ended.value.code or 0, *capsys.readouterr())

    return run


def _problem(**more):
    """What OWN says, made by hand: one node of two A100, one of three L4, 100 Gbit/s between them."""
    pairs = [pl.GPU("A100-SXM-40", 42.950, 1.29, "A100-SXM-40×8 no. 1", 300)] * 2
    threes = [pl.GPU("L4", 24.153, 0.98, "L4×8 no. 2", 31.5)] * 3
    of = np.array([0, 0, 1, 1, 1])
    links = np.array([[300, 12.5], [12.5, 31.5]])
    load = more.pop("load", pl.Workload(512, 4, "decode"))
    cluster = pl.Cluster((*pairs, *threes), links, of)
    name = "Llama-3-8B on 2 × A100-SXM-40, 3 × L4"
    return pl.Problem(cluster, pl.load_model("Llama-3-8B"), load, pl.Roofline(), name=name, **more)


def _wanted(**options):
    return problem_options.Wanted(**options).problem(None)


def test_a_model_on_gpus_is_the_problem_made_by_hand():
    found = _wanted(
        model="Llama-3-8B", gpus="a100-sxm-40=2,l4=3", batch=4, length=512, phase="decode"
    )
    assert found == _problem()  # the rules that nobody gave, too: they stand in Problem
    assert (found.max_gpus_per_stage, found.same_type_stages) == (3, True)  # of the L4 node
    plain = _wanted(model="Llama-3-8B", gpus="l4=10")
    cluster, model = pl.hardware.cluster_of_counts({"L4": 10}), pl.load_model("Llama-3-8B")
    by_hand = pl.Problem(cluster, model, pl.Workload(2048, 8), pl.Roofline(), name=plain.name)
    assert plain == by_hand


def test_every_option_reaches_its_field():
    found = _wanted(
        model="Llama-3-8B", gpus="a100-sxm-40=5", precision="int4", kv_precision="fp8", per_node=2,
        network_gbit=40, rates="llama.cpp", batch=3, length=100, phase="mixed", output_tokens=7,
        in_flight=5, max_gpus=4, same_type=False,
    )  # fmt: skip
    assert (found.model.precision, found.model.kv_precision) == ("int4", "fp8")
    assert found.workload == pl.Workload(100, 3, "mixed", output_tokens=7, in_flight=5)
    assert found.costs.engine == "llama.cpp"
    assert (found.max_gpus_per_stage, found.same_type_stages) == (4, False)
    nodes = [gpu.node for gpu in found.cluster.gpus]
    assert [nodes.count(node) for node in dict.fromkeys(nodes)] == [2, 2, 1]
    assert [found.cluster.bandwidth_between(0, i) for i in (1, 2, 4)] == [300, 5, 5]
    found = problem_options.Wanted(batch=8, length=100, max_gpus=2, same_type=True).problem("tiny")
    assert (found.workload.batch_size, found.workload.sequence_length) == (8, 100)
    assert (found.max_gpus_per_stage, found.same_type_stages) == (2, True)


def _trained():
    return _wanted(
        model="Llama-3-8B", gpus="h200=4", max_gpus=1, batch=1, length=4096, phase="training",
        microbatches=8,
    )  # fmt: skip


def _node_mixes():
    gpu = pl.GPU("H100-SXM", 85.521, node="a", node_gb_per_s=450)
    model, load = pl.load_model("Llama-3-70B"), pl.Workload(2048, 8)
    return pl.hardware.node_mixes(pl.Roofline(), model, load, gpu, 4)


def _served():
    problem = _problem(load=pl.Workload(512, 4, "decode", output_tokens=50))
    limits = {"tpot_ms": 80, "ttft_ms": 9000}
    return pl.deploy(problem, batches=[4], pools=True, requests_per_s=0.5, **limits)


# What is asked on the command line, and of the package.
SAME = {
    "solve": (OWN, lambda: pl.solve(_problem())),
    "count": (("demo", "--max-gpus", 3), lambda: joint_size(pl.load_case("demo", max_gpus_per_stage=3), "written")),
    "deploy": ((*OWN, "--batches", "4,8"), lambda: pl.deploy(_problem(), batches=[4, 8])),
    "solve, training": (
        (*TRAINED, "--schedule", "ZBH1", "--recompute", "auto"),
        lambda: pl.solve(_trained(), objective="step_time", schedule="ZBH1", recompute="auto"),
    ),
    "node": ((*BIG, "--gpus", "h100-sxm=4"), _node_mixes),
    "compare": (
        (*OWN, "--methods", "even, aggregated"), lambda: pl.compare(_problem(), ["even", "aggregated"]).to_frame(),
    ),
    "trade-off": (
        ("tiny", "--max-gpus", 2), lambda: pl.trade_off(pl.load_case("tiny", max_gpus_per_stage=2)).to_frame(),
    ),
    "solve, latency": (
        (*OWN, "--objective", "latency", "--at-least", 300),
        lambda: pl.solve(_problem(), objective="latency", at_least=300.0),
    ),
    "solve, cost": (
        (*OWN, "--objective", "cost", "--budget", 1.5), lambda: pl.solve(_problem(), objective="cost", budget=1.5),
    ),
    "solve, rate": (
        (*OWN, "--objective", "rate", "--runs-on", "vLLM"),
        lambda: pl.solve(_problem(), objective="rate", runs_on="vLLM"),
    ),
    "solve, joint": (
        ("tiny", "--max-gpus", 2, "--method", "joint", "--form", "tight", "--gap", 0.3),
        lambda: pl.solve(pl.load_case("tiny", max_gpus_per_stage=2), "joint", form="tight", gap=0.3),
    ),
    "deploy, a load": ((*OWN, "--at-least", 500), lambda: pl.deploy(_problem(), 500.0)),
    "deploy, requests": (
        (*OWN, "--output-tokens", 50, "--batches", 4, "--pools", "--requests", 0.5, "--tpot-ms", 80, "--ttft-ms", 9000),
        _served,
    ),
}  # fmt: skip


def _timeless(x):
    """Without the seconds that a search took."""
    if isinstance(x, dict):
        return {name: _timeless(value) for name, value in x.items() if name != "seconds"}
    return [_timeless(one) for one in x] if isinstance(x, list) else x


@pytest.mark.quick(5)
@pytest.mark.parametrize("what", SAME)
def test_answers_are_those_of_the_package(run, what):
    arguments, asked = SAME[what]
    status, out, err = run(what.split(",")[0], *arguments, "--json")
    assert (status, err) == (0, "")
    expected = asked()
    if isinstance(expected, pd.DataFrame):
        expected = json.loads(expected.to_json(orient="records"))
    elif not isinstance(expected, dict):
        expected = json.loads(json.dumps(expected.to_dict()))
    assert _timeless(json.loads(out)) == _timeless(expected)


@pytest.mark.slow
def test_what_is_answered_is_said(run):
    """What a stream waits for: the traversal, or the interval times the number in flight."""
    answer = pl.solve(_problem())
    found = answer.evaluation
    waited = max(found.seconds_per_pass, found.in_flight * found.tokens / found.rate)
    out = run("solve", *OWN)[1]
    assert out.startswith(answer.sentence.split(", proven")[0])
    assert f"{duration(waited)} (TPOT), with {found.in_flight} in flight" in out
    out = run("solve", "medium")[1]  # its links have no time
    assert ("slowest_pair" in out, "(TPOT)" in out) == (True, False)
    assert "s per step" in run("solve", *TRAINED)[1]
    found = pl.deploy(_problem(), 500.0)
    out = run("deploy", *OWN, "--at-least", "500")[1]
    assert out.startswith(f"{number(found.usd_per_hour)} $ per hour: {found.count} pipeline")
    assert run("compare", "tiny")[1].count("proven") >= 3


@pytest.mark.slow
def test_what_is_answered_is_saved(run, tmp_path):
    def saved(command, *more, name="answer.json"):
        status, out, _ = run(command, *more, "--json", "--output", tmp_path / name)
        assert status == 0
        return json.loads(out), (tmp_path / name).read_text("utf-8")

    told, _ = saved("solve", *OWN)
    plan = pl.load_placement(tmp_path / "answer.json", _problem())
    assert plan.to_dict() == told["placement"]
    told, text = saved("deploy", *OWN, "--batches", "4,8")
    assert json.loads(text)["pipelines"] == told["pipelines"]
    told, text = saved("compare", *OWN, "--methods", "even", name="table.csv")
    assert text.splitlines()[1].startswith(f"{told[0]['method']},")
    for more, rate_of in (((), "attainable"), (("--deployments",), "throughput")):
        told, text = saved("trade-off", *LITTLE, "--against", "usd_per_hour", *more)
        curve = json.loads(text)
        assert (curve["against"], curve["complete"]) == ("usd_per_hour", True)
        rates = [point[f"{rate_of}_tokens_per_s"] for point in curve["points"]]
        assert rates == pytest.approx([row["throughput_tokens_per_s"] for row in told])
    assert "points may be missing" in run("trade-off", *LITTLE, *more, "--time-limit", "0")[2]


def test_a_plan_is_evaluated_with_all_its_rates(run, tmp_path):
    plan = pl.Placement.of([(20, (0, 1)), (5, (2,)), (7, (3, 4))])
    expected = pl.evaluate(_problem(), plan)
    mine, saved = tmp_path / "mine.json", tmp_path / "plan.json"
    mine.write_text(json.dumps(plan.to_dict()))
    status, out, err = run("evaluate", mine, *OWN, "--json", "--output", saved)
    assert (status, err) == (0, "")
    told = json.loads(out)
    assert told == json.loads(saved.read_text("utf-8"))
    assert told == json.loads(json.dumps(document_of(_problem(), plan)))
    held = pl.hardware.capacity(_problem(), plan)
    out = run("evaluate", saved, *OWN)[1]
    assert f"It holds {4 * expected.in_flight} sequences of {held.context:,} tokens, " in out
    assert f" or {held.sequences:,} sequences of 512" in out
    # 4 L40S as four stages fill with 4 batches in flight, and hold 2: the rate is not the answer
    big = (*BIG, "--gpus", "l40s=4", "--batch", "16", "--max-gpus", "1", "--phase", "decode")
    told = json.loads(run("solve", *big, "--json", "--output", saved)[1])
    full = json.loads(saved.read_text("utf-8"))["rate_tokens_per_s"]
    assert told["throughput_tokens_per_s"] < 0.9 * full
    head = f"{rate(told['throughput_tokens_per_s'])} with {told['in_flight']} in flight"
    assert run("evaluate", saved, *big)[1].startswith(f"{head}, of a rate of {number(full)} that ")


@pytest.mark.parametrize("engine", ["vLLM", "TensorRT-LLM", "transformers"])
def test_a_plan_for_an_engine_is_evaluated_and_served_as_it_fills(run, tmp_path, engine):
    plan, own = tmp_path / "plan.json", (*OWN, "--output-tokens", "20")
    load = pl.Workload(512, 4, "decode", output_tokens=20)
    result = pl.solve(_problem(load=load), runs_on=engine)
    assert run("solve", *own, "--runs-on", engine, "--output", plan)[0] == 0
    served = pl.serve(result.problem, result, 50, rate=2)
    assert pl.serve(_problem(load=load), result, 50, rate=2).sentence == served.sentence
    assert run("serve", plan, *own, "--rate", 2, "--requests", 50)[1].startswith(served.sentence)
    again = tmp_path / "again.json"
    assert (
        f"pipeline: {result.problem.costs.filling}\n"
        in run("evaluate", plan, *own, "--output", again)[1]
    )
    known = json.loads(plan.read_text()).items()
    assert json.loads(again.read_text()).items() <= known
    assert run("evaluate", again, *own, "--json")[1] == run("evaluate", plan, *own, "--json")[1]


@pytest.mark.parametrize("hosts", sorted(DATA.glob("hosts/*")), ids=lambda hosts: hosts.name)
def test_tables_name_gpus_as_their_hosts_do(run, hosts):
    asked = (*MODEL, "--cluster", hosts, "--max-gpus", "2")
    cluster, stages = pl.load_cluster(hosts), json.loads(run("solve", *asked, "--json")[1])
    names = [f"{gpu.host}:{i}" for gpu, i in zip(cluster.gpus, cluster.index, strict=True)]
    out = run("solve", *asked)[1]
    for stage in stages["placement"]["stages"]:
        assert f" {', '.join(names[gpu] for gpu in stage['gpus'])} " in out


def test_a_plan_of_a_case_needs_nothing_else_and_takes_its_options(run, tmp_path):
    plan, mine = tmp_path / "plan.json", tmp_path / "mine.json"
    assert run("solve", "tiny", "--max-gpus", "2", "--output", plan)[0] == 0
    out = run("evaluate", plan)[1]
    assert out.startswith("301.8 tokens/s with 1 in flight; slowest: stage 1\n")
    stage = {"first_layer": 1, "last_layer": 4, "gpus": [0]}
    mine.write_text(json.dumps({"problem": "tiny", "stages": [stage]}))
    tiny = pl.load_case("tiny")
    load = dataclasses.replace(tiny.workload, batch_size=3, sequence_length=100)
    other = dataclasses.replace(tiny, workload=load)
    expected = pl.evaluate(other, pl.load_placement(mine)).rate
    out = run("evaluate", mine, "--batch", "3", "--length", "100")[1]
    assert out.startswith(f"{expected:.7g} tokens/s")
    status, _, err = run("evaluate", plan, "--batch", "3")
    assert (status, "made with batch_size = 16; the problem has batch_size = 3" in err) == (2, True)
    status, _, err = run("evaluate", mine, "--precision", "fp8")
    assert (status, "--precision = 'fp8': expected it without a case" in err) == (2, True)


CHUNKS = ("--schedule", "Interleaved1F1B", "--recompute", "full")


@pytest.mark.parametrize(
    ("own", "step", "engine", "part"),
    [
        ((*OWN, "--max-gpus", "1"), (), "vLLM", "VLLM_PP_LAYER_PARTITION="),
        (TRAINED, CHUNKS, "Megatron", "--recompute-granularity full"),
    ],
)
def test_settings_of_a_model_are_those_of_its_plan(run, tmp_path, own, step, engine, part):
    status, direct, _ = run("settings", *own, *step, "--engine", engine)
    assert (status, part in direct, "no schedule was given" in direct) == (0, True, False)
    assert run("solve", *own, *step, "--output", tmp_path / "plan.json")[0] == 0
    assert run("settings", tmp_path / "plan.json", *own, *step, "--engine", engine)[1] == direct
    code, _, note = run("settings", tmp_path / "plan.json", "--engine", engine)
    assert (code, "plan.json" in note, "--model" in note) == (2, True, True)
    other = ["Llama-3-70B" if part == "Llama-3-8B" else part for part in own]
    code, _, note = run("settings", tmp_path / "plan.json", *other, *step, "--engine", engine)
    assert (code, "plan.json was made for 'Llama-3-8B on" in note) == (2, True), note


def test_settings_of_a_case_are_those_of_its_plan(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("solve", "tiny", "--max-gpus", "1", "--output", "plan.json")[0] == 0
    saved = json.loads(Path("plan.json").read_text("utf-8"))
    del saved["problem"]
    Path("other.json").write_text(json.dumps(saved), "utf-8")
    engine = ("--engine", "vLLM", "--hosts", "10.0.0.1")
    direct = run("settings", "tiny", *engine)[1]
    assert '"VLLM_PP_LAYER_PARTITION=4"' in direct
    for plan in (("plan.json",), ("other.json", "--case", "tiny")):
        code, out, note = run("settings", *plan, *engine, "--output", "serve.sh")
        assert (code, out) == (0, "")
        assert "what vLLM itself keeps in memory is not counted" in note
        assert Path("serve.sh").read_text("utf-8") == direct


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--rate", 1, "--requests", 0), "requests = 0:"), (("--rate", 1, "--answer", "1.5"), "answer = '1.5':"),
        (("--rate", 1, "--prompt", ""), "prompt = '':"), (("--trace", "x.csv", "--requests", 5), "--requests = 5:"),
        (("--trace", ""), "expected the path of a file"),
    ],
)  # fmt: skip
def test_what_serve_cannot_take_is_named(run, tmp_path, options, said):
    plan = tmp_path / "plan.json"
    run("solve", "tiny", "--output", plan)
    code, out, note = run("serve", plan, *options)
    assert (code, out) == (2, "")
    assert said in note


def test_gpus_of_ones_own_are_a_file(run, tmp_path):
    file = tmp_path / "gpus.csv"
    head = (
        "gpu_type,memory_gb,memory_bandwidth_gb_per_s,fp16_tflop_per_s,usd_per_hour,link_gb_per_s"
    )
    rows = ["Mine-32,32,1000,200,0.5,100", "L4,24.153,600,242,0.98,31.5"]
    file.write_text("\n".join([head, *rows]), encoding="utf-8")
    found = _wanted(model="Llama-3-8B", gpus="mine=2,l4=2", gpu_facts=str(file), per_node=2)
    assert [gpu.type for gpu in found.cluster.gpus] == ["Mine-32"] * 2 + ["L4"] * 2
    assert found.cluster.gpus[0] == pl.GPU("Mine-32", 32, 0.5, "Mine-32×2 no. 1", 100)
    # a type of the same name is replaced
    assert found.costs.gpus["L4"].memory_bandwidth_gb_per_s == 600
    own = (*MODEL, "--gpus", "mine=2,l4=2", "--gpu-facts", file)
    assert run("sweep", *own, "--vary", "mine=1,2", "--jobs", "1", "--json")[0] == 0


@pytest.mark.slow
def test_a_sweep_varies_options_and_counts(run, tmp_path):
    file = tmp_path / "rows.csv"
    more = ("--vary", "l4=0,3", "--vary", "batch=4,8", "--jobs", "1", "--output", file)
    for _ in "12":  # the same call goes on with the file; another model is refused
        status, out, _ = run("sweep", *OWN, *more, "--json")
        assert (status, len(pd.read_csv(file))) == (0, 4)
    rows = {(row["L4"], row["batch"]): row["throughput_tokens_per_s"] for row in json.loads(out)}
    assert list(rows) == [(0, 4), (0, 8), (3, 4), (3, 8)]
    for (_, batch), reached in list(rows.items())[2:]:
        alike = _problem(load=pl.Workload(512, batch, "decode"))
        assert reached == pytest.approx(pl.solve(alike).throughput)
    status, _, err = run("sweep", "--model", "Llama-2-7B", *OWN[2:], *more)
    assert (status, "belongs to another sweep" in err) == (2, True)
    out = run("sweep", "tiny", "--vary", "max-gpus=1,2,4", "--jobs", "1")[1]
    assert out.startswith("3 points in ")
    assert all(rate in out for rate in ("217.52", "301.784", "345.4944"))
    mixed = (*MODEL, "--gpus", "l4=1", "--phase", "mixed", "--vary", "output-tokens=50,100")
    assert run("sweep", *mixed, "--jobs", "1")[0] == 0


def test_a_node_says_what_it_is_and_where_nothing_measured_is_like_its_rates(run):
    for pool in ("l4=1", "l4=2,t4=2", "l4=16"):
        status, _, err = run("node", *MODEL, "--gpus", pool)
        assert (status, "all on one node" in err) == (2, True)
    own = ("--model", "DeepSeek-V3", "--gpus", "h200=8", "--precision", "fp8")
    said = "is not known"
    assert said in run("node", *own, "--phase", "prefill")[1]
    assert said not in run("node", *own, "--phase", "decode")[1]


def test_a_gpu_is_known_by_several_names(capsys):
    for name, kind, said in (
        ("h100", "H100-SXM", "h100 is taken for H100-SXM, of H100-SXM, H100-PCIe"),
        ("A100", "A100-SXM-80", "of A100-SXM-40, A100-SXM-80, A100-PCIe-80"),
        ("h200", "H200-SXM", ""),
        ("L4", "L4", ""),
        ("NVIDIA GeForce RTX 3090", "RTX3090", ""),
    ):
        problem_options._say_once.cache_clear()
        found = problem_options.counts_of(f"{name}=3", pl.hardware.load_gpus())
        assert (found, said in capsys.readouterr().err) == ({kind: 3}, True)


REFUSED = {
    "both": (("solve", "tiny", *MODEL), "--model = 'Llama-3-8B': expected it without a case"),
    "no gpus": (("solve", *MODEL), "expected --gpus or --cluster beside --model"),
    "too many": (("solve", *MODEL, "--gpus", "l4=1000000"), "counts up to 999999"),
    "a type": (("solve", *MODEL, "--gpus", "l5=1"), "'l5': expected a known GPU; Known: L4"),
    "nodes of a cluster": (
        ("solve", *MODEL, "--cluster", "helix-single24", "--per-node", "2"), "--per-node = 2",
    ),
    "mixed": (
        ("solve", *MODEL, "--gpus", "l4=1", "--phase", "mixed"), "--output-tokens = None: expected how many",
    ),
    "an axis twice": (
        ("sweep", "tiny", "--vary", "batch=8", "--vary", "batch=9"), "'batch=9': expected each name once",
    ),
    "an axis": (("sweep", "tiny", "--vary", "btch=3"), "did you mean 'batch'"),
    "a value": (("sweep", "tiny", "--vary", "batch=x"), "expected NAME=NUMBER"),
    "batches": (("deploy", *MODEL, "--gpus", "l4=1", "--batches", "4,x"), "--batches = 'x': expected whole"),
    "no plan": (("evaluate", "gone.json"), "gone.json: there is no such file"),
    "settings of a case of a case": (("settings", "tiny", "--case", "tiny", "--engine", "vLLM"), "--case"),
    "a long name": (("solve", "x" * 5000), "neither a bundled case nor a folder"),
    "a copy into a file": (("copy", __file__), "is a file"),
    "no such explorer": (("page", "mixes", "-o", "a.html"), "explorer = 'mixes': expected mix or schedules"),
    "no such control": (("page", "schedules", "-o", "a.html", "--vary", "rank=2..3"), "did you mean 'ranks'"),
    "an empty range": (("page", "mix", "-o", "a.html", "--gpus", "l4=3..2"), "--gpus = 'l4=3..2': expected NAME"),
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


@pytest.mark.slow
def test_no_placement_is_exit_status_1(run, tmp_path):
    none = (*BIG, "--gpus", "l4=1")
    status, out, _ = run("solve", *none)
    assert (status, out.startswith("No placement exists: ")) == (1, True)
    for command in (
        ("compare", *none, "--methods", "even,aggregated"),
        ("settings", *none, "--engine", "vLLM"),
        ("deploy", *OWN, "--at-least", "1e9"),
        ("trade-off", *none),
        ("sweep", *none, "--vary", "l4=1,2", "--jobs", "1"),
        ("node", *BIG, "--gpus", "l4=2"),
        ("solve", *OWN, "--budget", "0.1"),
    ):
        assert run(*command)[0] == 1, command
    tiny = pl.load_case("tiny")
    heavy = dataclasses.replace(tiny, model=dataclasses.replace(tiny.model, layer_weight_gb=90))
    out = run("solve", pl.writeup.save_case(heavy, tmp_path / "heavy"))[1]
    assert out.startswith("No placement exists: layer 1 alone needs 91.64 GB")


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
    slow = ("reproduce", "page", "calibrate")  # with tests of their own
    tried = [arguments for _, *arguments in lines if arguments[0] not in slow]
    assert {a[0] for a in tried} >= {"solve", "deploy", "trade-off", "settings"}
    for arguments in tried:
        more = ["--jobs", "1"] if arguments[0] == "sweep" else []
        assert run(*arguments, *more)[0] == 0, arguments


@pytest.mark.parametrize("engine", ["vLLM", "SGLang", "TensorRT-LLM", "llama.cpp"])
def test_a_saved_plan_has_the_script_of_its_result(run, tmp_path, engine):
    """Where more microbatches would fill the stages than engines keep in flight."""
    asked = (*MODEL, "--gpus", "l4=3,t4=4", "--per-node", 1, "--network-gbit", 1, "--batch", 1)
    run("solve", *asked, "--runs-on", engine, "--output", tmp_path / "plan.json")
    printed = run("settings", tmp_path / "plan.json", *asked, "--engine", engine)[1]
    options = {"gpus": "l4=3,t4=4", "per_node": 1, "network_gbit": 1.0, "batch": 1}
    problem = _wanted(model="Llama-3-8B", **options)
    assert printed == pl.settings(problem, pl.solve(problem, runs_on=engine), engine).script


@pytest.mark.parametrize("per_node", [2, 3, 4])
def test_pipelines_that_are_printed_alike_are_one_row(run, per_node):
    """On nodes of different sizes, whose GPUs are not interchangeable."""
    _, out, _ = run("deploy", *MODEL, "--gpus", "l4=5", "--per-node", per_node, "--max-gpus", 1)
    (row,) = out.split("layers\n")[1].splitlines()
    assert row.split()[0] == "5"


def test_what_is_known_is_listed(run):
    assert "65 GPUs: 5 × A100" in run("cases")[1]
    assert run("--version") == (0, f"pipelab {pl.__version__}\n", "")


def test_calibrate_says_what_the_package_says_and_draws_it(run, tmp_path):
    measured, chart = DATA / "measured" / "llama_bench.json", tmp_path / "errors.html"
    fitted = pl.hardware.calibrate(pl.Roofline(engine="llama.cpp"), measured)
    status, out, _ = run("calibrate", str(measured), "--rates", "llama.cpp", "--html", str(chart))
    assert (status, out.splitlines()[0]) == (0, fitted.sentence)
    assert len(out.splitlines()) == 2 + len(fitted.moved)
    assert "Plotly.newPlot" in chart.read_text(encoding="utf-8")
