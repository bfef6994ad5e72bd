"""Every door of the part about real GPUs refuses what it cannot use with one error of pipelab's own."""

import inspect
import json
import math
from collections.abc import Mapping

import numpy as np
import pytest

import pipelab as pl
from pipelab.candidates import list_allocations
from pipelab.counting import solve_by_counting
from pipelab.course.n13 import plot_verdicts
from pipelab.figures.growth import plot_growth, plot_search_growth
from pipelab.figures.placements import plot_placement
from pipelab.files.bundled_folders import data_dir
from pipelab.hardware.known_gpus import load_gpus
from pipelab.io.plans import save_placement
from pipelab.joint_ilp import solve_by_joint_ilp
from pipelab.splits import bottleneck, count_splits

ODD = (
    None,
    "x",
    -1,
    math.nan,
    math.inf,
    True,
    {},
    [],
    object(),
    10**400,
    np.float64("nan"),
    np.array([1, 2]),
)
PLAN = pl.Placement.of([(32, (0,))])


@pytest.fixture(scope="module")
def problem():
    cluster, model = pl.load_cluster("helix-single24"), pl.load_model("Llama-3-8B")
    return pl.Problem(cluster, model, pl.Workload(100, 2), pl.Roofline())


def _roof(problem, **odd):
    given = {
        "model": problem.model,
        "workload": problem.workload,
        "gpu": pl.GPU("L4", 24),
        "layers": range(2),
    }
    return pl.Roofline().pass_seconds(**(given | odd))


def _nothing(**point):
    raise AssertionError("no point is to be asked")


DOORS = {
    "cheapest": lambda p, odd: pl.solve(odd, objective="cost"),
    "quickest": lambda p, odd: pl.solve(odd, objective="latency"),
    "trade_off": lambda p, odd: pl.trade_off(odd),
    "trade_off, against": lambda p, odd: pl.trade_off(p, odd),
    "score": lambda p, odd: pl.score(odd, PLAN),
    "score, placement": lambda p, odd: pl.score(p, odd),
    "timeline_of": lambda p, odd: pl.timeline_of(odd, PLAN),
    "settings": lambda p, odd: pl.settings(odd, PLAN, "vLLM"),
    "settings, plan": lambda p, odd: pl.settings(p, odd, "vLLM"),
    "settings, engine": lambda p, odd: pl.settings(p, PLAN, odd),
    "save_placement": lambda p, odd: save_placement(p, PLAN, odd),
    "load_placement": lambda p, odd: pl.load_placement(odd),
    "load_model": lambda p, odd: pl.load_model(odd),
    "load_cluster": lambda p, odd: pl.load_cluster(odd),
    "load_measured": lambda p, odd: pl.hardware.load_measured(odd, pl.Roofline()),
    "Measured": lambda p, odd: pl.hardware.Measured(odd, pl.Roofline()),
    "Measured, times": lambda p, odd: pl.hardware.Measured({"L4": odd}, pl.Roofline()),
    "Measured, time": lambda p, odd: pl.hardware.Measured({"L4": {(1, 1): odd}}, pl.Roofline()),
    "Measured, needs": lambda p, odd: pl.hardware.Measured({"L4": {(1, 1): 1.0}}, odd),
    "Roofline, latency": lambda p, odd: pl.Roofline(hop_latency_s=odd),
    "pass_seconds, model": lambda p, odd: _roof(p, model=odd),
    "pass_seconds, workload": lambda p, odd: _roof(p, workload=odd),
    "pass_seconds, gpu": lambda p, odd: _roof(p, gpu=odd),
    "pass_seconds, layers": lambda p, odd: _roof(p, layers=odd),
    "pass_seconds, ways": lambda p, odd: _roof(p, tensor_parallel=odd),
    "sweep, method": lambda p, odd: pl.sweep(_nothing, [{"a": 1}], odd, progress=False),
    "sweep, points": lambda p, odd: pl.sweep(_nothing, odd, progress=False),
    "mixes": lambda p, odd: pl.mixes(odd),
    "Placement.of": lambda p, odd: pl.Placement.of(odd),
    "compare, methods": lambda p, odd: pl.compare(p, odd),
    "joint, form": lambda p, odd: pl.solve(p, "joint", form=odd),
    "joint, big_m": lambda p, odd: pl.solve(p, "joint", big_m=odd),
    "bottleneck": lambda p, odd: bottleneck(odd, [1.0]),
    "list_allocations": lambda p, odd: list_allocations(odd),
    "solve_by_joint_ilp": lambda p, odd: solve_by_joint_ilp(odd),
    "solve_by_counting": lambda p, odd: solve_by_counting(odd),
    "mixes, prices": lambda p, odd: pl.mixes({"A": 2}, usd_per_hour=odd, budget=2.0),
}
# Where None stands for "not given", or text for a name.
OPTIONAL = {
    "cheapest, floor": lambda p, odd: pl.solve(p, objective="cost", at_least=odd),
    "quickest, stop": lambda p, odd: pl.solve(p, objective="latency", stop=odd),
    "trade_off, on_point": lambda p, odd: pl.trade_off(p, on_point=odd),
    "score, best": lambda p, odd: pl.score(p, PLAN, odd),
    "load_cluster, gpus": lambda p, odd: pl.load_cluster("helix-single24", gpus=odd),
    "load_cluster, nodes": lambda p, odd: pl.load_cluster("helix-single24", nodes=odd),
    "load_cluster, network": lambda p, odd: pl.load_cluster(
        "helix-single24", network_gbit_per_s=odd
    ),
    "load_cluster, path": lambda p, odd: pl.load_cluster("helix-single24", path=odd),
    "load_model, path": lambda p, odd: pl.load_model("Llama-3-8B", path=odd),
    "gpus": lambda p, odd: pl.hardware.gpus(odd),
    "models": lambda p, odd: pl.hardware.models(odd),
    "clusters": lambda p, odd: pl.hardware.clusters(odd),
    "against_measured": lambda p, odd: pl.hardware.against_measured(odd),
    "against_measured, path": lambda p, odd: pl.hardware.against_measured(path=odd),
    "Roofline, gpus": lambda p, odd: pl.Roofline(odd),
    "training_timeline": lambda p, odd: pl.timeline_of(odd, PLAN, training=True),
    "training_timeline, schedule": lambda p, odd: pl.timeline_of(
        p, PLAN, schedule=odd, training=True
    ),
    "sweep, again": lambda p, odd: pl.sweep(
        _nothing, [{"a": 1}], progress=False, again=odd or (None,)
    ),
    "sweep, path": lambda p, odd: pl.sweep(_nothing, [{"a": 1}], progress=False, path=odd),
    "grid, part": lambda p, odd: pl.grid(odd or 0),
    "mixes, budget": lambda p, odd: pl.mixes({"A": 2}, usd_per_hour={"A": 1.0}, budget=odd),
}
EMPTY_LIST = ODD[7]
FITS = {
    "load_cluster, nodes": (True,),
    "sweep, path": ("x",),
    "Placement.of": (EMPTY_LIST,),  # `evaluate` says what it lacks
    "compare, methods": (EMPTY_LIST,),
}


@pytest.mark.parametrize("door", [*DOORS, *OPTIONAL])
def test_odd_values_are_refused(problem, door):
    call = {**DOORS, **OPTIONAL}[door]
    for odd in ODD:
        fits = (door in OPTIONAL and odd is None) or any(
            odd is value for value in FITS.get(door, ())
        )
        # an array has no truth
        if fits or (isinstance(odd, np.ndarray) and door in ("sweep, again", "grid, part")):
            continue
        with pytest.raises(pl.PipelabError):
            call(problem, odd)


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
    """Spaces in the header, a byte order mark, a row named NA; and the same refusals of what does not fit."""
    path, (head, row) = tmp_path / "mine.csv", HEADS[table]
    path.write_text(f"\ufeff{head}\n{row}\n", encoding="utf-8")
    assert getattr(pl.hardware, table)(path).index.tolist() == ["NA"]
    for bad in (f"{head}\n{row},1\n", f"{head}\n{row.replace('2', '-2')}\n", "", head):
        path.write_text(bad)
        with pytest.raises(pl.errors.InvalidData, match=r"mine\.csv"):
            getattr(pl.hardware, table)(path)
    path.write_bytes(f"{head}\n{row}\n".encode("utf-16"))
    with pytest.raises(pl.errors.InvalidData, match=r"cannot be read as text .*: expected UTF-8"):
        getattr(pl.hardware, table)(path)


@pytest.mark.parametrize(
    ("row", "column"),
    [
        ("a,Llama-3-8B,L4,decode,1,100,5,s,", "unit"),
        ("a,Llama-3-8B,L4,decode,1,100,-5,ms,", "measured"),
        ("a,Llama-3-8B,L5,decode,1,100,5,ms,", "gpu_type"),
        ("a,Llama-3-8B,L4,decode,,100,5,ms,", "batch"),
        ("a,Llama-3-8B,L4,decode,1,100,5,ms,31", "layers"),
        ("a,Llama-3-8B,L4,train,1,100,5,ms,", "phase"),
    ],
)
def test_a_measurement_that_says_nothing_is_named(row, column, tmp_path):
    path = tmp_path / "times.csv"
    path.write_text(f"what,model,gpu_type,phase,batch,tokens,measured,unit,layers\n{row}\n")
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


@pytest.mark.parametrize("layers", ["nan", "inf"])
def test_layers_without_a_number_are_named(layers, tmp_path):
    path = tmp_path / "times.csv"
    path.write_text(f"gpu_type,layers,batch,milliseconds\nL4,{layers},1,2\n")
    with pytest.raises(pl.errors.InvalidData, match="row 2, column 'layers'"):
        pl.hardware.load_measured(path, pl.Roofline())


def test_nodes_of_two_equal_rows_are_not_one_node(tmp_path):
    path = tmp_path / "clusters.csv"
    row = "twice,A100-SXM-80,4,4,10\n"
    path.write_text(
        f"cluster,gpu_type,gpus,gpus_per_node,network_gbit_per_s\n{row}twice,L4,1,1,10\n{row}"
    )
    gpus = pl.load_cluster("twice", path=path).gpus
    assert len({gpu.node for gpu in gpus if gpu.node}) == 2
    assert gpus[0].node != gpus[5].node


def test_links_of_a_table_are_stated_in_gbit_per_second(tmp_path):
    path = tmp_path / "clusters.csv"
    path.write_text(
        "cluster,gpu_type,gpus,gpus_per_node,node_gbit_per_s,network_gbit_per_s\nmine,L4,4,2,80,10\n"
    )
    cluster = pl.load_cluster("mine", path=path)
    assert [cluster.bandwidth_between(0, to) for to in (1, 2)] == [10, 1.25]  # GB/s


@pytest.mark.filterwarnings("error")
def test_no_latency_is_no_warning(problem):
    roof = pl.Roofline(hop_latency_s=0)
    assert np.isfinite(roof.link_throughput(problem, 10.0))
    assert roof.link_throughput(problem, np.inf) == np.inf


def test_a_saved_placement_keeps_what_it_was_evaluated_by(problem, tmp_path):
    result = pl.solve(problem, objective="cost")
    path = save_placement(problem, result, tmp_path / "plan.json")
    saved = json.loads(path.read_text())
    assert (
        saved["usd_per_million_tokens"]
        == saved["bound_usd_per_million_tokens"]
        == result.objective.value
    )
    (tmp_path / "file").write_text("")
    with pytest.raises(pl.errors.InvalidData, match="cannot be written"):
        save_placement(problem, result, tmp_path / "file" / "plan.json")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("h100", "number"), [(1e13, 2), (1e300, 2), (1e-7, 2)])
def test_prices_that_cannot_be_told_apart_say_what_would_help(problem, h100, number):
    pool = pl.Cluster.from_counts(
        {"H100-SXM": number, "L4": number}, 24, 10, {"H100-SXM": h100, "L4": 1.29}
    )
    many = pl.Problem(
        pool,
        problem.model,
        problem.workload,
        problem.costs,
        32,
        same_type_stages=False,
    )
    with pytest.raises(
        pl.errors.InvalidValue,
        match=r"expected prices of at least 0\.0001 \$ per hour, none more than 1,000,000 times another",
    ):
        pl.solve(many, objective="cost")
    assert pl.solve(many, "aggregated").details["fewest"] is False


@pytest.mark.parametrize(
    ("table", "column", "meant"),
    [
        ("gpus", "usd_per_hours", "usd_per_hour"),
        ("gpus", "compute_eficiency", "compute_efficiency"),
        ("models", "tied_embedding", "tied_embeddings"),
        ("clusters", "node_gbit_per_sec", "node_gbit_per_s"),
    ],
)
def test_a_misspelt_column_is_not_passed_over(table, column, meant, tmp_path):
    path, (head, row) = tmp_path / "mine.csv", HEADS[table]
    path.write_text(f"{head},{column}\n{row},1\n")
    with pytest.raises(
        pl.errors.InvalidData, match=f"column '{column}' is not known; did you mean '{meant}'"
    ):
        getattr(pl.hardware, table)(path)
    # a column of the reader's own is none of our business
    path.write_text(f"{head},remark\n{row},1\n")
    assert len(getattr(pl.hardware, table)(path)) == 1


TINY = pl.load_case("tiny", max_gpus_per_stage=2)
RESULT = pl.solve(TINY, "proportional")
# What a reader may well write, and the words that help.
MISTAKES = [
    (lambda: pl.splits.split_even(2.5, 2), r"layers = 2\.5: expected a whole number"),
    (lambda: pl.splits.split_minmax("abc", 2), "costs = 'abc': expected a list of numbers"),
    (lambda: count_splits(0, 1), "layers = 0: expected at least 1"),
    (
        lambda: pl.splits.bottleneck((range(1), range(1, 2)), [1, 1], [1]),
        "speeds = '1 values': expected 2",
    ),
    (lambda: pl.splits.bottleneck((range(2),), [1]), "costs = '1 values': expected at least 2"),
    (lambda: TINY.costs.gpu_throughput("A10O", TINY.workload, 1, 1), "did you mean 'A10'"),
    (lambda: _layer_times("L44"), "gpu.type = 'L44': did you mean 'L4'"),
    (lambda: plot_growth({}), "expected at least one"),
    (lambda: plot_verdicts(pl.course.reproduce([])), "expected at least one"),
    (lambda: plot_placement(TINY, 3), "expected a Placement, such as"),
    (lambda: pl.explore_mix("tiny", batch="x"), "batch = 'x': expected a whole number"),
    (
        lambda: pl.explore_mix("tiny", phase="x"),
        "phase = 'x': expected 'prefill', 'decode' or 'mixed'",
    ),
    (lambda: pl.explore_mix("tiny", network_gb_per_s=0), "network_gb_per_s = 0: expected"),
    (lambda: pl.explore_mix("tiny", {"A100": 10**9}), "A100 = 1000000000: expected at most 10,000"),
    (lambda: pl.explore_mix("tiny", {"A100": -1}), "A100 = -1: expected at least"),
]


def _layer_times(gpu_type):
    return pl.Roofline().layer_times(
        pl.load_model("Llama-3-8B"), pl.Workload(100, 2), pl.GPU(gpu_type, 24)
    )


@pytest.mark.parametrize(("attempt", "words"), MISTAKES)
def test_a_mistake_is_told_with_its_remedy(attempt, words):
    with pytest.raises(pl.PipelabError, match=words):
        attempt()


def test_what_is_wrong_with_an_argument_is_not_blamed_on_the_file(tmp_path):
    path = tmp_path / "times.csv"
    path.write_text("gpu_type,layers,batch,milliseconds\nL4,1,1,2.5\n")
    with pytest.raises(
        pl.errors.InvalidValue, match=r"^Measured: needs = 3: expected a cost model"
    ):
        pl.hardware.load_measured(path, 3)
    path = tmp_path / "measured.csv"
    path.write_text(
        (data_dir() / "measured_times.csv")
        .read_text(encoding="utf-8")
        .replace(",Llama-2-70B,", ",Llama-2-70C,", 1)
    )
    with pytest.raises(
        pl.errors.InvalidData,
        match=r"measured\.csv, row \d+, column 'model': 'Llama-2-70C': there is no such model; did you mean",
    ):
        pl.hardware.against_measured(path=path)


def test_figures_draw_everything_and_take_results():
    growth = plot_search_growth([1, 2], {str(i): [1, 2] for i in range(9)}, 10.0, "layers")
    assert len(growth.data) == 9
    assert plot_placement(TINY, RESULT).layout == plot_placement(TINY, RESULT.placement).layout


def test_a_cluster_names_its_ids_and_no_others():
    gpus = (pl.GPU("A100", 80), pl.GPU("T4", 16), pl.GPU("A100", 80), pl.GPU("A100", 80))
    cluster = pl.Cluster(gpus, [[100.0]], [0] * 4)
    assert cluster.to_frame()["gpu_ids"].tolist() == ["0, 2–3", "1"]


def test_arguments_are_checked_like_fields_but_text_is_no_number():
    tiny = pl.load_case("tiny")
    with pytest.raises(pl.errors.InvalidValue, match="at_least = '3': expected tokens/s"):
        pl.solve(tiny, objective="cost", at_least="3")
    with pytest.raises(pl.errors.InvalidValue, match="time_limit = True") as caught:
        pl.solve(tiny, objective="cost", time_limit=True, stop=print)
    assert {field for field, _, _ in caught.value.problems} == {"time_limit", "stop"}
    facts = dict(load_gpus(), L4=3)  # the part that does not fit is named, not the whole
    with pytest.raises(
        pl.errors.InvalidValue, match=r"load_cluster: gpus\.L4 = 3: expected GPUFacts"
    ):
        pl.load_cluster("helix-single24", gpus=facts)
    assert pl.mixes({"L4": 2}, gpus=np.int8(1)) == [{"L4": 1}]
    shown = inspect.signature(pl.mixes).parameters["usd_per_hour"].annotation
    assert shown == Mapping[str, float | None] | None
