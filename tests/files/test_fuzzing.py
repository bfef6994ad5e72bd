"""Whatever a file holds: it is read whole, or refused with one error of pipelab's own that names the file.

The same few inputs are tried in every run; `pytest -m nightly tests/files/test_fuzzing.py` tries many
more, and others each time.
"""

import csv
import io
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from newest_folders import PRICES, write_folder

import pipelab as pl
from pipelab.engine.schedules.columns import runnable
from pipelab.engine.sweeps.rows_file import RowsFile, key_of
from pipelab.files.bundled_folders import data_dir
from pipelab.io.plans import save_placement
from pipelab.io.torch_csv import to_csv
from spoiling import read_or_refused, spoilt, table_of, written


class Door(NamedTuple):
    """A way in: the files that are there, what reads them, and how many things it must have read from each."""

    files: dict[str, str]
    load: Callable[[Path], Any]
    count: Callable[[Any], dict[str, int]]


def _table(name: str, rows: int, *readers: Callable[[Path], Any]) -> Door:
    """The header and the first rows of a bundled table; the first reader makes a thing of each row."""
    few = table_of((data_dir() / name).read_text(encoding="utf-8"))[: rows + 1]
    return Door(
        {name: written(few)},
        lambda folder: [read(folder / name) for read in readers],
        lambda found: {name: len(found[0])},
    )


def _plain_rows(path: Path) -> int:
    """Lines of several cells that hold anything, without the header, which a host's listing may lack."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        cells = [[cell.strip() for cell in row] for row in csv.reader(file)]
    rows = [row for row in cells if len(row) > 1 and any(row)]
    return len(rows) - (not path.name.endswith(".gpus.csv") or any("name" in c for c in rows[0]))


def _texts(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.csv")}


def _case_files() -> dict[str, str]:
    tiny = pl.load_case("tiny", max_gpus_per_stage=2)
    files = _texts(pl.writeup.save_case(tiny, Path(tempfile.mkdtemp()) / "tiny"))
    return files | {"layers.csv": "layer,weight_factor,work_factor\n1,1,1\n2,2,1\n3,1,3\n4,1,1\n"}


def _newest_files() -> dict[str, str]:
    files = _texts(write_folder("tiny", Path(tempfile.mkdtemp()) / "tiny"))
    return files | {"cloud_instances_specs.csv": PRICES}


POINTS = [{"A100": a, "precision": p} for a in (1, 2, 3) for p in ("bf16", "fp8")]
ANSWERED = {
    "status": "optimal", "outcome": "proven", "proven_among": "", "throughput_tokens_per_s": 12.5,
    "bound_tokens_per_s": 12.5, "gpus_used": 2, "usd_per_hour": None, "usd_per_million_tokens": None, "stages": 1,
    "bottleneck": "stage 1", "placement": "layers 1–4 on [0]", "seconds": 0.1, "reason": "",
}  # fmt: skip


def _rows_file(folder: Path) -> RowsFile:
    return RowsFile(folder / "sweep.csv", list(POINTS[0]), "aggregated", {"gap": 0.25})


def _sweep_text() -> str:
    folder = Path(tempfile.mkdtemp())
    store = _rows_file(folder)
    store.open()
    for point in POINTS:
        store.add({**point, **ANSWERED})
    store.close()
    return (folder / "sweep.csv").read_text(encoding="utf-8")


BALANCED = pl.load_case("tiny", max_gpus_per_stage=2, batch_split="balanced")
PLANNED = pl.Placement.of([(2, (0, 2)), (2, (1,))])


def _planned_text() -> str:
    path = save_placement(BALANCED, PLANNED, Path(tempfile.mkdtemp()) / "plan.json")
    return path.read_text(encoding="utf-8")


TIMES = "gpu_type,layers,batch,milliseconds\nL4,1,1,2\nL4,1,8,5\nL4,4,1,7\nL4,4,8,17\nT4,1,1,3\n"
PAIR = "index, name, memory.total [MiB]\n0, NVIDIA A40, 46068 MiB\n1, NVIDIA A40, 46068 MiB\n"
PAIR_TOPOLOGY = "GPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV4\t0-31\nGPU1\tNV4\t X \t0-31\n"
ONE_L4 = "index, name, memory.total [MiB]\n0, NVIDIA L4, 23034 MiB\n"
ROCM = "device,VRAM Total Memory (B),Card Series\ncard0,206141652992,MI300X\ncard1,206141652992,MI300X\n"
ROCM_TOPOLOGY = "Link Type between two GPUs\n  GPU0 GPU1\nGPU0 0 XGMI\nGPU1 XGMI 0\n"
AMD_SMI = "gpu,market_name,type,size\n0,AMD Instinct MI300X,HBM,196592\n1,AMD Instinct MI300X,HBM,196592\n"
_BUSES = "0000:0c:00.0 0000:22:00.0"
AMD_TOPOLOGY = (
    f"HOPS TABLE:\n {_BUSES}\n0000:0c:00.0 0 2\n0000:22:00.0 2 0\n"
    f"LINK TYPE TABLE:\n {_BUSES}\n0000:0c:00.0 SELF PCIE\n0000:22:00.0 PCIE SELF\n"
)
LINKS = "host,other,gbit_per_s,latency_ms\na,b,9.4,0.2\nb,a,9.1,0.2\na,a,160,\n"

MINE = "layers = 4\nd_model = 64\nd_ff = 256\nheads = 4\nkv_heads = 2\nhead_dim = 16\nvocab = 100\n"

DOORS = {
    "load_case": Door(
        _case_files(),
        lambda folder: pl.load_case(folder),
        lambda problem: {
            "network_bandwidth.csv": len(problem.cluster),
            "throughput_coefficients.csv": len(problem.costs.coefficients),
        },
    ),
    "load_case, newest form": Door(
        _newest_files(),
        lambda folder: pl.load_case(folder),
        lambda problem: {},  # links are generated where the matrix does not fit the pool
    ),
    "load_coefficients": _table(
        "linear_throughput.csv", 3, lambda path: pl.writeup.load_coefficients(path).coefficients
    ),
    "load_gpus": _table("gpus.csv", 3, pl.hardware.gpus, pl.hardware.load_gpus),
    "load_model of dimensions": Door(
        {"mine.toml": MINE}, lambda folder: pl.load_model(folder / "mine.toml"), lambda model: {}
    ),
    "load_model": _table(
        "models.csv", 3, pl.hardware.models, lambda path: pl.load_model("Llama-2-7B", path=path)
    ),
    "load_cluster": _table(
        "clusters.csv", 6, pl.hardware.clusters, lambda path: pl.load_cluster("helix-single24", path=path)
    ),
    "against_measured": _table(
        "measured_times.csv", 3, lambda path: pl.hardware.against_measured(path=path)
    ),
    "against_served": _table("served_times.csv", 3, lambda path: pl.hardware.against_served(path=path)),
    "load_cluster, of hosts": Door(
        {"a.gpus.csv": PAIR, "a.topo.txt": PAIR_TOPOLOGY, "b.gpus.csv": ONE_L4, "links.csv": LINKS},
        lambda folder: pl.load_cluster(folder),
        lambda cluster: {"b.gpus.csv": sum(gpu.type == "L4" for gpu in cluster.gpus)},
    ),
    "load_cluster, of AMD's hosts": Door(
        {"a.gpus.csv": ROCM, "a.topo.txt": ROCM_TOPOLOGY, "b.gpus.csv": AMD_SMI, "b.topo.txt": AMD_TOPOLOGY},
        lambda folder: pl.load_cluster(folder, network_gbit_per_s=10),
        lambda cluster: {"b.gpus.csv": sum(gpu.machine == "b" for gpu in cluster.gpus)},
    ),
    "load_measured": Door(
        {"times.csv": TIMES},
        lambda folder: pl.hardware.load_measured(folder / "times.csv", pl.Roofline()),
        lambda costs: {"times.csv": sum(map(len, costs.milliseconds.values()))},
    ),
    "sweep": Door(
        {"sweep.csv": _sweep_text()},
        lambda folder: _rows_file(folder).read([key_of(point) for point in POINTS]),
        lambda rows: {},  # a line that a kill tore off is cut away, and the last of two rows counts
    ),
}  # fmt: skip


def _look(door: str, name: str, data: bytes) -> None:
    files, load, count = DOORS[door]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for other, text in files.items():
            (folder / other).write_text(text, encoding="utf-8")
        (folder / name).write_bytes(data)
        named = ".csv" if door.startswith("load_case") else name
        found = read_or_refused(lambda: load(folder), named)
        if found is not None:
            for counted, number in count(found).items():
                assert number == _plain_rows(folder / counted), counted


EVERY_FILE = [(door, name) for door in DOORS for name in DOORS[door].files]


@pytest.mark.slow
@pytest.mark.examples
@pytest.mark.parametrize(("door", "name"), EVERY_FILE)
def test_a_spoilt_file_is_read_whole_or_refused(door, name):
    @settings(max_examples=settings().max_examples // 2)  # of each of many files
    @given(spoilt(DOORS[door].files[name]))
    def look(data: bytes) -> None:
        _look(door, name, data)

    look()


@pytest.mark.slow
@pytest.mark.parametrize(("door", "name"), EVERY_FILE)
def test_a_very_long_cell_is_no_hang_wherever_it_stands(door, name):
    table = table_of(DOORS[door].files[name])

    @given(st.sampled_from([(i, c) for i, row in enumerate(table) for c in range(len(row))]))
    def look(place: tuple[int, int]) -> None:
        (i, c), rows = place, [list(row) for row in table]
        rows[i][c] = "x" * 140_000
        _look(door, name, written(rows).encode())

    look()


def test_the_files_are_read_as_they_are():
    """What is spoilt above is in order before."""
    for files, load, count in DOORS.values():
        with tempfile.TemporaryDirectory() as place:
            for name, text in files.items():
                (Path(place) / name).write_text(text, encoding="utf-8")
            found = read_or_refused(lambda load=load, place=place: load(Path(place)), "")
            for name, number in count(found).items():
                assert number == _plain_rows(Path(place) / name)


SCHEDULES = {
    name: to_csv(pl.schedule(name, ranks=2, microbatches=4))
    for name in ("1F1B", "ZBH1", "DualPipeV", "Interleaved1F1B")
}


@pytest.mark.slow
@given(st.data())
def test_a_spoilt_schedule_is_run_or_refused(data):
    text = data.draw(spoilt(SCHEDULES[data.draw(st.sampled_from(sorted(SCHEDULES)))])).decode(
        "utf-8", "replace"
    )
    cells = [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(text, newline=""))]
    actions = [[cell for cell in row if cell not in ("", "IDLE", "\ufeff")] for row in cells]
    try:
        found = runnable(pl.Schedule.of("spoilt", actions)).schedule
    except (pl.errors.InvalidValue, pl.errors.InvalidSchedule, pl.errors.TooLarge):
        return
    assert len(found) == sum(map(len, actions))  # a pair is one action
    costs = pl.StageCosts(1, 1, 1)
    assert pl.simulate(found, costs).makespan > 0


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


@pytest.mark.slow
@given(st.data())
def test_a_spoilt_plan_in_json_is_for_its_problem_or_refused(data):
    """Its stages alone, too, are read whole or refused."""
    document = json.loads(_planned_text())
    changed = document
    for _ in range(data.draw(st.integers(0, 3))):  # into conditions, or a stage, or a list in it
        inside = list(changed.values()) if isinstance(changed, dict) else changed
        further = [one for one in inside if isinstance(one, dict | list) and one]
        changed = data.draw(st.sampled_from(further)) if further else changed
    keys = sorted(changed) if isinstance(changed, dict) else list(range(len(changed)))
    changed[data.draw(st.sampled_from(keys))] = data.draw(ANYTHING)
    whole = data.draw(st.integers(0, 9))
    text = json.dumps(data.draw(ANYTHING) if whole == 0 else document)
    if whole == 1:
        at = data.draw(st.integers(0, len(text)))
        torn = [text[:at], text[:at] + "[" * 100_000, text[:at] + "\x00" + text[at:]]
        text = data.draw(st.sampled_from(torn))
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "plan.json"
        path.write_text(text, encoding="utf-8")
        found = read_or_refused(lambda: pl.load_placement(path), "plan.json")
        if found is not None:
            assert len(found) == len(json.loads(text)["stages"])
        found = read_or_refused(lambda: pl.load_placement(path, BALANCED), "plan.json")
        if found is not None:
            assert found == PLANNED


@pytest.mark.parametrize("gpus", [1_000_000_000, 100_000])
def test_a_cluster_beyond_all_memory_is_refused(gpus, tmp_path):
    path = tmp_path / "clusters.csv"
    path.write_text(f"cluster,gpu_type,gpus,gpus_per_node,network_gbit_per_s\nx,L4,{gpus},1,10\n")
    with pytest.raises(pl.errors.InvalidData, match=f"{gpus:,} GPUs, 1 per node: expected at most"):
        pl.load_cluster("x", path=path)
