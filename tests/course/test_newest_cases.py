"""A case in the newest form of its author's repository: what is read, and what is said of the rest."""

import warnings

import pytest
from newest_folders import CONFIGS, POOLS, PRICES, write_folder

import pipelab as pl
from pipelab import course
from pipelab.course.ledger.newest_cases import NOT_MODELLED


def _read(folder, **options):
    """The problem, and the one warning."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        problem = pl.load_case(folder, **options)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    return problem, str(caught[0].message)


# Layers that a GPU or node can cut, GPUs per stage, and whether links were generated.
NODES = {"tiny": [2, 2], "small": [4, 2, 2, 2], "medium": [8, 12, 12, 12], "hal": [4] * 16,
         "large": [8, 8, 4, 20, 20, 20]}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
def test_the_five_folders_load_as_they_are(name, tmp_path):
    problem, said = _read(write_folder(name, tmp_path / name))
    length, batch, model, layers, d, hidden, heads, weight, *_ = CONFIGS[name]
    assert (problem.model.name, problem.model.layers) == (model, layers)
    assert (problem.workload.sequence_length, problem.workload.batch_size) == (length, batch)
    # four square matrices, three of the feed-forward block, two norms
    assert problem.model.layer_parameters() == 4 * d * d + 3 * d * hidden + 2 * d
    assert (problem.model.heads, problem.model.kv_heads) == (heads, heads)
    assert [g.memory_gb for g in problem.cluster.gpus] == [
        row[2] for row in POOLS[name] for _ in range(row[1])
    ]
    nodes = [gpu.node for gpu in problem.cluster.gpus]
    assert [nodes.count(node) for node in dict.fromkeys(nodes)] == NODES[name]
    assert problem.max_gpus_per_stage == min(8, max(NODES[name]))
    assert problem.same_type_stages
    lines = (tmp_path / name / "config.csv").read_text().splitlines()
    given = {line.partition(",")[0] for line in lines}
    assert {parameter for parameter in NOT_MODELLED if f"{parameter} =" in said} == given & {
        *NOT_MODELLED
    }
    assert f"layer_weight_memory_gb = {weight:g} is not used" in said
    assert ("28 rows for 80 GPUs" in said) == (name == "large")
    assert ("no price" in said) == (name != "large")


@pytest.mark.parametrize(
    "name",
    ["tiny", *(pytest.param(n, marks=pytest.mark.nightly) for n in ("small", "medium", "large"))],
)
def test_four_of_the_five_have_answers(name, tmp_path):
    """hal's GPUs hold less than half of the model: the author's program keeps one layer's keys and values."""
    problem, _ = _read(write_folder(name, tmp_path / name))
    found = pl.solve(problem)
    assert found.status == "optimal"
    assert max(len(stage.gpus) for stage in found.placement.stages) > 1
    rate = pl.evaluate(problem, found.placement).throughput
    assert rate == pytest.approx(found.throughput)


def test_names_of_gpus_and_links(tmp_path):
    small, _ = _read(write_folder("small", tmp_path / "small"))
    types = dict.fromkeys(gpu.type for gpu in small.cluster.gpus)
    assert list(types) == ["A100-SXM-80", "V100-SXM-32", "H100-SXM"]
    # 6 and 7 have 200 GB/s between them, 4 and 5 300; from 6 to 4 there are 300, back 200
    assert [small.cluster.gpus[i].node_gb_per_s for i in (0, 4, 6, 8)] == [400, 300, 200, 300]
    assert small.cluster.bandwidth_between(6, 4) == 300
    large, _ = _read(write_folder("large", tmp_path / "large"))
    assert [large.cluster.bandwidth_between(0, i) for i in (1, 79)] == [400, 200]
    (tmp_path / "large" / "network_bandwidth.csv").unlink()
    again, said = _read(tmp_path / "large")
    assert again == large
    assert "network_bandwidth.csv is not there, so links have 400 GB/s within a type" in said
    assert [large.cluster.gpus[i].usd_per_hour for i in (0, 16, 79)] == [3.0, 4.2, 1.0]


def test_prices_come_from_the_list(tmp_path):
    folder = write_folder("medium", tmp_path / "config" / "medium")
    (tmp_path / "config" / "cloud_instances_specs.csv").write_text(PRICES)
    problem, said = _read(folder)
    usd = {gpu.type: gpu.usd_per_hour for gpu in problem.cluster.gpus}
    # per instance by its GPUs, of the same memory; an A10 is no A10G and no A100, an L40 no L40S
    assert usd == {"A100-SXM-80": 5.12, "L40": None, "A10": None, "V100-SXM-32": 31.21 / 8}
    assert "no price in cloud_instances_specs.csv for AWS: L40 (48 GB), A10 (24 GB)" in said
    problem, said = _read(folder, cloud_provider="Lambda")
    usd = {gpu.type: gpu.usd_per_hour for gpu in problem.cluster.gpus}
    assert usd == {"A100-SXM-80": 1.79, "L40": None, "A10": 0.75, "V100-SXM-32": None}
    problem, _ = _read(folder, cloud_provider="GCP")  # the cheaper of two instances of 80 GB
    assert problem.cluster.gpus[0].usd_per_hour == 62.70 / 16
    with pytest.raises(pl.errors.UnknownName, match="no provider 'Lamda'; did you mean 'Lambda'"):
        pl.load_case(folder, cloud_provider="Lamda")
    hal, _ = _read(write_folder("hal", tmp_path / "config" / "hal"))
    assert hal.cluster.gpus[0].usd_per_hour == 3.06  # the lowest of two
    large, _ = _read(write_folder("large", tmp_path / "config" / "large"))
    assert large.cluster.gpus[0].usd_per_hour == 3.0  # the pool's own come first


def test_a_parameter_that_is_not_known_is_named(tmp_path):
    folder = write_folder("tiny", tmp_path / "tiny", max_pipline_stages=3)
    with pytest.warns(UserWarning, match="is not used") as caught:
        pl.load_case(folder)
    assert any("did you mean 'max_pipeline_stages'" in str(one.message) for one in caught)


def test_a_range_of_batches_a_phase_and_an_option(tmp_path):
    folder = write_folder(
        "tiny", tmp_path / "tiny", max_batch_size=64, workload_phase="decode", output_length=512
    )
    problem, said = _read(folder, max_gpus_per_stage=1, name="mine")
    load = problem.workload
    assert (load.batch_size, load.phase, load.output_tokens) == (64, "decode", 512)
    assert "the batch is max_batch_size = 64, of a range from 16" in said
    assert (problem.max_gpus_per_stage, problem.name) == (1, "mine")


REFUSED = {
    "no heads": ({"num_attention_heads": None}, "parameter 'num_attention_heads' is missing"),
    "odd heads": ({"num_attention_heads": 33}, "33': expected a whole number that divides d_model"),
    "bytes": ({"bytes_per_element": 3}, "'3': expected 1, 2 or 4 (bytes_per_element)"),
    "phase": ({"workload_phase": "aggregated"}, "expected prefill or decode (workload_phase)"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_named_with_its_row(case, tmp_path):
    changes, message = REFUSED[case]
    folder = write_folder("tiny", tmp_path / "tiny", **changes)
    with pytest.raises(pl.errors.InvalidData) as caught:
        pl.load_case(folder)
    assert message in str(caught.value)
    assert str(folder / "config.csv") in str(caught.value)


def test_other_files_are_refused_as_they_are_elsewhere(tmp_path):
    folder = write_folder("tiny", tmp_path / "tiny")
    pool, text = folder / "gpu_pool.csv", (folder / "gpu_pool.csv").read_text()
    for row, message in (
        ("A101,2,80", r"gpu_pool.*'A101': is no known GPU; did you mean"),
        ("A100,0,80", "expected at least one GPU"),
        ("A100,999999,80", "has 4 rows for 999999 GPUs: expected one that fits"),
    ):
        pool.write_text(f"gpu_type,count,memory_gb\n{row}")
        with pytest.raises(pl.errors.InvalidData, match=message):
            pl.load_case(folder)
    pool.write_text(text)
    with pytest.raises(pl.errors.InvalidData, match="expected a list of prices beside the case"):
        pl.load_case(folder, cloud_provider="AWS")
    with pytest.raises(pl.errors.InvalidValue, match="cloud_provider = 'AWS': expected none"):
        pl.load_case("tiny", cloud_provider="AWS")


@pytest.mark.nightly
def test_the_authors_table_beside_ours_by_arithmetic():
    """Weights and the keys and values of all layers leave less than a tenth free in five of eight rows."""
    table = course.author_results()
    for row in table.itertuples():
        # $ per hour over tokens per hour; a cent of rounding in $ per hour
        usd = {2: 8.19, 4: 16.39, 8: 32.77}[row.A100s] / row.said_tokens_per_s / 3600 * 1e6
        assert usd == pytest.approx(row.said_usd_per_million, rel=1e-3)
        parameters, tokens = 32 * (4 * 8192**2 + 3 * 8192 * 22016), row.batch * 4096
        held = 2 * (parameters + tokens * 32 * 2 * 8192) / row.A100s / 1e9
        assert held * 0.99 < row.needs_gb < held * 1.03
        assert row.fits == (row.needs_gb < 0.9 * 80 * 1.073741824)  # 80 GiB, a tenth stays free
        # no faster than the peak of these GPUs, no slower than a third of it
        peak = row.A100s * 312e12 / (2 * parameters)
        assert peak / 3 < row.tokens_per_s < peak
    assert table.groupby("batch")["least_usd_per_million"].nunique().tolist() == [1, 1, 1, 0]
    first = table[:4]
    slower = first["said_tokens_per_s"] / first["tokens_per_s"]
    assert (first["least_usd_per_million"] < 1.2 * first["said_usd_per_million"] * slower).all()
