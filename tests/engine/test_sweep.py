"""Sweeps: the rows of a plain loop in every order of work, and nothing lost when something goes wrong."""

import contextlib
import csv
import dataclasses
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from functools import cache
from pathlib import Path

import joblib
import numpy as np
import pytest
from limits import full_disk

import pipelab as pl
from pipelab.engine.sweeps.grids_and_mixes import cell, value_of

TINY = pl.load_case("tiny", link_units="tokens")
PRICES = {"A100": 2.0, "V100": 0.5}
POINTS = pl.mixes({"A100": 2, "V100": 3})


def make(A100, V100):
    """tiny with other numbers of GPUs: one layer on a V100, three on an A100."""
    memory = {"A100": 80, "V100": 32}
    cluster = pl.Cluster.from_counts({"A100": A100, "V100": V100}, memory, 100.0, PRICES)
    model = dataclasses.replace(TINY.model, layer_weight_gb=20)
    return dataclasses.replace(TINY, cluster=cluster, model=model, max_gpus_per_stage=2)


def counted(calls):
    """`make`, which notes its points."""

    def noted(**point):
        calls.append(point)
        return make(**point)

    return noted


def rows(sweep):
    """What must not depend on who computed it, when."""
    return [{name: value for name, value in row.items() if name != "seconds"} for row in sweep.rows]


def quiet(*args, **options):
    return pl.sweep(*args, **{"progress": False, "jobs": 1, **options})


@cache
def undisturbed():
    """An undisturbed sweep of all points."""
    return quiet(make, POINTS)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "sweep.csv"


@pytest.fixture
def written(file):
    """The file of an undisturbed sweep."""
    quiet(make, POINTS, path=file)
    return file


def test_a_sweep_says_what_a_plain_loop_says():
    sweep = undisturbed()
    assert sweep.complete
    assert [{name: row[name] for name in sweep.names} for row in sweep.rows] == POINTS
    assert list(sweep.to_frame()["A100"]) == [point["A100"] for point in POINTS]
    for row, point in zip(sweep.rows, POINTS, strict=True):
        result = pl.solve(make(**point), "aggregated")
        assert (row["status"], row["throughput_tokens_per_s"]) == (result.status, result.throughput)
        assert (row["bound_tokens_per_s"], row["reason"]) == (result.bound, result.reason)
        if result.placement is None:
            assert (row["placement"], row["gpus_used"]) == ("", None)
            continue
        types = [result.problem.cluster.gpus[g].type for g in result.placement.gpus]
        hourly = sum(PRICES[t] for t in types)
        assert (row["gpus_used"], row["stages"]) == (len(types), len(result.placement))
        assert row["usd_per_hour"] == pytest.approx(hourly)
        per_million = hourly / 3600 / result.throughput * 1_000_000
        assert row["usd_per_million_tokens"] == pytest.approx(per_million, rel=1e-12)
        assert row["placement"] == str(result.placement)
        assert row["bottleneck"] in ", ".join(result.evaluation.bottlenecks)
    with joblib.parallel_config("threading", n_jobs=2):
        assert rows(quiet(make, POINTS, jobs=None)) == rows(sweep)
    assert rows(quiet(make, POINTS[::-1])) == rows(sweep)[::-1]


def test_by_default_all_cores_work_and_joblibs_switch_is_heeded(monkeypatch):
    asked, plain = [], joblib.Parallel

    def parallel(n_jobs=None, **options):
        asked.append(plain(n_jobs=n_jobs, **options)._effective_n_jobs())
        return plain(n_jobs=1, **options)

    monkeypatch.setattr(joblib, "Parallel", parallel)
    quiet(make, POINTS[:1], jobs=None)
    with joblib.parallel_config("threading", n_jobs=5):
        for jobs in (None, 2):
            quiet(make, POINTS[:1], jobs=jobs)
    assert asked == [joblib.cpu_count(), 5, 2]


def test_points_are_every_combination_and_mixes_have_a_gpu():
    assert pl.grid(a=(1, 2), b=["x"]) == [{"a": 1, "b": "x"}, {"a": 2, "b": "x"}]
    assert len(pl.grid(pl.mixes({"H100": 4, "L4": 8}), batch=range(3))) == 3 * (5 * 9 - 1)
    every = pl.grid(A=range(4), B=range(5), C=(0, 8))
    price = {"A": 3.0, "B": 0.7, "C": 0.1}
    found = pl.mixes({"A": 3, "B": 4, "C": (0, 8)}, usd_per_hour=price, budget=7.1)
    cost = [sum(price[name] * n for name, n in point.items()) for point in every]
    assert found == [
        p for p, c in zip(every, cost, strict=True) if any(p.values()) and c <= 7.1 + 1e-9
    ]
    # a budget is met to the cent, whatever rounding says
    assert pl.mixes({"A": 4}, usd_per_hour={"A": 0.1}, budget=0.3)[-1] == {"A": 3}


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: pl.grid(batch=8), r"batch = 8: expected several values, such as \(8,\)"),
        (lambda: pl.grid([{"batch": 1}], batch=(8,)), "name = 'batch': is in two parts"),
        (lambda: pl.grid(a=range(2000), b=range(2000)), "more than 1,000,000 points"),
        (lambda: pl.mixes(dict.fromkeys("ABCDEFG", 9)), "more than 1,000,000 points"),
        (lambda: pl.mixes({"A100": (0, -1)}), "expected a whole number of at least 0"),
        (lambda: quiet(make, [3]), r"points\[0\] = 3: expected names and values"),
        (lambda: pl.grid([1], batch=(8,)), "expected points"),
        (lambda: pl.mixes({"A100": 1}, budget=3), "a budget needs a price for every type"),
        (lambda: quiet(make, []), "expected at least one; an iterator that was used up is empty"),
        (lambda: quiet(make, [{"A": 1}, {"V": 1}]), "expected the names of the first .*: A"),
        (lambda: quiet(make, [{"case": TINY}]), r"points\[0\]\['case'\] = .*make\(\) builds every"),
        (lambda: quiet(make, [{"a": [1, float("nan")]}]), r"\['a'\]\[1\] = nan: expected a finite"),
        (lambda: quiet(make, [{"stages": 3}]), "name = 'stages': is a column of the answer"),
        (lambda: quiet(make, POINTS, gpa=0.1), "no option 'gpa'; did you mean 'gap'"),
    ],
)
def test_what_does_not_fit_is_refused_at_once(call, told):
    with pytest.raises(pl.PipelabError, match=told) as caught:
        call()
    # before the first point, not after the last
    assert not isinstance(caught.value, pl.errors.SweepFailed)


def test_a_failed_point_is_a_row_with_its_reason():
    def fragile(A100):
        if A100 == 0:
            raise KeyError("no such number")
        if A100 == 3:
            sys.exit("enough")
        return make(A100, 1) if A100 < 4 else "nothing"

    sweep = quiet(fragile, pl.grid(A100=(0, 1, 3, 4, -1)))
    assert [row["status"] == "failed" for row in sweep.rows] == [True, False, True, True, True]
    reasons = [row["reason"] for row in sweep.rows]
    for reason, told in zip(
        (reasons[0], *reasons[2:]),
        ("KeyError", "SystemExit", "InvalidValue", "A100 = -1"),
        strict=True,
    ):
        assert told in reason
    assert sweep.complete


def test_a_method_of_ones_own_and_options_by_point(file):
    def within(problem, budget):
        """The fastest placement that costs at most so much per hour; for no budget nonsense."""
        if budget == 0:
            return dataclasses.replace(pl.solve(problem, "aggregated"), throughput=float("nan"))
        return pl.solve(problem, "aggregated", budget=budget)

    def budgeted(budget):
        return make(2, 3), {"budget": budget}

    points = pl.grid(budget=(0, 2.5, 4.5))
    sweep = quiet(budgeted, points, within, path=file)
    assert [row["status"] for row in sweep.rows] == ["failed", "optimal", "optimal"]
    assert "throughput_tokens_per_s = nan" in sweep.rows[0]["reason"]
    assert sweep.rows[1]["usd_per_hour"] <= 2.5 < sweep.rows[2]["usd_per_hour"] <= 4.5
    assert sweep.rows[1]["throughput_tokens_per_s"] < sweep.rows[2]["throughput_tokens_per_s"]
    assert quiet(budgeted, points, within, path=file).rows[1:] == sweep.rows[1:]


def test_a_sweep_in_which_all_fail_alike_says_so(file):
    with pytest.raises(
        pl.errors.SweepFailed, match=r"all 11 points failed .*TypeError.*make the same call"
    ) as caught:
        quiet(lambda A100: None, POINTS, path=file)
    assert {row["status"] for row in caught.value.sweep.rows} == {"failed"}
    assert file.read_text().count("TypeError") == len(POINTS)
    for call in (make, pytest.fail):  # what failed is computed again, and stands
        assert rows(quiet(call, POINTS, path=file)) == rows(undisturbed())
    # alone, it may well be the point
    assert quiet(lambda A100: None, pl.grid(A100=(1,))).rows[0]["status"] == "failed"
    with pytest.raises(pl.errors.SweepFailed, match="gave int, expected a Result"):
        quiet(make, POINTS, lambda problem: 1)


def test_the_file_gives_back_the_same_rows(tmp_path):
    file, calls = tmp_path / "new folder" / "sweep.csv", []
    fresh = quiet(counted(calls), POINTS, path=file)
    assert len(calls) == len(POINTS)
    # seconds too: nothing was computed
    assert quiet(pytest.fail, POINTS, path=file).rows == fresh.rows
    more = [*POINTS, {"A100": 0, "V100": 9}]
    assert rows(quiet(counted(calls), more, path=file)) == rows(quiet(make, more))
    assert calls[len(POINTS) :] == more[len(POINTS) :]
    with file.open(newline="") as lines:
        table = list(csv.reader(lines))
    assert len(table) == 1 + len(more)
    assert table[0][-2:] == ["method", "options"]
    assert table[1][-2:] == ["aggregated", "{}"]


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_an_interrupted_sweep_goes_on_where_it_stopped(file, tmp_path, jobs):
    fuse = tmp_path / "fuse"
    fuse.touch()

    def interrupted(A100, V100):
        if fuse.exists() and (A100, V100) == (2, 2):
            raise KeyboardInterrupt
        if fuse.exists() and A100 == 2 and jobs == 2:
            time.sleep(0.3)  # the rows before have time to arrive
        return make(A100, V100)

    with pytest.raises(KeyboardInterrupt, match="the same call goes on from there") as caught:
        quiet(interrupted, POINTS, path=file, jobs=jobs)
    partial = caught.value.sweep
    assert not partial.complete
    assert 0 < len(partial.rows) < len(POINTS)
    stood = file.read_text()
    assert stood.count("\n") == 1 + len(partial.rows)
    fuse.unlink()
    assert rows(quiet(interrupted, POINTS, path=file, jobs=jobs)) == rows(undisturbed())
    assert file.read_text().startswith(stood)
    fuse.touch()
    with pytest.raises(
        pl.errors.SweepInterrupted, match=r"they are in this error's \.sweep"
    ) as caught:
        quiet(interrupted, POINTS)
    assert rows(caught.value.sweep) == rows(undisturbed())[:9]


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
def test_an_interrupt_that_a_solver_swallows_ends_the_sweep():
    """A solve ends calmly on Ctrl-C, or leaves no trace of it once its optimum is proven."""

    def calm(problem):
        found = pl.solve(problem, "aggregated")
        return dataclasses.replace(found, status="feasible", stopped_by="interrupt")

    with pytest.raises(pl.errors.SweepInterrupted, match="stopped with 0 of 11 rows"):
        quiet(make, POINTS, calm)
    before, calls = signal.getsignal(signal.SIGINT), []

    def deaf(problem):
        calls.append(problem)
        if len(calls) == 3:
            with contextlib.suppress(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(5)
        return pl.solve(problem, "aggregated")

    with pytest.raises(pl.errors.SweepInterrupted, match="stopped with 2 of 11 rows"):
        quiet(make, POINTS, deaf)
    assert len(calls) == 3
    assert signal.getsignal(signal.SIGINT) is before


SCRIPT = """
    import sys, time
    import pipelab as pl
    sys.path[:0] = {tests!r}
    from test_sweep import POINTS, make
    def slow(**point):
        time.sleep(0.4)
        return make(**point)
    if __name__ == "__main__":
        pl.sweep(slow, POINTS, path={file!r}, jobs=1, progress=False)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
def test_a_sweep_that_is_killed_goes_on_where_it_stopped(file, tmp_path):
    script = tmp_path / "run.py"
    tests = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
    script.write_text(textwrap.dedent(SCRIPT.format(tests=tests, file=str(file))))
    options = {"stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    with subprocess.Popen([sys.executable, str(script)], **options) as process:
        while not (file.exists() and file.read_text().count("\n") >= 3):
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.02)
        process.kill()
    stood = file.read_text()
    done = stood.count("\n") - 1
    assert 2 <= done < len(POINTS)
    calls = []
    assert rows(quiet(counted(calls), POINTS, path=file)) == rows(undisturbed())
    assert len(calls) == len(POINTS) - done
    assert file.read_text().startswith(stood)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
def test_a_point_that_kills_its_worker_is_a_failed_row(file):
    """All others say in two processes what they say in one."""

    def deadly(A100, V100):
        if (A100, V100) == (1, 2):
            os.kill(os.getpid(), signal.SIGKILL)
        return make(A100, V100)

    sweep = quiet(deadly, POINTS, jobs=2, path=file)
    died = POINTS.index({"A100": 1, "V100": 2})
    assert sweep.rows[died]["status"] == "failed"
    assert "the process that worked on it died" in sweep.rows[died]["reason"]
    others = [[*rows(one)[:died], *rows(one)[died + 1 :]] for one in (sweep, undisturbed())]
    assert others[0] == others[1]


def test_what_cannot_be_sent_to_workers_is_named():
    lock = threading.Lock()

    def stuck(**point):
        return lock

    with pytest.raises(
        pl.PipelabError, match=r"the workers cannot run 'stuck' \(.*jobs=1 stays in this one"
    ):
        quiet(stuck, POINTS, jobs=2)


def test_a_torn_last_line_is_computed_again(written):
    text = written.read_bytes()
    last = text.rstrip(b"\n").rfind(b"\n") + 1
    # the last two before the first row was there
    for end in ((last + len(text)) // 2, len(text) - 1, 0, 30):
        written.write_bytes(text[:end])
        assert rows(quiet(make, POINTS, path=written)) == rows(undisturbed())
        assert written.read_bytes()[:last] == text[:last] or end < last
        assert rows(quiet(pytest.fail, POINTS, path=written)) == rows(undisturbed())


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"method": "even"}, "row 2 says method aggregated, this sweep has even"),
        ({"gap": 0.25}, "row 2 says options .*, this sweep has .*0.25"),
        ({"points": POINTS[:5]}, "6 points are not among these, such as A100 = 1, V100 = 2"),
        ({"points": pl.grid(POINTS, batch=(8,))}, "its columns are A100, V100, status"),
    ],
)
def test_the_file_of_another_sweep_is_refused(written, change, told):
    stood = written.read_bytes()
    with pytest.raises(pl.errors.InvalidData, match=f"belongs to another sweep: {told}"):
        quiet(pytest.fail, **{"points": POINTS, "path": written, **change})
    assert written.read_bytes() == stood
    quiet(pytest.fail, POINTS, path=written, time_limit=60)  # but more time may be given


@pytest.mark.parametrize(
    ("column", "cell"),
    [("status", "done"), ("throughput_tokens_per_s", "-12.5"), ("throughput_tokens_per_s", "")],
)
def test_a_broken_file_is_refused_by_row_and_column(file, column, cell):
    point = [{"A100": 2, "V100": 1}]
    quiet(make, point, path=file)
    header, row = csv.reader(file.read_text().splitlines())
    row[header.index(column)] = cell
    for cells, told in (
        (row, f"row 2, column '{column}': .*{cell or 'empty'}"),
        (row[:2], "row 2: 2 cells, expected 17"),
    ):
        with file.open("w", newline="") as lines:
            csv.writer(lines, lineterminator="\n").writerows([header, cells])
        with pytest.raises(pl.errors.InvalidData, match=told):
            quiet(pytest.fail, point, path=file)
    file.write_bytes(b"\xff\xfe\n")
    with pytest.raises(pl.errors.InvalidData, match="belongs to another sweep"):
        quiet(pytest.fail, point, path=file)


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX limits")
def test_a_full_disk_loses_no_row_on_it_and_the_next_call_goes_on(file):
    whole = rows(undisturbed())
    with (
        full_disk(1200),
        pytest.raises(
            pl.errors.InvalidData, match=r"sweep\.csv: cannot be written \(File too large\)"
        ),
    ):
        quiet(make, POINTS, path=file)
    # the line that broke off is computed again
    calls = []
    assert rows(quiet(counted(calls), POINTS, path=file)) == whole
    assert 0 < len(calls) < len(POINTS)
    assert rows(quiet(pytest.fail, POINTS, path=file)) == whole


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("{}/file/below.csv", "a part of this path is a file"),
        ("{}", "the path of a file, not of a folder"),
    ],
)
@pytest.mark.skipif(os.name == "nt", reason="needs POSIX files")
def test_a_file_that_takes_no_rows_is_refused_before_the_first_point(tmp_path, path, told):
    (tmp_path / "file").write_text("")
    with pytest.raises(pl.PipelabError, match=told):
        quiet(pytest.fail, POINTS, path=path.format(tmp_path))


def test_a_point_that_stands_there_twice_is_solved_once_and_numbers_are_pythons(file):
    calls = []
    points = pl.grid(A100=np.array([1, 2, 1]), V100=np.array([2]))
    sweep = quiet(counted(calls), points, path=file)
    assert calls == [{"A100": 1, "V100": 2}, {"A100": 2, "V100": 2}]
    assert sweep.complete
    assert sweep.rows[0] == sweep.rows[2] != sweep.rows[1]
    assert {type(row["A100"]) for row in sweep.rows} == {int}


def test_every_plain_value_survives_the_file(file):
    values = [1, 1.0, "1", True, "true", None, "null", "", "a,b", 'say "a"', "two\nlines", " x", "π", 1e-300, [1, "a"],
              {"H100": 2}, "{}", "NaN", "\u2028", -0.1, 10**20]  # fmt: skip
    assert [value_of(cell(value)) for value in values] == values
    assert [type(value_of(cell(value))) for value in values] == [type(value) for value in values]
    assert len({cell(value) for value in values}) == len(values)
    seen = []

    def noted(value):
        seen.append(value)
        return make(0, 1)

    first = quiet(noted, pl.grid(value=values), path=file)
    assert seen == values
    assert quiet(pytest.fail, pl.grid(value=values), path=file).rows == first.rows


@pytest.mark.slow
def test_a_dask_cluster_takes_over_by_joblibs_switch(tmp_path):
    distributed = pytest.importorskip(
        "distributed", reason="distributed is not installed (the extra 'dask')"
    )
    local = {"n_workers": 1, "threads_per_worker": 2, "processes": True, "dashboard_address": ":0"}

    def here(**point):
        return make(**point), {}

    def notes_its_process(problem):
        found = pl.solve(problem, "aggregated")
        return dataclasses.replace(found, reason=f"{found.reason}|{os.getpid()}")

    with (
        distributed.LocalCluster(**local, local_directory=str(tmp_path)) as cluster,
        distributed.Client(cluster) as client,
        joblib.parallel_config("dask"),
    ):
        (worker,) = client.run(os.getpid).values()
        sweep = quiet(here, POINTS, notes_its_process, jobs=None)
    assert worker != os.getpid()
    marked = [{**row, "reason": f"{row['reason']}|{worker}"} for row in rows(undisturbed())]
    assert rows(sweep) == marked
