"""The bundled cases are the facts, and a bad file is refused by file, row and column."""

import dataclasses
import importlib.util
import shutil

import numpy as np
import pytest

import pipelab as pl
from pipelab.files.bundled_folders import data_dir
from pipelab.files.reading_and_writing import write_to
from spoiling import table_of, written

CASES = data_dir() / "cases"


def _made_by(name):
    spec = importlib.util.spec_from_file_location(name, data_dir() / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("case", pl.writeup.cases())
def test_bundled_files_are_what_the_facts_make(case):
    for name, text in _made_by("make_cases").files_of(case).items():
        assert (CASES / case / name).read_text() == text


def test_the_cases_are_listed_smallest_first():
    assert pl.writeup.cases() == ("tiny", "medium_small", "small", "large", "demo", "medium")


@pytest.mark.parametrize(
    ("case", "layers", "gpus", "activations", "tensor"),
    [
        ("tiny", 4, 4, 1.63515625, 0.25),
        ("small", 12, 10, 1.63515625, 0.25),
        ("medium_small", 20, 8, 1.63515625, 0.25),
        ("medium", 80, 65, 13.08125, 2.0),
        ("large", 80, 28, 3.7375, 0.5),
        ("demo", 14, 30, 10.2197265625, 1.5625),
    ],
)
def test_cases_have_the_published_sizes(case, layers, gpus, activations, tensor):
    problem = pl.load_case(case)
    assert (problem.model.layers, len(problem.cluster)) == (layers, gpus)
    assert problem.costs.activation_gb(problem.model, problem.workload) == pytest.approx(
        activations, rel=1e-12
    )
    assert problem.tensor_gb() * 1e9 / 2**30 == pytest.approx(tensor, rel=1e-12)


def test_small_is_not_symmetric():
    matrix = pl.load_case("small").cluster.bandwidth_matrix()
    assert (matrix[0, 6], matrix[6, 0]) == (150, 200)


@pytest.mark.parametrize("case", ["tiny", "small", "medium"])
def test_a_saved_case_reads_back_equal(case, tmp_path):
    problem = pl.load_case(case, max_gpus_per_stage=3, same_type_stages=True, link_units="tokens")
    again = pl.load_case(pl.writeup.save_case(problem, tmp_path / case))
    assert again == problem


def test_costs_and_odd_diagonals_survive_saving(tmp_path):
    tiny = pl.load_case("tiny")
    costs = dataclasses.replace(tiny.costs, efficiency=0.4, activation_overhead=1.5)
    matrix = np.where(np.eye(4) > 0, np.inf, 100.0)
    odd = dataclasses.replace(tiny, costs=costs, cluster=pl.Cluster(tiny.cluster.gpus, matrix))
    again = pl.load_case(pl.writeup.save_case(odd, tmp_path / "tiny"))
    assert again.costs == costs
    others = ~np.eye(4, dtype=bool)
    assert np.array_equal(again.cluster.bandwidth_matrix()[others], matrix[others])


def test_a_folder_may_bring_its_own_coefficients(tmp_path):
    shutil.copytree(CASES / "tiny", tmp_path / "mine")
    text = "gpu_type,per_token,per_sequence,per_layer,constant\nA100,0,0,0,7\nV100,0,0,0,5\n"
    (tmp_path / "mine" / "throughput_coefficients.csv").write_text(text)
    problem = pl.load_case(tmp_path / "mine")
    assert pl.evaluate(problem, pl.Placement.of([(4, (0,))])).throughput == 7


def test_bandwidth_labels_may_stand_in_any_order(tmp_path):
    shutil.copytree(CASES / "small", tmp_path / "mine")
    path = tmp_path / "mine" / "network_bandwidth.csv"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], *reversed(lines[1:])]))
    expected = pl.load_case("small").cluster.bandwidth_matrix()
    assert np.array_equal(pl.load_case(tmp_path / "mine").cluster.bandwidth_matrix(), expected)


# Of each file: text to replace, replacement, what the message must say.
BROKEN = {
    "config.csv": [
        ("batch_size,16\n", "", "parameter 'batch_size' is missing"),
        ("d_model,", "d_modle,", "'d_model' is missing; did you mean 'd_modle'"),
        ("d_model,4096", "d_model,4096\nd_model,4096", "is already in row 6"),
        ("memory_gb,0.5", "memory_gb,inf", "expected a finite number"),
        ("parameter,value", "parameter,wert", "column 'value' is missing"),
        ("value\n", "value\nbatch_split,odd\n", r"'odd': expected 'even' or 'balanced'"),
        ("value\n", "value\nsame_type_stages,2\n", "expected true or false"),
        ("value\n", "value\nmax_gpus_per_stage,0\n", r"row 2.*'0': expected at least 1"),
    ],
    "gpu_pool.csv": [
        ("A100,2", "A100,2.5", "row 2, column 'count': '2.5': expected a whole number from 0"),
        ("V100", "V10", r"row 3, column 'gpu_type': 'V10'.*did you mean 'V100'"),
        ("V100", "", "row 3, column 'gpu_type': empty"),
        ("A100,2,80\nV100,2,32\n", "", "no row below the header"),
        ("memory_gb", "memory", "'memory_gb' is missing; did you mean 'memory'"),
        ("A100,2,80", "A100,2,80,90", "row 2: 4 cells, expected 3"),
        ("count,memory_gb", "count,memory_gb,count", "column 'count' occurs 2 times"),
        (
            "gpu_type,count,memory_gb",
            "gpu_type;count;memory_gb",
            "'gpu_type' is missing; expected commas between columns",
        ),
        ("V100,", '"V100,', "row 3: cannot be read as CSV"),
    ],
    "network_bandwidth.csv": [
        ("gpu_1,400,", "gpu_1,", "row 3: 4 cells, expected 5"),
        ("gpu_1,400", "gpu_1,0", "expected a finite number above 0"),
        ("gpu_3,200", "gpu_7,200", "'gpu_7': matches no GPU"),
        ("gpu_3,200", "gpu_1,200", "is already in an earlier row"),
        (",gpu_3\n", ",gpu_x\n", "label 'gpu_x' matches no GPU"),
        ("gpu_3,200,200,300,300\n", "", "3 rows × 4 columns; expected 4 ×"),
    ],
}


@pytest.mark.parametrize(
    ("file", "old", "new", "message"), [(file, *row) for file in BROKEN for row in BROKEN[file]]
)
def test_a_bad_file_is_refused_by_file_row_and_value(file, old, new, message, tmp_path):
    folder = shutil.copytree(CASES / "tiny", tmp_path / "mine")
    text = (folder / file).read_text()
    assert old in text
    (folder / file).write_text(text.replace(old, new))
    with pytest.raises(pl.errors.InvalidData, match=f"(?s){file}.*{message}"):
        pl.load_case(folder)


FILES = ("config.csv", "gpu_pool.csv", "network_bandwidth.csv")
UNUSED = ("vocab_size", "num_attention_heads", "optimality_gap", "time_limit_seconds")


@pytest.mark.parametrize("file", FILES)
def test_what_is_no_number_is_refused_by_file_row_and_column(file, tmp_path):
    """Each number of a case in turn: nothing, a word, one below 0, none that there is."""
    folder = shutil.copytree(CASES / "tiny", tmp_path / "mine")
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
def test_a_missing_or_empty_file_is_named(file, tmp_path):
    shutil.copytree(CASES / "tiny", tmp_path / "mine")
    (tmp_path / "mine" / file).write_text("")
    with pytest.raises(pl.errors.InvalidData, match=f"{file}: the file is empty"):
        pl.load_case(tmp_path / "mine")
    (tmp_path / "mine" / file).unlink()
    with pytest.raises(
        pl.errors.InvalidData, match=f"{file}: there is no such file; the folder has "
    ):
        pl.load_case(tmp_path / "mine")


def test_a_parameter_that_is_not_used_is_said(tmp_path):
    shutil.copytree(CASES / "tiny", tmp_path / "mine")
    with (tmp_path / "mine" / "config.csv").open("a") as file:
        file.write("max_gpus_per_stag,3\n")
    with pytest.warns(
        UserWarning, match="row 15: parameter 'max_gpus_per_stag' is not used.*max_gpus_per_stage"
    ):
        pl.load_case(tmp_path / "mine")


def test_a_case_with_a_typo_names_the_nearest():
    with pytest.raises(
        pl.errors.UnknownName,
        match="'tinny' is neither a bundled case nor a folder; did you mean 'tiny'",
    ):
        pl.load_case("tinny")


def test_an_option_with_a_typo_names_the_nearest():
    with pytest.raises(
        pl.errors.UnknownName, match="no option 'max_gpus'; did you mean 'max_gpus_per_stage'"
    ):
        pl.load_case("tiny", max_gpus=2)


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "a.csv"
    write_to("test", path, "old")
    monkeypatch.setattr(
        "pipelab.files.reading_and_writing.os.replace",
        lambda *_: (_ for _ in ()).throw(OSError("disk full")),
    )
    with pytest.raises(pl.errors.InvalidData, match="disk full"):
        write_to("test", path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.csv"]


def test_prices_and_different_layers_come_back(tmp_path):
    tiny = pl.load_case("tiny")
    pool = tuple(
        dataclasses.replace(g, usd_per_hour=2.5 if g.type == "A100" else 0.75)
        for g in tiny.cluster.gpus
    )
    model = dataclasses.replace(tiny.model, weight_factors=(1.5, 1, 1, 2))
    problem = dataclasses.replace(
        tiny, cluster=pl.Cluster(pool, tiny.cluster.bandwidth_matrix()), model=model
    )
    again = pl.load_case(pl.writeup.save_case(problem, tmp_path / "own"))
    assert again.cluster.gpus == pool
    assert again.model.weight_factors == (1.5, 1.0, 1.0, 2.0)
    assert again.model.work_factors == (1.0,) * 4
    pl.writeup.save_case(tiny, tmp_path / "own")  # what no longer holds goes
    assert pl.load_case(tmp_path / "own").model.uniform


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("1,1,1\n2,1,1\n", "2 layers, expected the 4 of num_decoder_layers"),
        ("1,1,1\n3,1,1\n", r"row 3, column 'layer': '3': expected 2"),
        ("1,0,1\n", "row 2, column 'weight_factor': '0': expected a finite number above 0"),
        ("1,1,inf\n", "row 2, column 'work_factor': 'inf': expected a finite number above 0"),
        ("1,x,1\n", "row 2, column 'weight_factor': 'x': expected a number"),
    ],
)
def test_a_bad_layers_file_is_refused(tmp_path, rows, message):
    folder = pl.writeup.save_case(pl.load_case("tiny"), tmp_path / "own")
    (folder / "layers.csv").write_text("layer,weight_factor,work_factor\n" + rows)
    with pytest.raises(pl.errors.InvalidData, match=message):
        pl.load_case(folder)


def test_a_bad_price_is_refused(tmp_path):
    folder = pl.writeup.save_case(pl.load_case("tiny"), tmp_path / "own")
    (folder / "gpu_pool.csv").write_text(
        "gpu_type,count,memory_gb,usd_per_hour\nA100,2,80,-1\nV100,2,32,\n"
    )
    with pytest.raises(
        pl.errors.InvalidData, match="row 2, column 'usd_per_hour': '-1': expected more than 0"
    ):
        pl.load_case(folder)
    with pytest.raises(pl.errors.InvalidValue, match="expected one for each of the 4 layers"):
        dataclasses.replace(pl.load_case("tiny").model, work_factors=(1, 2))
