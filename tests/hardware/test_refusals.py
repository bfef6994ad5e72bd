"""Every door of the part about real GPUs refuses what it cannot use with one error of pipelab's own."""

import dataclasses

import pytest

import pipelab as pl
from pipelab.hardware.known_gpus import GPUFacts, load_gpus
from pipelab.hardware.serving_engines import Engine
from pipelab.io.plans import save_placement
from pipelab.writeup.linear_rates import with_link_units

PLAN = pl.Placement.of([(32, (0,))])
PROBLEM = pl.Problem(
    pl.load_cluster("helix-single24"),
    pl.load_model("Llama-3-8B"),
    pl.Workload(100, 2),
    pl.Roofline(),
)
TINY = pl.load_case("tiny")
ODD = object()


def _with(**changes):
    return dataclasses.replace(PROBLEM, **changes)


def _seconds(**odd):
    given = {"model": PROBLEM.model, "workload": PROBLEM.workload, "gpu": pl.GPU("L4", 24)} | odd
    return pl.Roofline().pass_seconds(layers=range(2), **given)


DOORS = {
    "trade_off, on_point": lambda: pl.trade_off(PROBLEM, on_point=ODD),
    "timeline_of": lambda: pl.timeline_of(ODD, PLAN),
    "timeline_of, schedule": lambda: pl.timeline_of(PROBLEM, PLAN, schedule=ODD, training=True),
    "settings, engine": lambda: pl.settings(PROBLEM, PLAN, ODD),
    "save_placement": lambda: save_placement(PROBLEM, PLAN, ODD),
    "load_placement": lambda: pl.load_placement(ODD),
    "load_model": lambda: pl.load_model(ODD),
    "load_model, path": lambda: pl.load_model("Llama-3-8B", path=ODD),
    "load_cluster": lambda: pl.load_cluster(ODD),
    "load_cluster, gpus": lambda: pl.load_cluster("helix-single24", gpus=ODD),
    "load_measured": lambda: pl.hardware.load_measured(ODD, pl.Roofline()),
    "gpus": lambda: pl.hardware.gpus(ODD),
    "models": lambda: pl.hardware.models(ODD),
    "clusters": lambda: pl.hardware.clusters(ODD),
    "against_measured": lambda: pl.hardware.against_measured(ODD),
    "against_served": lambda: pl.hardware.against_served(ODD),
    "Measured": lambda: pl.hardware.Measured({"L4": {(1, 1): ODD}}, pl.Roofline()),
    "Measured, nothing": lambda: pl.hardware.Measured({"L4": {}}, pl.Roofline()),
    "Roofline": lambda: pl.Roofline(ODD),
    "pass_seconds, model": lambda: _seconds(model=ODD),
    "pass_seconds, workload": lambda: _seconds(workload=ODD),
    "Placement.of": lambda: pl.Placement.of(ODD),
    "bottleneck": lambda: pl.splits.bottleneck(ODD, [1.0]),
}


@pytest.mark.parametrize("door", DOORS)
def test_what_is_of_no_use_is_refused(door):
    with pytest.raises(pl.PipelabError):
        DOORS[door]()


def _facts(*rates):
    return {gpu_type: GPUFacts(40, *rates) for gpu_type in ("A100-SXM-40", "L4", "T4")}


# What a reader may well write, and the words that help.
MISTAKES = [
    (lambda: pl.splits.split_minmax("abc", 2), "costs = 'abc': expected a list of numbers"),
    (lambda: pl.splits.bottleneck((range(2),), [1]), "costs = '1 values': expected at least 2"),
    (lambda: _seconds(gpu=pl.GPU("L44", 24)), r"gpu\.type = 'L44': did you mean 'L4'"),
    (lambda: dataclasses.replace(TINY.model, work_factors=(1, 2)), "expected one for each of the 4 layers"),
    (lambda: pl.solve(TINY, objective="cost", at_least="3"), "at_least = '3': expected tokens/s"),
    (
        lambda: pl.load_cluster("helix-single24", gpus=dict(load_gpus(), L4=3)),
        r"load_cluster: gpus\.L4 = 3: expected GPUFacts",
    ),
    (lambda: pl.load_cluster("helix-single24", gpus={}), "'A100-SXM-40' is no known GPU"),
    (lambda: _with(model=TINY.model), "expected a Transformer"),
    (lambda: pl.course.helix_cluster("geo42"), r"Helix ships no 'geo42'; .*'geo24'"),
    (lambda: _with(model=dataclasses.replace(PROBLEM.model, full_layers=(1,))), "expected none in a model without"),
    (
        lambda: dataclasses.replace(PROBLEM.model, window=8, full_layers=(32,)),
        "full_layers = 32: expected numbers from 0 to 31",
    ),
    (lambda: with_link_units(PROBLEM, "transfers"), "expected 'tokens'"),
    (lambda: _with(cluster=pl.Cluster.from_counts({"H1000": 2}, 80, 10)), "not a GPU type the cost model knows"),
    (lambda: dataclasses.replace(PROBLEM.model, kv_heads=3), "kv_heads = 3: expected a divisor of heads = 32"),
    (lambda: dataclasses.replace(PROBLEM.model, dense_layers=2), "and 0 in a model without experts"),
    (lambda: _with(costs=pl.Roofline(_facts(1e-300, 1))), "expected rates from 1e-9 to 1e15"),
    (lambda: pl.load_model("Llama-3-8B", precision="fp7"), "there is no precision='fp7'"),
    (lambda: pl.load_cluster("tandemn-tiny"), "tandemn-tiny: the network is not stated there; give network_gbit_per_s"),
    (lambda: Engine(memory_efficiency=1.2), r"memory_efficiency = 1\.2"),
    (lambda: pl.Roofline(engine="vllm"), "there is no engine 'vllm'; did you mean 'vLLM'"),
    (lambda: pl.GPU("L4", 24, node="n"), "expected the bandwidth inside node 'n'"),
    (lambda: dataclasses.replace(TINY, workload=pl.Workload(10, 1, "decode")), "expected 'prefill'"),
]  # fmt: skip


@pytest.mark.parametrize(("attempt", "words"), MISTAKES)
def test_a_mistake_is_told_with_its_remedy(attempt, words):
    with pytest.raises(pl.PipelabError, match=words):
        attempt()


HEADS = {
    "gpus": ("gpu_type , memory_gb,memory_bandwidth_gb_per_s,fp16_tflop_per_s", "NA,24,300,121"),
    "models": (
        "model , layers,d_model,d_ff,heads,kv_heads,head_dim,vocab",
        "NA,2,64,128,4,2,16,100",
    ),
    "clusters": ("cluster , gpu_type,gpus,gpus_per_node,network_gbit_per_s", "NA,L4,2,1,10"),
}


@pytest.mark.parametrize("table", HEADS)
def test_a_table_of_the_readers_own_is_read_as_the_objects_are(table, tmp_path):
    """Spaces in the header, a byte order mark, a row named NA; a column of one's own, but no misspelt one."""
    path, (head, row) = tmp_path / "mine.csv", HEADS[table]
    path.write_text(f"\ufeff{head},remark\n{row},1\n", encoding="utf-8")
    assert getattr(pl.hardware, table)(path).index.tolist() == ["NA"]
    meant = {"gpus": "usd_per_hour", "models": "tied_embeddings", "clusters": "node_gbit_per_s"}
    for text, words in (
        (f"{head}\n{row.replace('2', '-2')}\n", r"mine\.csv, row 2, column"),
        (f"{head},{meant[table]}s\n{row},1\n", f"is not known; did you mean '{meant[table]}'"),
    ):
        path.write_text(text)
        with pytest.raises(pl.errors.InvalidData, match=words):
            getattr(pl.hardware, table)(path)


def test_facts_of_ones_own_join_the_bundled_ones(tmp_path):
    path = tmp_path / "gpus.csv"
    path.write_text(f"{HEADS['gpus'][0]}\nMine,24,900,100\n")
    mine = pl.hardware.load_gpus(path)
    assert mine["Mine"].compute_efficiency == 0.72
    assert "L4" in mine


@pytest.mark.parametrize(
    ("row", "column"),
    [
        ("a,Llama-3-8B,L4,decode,1,100,5,s,,", "unit"),
        ("a,Llama-3-8C,L4,decode,1,100,5,ms,,", "model"),
        ("a,Llama-3-8B,L5,decode,1,100,5,ms,,", "gpu_type"),
        ("a,Llama-3-8B,L4,decode,,100,5,ms,,", "batch"),
        ("a,Llama-3-8B,L4,decode,1,100,5,ms,31,", "layers"),
        ("a,Llama-3-8B,L4,decode,1,100,5,ms,,vllm", "engine"),
    ],
)
def test_a_measurement_that_says_nothing_is_named(row, column, tmp_path):
    path = tmp_path / "times.csv"
    head = "what,model,gpu_type,phase,batch,tokens,measured,unit,layers,engine"
    path.write_text(f"{head}\n{row}\n")
    with pytest.raises(pl.errors.InvalidData, match=f"row 2, column '{column}'"):
        pl.hardware.against_measured(path=path)


def test_tokens_per_second_of_a_prompt_count_its_tokens(tmp_path):
    path = tmp_path / "times.csv"
    path.write_text(
        "what,model,gpu_type,phase,batch,tokens,measured,unit\n"
        "a,Llama-3-8B,L4,prefill,2,500,1000,ms\nb,Llama-3-8B,L4,prefill,2,500,1000,tokens/s\n"
    )
    milliseconds, rate = pl.hardware.against_measured(path=path)["predicted"]
    assert rate == pytest.approx(2 * 500 / (milliseconds / 1000))


def test_links_and_nodes_of_a_table(tmp_path):
    """Stated in Gbit/s; and nodes of two equal rows are not one node."""
    path = tmp_path / "clusters.csv"
    head = "cluster,gpu_type,gpus,gpus_per_node,node_gbit_per_s,network_gbit_per_s\n"
    path.write_text(f"{head}mine,L4,4,2,80,10\nmine,L4,2,2,80,10\n")
    cluster = pl.load_cluster("mine", path=path)
    assert [cluster.bandwidth_between(0, to) for to in (1, 2)] == [10, 1.25]  # GB/s
    nodes = [gpu.node for gpu in cluster.gpus]
    assert [nodes.count(node) for node in dict.fromkeys(nodes)] == [2, 2, 2]


def test_what_is_wrong_with_an_argument_is_not_blamed_on_the_file(tmp_path):
    path = tmp_path / "times.csv"
    path.write_text("gpu_type,layers,batch,milliseconds\nL4,1,1,2.5\n")
    message = r"^Measured: needs = 3: expected a cost model"
    with pytest.raises(pl.errors.InvalidValue, match=message):
        pl.hardware.load_measured(path, 3)


@pytest.mark.parametrize("h100", [1e13, 1e-7])
def test_prices_that_cannot_be_told_apart_say_what_would_help(h100):
    pool = pl.Cluster.from_counts({"H100-SXM": 2, "L4": 2}, 24, 10, {"H100-SXM": h100, "L4": 1.29})
    many = _with(cluster=pool, max_gpus_per_stage=32, same_type_stages=False)
    message = r"expected prices of which none is more than 1,000,000 times another"
    with pytest.raises(pl.errors.InvalidValue, match=message):
        pl.solve(many, objective="cost")
    assert pl.solve(many, "aggregated").details["fewest"] is False


def test_a_cluster_names_its_ids_and_no_others():
    gpus = (pl.GPU("A100", 80), pl.GPU("T4", 16), pl.GPU("A100", 80), pl.GPU("A100", 80))
    cluster = pl.Cluster(gpus, [[100.0]], [0] * 4)
    assert cluster.to_frame()["gpu_ids"].tolist() == ["0, 2–3", "1"]
