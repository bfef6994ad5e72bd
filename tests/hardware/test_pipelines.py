"""Measured pipelines beside what each way to fill them would yield."""

import csv
import re

import numpy as np
import pytest

import pipelab as pl
from clone import text_of
from pipelab.costs import filled
from pipelab.files.bundled_folders import data_dir
from pipelab.filling import DynamicStage, simulate_dynamic

FILE = data_dir() / "pipelines_measured.csv"


@pytest.fixture(scope="module")
def table():
    return pl.hardware.against_pipelines()


def rows():
    with FILE.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def written(folder, changed):
    path = folder / "runs.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, changed[0].keys())
        writer.writeheader()
        writer.writerows(changed)
    return path


def test_dynamic_batching_explains_pipelines_that_were_measured(table):
    """The goals: a quarter in the median, and none by more than 70 %; nothing is fitted to them."""
    assert table["rate_error"].abs().median() < 0.25
    assert table["rate_error"].abs().max() < 0.7
    assert table["latency_error"].abs().median() < 0.25
    assert table["merged_rate_error"].abs().median() < 0.3
    assert table["synchronous_rate_error"].median() > 0.5


def percent(error):
    """Write an error as the page has it."""
    return f"{error:+.0%}".replace("-", "−").replace("%", " %")


def test_the_page_has_these_errors(table):
    page = text_of("docs/fillings.md")
    columns = ["synchronous_rate_error", "merged_rate_error", "rate_error", "latency_error"]
    stated = re.findall(r"^\| [37]0B, .*\) \| (.+) \|$", page, re.M)
    errors = table[columns]
    assert [cells.split(" | ") for cells in stated] == [
        [percent(x) for x in row] for row in errors.to_numpy()
    ]
    median = " | ".join(percent(x)[1:] for x in errors.abs().median())
    assert f"| median, without sign | {median} |" in page


def test_stage_times_are_those_of_the_formulas_written_out(table, tmp_path):
    """A pipeline through which one sequence goes takes the sum of its stages' times and hops, for any stages."""
    rng = np.random.default_rng(56)
    facts = pl.hardware.gpus()
    for _ in range(6):
        kinds = rng.choice(["A100-SXM-40", "L4", "T4"], int(rng.integers(1, 5))).tolist()
        cuts = np.sort(rng.choice(np.arange(1, 60), len(kinds) - 1, replace=False))
        sizes = np.diff([0, *cuts, 60]).tolist()
        row = rows()[0] | {
            "stages": " ".join(f"{n}x{kind}" for n, kind in zip(sizes, kinds, strict=True)),
            "in_flight": "1",
            "decode_latency_mean_s": "1",
        }
        found = pl.hardware.against_pipelines(path=written(tmp_path, [row]))
        model, load = pl.load_model("LLaMA-30B"), pl.Workload(1027, 1, "decode")
        costs, first, through = pl.Roofline(engine="vLLM 0.2"), 0, 0.0
        for n, kind in zip(sizes, kinds, strict=True):
            gpu = pl.GPU(kind, float(facts.loc[kind, "memory_gb"]))
            through += costs.pass_seconds(model, load, gpu, range(first, first + n))
            first += n
        through += (len(kinds) - 1) * (1e-5 + 6656 * 2 / 1.25e9)
        assert 1 + found["latency_error"][0] == pytest.approx(through, rel=1e-6)


def test_a_number_in_flight_lies_between_whole_ones(tmp_path):
    base = rows()[2]
    errors = []
    for n in (4, 4.25, 5):
        path = written(tmp_path, [base | {"in_flight": str(n)}])
        errors.append(pl.hardware.against_pipelines(path=path)["rate_error"][0])
    assert errors[1] == pytest.approx(0.75 * errors[0] + 0.25 * errors[2])


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("stages", "7xL5 53xL4", "L4"),
        ("stages", "7xL4 52xL4", "60 layers"),
        ("stages", "sixtyxL4", "such as 4xT4"),
        ("stages", "60xL4+T4", "of one type"),
        ("model", "LLaMA-31B", "LLaMA-30B"),
        ("in_flight", "0", "in_flight"),
        ("mean_context", "many", "mean_context"),
    ],
)
def test_a_row_that_cannot_be_read_is_named(tmp_path, column, value, message):
    path = written(tmp_path, [*rows()[:1], rows()[1] | {column: value}])
    with pytest.raises(pl.errors.InvalidData) as caught:
        pl.hardware.against_pipelines(path=path)
    assert "runs.csv" in str(caught.value)
    assert message in str(caught.value)


def test_copies_of_a_stage_share_its_sequences():
    """Two GPUs that hold the only stage are two loops of half as many sequences."""
    one = DynamicStage(lambda b: 1.0 + 0.5 * b, 0.0)
    alone = simulate_dynamic([one], 10, float("inf"))
    shared = simulate_dynamic([one._replace(copies=2)], 20, float("inf"), seed=4)
    assert shared.tokens_per_s == pytest.approx(2 * alone.tokens_per_s, rel=0.15)


def like_sharegpt(prompt, answer, number):
    """Lognormal lengths of these means, deviation about the mean; within the limits of vLLM's benchmark_serving.py."""
    means = scale = np.array([prompt, answer])
    for _ in range(30):
        rng = np.random.default_rng(0)
        drawn = rng.lognormal(-np.log(2) / 2, np.sqrt(np.log(2)), (6 * number, 2))
        sizes = np.maximum(1, np.rint(drawn * scale)).astype(int)
        sizes = sizes[(sizes[:, 0] <= 1024) & (sizes.sum(axis=1) <= 2048)][:number]
        scale = scale * means / sizes.mean(axis=0)
    return sizes


@pytest.mark.slow
@pytest.mark.nightly
def test_pipelines_that_served_requests_beside_the_page(tmp_path):
    page, stated = text_of("docs/fillings.md"), []
    with (data_dir() / "pipelines_served.csv").open(encoding="utf-8") as file:
        runs = [row for row in csv.DictReader(file) if row["requests"]]
    for row in runs:
        stages, degree, number = (
            int(row[name]) for name in ("stages", "tensor_parallel", "requests")
        )
        prompt, answer = float(row["mean_prompt_tokens"]), float(row["mean_answer_tokens"])
        trace, sizes = tmp_path / "trace.csv", like_sharegpt(prompt, answer, number)
        lines = ["seconds,prompt,answer", *(f"0,{p},{a}" for p, a in sizes)]
        trace.write_text("\n".join(lines), encoding="utf-8")
        model = pl.load_model(
            row["model"], precision=row["precision"], kv_precision=row["kv_precision"]
        )
        costs = filled(pl.Roofline(engine=row["engine"]).cutting_every_layer(), "by_stages")
        gpus = pl.hardware.cluster_of_counts({row["gpu_type"]: stages * degree})
        load = pl.Workload(
            round(prompt), number // stages, "mixed", output_tokens=round(answer), in_flight=stages
        )
        problem = pl.Problem(gpus, model, load, costs, max_gpus_per_stage=degree)
        of_stage = np.arange(stages * degree).reshape(stages, degree).tolist()
        plan = pl.Placement.of([(model.layers // stages, ids) for ids in of_stage])
        served = pl.serve(problem, plan, trace, chunk=int(row["chunk_tokens"]))
        measured = float(row["tokens_per_s"])
        cells = [f"| PP {stages} × TP {degree} | {measured:.0f}"]
        for rate in (pl.evaluate(problem, plan).throughput, served.tokens_per_s):
            cells.append(f"{rate:.0f} ({percent(rate / measured - 1)})")
        stated.append(" | ".join(cells) + " |")
    assert [line for line in page.split("\n") if line.startswith("| PP ")] == stated


# Prompts of 4,096 tokens in tokens/s, Llama-3-8B F16: XiongjieDai's GPU-Benchmarks, as in data/measured_times.csv.
PROMPTS = {
    ("RTX4090", 4): 15_144,
    ("A100-PCIe-80", 4): 16_025,
    ("A40", 4): 7_545,
    ("RTX3090", 6): 9_438,
}


@pytest.mark.parametrize(("kind", "number"), PROMPTS)
def test_prompts_in_parts_are_as_fast_as_llama_cpp_read_them(kind, number):
    """`docs/fillings.md` has the errors: at most a seventh; microbatches that never wait are 42 % off and more."""
    memory = float(pl.hardware.gpus().loc[kind, "memory_gb"])
    cluster = pl.Cluster.from_counts({kind: number}, memory, 12.5)
    model = pl.load_model("Llama-3-8B")
    sizes = [32 // number + (i < 32 % number) for i in range(number)][::-1]
    plan = pl.Placement.of([(n, (i,)) for i, n in enumerate(sizes)])
    errors = {}
    for filling, most in (("micro_batches", 5), ("synchronous", 0)):
        costs = filled(pl.Roofline(engine="llama.cpp 2024"), filling, most)
        problem = pl.Problem(cluster, model, pl.Workload(4096, 1), costs, 1)
        errors[filling] = pl.evaluate(problem, plan).attainable / PROMPTS[kind, number] - 1
    assert abs(errors["micro_batches"]) < 0.15
    assert errors["synchronous"] > 0.4
    cells = " | ".join(map(percent, errors.values()))
    assert f"{PROMPTS[kind, number]:,} | {cells} |" in text_of("docs/fillings.md")


def test_the_page_says_how_far_off_small_parts_are():
    cluster = pl.Cluster.from_counts({"A100-PCIe-80": 8}, 80, 12.5)
    model, costs = pl.load_model("Llama-2-7B"), pl.Roofline(engine="llama.cpp 2024")
    plan = pl.Placement.of([(4, (i,)) for i in range(8)])
    rates = []
    for prompt in (512, 8192):
        load = pl.Workload(32, 1, in_flight=prompt // 32)
        problem = pl.Problem(cluster, model, load, filled(costs, "micro_batches", 5), 1)
        rates.append(f"{round(pl.evaluate(problem, plan).attainable, -1):,.0f}")
    page = text_of("docs/fillings.md").replace("\n", " ")
    assert f"{rates[0]} to {rates[1]} are predicted" in page
