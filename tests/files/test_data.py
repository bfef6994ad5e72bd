"""The bundled cases are the facts, and a bad file is refused by file, row and column."""

import dataclasses
import importlib.util
import shutil

import numpy as np
import pytest

import pipelab as pl
from pipelab.files.bundled_folders import data_dir
from spoiling import table_of, written

CASES = data_dir() / "cases"


@pytest.fixture
def folder(tmp_path):
    """A copy of tiny."""
    return shutil.copytree(CASES / "tiny", tmp_path / "mine")


@pytest.mark.parametrize("case", pl.writeup.cases())
def test_bundled_files_are_what_the_facts_make(case):
    spec = importlib.util.spec_from_file_location("make_cases", data_dir() / "make_cases.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, text in module.files_of(case).items():
        assert (CASES / case / name).read_text() == text


# Smallest first: layers, GPUs, activations in GB and the tensor between stages in GiB.
PUBLISHED = {
    "tiny": (4, 4, 1.63515625, 0.25),
    "medium_small": (20, 8, 1.63515625, 0.25),
    "small": (12, 10, 1.63515625, 0.25),
    "large": (80, 28, 3.7375, 0.5),
    "demo": (14, 30, 10.2197265625, 1.5625),
    "medium": (80, 65, 13.08125, 2.0),
}


def test_cases_have_the_published_sizes():
    assert pl.writeup.cases() == tuple(PUBLISHED)
    for case, (layers, gpus, activations, tensor) in PUBLISHED.items():
        problem = pl.load_case(case)
        assert (problem.model.layers, len(problem.cluster)) == (layers, gpus)
        held = problem.costs.activation_gb(problem.model, problem.workload)
        assert held == pytest.approx(activations, rel=1e-12)
        assert problem.tensor_gb() * 1e9 / 2**30 == pytest.approx(tensor, rel=1e-12)


@pytest.mark.parametrize("case", ["tiny", "small"])
def test_a_saved_case_reads_back_equal(case, tmp_path):
    """With rules, costs, prices and layers of its own, and links of which the diagonal says nothing."""
    folder = tmp_path / case
    plain = pl.load_case(case, max_gpus_per_stage=3, same_type_stages=True, link_units="tokens")
    assert pl.load_case(pl.writeup.save_case(plain, folder)) == plain
    links = plain.cluster.bandwidth_matrix()
    np.fill_diagonal(links, np.inf)
    prices = {"A100": 2.5, "V100": 0.75}
    gpus = [dataclasses.replace(g, usd_per_hour=prices.get(g.type)) for g in plain.cluster.gpus]
    factors = (1.5, *[1.0] * (plain.model.layers - 2), 2.0)
    own = dataclasses.replace(
        plain,
        cluster=pl.Cluster(tuple(gpus), links),
        model=dataclasses.replace(plain.model, weight_factors=factors),
        costs=dataclasses.replace(plain.costs, efficiency=0.4, activation_overhead=1.5),
    )
    again = pl.load_case(pl.writeup.save_case(own, folder))
    others = ~np.eye(len(gpus), dtype=bool)
    assert np.array_equal(again.cluster.bandwidth_matrix()[others], links[others])
    assert (again.cluster.gpus, again.costs) == (tuple(gpus), own.costs)
    assert again.model.weight_factors == factors
    assert again.model.work_factors == (1.0,) * len(factors)
    pl.writeup.save_case(plain, folder)  # what no longer holds goes
    assert pl.load_case(folder).model.uniform


def test_a_folder_may_bring_its_own_coefficients(folder):
    text = "gpu_type,per_token,per_sequence,per_layer,constant\nA100,0,0,0,7\nV100,0,0,0,5\n"
    (folder / "throughput_coefficients.csv").write_text(text)
    problem = pl.load_case(folder)
    assert pl.evaluate(problem, pl.Placement.of([(4, (0,))])).throughput == 7


def test_bandwidth_labels_may_stand_in_any_order(tmp_path):
    folder = shutil.copytree(CASES / "small", tmp_path / "mine")
    path = folder / "network_bandwidth.csv"
    head, *lines = path.read_text().splitlines()
    path.write_text("\n".join([head, *reversed(lines)]))
    expected = pl.load_case("small").cluster.bandwidth_matrix()
    assert np.array_equal(pl.load_case(folder).cluster.bandwidth_matrix(), expected)


LAYERS = "layer,weight_factor,work_factor\n"
# Of each file: text to replace, replacement, what the message must say.
BROKEN = {
    "config.csv": [
        ("d_model,", "d_modle,", "'d_model' is missing; did you mean 'd_modle'"),
        ("d_model,4096", "d_model,4096\nd_model,4096", "is already in row 6"),
        ("parameter,value", "parameter,wert", "column 'value' is missing"),
        ("value\n", "value\nsame_type_stages,2\n", "expected true or false"),
    ],
    "gpu_pool.csv": [
        ("V100", "V10", r"row 3, column 'gpu_type': 'V10'.*did you mean 'V100'"),
        ("A100,2,80\nV100,2", "A100,0,80\nV100,0", "expected at least one GPU in the pool"),
        ("A100,2,80", "A100,2,80,90", "row 2: 4 cells, expected 3"),
        ("count,memory_gb", "count,memory_gb,count", "column 'count' occurs 2 times"),
        ("type,count,memory", "type;count;memory", "expected commas between columns"),
        ("V100,", '"V100,', "row 3: cannot be read as CSV"),
    ],
    "network_bandwidth.csv": [
        ("gpu_3,200", "gpu_7,200", "'gpu_7': matches no GPU"),
        ("gpu_3,200", "gpu_1,200", "is already in an earlier row"),
        (",gpu_3\n", ",gpu_x\n", "label 'gpu_x' matches no GPU"),
        ("gpu_3,200,200,300,300\n", "", "3 rows × 4 columns; expected 4 ×"),
    ],
    "layers.csv": [
        ("", f"{LAYERS}1,1,1\n2,1,1\n", "2 layers, expected the 4 of num_decoder_layers"),
        ("", f"{LAYERS}1,1,1\n3,1,1\n", r"row 3, column 'layer': '3': expected 2"),
    ],
}


@pytest.mark.parametrize(
    ("file", "old", "new", "message"), [(file, *row) for file in BROKEN for row in BROKEN[file]]
)
def test_a_bad_file_is_refused_by_file_row_and_value(file, old, new, message, folder):
    path = folder / file
    text = path.read_text() if path.is_file() else ""
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(pl.errors.InvalidData, match=f"(?s){file}.*{message}"):
        pl.load_case(folder)


FILES = ("config.csv", "gpu_pool.csv", "network_bandwidth.csv")
UNUSED = ("vocab_size", "num_attention_heads", "optimality_gap", "time_limit_seconds")


@pytest.mark.parametrize("file", FILES)
def test_what_is_no_number_is_refused_by_file_row_and_column(file, folder):
    """Each number of a case in turn: nothing, a word, one below 0, none that there is."""
    whole = table_of((folder / file).read_text())
    numbers = [
        (row, column)
        for row, cells in enumerate(whole)
        for column, cell in enumerate(cells)
        if cell.replace(".", "").isdecimal() and cells[0] not in UNUSED
    ]
    assert len(numbers) >= 4
    for row, column in numbers:
        for wrong in ("", "x", "-1", "nan"):
            table = [list(cells) for cells in whole]
            table[row][column] = wrong
            (folder / file).write_text(written(table))
            shown = f"'{wrong}'" if wrong else "empty"
            place = f"{file}, row {row + 1}, column '{whole[0][column]}': {shown}: expected "
            with pytest.raises(pl.errors.InvalidData) as caught:
                pl.load_case(folder)
            assert place in str(caught.value)
            assert file != "config.csv" or str(caught.value).endswith(f"({whole[row][0]})")


@pytest.mark.parametrize("file", FILES)
def test_a_missing_or_empty_file_is_named(file, folder):
    (folder / file).write_text("")
    with pytest.raises(pl.errors.InvalidData, match=f"{file}: the file is empty"):
        pl.load_case(folder)
    (folder / file).unlink()
    with pytest.raises(pl.errors.InvalidData, match=f"{file}: there is no such file; the folder"):
        pl.load_case(folder)


def test_names_with_a_typo_are_told_the_nearest(folder):
    with (folder / "config.csv").open("a") as file:
        file.write("max_gpus_per_stag,3\n")
    not_used = "row 15: parameter 'max_gpus_per_stag' is not used.*max_gpus_per_stage"
    with pytest.warns(UserWarning, match=not_used):
        pl.load_case(folder)
    neither = "'tinny' is neither a bundled case nor a folder; did you mean 'tiny'"
    with pytest.raises(pl.errors.UnknownName, match=neither):
        pl.load_case("tinny")
    with pytest.raises(pl.errors.UnknownName, match="did you mean 'max_gpus_per_stage'"):
        pl.load_case("tiny", max_gpus=2)
