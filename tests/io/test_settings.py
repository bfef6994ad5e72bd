"""A plan as the settings of engines, read back by each engine's own rule, and scripts that run."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import pytest
from jinja2 import DictLoader, Environment

import pipelab as pl
import roofline_oracle
from pipelab.hardware.engine_rules import known_rules
from pipelab.io.serving import engine_settings
from pipelab.io.serving.engine_plan import EnginePlan
from pipelab.writeup.linear_rates import with_link_units

ENGINES = tuple(known_rules())
DATA = Path(__file__).parents[1] / "data"
SERVING = [name for name, rules in known_rules().items() if not rules.trains]


def _vllms_rule(text, layers, ranks):
    """`get_pp_indices` of vLLM and SGLang: start and end of every rank."""
    parts = [int(part) for part in text.split(",")]
    assert len(parts) == ranks
    assert sum(parts) == layers
    return [(sum(parts[:r]), sum(parts[:r]) + parts[r]) for r in range(ranks)]


def _llama_cpps_rule(text, layers, gpu_layers, ranks):
    """`load_tensors` of llama.cpp, in 32-bit floats: the device of every layer, the output layer last."""
    splits = np.cumsum(np.array([float(part) for part in text.split(",")], np.float32))
    splits = splits / splits[-1]
    assert len(splits) == ranks
    first = max(layers + 1 - gpu_layers, 0)
    on_gpu = min(gpu_layers, layers + 1)
    assert (first, on_gpu) == (0, layers + 1)  # all of them
    return [
        int(np.searchsorted(splits, np.float32(il - first) / np.float32(on_gpu), side="right"))
        for il in range(layers + 1)
    ]


def _megatrons_rule(text):
    """`parse_str_to_list` of Megatron-LM: the letters of every stage."""
    text = text.replace(",", "")
    for pattern in (r"\(([^)]+)\)\*(\d+)", r"(.)\*(\d+)"):
        text = re.sub(pattern, lambda found: found[1] * int(found[2]), text)
    return text.split("|")


def _torchtitans_rule(arguments, layers):
    """`list_str_rule`, then `_split_module` of torchtitan: what every stage keeps of the model's children."""
    (option,) = (word for word in arguments if word.endswith("module_fqns_per_model_part"))
    start = arguments.index(option) + 1
    end = next((i for i in range(start, len(arguments)) if arguments[i][:2] == "--"), None)
    stages = []
    for kept in (set(text.split(",")) for text in arguments[start:end]):
        wanted = {name.split(".", 1)[1] for name in kept if name.startswith("layers.")}
        simple = [name for name in ("tok_embeddings", "norm", "lm_head") if name in kept]
        stages.append((simple, [i for i in range(layers) if str(i) in wanted]))
    return stages


def _transformers_rule(placed, names):
    """The one expression of `convert_and_load_state_dict_in_model` since version 5."""
    keys = sorted(placed, key=lambda k: (k.count("."), len(k)), reverse=True)
    each = re.compile("|".join(f"({key})" for key in keys))
    return {name: placed[each.match(name)[0]] for name in names}


def _device_of(placed, name):
    """`expand_device_map`, by the dots of a name, from the right."""
    while name not in placed:
        name = name.rpartition(".")[0]
    return placed[name]


def _after(arguments, name):
    return arguments[arguments.index(name) + 1]


def _refused(problem, plan, engine, why, **more):
    with pytest.raises(pl.errors.NotApplicable, match=f"(?s){re.escape(engine)}: .*{why}"):
        pl.settings(problem, plan, engine, **more)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_without_a_template_is_refused_with_the_file_that_is_missing(engine, monkeypatch):
    monkeypatch.setattr(engine_settings, "_templates", lambda: Environment(loader=DictLoader({})))
    file = rf"pipelab/io/serving/templates/{engine}\.sh\.j2"
    _refused(_free(4, 1), pl.Placement.of([(4, (0,))]), engine, file)


def _free(layers, gpus, nodes=None):
    """A problem in which every cut fits, its GPUs on these nodes."""
    names = nodes or ["n"] * gpus
    each = tuple(pl.GPU("A100", 1e4, node=name, node_gb_per_s=100) for name in names)
    cluster = pl.Cluster(each, np.full((gpus, gpus), 10.0))
    model = pl.Model("m", layers, 64, 64, 0.001)
    return pl.Problem(cluster, model, pl.Workload(10, 2), pl.writeup.load_coefficients())


def _cut(rng, most=15):
    layers = int(rng.integers(1, 200))
    stages = int(rng.integers(1, min(most, layers) + 1))
    inner = rng.choice(np.arange(1, layers), stages - 1, replace=False).tolist()
    sizes = np.diff([0, *sorted(inner), layers]).tolist()
    return layers, sizes, rng.permutation(stages).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(50))
def test_every_engine_reads_back_the_cuts_of_random_plans(seed):
    rng, scripts = np.random.default_rng(seed), []
    for _ in range(8):
        layers, sizes, gpus = _cut(rng)
        problem = _free(layers, len(sizes))
        plan = pl.Placement.of([(n, (g,)) for n, g in zip(sizes, gpus, strict=True)])
        cuts = [(s.layers.start, s.layers.stop) for s in plan.stages]
        found = {engine: pl.settings(problem, plan, engine) for engine in ENGINES}
        for engine, one in found.items():
            assert one.hosts[0].gpus == tuple(gpus)
            assert f"# Written for {engine} {one.version}, " in one.script
        for engine, name in (("vLLM", "VLLM"), ("SGLang", "SGLANG")):
            text = found[engine].environment[f"{name}_PP_LAYER_PARTITION"]
            assert _vllms_rule(text, layers, len(sizes)) == cuts
        arguments = found["llama.cpp"].arguments
        parts, on_gpu = _after(arguments, "-ts"), int(_after(arguments, "-ngl"))
        devices = _llama_cpps_rule(parts, layers, on_gpu, len(sizes))
        owner = [s for s, (start, stop) in enumerate(cuts) for _ in range(start, stop)]
        assert devices == [*owner, len(sizes) - 1]
        layout = _after(found["Megatron"].arguments, "--pipeline-model-parallel-layout")
        stages = _megatrons_rule(layout)
        assert (stages[0][0], stages[-1][-1]) == ("E", "L")
        assert [stage.strip("EL") for stage in stages] == ["t" * n for n in sizes]
        arguments = found["torchtitan"].arguments
        kept = _torchtitans_rule(arguments, layers)
        assert [held for _, held in kept] == [list(range(*cut)) for cut in cuts]
        ends = [[] for _ in cuts]
        ends[0] += ["tok_embeddings"]
        ends[-1] += ["norm", "lm_head"]
        assert [simple for simple, _ in kept] == ends
        assert int(_after(arguments, "--parallelism.pipeline_parallel_degree")) == len(sizes)
        (text,) = re.findall(r"^pp_partition: \[(.*)\]$", found["TensorRT-LLM"].script, re.M)
        assert _vllms_rule(text, layers, len(sizes)) == cuts
        inner = [f"model.layers.{i}.mlp.up_proj.weight" for i in range(layers)]
        names = ["model.embed_tokens.weight", *inner, "model.norm.weight", "lm_head.weight"]
        placed = json.loads(_after(found["transformers"].arguments, "device_map"))
        devices = {name: _device_of(placed, name) for name in names}
        assert list(devices.values()) == [0, *owner, len(sizes) - 1, len(sizes) - 1]
        if layers < 20:  # the expression looks at every pair of an entry and a name
            assert _transformers_rule(placed, names) == devices
        scripts += [one.script for one in found.values()]
    if bash := shutil.which("bash"):  # all of them are its language
        every = "\n".join(scripts)
        done = subprocess.run([bash, "-n"], input=every, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")


def _random_load(seed):
    """A plan of Llama-3-8B on GPUs with room for everything."""
    rng = np.random.default_rng([7, seed])
    stages = int(rng.integers(1, 6))
    inner = sorted(rng.choice(np.arange(1, 32), stages - 1, replace=False).tolist())
    sizes = np.diff([0, *inner, 32]).tolist()
    gpus = tuple(pl.GPU("H100-SXM", 1e5, node="n", node_gb_per_s=450) for _ in sizes)
    cluster = pl.Cluster(gpus, np.full((stages, stages), 25.0))
    tokens = int(rng.choice([rng.integers(1, 5000), 256 * rng.integers(1, 9)]))
    phase = str(rng.choice(["prefill", "decode", "mixed"]))
    in_flight = None if seed % 4 == 0 else max(1, stages + int(rng.integers(-2, 4)))
    written = int(rng.integers(1, 600)) if phase == "mixed" else None
    batch = int(rng.choice([rng.integers(1, 9), 200, 300]))
    load = pl.Workload(tokens, batch, phase, in_flight=in_flight, output_tokens=written)
    precision = str(rng.choice(["bf16", "fp16", "fp8", "int8", "int4"]))
    model = pl.load_model("Llama-3-8B", precision=precision, kv_precision="bf16")
    problem = pl.Problem(cluster, model, load, pl.Roofline())
    return problem, pl.Placement.of([(n, (g,)) for g, n in enumerate(sizes)])


def _padded(tokens, block):
    return -(-tokens // block) * block


def _llama_cpps_cache(arguments):
    """`llama_context` of llama.cpp: tokens of each sequence, and of all; parts are in blocks of 256."""
    tokens, sequences = int(_after(arguments, "-c")), int(_after(arguments, "-np"))
    each = _padded(_padded(tokens, 256) // sequences, 256)
    return each, each * sequences


BLOCKS = {"vLLM": 16, "TensorRT-LLM": 32, "llama.cpp": 256, "SGLang": 1, "transformers": 1}


def _has_the_plans_values(problem, placement, engine):
    load, stages = problem.workload, len(placement.stages)
    found = pl.settings(problem, placement, engine)
    plan = EnginePlan.of(problem, placement, engine, None)
    told = dict(zip(found.arguments, [*found.arguments[1:], ""], strict=True))
    has = plan.evaluation.in_flight
    sequences = has * load.batch_size
    overlapping = has if stages > 1 and load.phase == "prefill" else 1
    most = {"vLLM": stages, "TensorRT-LLM": stages, "llama.cpp": overlapping}.get(engine, 1)
    # Besides weights and activations, keys and values of whole blocks count in memory.
    each = _padded(load.sequence_length + max(1, load.written), BLOCKS[engine])
    for report, stage in zip(plan.evaluation.stages, placement.stages, strict=True):
        costs = replace(problem.costs, runs_on=engine)
        filled = problem.with_in_flight(has)
        parts = costs.memory_parts(filled, problem.cluster.gpus[0], stage.layers)
        assert report.memory_gb[0] == pytest.approx(sum(parts.values()))
        kept = each * sequences * problem.model.kv_bytes * len(stage.layers)
        assert parts["KV cache"] == pytest.approx(kept / 1e9, rel=1e-6)
    if engine == "llama.cpp":
        assert _llama_cpps_cache(found.arguments) == (each, int(told["-c"]))
        sequences = min(sequences, 256)  # LLAMA_MAX_SEQ: more are refused at its start
        assert (int(told["-np"]), int(told["-c"])) == (sequences, each * sequences)
        assert told["-fit"] == "off"  # else it may deal out layers anew
    elif engine == "TensorRT-LLM":  # `max_num_sequences`: of pp_size microbatches
        assert int(told["--max_batch_size"]) == load.batch_size
    elif engine == "SGLang":  # `pp_loop_size`
        assert "--mem-fraction-static" not in told
        assert int(told["--pp-max-micro-batch-size"]) == load.batch_size
        assert int(told["--max-running-requests"]) == sequences
        most = stages + int(told.get("--pp-async-batch-depth", 0))
        assert stages == 1 or most == max(stages, has)
    elif engine == "vLLM":
        assert int(told["--max-num-seqs"]) == sequences
    said = [note for note in found.notes if f"{engine} keeps at most" in note]
    assert len(said) == (has > most)
    if said:
        fewer = pl.evaluate(problem.with_in_flight(most), placement).attainable
        assert f"at most {most} of the plan's {has} microbatches" in said[0]
        assert f"{fewer:,.7g} of its {plan.evaluation.attainable:,.7g} tokens/s" in said[0]


@pytest.mark.parametrize("seed", range(60))
def test_an_engine_makes_of_every_value_what_the_plan_has(seed):
    for case in (2 * seed, 2 * seed + 1):
        problem, placement = _random_load(case)
        for engine in SERVING:
            if engine == "llama.cpp" and problem.model.precision == "fp8":
                why = "int8, int4: it has weights in no other; give load_model such a precision"
                _refused(problem, placement, engine, why)
            elif engine == "llama.cpp" and problem.workload.batch_size > 256:
                _refused(problem, placement, engine, "expected at most 256")
            else:
                _has_the_plans_values(problem, placement, engine)


TORCHRUN = {"-m", "--nproc-per-node", "--nnodes", "--node-rank", "--master-addr", "--master-port"}


def test_options_are_those_of_the_engines_version():
    """As `tests/data/make_engine_options.py` reads them in the packages' source."""
    known = json.loads((DATA / "engine_options.json").read_text(encoding="utf-8"))
    for seed in range(40):
        problem, plan = _random_load(seed)
        gpus = tuple(replace(gpu, node=f"n{i % 2}") for i, gpu in enumerate(problem.cluster.gpus))
        model = replace(problem.model, precision="bf16")
        load = replace(problem.workload, batch_size=min(256, problem.workload.batch_size))
        cluster = replace(problem.cluster, gpus=gpus)
        problem = replace(problem, cluster=cluster, model=model, workload=load)
        for engine, table in known.items():
            found = pl.settings(problem, plan, engine)
            assert found.version == table["version"]
            # a command and the lines in which it goes on
            told = "\n".join(re.findall(r"^ *start (?:.*\\\n)*.*$", found.script, re.M))
            options = {
                *re.findall(r"(?<=\s)--?[a-zA-Z][\w.-]*", f"{told} {' '.join(found.arguments)}")
            }
            options |= {name for name in found.environment if name.endswith("_PARTITION")}
            assert options - (TORCHRUN if engine == "torchtitan" else {"-m"}) <= {*table["options"]}


PROGRAMS = ("vllm", "python3", "torchrun", "trtllm-serve", "llama-server", "ggml-rpc-server")
STUB = """#!{bash}
[ "${{0##*/}}" = llama-server ] && sleep 0.3  # servers in the background come first
{{
  printf '%s\\036' "${{0##*/}} $CUDA_VISIBLE_DEVICES" "$@"
  for each; do case "$each" in *.yaml | *.csv) tr '\\n' '\\036' < "$each" ;; esac; done
}} > "$LOG/.$$"
mv "$LOG/.$$" "$LOG/$$"
eval "${{LINGER:-}}"  # where several run on a host, none ends before the others began
"""


@pytest.fixture
def run(tmp_path):
    """Run a script with stubs in the place of the engines; what they were called with, in order."""
    bash = shutil.which("bash")
    if bash is None or sys.platform == "win32":
        pytest.skip("needs bash")
    for name in PROGRAMS:
        (tmp_path / name).write_text(STUB.format(bash=bash), encoding="utf-8")
        (tmp_path / name).chmod(0o755)

    def run(found, *arguments, **variables):
        log = Path(tempfile.mkdtemp(dir=tmp_path))
        (tmp_path / "run.sh").write_text(found.script, encoding="utf-8")
        given = {"MODEL": "my model", "MEGATRON": "/m", "CONFIG": "llama3.llama3_8b"}
        given |= {
            "LOG": str(log),
            "TMPDIR": str(tmp_path),
            "LOGS": str(tmp_path / "logs"),
        }
        given["SKIP"] = "version addresses gpus ports answers"
        environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"} | given | variables
        command = [bash, str(tmp_path / "run.sh"), *arguments]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        calls = []
        for each in sorted(log.glob("[!.]*"), key=lambda path: path.stat().st_mtime_ns):
            name, *arguments, _ = each.read_text("utf-8").split("\x1e")
            calls.append((name.strip(), arguments))
        return done, calls

    return run


NASTY = (
    "\0", "\n", "\r", "\x1b[31m", "\x7f", "\u2028", "\u202e", "\u2066", "\ud800", "`touch HERE`", "$(touch HERE)", "'",
    '"', "; touch HERE;", "\\", "\nEND\n", "\ntouch HERE\n", "#>", "{{ 7 }}", "{% raw %}", "${HOSTS}", "& touch HERE &",
)  # fmt: skip


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.nightly) for n in (1, 2))])
def test_nothing_in_a_name_is_executed(run, tmp_path, engine, seed):
    rng = np.random.default_rng(seed)

    def name(start):
        parts = rng.choice(NASTY, 6 if seed else len(NASTY), replace=False)
        return start + "x".join(parts.tolist()).replace("HERE", str(tmp_path / "done"))

    types, node = [name("T4"), name("A100")], name("node")
    gpus = tuple(pl.GPU(kind, 80, node=node, node_gb_per_s=30) for kind in types)
    cluster = pl.Cluster(gpus, np.full((2, 2), 10.0))
    model = replace(pl.load_model("Llama-3-8B", precision="bf16"), name=name("model"))
    costs = pl.LayerTimes(dict.fromkeys(types, 1.0))
    problem = pl.Problem(cluster, model, pl.Workload(10, 2), costs)
    found = pl.settings(problem, pl.Placement.of([(12, (0,)), (20, (1,))]), engine)
    assert all(c.isprintable() for c in found.script.replace("\n", ""))
    done, calls = run(found, "a prompt")
    assert (done.returncode, len(calls)) == (0, 1), done.stderr
    assert not (tmp_path / "done").exists()


@pytest.mark.parametrize("prompts", [0, 9, 3, 4])
def test_transformers_answers_in_the_plans_batches(run, three, prompts, monkeypatch, capsys):
    asked = [f"prompt {i}" for i in range(prompts)]
    done, calls = run(pl.settings(*three, "transformers", hosts="h"), *asked)
    if not asked:
        assert (done.returncode, calls) == (2, [])
        assert "there are no prompts" in done.stderr
        return
    ((_, (option, program, *arguments)),) = calls
    library, batches = MagicMock(), []
    reader = library.AutoTokenizer.from_pretrained.return_value
    reader.side_effect = lambda batch, **_: batches.append(batch) or MagicMock(to=lambda _: {})
    library.AutoModelForCausalLM.from_pretrained.return_value.generate = lambda **_: batches[-1]
    reader.decode = lambda written, **_: f"answer to {written}"
    monkeypatch.setitem(sys.modules, "transformers", library)
    monkeypatch.setattr(sys, "argv", [option, *arguments])
    exec(program, {})
    assert [prompt for batch in batches for prompt in batch] == asked
    sizes = [4] * (prompts // 4) + [prompts % 4]
    assert [len(batch) for batch in batches] == [size for size in sizes if size]
    assert capsys.readouterr().out.splitlines() == [f"answer to {prompt}" for prompt in asked]


@pytest.fixture(scope="module")
def three():
    """Three hosts: a T4 alone, two L40S, four A10G; a plan over all of them in this order."""
    links = np.full((7, 7), 10.0)
    kinds = [("T4", 16, "")] + [("L40S", 48, "mid $(x)")] * 2 + [("A10G", 24, "big")] * 4
    gpus = tuple(pl.GPU(t, m, node=n, node_gb_per_s=30 if n else None) for t, m, n in kinds)
    model = pl.load_model("Llama-3-8B")
    load = pl.Workload(1000, 4, "decode", in_flight=3)
    problem = pl.Problem(pl.Cluster(gpus, links), model, load, pl.Roofline())
    parts = [(3, (0,)), (9, (1,)), (8, (2,)), (3, (3,)), (3, (5,)), (3, (4,)), (3, (6,))]
    return problem, pl.Placement.of(parts)


def _within(part, whole):
    """Whether a list stands in another as one piece."""
    return any(whole[i : i + len(part)] == part for i in range(len(whole)))


def test_on_one_host_the_plan_is_in_the_options_or_in_a_file(run, three):
    problem, plan = three
    told = {}
    programs = {"vLLM": "vllm", "TensorRT-LLM": "trtllm-serve", "transformers": "python3"}
    for engine, program in programs.items():
        found = pl.settings(problem, plan, engine, hosts="h")
        done, ((name, told[engine]),) = run(found, "Who are you?", "And I?")
        assert done.returncode == 0, done.stderr
        assert name.split() == [program, "0,1,2,3,5,4,6"]
    assert told["vLLM"][:2] == ["serve", "my model"]
    assert told["vLLM"][-2:] == ["Who are you?", "And I?"]
    for option, value in (
        ("--pipeline-parallel-size", "7"), ("--tensor-parallel-size", "1"), ("--max-model-len", "1001"),
        ("--distributed-executor-backend", "mp"), ("--max-num-batched-tokens", "2048"),
    ):  # fmt: skip
        assert _after(told["vLLM"], option) == value
    assert told["TensorRT-LLM"][-3:] == [
        "pp_partition: [3, 9, 8, 3, 3, 3, 3]", "dtype: float16",
        "kv_cache_config: {free_gpu_memory_fraction: 0.9}",
    ]  # fmt: skip
    option, program, *arguments = told["transformers"]
    assert (option, arguments) == ("-c", ["my model", "Who are you?", "And I?"])
    assert f'{{"device_map": {found.arguments[1]}}}' in program
    compile(program, "program", "exec")
    assert 'dtype="float16"' in program  # a T4 among them
    for engine in ("TensorRT-LLM", "transformers"):
        _refused(problem, plan, engine, "expected stages on one host")


def _vllms_ranks(arguments):
    """`MultiprocExecutor` of vLLM: the ranks of a start, in the order of its GPUs."""
    nodes, node = (int(_after(arguments, f"--{name}")) for name in ("nnodes", "node-rank"))
    assert ("--headless" in arguments) == (node > 0)
    sizes = (f"--{name}-parallel-size" for name in ("pipeline", "tensor"))
    own, left = divmod(np.prod([int(_after(arguments, size)) for size in sizes]), nodes)
    assert not left
    return [own * node + i for i in range(own)]


def _sglangs_ranks(arguments):
    """`_calculate_rank_ranges` of SGLang, and the GPU that it gives to every rank."""
    names = ("pp-size", "tp-size", "nnodes", "node-rank")
    pp, tp, nodes, node = (int(_after(arguments, f"--{name}")) for name in names)
    stages, starts = max(pp // nodes, 1), max(nodes // pp, 1)
    own = tp // starts
    first = node % starts * own
    gpus = {
        (s % stages) * own + r % own: s * tp + r
        for s in range(stages * (node // starts), stages * (node // starts + 1))
        for r in range(first, first + own)
    }
    return [gpus[i] for i in range(len(gpus))]


def _torchruns_ranks(arguments):
    """Static rendezvous of torchrun: ranks are counted start by start."""
    assert int(_after(arguments, "--nnodes")) > int(_after(arguments, "--node-rank"))
    own = int(_after(arguments, "--nproc-per-node"))
    return [own * int(_after(arguments, "--node-rank")) + i for i in range(own)]


# Of each engine the rule of its ranks, its program, and what stands before its own options.
RANKS = {
    "vLLM": (_vllms_ranks, "vllm", ["serve", "my model"]),
    "SGLang": (_sglangs_ranks, "python3", ["-m", "sglang.launch_server", "--model-path", "my model"]),
    "Megatron": (_torchruns_ranks, "torchrun", ["/m/pretrain_gpt.py"]),
    "torchtitan": (_torchruns_ranks, "torchrun", ["-m", "torchtitan.train", "--module", "llama3"]),
}  # fmt: skip


def _started(run, found, engine, hosts):
    """The place of every rank, by the engine's own rule, as (host, GPU as that host counts); and all arguments."""
    places, asked = {}, []
    rule, program, first = RANKS[engine]
    names = (", " if hosts % 2 else " ").join(f"h{i}" for i in range(1, hosts + 1))
    for number in range(1, hosts + 1):
        own = (str(number), "--mine", "x y")
        done, calls = run(found, *own, HOSTS=names, LINGER="sleep 0.3")
        assert done.returncode == 0, done.stderr
        for name, arguments in calls:
            ranks, gpus = rule(arguments), name.split()[1].split(",")
            assert (name.split()[0], len(ranks)) == (program, len(gpus))
            places |= {r: (number, int(gpu)) for r, gpu in zip(ranks, gpus, strict=True)}
            for part in (first, list(found.arguments), ["--mine", "x y"]):
                assert _within(part, arguments)
            assert any(each.split(":")[0] == "h1" for each in arguments)  # where the first one is
            asked.append(arguments)
    return [places[r] for r in range(len(places))], asked


@pytest.mark.slow
@pytest.mark.parametrize("case", range(24))
def test_ranks_lie_where_random_plans_have_them(run, case):
    rng, engine = np.random.default_rng(case), list(RANKS)[case % len(RANKS)]
    even = case % 3 == 0  # hosts with as many GPUs each, one after the other
    nodes = np.repeat(["a", "b", "c"], 4 if even else rng.integers(1, 7, 3)).tolist()
    size = int(rng.integers(1, 3))
    gpus = tuple(pl.GPU("H100-SXM", 80, node=name, node_gb_per_s=450) for name in nodes)
    index = np.random.default_rng([1, case]).permutation(40)[: len(nodes)].tolist()
    cluster = pl.Cluster(gpus, np.full((len(nodes), len(nodes)), 25.0), index=tuple(index))
    model, load = pl.load_model("Llama-3-8B"), pl.Workload(100, 4, "decode")
    problem = pl.Problem(cluster, model, load, pl.Roofline())
    stages = [
        tuple(own[i : i + size])
        for name in "abc"
        for own in [rng.permutation([g for g, n in enumerate(nodes) if n == name]).tolist()]
        for i in range(0, len(own) - size + 1, size)
    ]
    if not even:
        stages = [stages[i] for i in rng.permutation(len(stages))]
    cuts = np.diff([0, *sorted(rng.choice(np.arange(1, 32), len(stages) - 1, False)), 32]).tolist()
    plan = pl.Placement.of(zip(cuts, stages, strict=True))
    found = pl.settings(problem, plan, engine)
    assert found.tensor_parallel_size == size
    order = list(dict.fromkeys(nodes[g] for g in plan.gpus))
    wanted = [(order.index(nodes[g]) + 1, index[g]) for g in plan.gpus]
    if len(order) == 1:
        assert found.hosts[0].gpus == tuple(gpu for _, gpu in wanted)
        return
    places, asked = _started(run, found, engine, len(order))
    assert places == wanted
    if even:
        assert len(asked) == len(order)  # one start each
    if engine == "SGLang":
        assert len({_after(arguments, "--port") for arguments in asked}) == len(asked)
        assert _after(found.arguments, "--pp-max-micro-batch-size") == str(load.batch_size)


def test_a_script_wants_its_hosts(run, three):
    found = pl.settings(*three, "vLLM")
    for arguments, hosts, message in (
        (["1"], "a b", "expected 3 addresses"),
        (["4"], "a b c", "expected a number from 1 to 3"),
        ([], "a b c", "say which host this is"),
        (["1"], "", "set HOSTS to the addresses"),
    ):
        done, calls = run(found, *arguments, HOSTS=hosts)
        assert (done.returncode != 0, calls) == (True, [])
        assert message in done.stderr
    known = pl.settings(*three, "vLLM", hosts=["a", "b", "b", "c", "c", "c", "c"])
    assert _after(run(known, "2", LINGER="sleep 0.3")[1][0][1], "--master-addr") == "a"


@pytest.fixture(scope="module")
def pair():
    """Two stages on two hosts, to be trained with two sequences a microbatch."""
    problem = with_link_units(_free(5, 2, ["a", "b"]), "tokens")
    return problem, pl.Placement.of([(2, (0,)), (3, (1,))])


def _microbatches(arguments):
    """Sequences per microbatch, and microbatches, as torchtitan 0.3.0 reads them, or its main branch."""
    if "--training.local_batch_size" in arguments:
        sequences = int(_after(arguments, "--parallelism.pipeline_parallel_microbatch_size"))
        several, left = divmod(int(_after(arguments, "--training.local_batch_size")), sequences)
        assert left == 0
        return sequences, several
    tokens = int(_after(arguments, "--training.num_tokens_per_microbatch_per_dp_rank"))
    sequences, left = divmod(tokens, int(_after(arguments, "--training.max_context_length")))
    assert left == 0
    return sequences, int(_after(arguments, "--parallelism.num_pp_microbatches"))


@pytest.mark.parametrize("name", ["1F1B", "best"])
def test_torchtitan_runs_the_schedule_of_the_training_step(run, pair, name):
    problem, plan = pair
    rule = "ZBH1" if name == "best" else name
    step = pl.timeline_of(problem, plan, training=True, schedule=rule, microbatches=6)
    if name == "best":  # of a reader's own, whose name no engine knows
        order = replace(step.timeline.schedule, name="best")
        step = replace(step, timeline=pl.simulate(order, step.timeline.costs))
    found = pl.settings(problem, step, "torchtitan")
    done, calls = run(found, "2", HOSTS="x y", TORCHTITAN="of old")
    assert (done.returncode, calls) == (2, [])
    done, ((_, of_main),) = run(found, "2", "--end", HOSTS="x y", TORCHTITAN="main")
    assert done.returncode == 0, done.stderr
    done, ((_, arguments),) = run(found, "2", "--training.steps", "9", HOSTS="x y")
    assert done.returncode == 0, done.stderr
    assert _microbatches(of_main) == (2, 6)
    assert [held for _, held in _torchtitans_rule(of_main, 5)] == [[0, 1], [2, 3, 4]]
    assert _within(["--module", "llama3", "--config", "llama3_8b"], arguments)
    assert [held for _, held in _torchtitans_rule(arguments, 5)] == [[0, 1], [2, 3, 4]]
    assert _microbatches(arguments) == (2, 6)
    assert _after(arguments, "--training.seq_len") == "10"
    chosen = _after(arguments, "--parallelism.pipeline_parallel_schedule")
    table = "--parallelism.pipeline_parallel_schedule_csv"
    if name == "1F1B":
        assert (chosen, table in arguments) == (name, False)
        return
    assert chosen == "PipelineScheduleMulti"
    assert _after(arguments, table).endswith(".csv")
    file = arguments.index("--training.steps") + 2  # the stub shows what is in it
    rows = [line.split(",") for line in arguments[file:]]
    assert pl.Schedule.of("again", rows).actions == step.timeline.schedule.actions


def test_training_steps_go_to_engines_that_train(pair):
    problem, plan = pair
    step = pl.timeline_of(problem, plan, training=True, microbatches=6)
    arguments = pl.settings(problem, step, "Megatron").arguments
    assert _after(arguments, "--micro-batch-size") == "2"
    assert _after(arguments, "--global-batch-size") == "12"
    assert "--recompute-granularity" not in arguments
    for kind in ("full", "selective"):
        again = replace(step, recompute=(kind, kind))
        arguments = pl.settings(problem, again, "Megatron").arguments
        assert _after(arguments, "--recompute-granularity") == kind
        (note, *_) = pl.settings(problem, again, "torchtitan").notes
        assert ("FullAC" in note) == (kind == "full")
    free = pl.settings(problem, plan, "torchtitan")
    assert _microbatches(free.arguments) == (2, 8)
    assert any("no schedule was given: 1F1B with 8 microbatches" in note for note in free.notes)
    _refused(problem, replace(step, recompute=("none", "full")), "Megatron", "same on every stage")
    _refused(problem, step, "vLLM", "expected Megatron or torchtitan")
    for name, engine, why in (
        ("ZBH1", "Megatron", "expected '1F1B' or"),
        ("ZBVZeroBubble", "torchtitan", "expected chunks that go round the ranks"),
    ):
        other = pl.timeline_of(problem, plan, training=True, schedule=name)
        _refused(problem, other, engine, why)
    thin = pl.Placement.of([(1, plan.stages[0].gpus), (4, plan.stages[1].gpus)])
    other = pl.timeline_of(problem, thin, training=True, schedule="Interleaved1F1B")
    _refused(problem, other, "torchtitan", "at least 2 layers")


def _megatrons_order(ranks, rank, microbatches, chunks, group):
    """`get_schedule_table`, and warm-up by `get_pp_rank_microbatches`, of Megatron Core: one rank's actions."""
    table = [
        (chunk * ranks + rank, m)
        for first in range(0, microbatches, group)
        for chunk in range(chunks)
        for m in range(first, min(first + group, microbatches))
    ]
    back = [((chunks - 1 - stage // ranks) * ranks + rank, m) for stage, m in table]
    ahead = min(len(table), 2 * (ranks - rank - 1) + (chunks - 1) * group)
    order = [(stage, "F", m) for stage, m in table[:ahead]]
    for forward, backward in zip(table[ahead:], back, strict=False):
        order += [(forward[0], "F", forward[1]), (backward[0], "B", backward[1])]
    return order + [(stage, "B", m) for stage, m in back[len(table) - ahead :]]


@pytest.mark.parametrize("microbatches", [2, 3, 4, 6])
def test_chunks_are_dealt_out_and_interleaved_as_engines_do_it(microbatches):
    problem = with_link_units(_free(8, 2, ["a", "b"]), "tokens")
    plan = pl.Placement.of([(5, (0,)), (3, (1,))])
    chunks = {"training": True, "schedule": "Interleaved1F1B"}
    step = pl.timeline_of(problem, plan, microbatches=microbatches, **chunks)
    order = step.timeline.schedule
    arguments = pl.settings(problem, step, "Megatron").arguments
    layout = _after(arguments, "--pipeline-model-parallel-layout")
    # part c · 2 + r is chunk c of rank r, larger ones first
    assert [stage.strip("EL") for stage in _megatrons_rule(layout)] == ["ttt", "tt", "tt", "t"]
    group = int(_after(arguments, "--microbatch-group-size-per-virtual-pipeline-stage"))
    assert group >= 2
    for rank, own in enumerate(order.actions):
        told = [(a.stage, str(a.kind), a.microbatch) for a in own]
        assert told == _megatrons_order(2, rank, microbatches, 2, group)
    arguments = pl.settings(problem, step, "torchtitan").arguments
    assert [held for _, held in _torchtitans_rule(arguments, 8)] == [[0, 1, 2], [3, 4], [5, 6], [7]]
    assert _after(arguments, "--parallelism.pipeline_parallel_schedule") == "Interleaved1F1B"
    few = pl.timeline_of(problem, plan, microbatches=1, **chunks)
    _refused(problem, few, "Megatron", "expected at least 2, one for each rank")


def test_layers_that_differ_are_held_where_the_step_counts_them():
    plan = pl.Placement.of([(4, (0,)), (4, (1,))])
    cluster = pl.Cluster.from_counts({"H200-SXM": 2}, {"H200-SXM": 1e5}, 25)
    load = pl.Workload(2048, 1, "training", microbatches=4)
    model = replace(pl.load_model("DeepSeek-V3"), layers=8)  # dense layers first
    problem = pl.Problem(cluster, model, load, pl.Roofline())
    step = pl.timeline_of(problem, plan, training=True, schedule="Interleaved1F1B")
    held = _torchtitans_rule(pl.settings(problem, step, "torchtitan").arguments, 8)
    for rank, stage in enumerate(step.stages):
        layers = [*held[rank][1], *held[rank + 2][1]]
        state = sum(model.parameters(range(i, i + 1)) for i in layers) * 18e-9
        assert stage.state_gb == pytest.approx(state)


def test_megatron_is_told_the_sizes_of_the_model():
    """The parameters that Megatron's options stand for are those of the model."""
    cluster = pl.Cluster.from_counts({"H200-SXM": 1}, {"H200-SXM": 1e5}, 25)
    load = pl.Workload(2048, 1, "training", microbatches=4)
    for name in pl.hardware.models().index:
        model = pl.load_model(name)
        problem = pl.Problem(cluster, model, load, pl.Roofline())
        found = pl.settings(problem, pl.Placement.of([(model.layers, (0,))]), "Megatron")
        left_out = model.layers * model.extra_parameters  # which the script says
        assert _megatrons_parameters(found.arguments) == model.parameters() - left_out, name


@pytest.mark.parametrize("engine", ["Megatron", "Megatron-Bridge"])
def test_megatron_divides_activations_where_the_plan_counts_with_it(engine):
    gpus = [pl.GPU("H200-SXM", 1e5, None, f"{i // 2}", 450) for i in range(4)]
    load = pl.Workload(2048, 1, "training", microbatches=4)
    costs = pl.Roofline(engine=engine, copies=False)
    cluster, model = pl.Cluster(gpus, np.full((4, 4), 25.0)), pl.load_model("Llama-3-8B")
    problem = pl.Problem(cluster, model, load, costs, max_gpus_per_stage=2)
    found = pl.settings(problem, pl.Placement.of([(16, (0, 1)), (16, (2, 3))]), "Megatron")
    assert ("--sequence-parallel" in found.arguments) == costs.constants.sequence_parallel


def _megatrons_parameters(arguments):
    """How many parameters `GPTModel` has of these options, but for the padding of the vocabulary."""
    options = dict(zip(arguments, [*arguments[1:], ""], strict=True))

    def number(name, default=None):
        return int(options.get(f"--{name}", default))

    layers, d, heads = (number(n) for n in ("num-layers", "hidden-size", "num-attention-heads"))
    if "--multi-latent-attention" in options:
        kv, rope = number("kv-lora-rank"), number("qk-pos-emb-head-dim")
        own, value = number("qk-head-dim"), number("v-head-dim")
        q = number("q-lora-rank")
        attention = d * q + q * heads * (own + rope) + q  # down, up and the norm between
        attention += d * (kv + rope) + kv * heads * (own + value) + kv + heads * value * d
    else:
        groups, width = number("num-query-groups", heads), number("kv-channels")
        attention = 2 * d * width * (heads + groups)
        attention += width * (heads + 2 * groups) * ("--add-qkv-bias" in options)
    dense = 3 * d * number("ffn-hidden-size")
    ffn = [dense] * layers
    if "--num-experts" in options:
        experts, each = number("num-experts"), 3 * d * number("moe-ffn-hidden-size")
        shared = 3 * d * number("moe-shared-expert-intermediate-size", 0)
        router = d * experts + experts * ("--moe-router-enable-expert-bias" in options)
        frequency = eval(options.get("--moe-layer-freq", f"[1]*{layers}"))
        ffn = [experts * each + shared + router if moe else dense for moe in frequency]
    ends = (1 + ("--untie-embeddings-and-output-weights" in options)) * d * number("vocab-size") + d
    return sum(ffn) + layers * (attention + 2 * d) + ends


@pytest.mark.slow
def test_llama_cpp_has_its_devices_in_the_order_of_the_stages(run, three):
    found = pl.settings(*three, "llama.cpp")
    served, together = {}, 'until [ "$(ls "$LOG" | wc -l)" = {} ]; do sleep 0.1; done'
    for number, host, several in ((1, "x", 1), (2, "y", 2), (3, "z", 1)):
        linger = together.format(several)
        done, calls = run(found, str(number), "--mine", "x y", HOSTS="x y z", LINGER=linger)
        assert done.returncode == 0, done.stderr
        for name, arguments in calls:
            program, gpus = name.split()
            if program == "ggml-rpc-server":
                assert _after(arguments, "-d") == "CUDA0"
                served[f"{_after(arguments, '-H')}:{_after(arguments, '-p')}"] = (host, int(gpus))
    (name, arguments) = calls[-1]
    program, gpus = name.split()
    assert (program, arguments[:2]) == ("llama-server", ["-m", "my model"])
    assert _within(list(found.arguments), arguments)
    assert arguments[-2:] == ["--mine", "x y"]
    order = [served[address] for address in _after(arguments, "--rpc").split(",")]
    order += [("z", int(gpu)) for gpu in gpus.split(",")]
    assert order == [
        ("x", 0), ("y", 0), ("y", 1), ("z", 0), ("z", 2), ("z", 1), ("z", 3),
    ]  # fmt: skip
    # A plan that comes back to the last host serves the first of its GPUs there, too.
    problem = _free(3, 3, ["a", "a", "b"])
    again = pl.settings(problem, pl.Placement.of([(1, (0,)), (1, (2,)), (1, (1,))]), "llama.cpp")
    _, calls = run(again, "1", HOSTS="x y", LINGER=together.format(2))
    assert _after(calls[-1][1], "--rpc") == "x:50052,y:50052"


def _measured():
    cluster, model = pl.load_cluster("tandemn-measured"), pl.load_model("Llama-3-8B")
    load = pl.Workload(100, 8, "decode")
    return pl.Problem(cluster, model, load, pl.Roofline(), 4, same_type_stages=False)


@pytest.mark.parametrize("engine", ["llama.cpp", "transformers"])
def test_one_stage_is_cut_by_all_its_gpus(run, engine):
    problem = _measured()
    found = pl.settings(problem, pl.Placement.of([(32, (0, 1, 2, 3))]), engine)
    done, ((name, arguments),) = run(found, "Who are you?")
    assert done.returncode == 0, done.stderr
    program, gpus = name.split()
    assert gpus == "0,1,2,3"
    if engine == "llama.cpp":
        assert program == "llama-server"
        told = [_after(arguments, option) for option in ("-sm", "-ts", "-ngl")]
        assert told == ["tensor", "1,1,1,1", "33"]
        return
    assert program == "torchrun"
    assert _after(arguments, "--nproc-per-node") == "4"
    assert arguments[2:5] == ["--no-python", "python3", "-c"]
    assert arguments[6:] == ["my model", "Who are you?"]
    compile(arguments[5], "program", "exec")
    assert "DistributedConfig(tp_size=4)" in arguments[5]


def test_data_types_follow_the_oldest_gpu_and_the_model(three):
    problem, _ = three
    whole, with_t4 = (
        pl.Placement.of([(n, (g,)) for g, n in sizes.items()])
        for sizes in ({1: 16, 2: 16}, {0: 4, 1: 14, 2: 14})
    )
    for precision, old, new in (
        ("bf16", "half", "bfloat16"), ("fp16", "half", "half"), ("fp8", "half", "auto"),
    ):  # fmt: skip
        one = replace(problem, model=pl.load_model("Llama-3-8B", precision=precision))
        assert _after(pl.settings(one, with_t4, "vLLM", hosts="h").arguments, "--dtype") == old
        found = pl.settings(one, whole, "vLLM", hosts="h")
        assert _after(found.arguments, "--dtype") == new
        assert any("checkpoint" in note for note in found.notes) == (precision == "fp8")
    fp8 = replace(problem, model=replace(problem.model, kv_precision="fp8"))
    found = pl.settings(fp8, whole, "vLLM", hosts="h")
    assert _after(found.arguments, "--kv-cache-dtype") == "fp8"
    _refused(fp8, whole, "llama.cpp", "it has keys and values in no other")


def test_memory_and_microbatches_reach_the_settings(three):
    problem, plan = three

    needed = pl.timeline_of(problem, plan).in_flight_needed
    for enough in (problem.with_in_flight(needed), problem.with_in_flight(None)):
        found = pl.settings(enough, plan, "llama.cpp")
        assert _after(found.arguments, "-np") == str(4 * needed)
    frugal = replace(problem, costs=pl.Roofline(memory_share=0.8))
    found = pl.settings(frugal, plan, "vLLM", hosts="h")
    assert _after(found.arguments, "--gpu-memory-utilization") == "0.8"
    free, whole = _free(4, 1), pl.Placement.of([(4, (0,))])
    (need,) = pl.evaluate(free, whole).stages[0].memory_gb
    for share, told in ((0.5, "0.9"), (0.941, "0.95"), (0.967, "0.97")):
        gpus = tuple(replace(gpu, memory_gb=need / share) for gpu in free.cluster.gpus)
        full = replace(free, cluster=replace(free.cluster, gpus=gpus))
        found = pl.settings(full, whole, "vLLM")
        assert _after(found.arguments, "--gpu-memory-utilization") == told
        assert any("itself keeps in memory is not counted" in n for n in found.notes)


def test_what_no_engine_does_is_refused_with_the_reason(tiny):
    uneven = pl.Placement.of([(1, (0,)), (2, (1, 2)), (1, (3,))])
    for engine in ENGINES:
        _refused(tiny, uneven, engine, "in stage 2, 2 GPUs hold 2 copies")
    with pytest.raises(pl.errors.InvalidPlacement, match="layer 4 is not assigned to any stage"):
        pl.settings(tiny, pl.Placement.of([(3, (0,))]), "vLLM")
    balanced = replace(tiny, batch_split="balanced")
    shares = "take unequal shares of the batch"
    _refused(balanced, pl.Placement.of([(4, (0, 2))]), "vLLM", shares)
    nodes, even = _measured(), pl.Placement.of([(16, (0, 1)), (16, (4, 5))])
    mixed = pl.Placement.of([(16, (0, 1, 2, 3)), (16, (4, 5))])
    _refused(nodes, mixed, "vLLM", "stage 2 has 2 where 1 of 2 stages have 4")
    for engine in ("llama.cpp", "transformers"):
        _refused(nodes, even, engine, "one GPU in every stage, or one stage on one host")
    assert pl.settings(nodes, even, "SGLang").tensor_parallel_size == 2
    several = pl.Placement.of([(1, (g,)) for g in range(15)] + [(5, (15,))])
    _refused(_free(20, 16), several, "llama.cpp", "at most 15")
    heads = replace(nodes, model=replace(nodes.model, heads=31, kv_heads=31))
    _refused(heads, even, "vLLM", "divides the model's 31 heads")


def test_other_makers_gpus(three):
    problem, _ = three
    links = np.full((2, 2), 5.0)
    for types, refused in (
        (("M3-Max-40c", "RTX4090"), set(ENGINES) - {"llama.cpp"}),
        (("MI300X", "RTX4090"), set(ENGINES) - {"llama.cpp"}),
        (("MI300X", "MI300X"), {"TensorRT-LLM"}),
    ):
        cluster = pl.Cluster(tuple(pl.GPU(t, 24) for t in types), links)
        one, plan = replace(problem, cluster=cluster), pl.Placement.of([(16, (0,)), (16, (1,))])
        for engine in ENGINES:
            if engine in refused:
                _refused(one, plan, engine, "expected GPUs of", hosts="h")
            else:
                assert pl.settings(one, plan, engine, hosts="h").layers == (16, 16)
        # its name of the first visible device, so that no server takes its CPU
        device = {"M3-Max-40c": "MTL0", "MI300X": "ROCm0"}[types[0]]
        assert f" ggml-rpc-server -d {device} " in pl.settings(one, plan, "llama.cpp").script


def test_settings_show_as_a_script(tiny):
    plan = pl.Placement.of([(4, (0,))])
    found = pl.settings(tiny, plan, "vLLM")
    assert str(found) == found.script
    for hosts in ("a b", ["a"], ["a", "b", "c", "$(x)"]):
        with pytest.raises(pl.errors.InvalidValue, match="one for each of the 4 GPUs"):
            pl.settings(tiny, plan, "vLLM", hosts=hosts)
    with pytest.raises(pl.errors.UnknownName, match=r"did you mean 'llama\.cpp'"):
        pl.settings(tiny, plan, "llama-cpp")


@pytest.mark.quick(5)
@pytest.mark.parametrize("seed", range(60))
def test_vllm_starts_with_the_memory_that_it_finds(run, seed):
    """Each start finds its share to be free (`request_memory`), and each GPU has blocks for all sequences."""
    rng = np.random.default_rng(seed)
    facts, kinds = pl.hardware.load_gpus(), ["L4", "A100-SXM-40", "RTX3090"]
    number = int(rng.integers(1, 5))
    types = rng.choice(kinds, number).tolist()
    taken = rng.choice([0.0, 0.005, 0.2, 0.4], number).tolist()
    nodes = rng.choice(["a", "b"], number).tolist()
    gpus = tuple(
        pl.GPU(kind, (1 - part) * facts[kind].memory_gb, node=node, node_gb_per_s=30)
        for kind, part, node in zip(types, taken, nodes, strict=True)
    )
    cluster = pl.Cluster(gpus, np.full((number, number), 10.0))
    load = pl.Workload(int(rng.integers(100, 4000)), int(rng.integers(1, 130)), "decode")
    model = pl.load_model("Llama-3-8B", precision="int4")
    costs = pl.Roofline(memory_share=float(rng.choice([0.7, 0.9, 0.97, 1.0])))
    problem = pl.Problem(cluster, model, load, costs, max_gpus_per_stage=int(rng.integers(1, 3)))
    result = pl.solve(problem, runs_on="vLLM")
    if result.placement is None:
        return
    found, shares = pl.settings(problem, result, "vLLM"), {}
    for host in range(1, len(found.hosts) + 1):
        own = [str(host)] if len(found.hosts) > 1 else []
        for name, told in run(found, *own, HOSTS="x y", LINGER="sleep 0.3")[1]:
            share = float(_after(told, "--gpu-memory-utilization"))
            ranks = _vllms_ranks(told) if "--nnodes" in told else range(len(result.placement.gpus))
            assert len(ranks) == len(name.split()[1].split(","))
            shares |= dict.fromkeys(ranks, share)
    started = problem.with_in_flight(result.in_flight)
    batch, ranks = load.batch_size, iter(range(len(shares)))
    for stage in result.placement.stages:
        for g, rank in zip(stage.gpus, ranks, strict=False):
            slack = 0.01 if taken[g] == 0.005 else 1e-9
            whole = replace(gpus[g], memory_gb=facts[types[g]].memory_gb)
            total = whole.memory_gb - 0.45 * 2**30 / 1e9  # as torch counts
            free = total - taken[g] * whole.memory_gb - 0.25 * 2**30 / 1e9
            assert shares[rank] <= free / total + slack
            own = replace(costs, runs_on="vLLM", copies=False, memory_share=shares[rank])
            own = replace(started, costs=own)
            needed = roofline_oracle.memory_gb(own, whole, stage.layers, batch, len(stage.gpus))
            assert needed <= whole.memory_gb * (1 + max(slack, 2e-4))
