"""Notebook 15: a pipeline of processes does what its program says, is measured, and leaves no process behind."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from make_solutions import solution

import pipelab as pl
from pipelab import course
from pipelab.course import n15
from pipelab.course.checks import EXERCISES
from pipelab.course.processes import Circulating, Job, RingProcess

MS = pl.StageCosts(5, 5, 5, unit="ms")


def _rows_of(schedule):
    return [[(action.kind, action.microbatch) for action in row] for row in schedule.actions]


def _rows(name, ranks=4, microbatches=8):
    return _rows_of(pl.schedule(name, ranks, microbatches))


def _slip(old="", new=""):
    return solution("15.2", (old, new))


AHEAD = "min(stage.ranks - 1 - stage.rank, stage.microbatches)"
my_1f1b = _slip()
gpipe, one_at_a_time = _slip(AHEAD, "stage.microbatches"), _slip(AHEAD, "0")
without_min = _slip(AHEAD, "stage.ranks - 1 - stage.rank")
never_sends = _slip("        stage.send(kind, i)\n")
never_receives = _slip("        stage.recv(kind, i)\n")
computes_twice = _slip(
    "stage.compute(kind, i)", "stage.compute(kind, i)\n        stage.compute(kind, i)"
)


def runs_for_ever(stage):
    while stage.rank == 1:
        pass


def fails_on_rank_2(stage):
    if stage.rank == 2:
        raise KeyError("a name")
    gpipe_without_its_source(stage)  # noqa: F821


def an_unknown_kind(stage):
    stage.compute("X", 0)


@pytest.fixture(autouse=True)
def _no_process_is_left():
    before = set(multiprocessing.active_children())  # a sweep's workers stay for the next one
    yield
    assert set(multiprocessing.active_children()) <= before


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", ["1F1B", "ZBH1"])
def test_processes_run_the_rows_in_their_order_and_never_early(name):
    run = course.run_stages(_rows(name), MS, name=name)
    measured, simulated = run.measured, run.simulated
    assert _rows_of(measured.schedule) == _rows(name)
    assert simulated.makespan == pl.simulate(pl.schedule(name, 4, 8), MS).makespan
    stated = simulated.end - simulated.start
    assert (measured.end - measured.start >= stated - 0.01).all()
    assert (measured.end >= simulated.end - 0.01).all()
    # nothing starts before what it waits for has ended
    for arrival in measured.arrivals:
        assert (measured.start >= arrival - 1e-9).all()
    assert run.excess > 0
    assert 0 < run.transit < 1000
    assert 0 < run.startup < 60
    figure = course.plot_measured(run)
    assert figure.layout.title.text.startswith(f"{name}: measured ")
    bars = {"y": set(), "y2": set()}  # the measured lanes above the simulated ones
    for trace in figure.data:
        if trace.name != "idle":
            bars[trace.yaxis or "y"] |= set(np.round(np.array(trace.base, float), 6))
    assert bars["y"] == set(np.round(measured.start, 6))
    assert bars["y2"] == set(np.round(simulated.start, 6))


def test_a_loop_of_the_readers_own_runs_by_its_source():
    run = course.run_stages(my_1f1b, MS, microbatches=5, ranks=3)
    assert _rows_of(run.measured.schedule) == _rows("1F1B", 3, 5)
    assert run.measured.schedule.name == "my_1f1b"


@pytest.mark.slow
def test_a_slow_stage_and_a_slow_link_are_those_of_the_costs():
    costs = pl.StageCosts([5, 5, 20, 5], [5, 5, 20, 5], 5, comm=[0, 0, 30], unit="ms")
    run = course.run_stages(_rows("1F1B"), costs)
    took = run.measured.end - run.measured.start
    slow = run.measured.columns.stage == 2
    assert took[slow].min() >= 20 - 0.01
    sent = run.measured.messages
    far = run.measured.columns.stage[sent.maker] + run.measured.columns.stage[sent.taker] == 5
    assert (sent.arrives - sent.leaves)[far].min() >= 30 - 0.01
    assert far.sum() == 16


@pytest.mark.slow
def test_what_hangs_is_found_within_its_timeout():
    with pytest.raises(pl.errors.InvalidSchedule) as error:
        course.run_stages(never_sends, MS, timeout=0.5)
    assert str(error.value).startswith("this program hangs (no progress for 0.62 s) and cannot be")
    assert error.value.defects[0] == "rank 0 waits for the gradient of microbatch 0 from rank 1"
    assert error.value.defects[1:] == tuple(
        f"rank {rank} waits for the activations of microbatch 0 from rank {rank - 1}"
        for rank in (1, 2, 3)
    )


def test_a_stage_or_message_that_is_only_late_is_not_called_hanging():
    """Rows may be lists, and microbatches numbers of numpy."""
    rows = [[["F", i] for i in np.arange(1)]] * 2
    late = pl.StageCosts(200, 1, 1, comm=300, unit="ms")
    run = course.run_stages(rows, late, timeout=0.05)
    assert run.measured.makespan >= run.simulated.makespan >= 700


@pytest.mark.slow
def test_messages_that_no_pipe_holds_let_1f1b_hang_and_not_gpipe():
    with pytest.raises(pl.errors.InvalidSchedule, match=r"rank 3 sends B0 to rank 2") as error:
        course.run_stages(_rows("1F1B"), MS, message_bytes=2**22, timeout=0.5)
    assert " wait for each other" in course.plot_waits(error.value.defects).layout.title.text
    course.run_stages(_rows("GPipe"), MS, message_bytes=2**22)


@pytest.mark.slow
def test_a_process_that_is_killed_is_told():
    before = set(multiprocessing.active_children())

    def kill():
        while not (children := set(multiprocessing.active_children()) - before):
            time.sleep(0.01)
        children.pop().kill()

    threading.Thread(target=kill).start()
    with pytest.raises(pl.PipelabError, match=r"rank \d failed: its process ended with code"):
        course.run_stages(never_sends, MS, timeout=10)


def test_an_interrupt_ends_the_processes():
    main = threading.get_ident()

    def interrupt():
        while len(multiprocessing.active_children()) < 4:
            time.sleep(0.01)
        time.sleep(0.2)
        signal.pthread_kill(main, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        course.run_stages(never_sends, MS, timeout=60)


_PARENT = """
import os, signal, threading, time, multiprocessing
import pipelab as pl
from pipelab import course

def die():
    while len(multiprocessing.active_children()) < 4:
        time.sleep(0.01)
    time.sleep(1)
    print(*(child.pid for child in multiprocessing.active_children()), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    threading.Thread(target=die).start()
    rows = [[("F", 0), ("B", 0)], [("F", 0), ("F", 1)]] * 2
    course.run_stages(rows, pl.StageCosts(1, 1, 1, unit="ms"), timeout=100)
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="kills its parent by a signal")
def test_processes_end_with_a_kernel_that_is_killed(tmp_path):
    (tmp_path / "parent.py").write_text(_PARENT)
    run = subprocess.run(
        [sys.executable, "parent.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    left = [int(pid) for pid in run.stdout.split()]
    assert len(left) == 4, run.stderr
    for _ in range(100):
        left = [pid for pid in left if _runs(pid)]
        time.sleep(0.1 if left else 0)
    assert left == []


def _runs(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
            return stat.read().split(")")[1].split()[0] != "Z"  # ended, and nobody has asked
    except FileNotFoundError:
        return os.path.isdir("/proc") is False


def takes_one(stage):
    while batch := stage.take_one():
        stage.serve(batch)
        stage.pass_on(batch)


def takes_all(stage):
    while batch := stage.take_all():
        stage.serve(batch)
        stage.pass_on(batch)


@pytest.mark.parametrize("loop", [takes_one, takes_all])
@pytest.mark.parametrize(("layers", "sequences"), [([2, 1], 5), ([1, 2, 1], 2), ([2, 1, 3, 1], 9)])
def test_sequences_pass_the_stages_in_turn_and_those_that_met_never_part(loop, layers, sequences):
    passes = course.run_ring(
        loop, layers, lambda batch: 1 + batch, sequences, rounds=5, pause=(1, 3, 40)
    )
    assert (passes.groupby(["stage", "sequence"]).size() >= 5).all()
    least = np.array(layers)[passes["stage"] - 1] * (1 + passes["batch"])
    assert (passes["end"] - passes["start"] >= least - 0.01).all()
    for _, served in passes.drop_duplicates(["stage", "start"]).groupby("stage"):
        assert (served["start"].values[1:] >= served["end"].values[:-1]).all()
    together = passes.groupby(["stage", "start"])["sequence"].agg(frozenset)
    for _, way in passes.sort_values("start").groupby("sequence"):
        assert (way["start"].values[1:] >= way["end"].values[:-1]).all()
        assert (np.diff(way["stage"]) % len(layers) == 1).all()
        with_it = [together[key] for key in zip(way["stage"], way["start"], strict=True)]
        assert all(before <= after for before, after in pairwise(with_it))
        assert loop is takes_all or len(set(with_it)) == 1
    figure = course.plot_ring({"a loop": passes}, "a title", until=1e6)
    assert list(figure.data[0].text).count("") == together.size  # a gap before each batch


def test_one_batch_or_all_that_wait_are_taken():
    here, there = multiprocessing.Pipe()
    for batch in ([2], [3, 4], [5]):
        there.send(batch)
    ring = Circulating(waiting=[0, 1], passes=9, seconds=[], pause=(0, 0.0))
    stage = RingProcess(Job(1, 2, 0, "", {}), ring, {0: here}, SimpleNamespace(value=b""))
    assert [stage.take_one(), stage.take_one(), stage.take_all()] == [[0, 1], [2], [3, 4, 5]]


def never_passes_on(stage):
    while batch := stage.take_one():
        stage.serve(batch)


def test_a_ring_that_hangs_says_who_waits_for_whom():
    with pytest.raises(pl.errors.InvalidSchedule) as error:
        course.run_ring(never_passes_on, [1, 1], lambda batch: 1, 2, timeout=0.3)
    waits = [f"rank {rank} waits for a batch from rank {1 - rank}, after 0" for rank in (0, 1)]
    assert list(error.value.defects) == waits
    with pytest.raises(pl.errors.InvalidValue, match="layers of at least two stages"):
        course.run_ring(never_passes_on, [1], lambda batch: 1)


@pytest.mark.parametrize(
    ("program", "options", "says"),
    [
        ([], {}, r"program = \[\]: expected at least one rank's row of actions"),
        ([[("F", 0)], []], {}, r"run_stages: program\[1\] = \[\]: expected at least one action"),
        ([[("X", 0)]], {}, r"program\[0\]\[0\]\[0\] = 'X': expected 'F', 'I', 'B' or 'W'"),
        ([["0F0"]], {}, r"program\[0\]\[0\] = '0F0': expected an action such as \(\"F\", 0\)"),
        (lambda stage: None, {}, "made by def"),
        (gpipe, {"microbatches": 0}, "run_stages: microbatches = 0: expected at least 1"),
        (gpipe, {"timeout": -1}, "run_stages: timeout = -1: expected at least 0"),
        (gpipe, {"costs": pl.StageCosts(1, 1, 1)}, 'expected costs with unit="ms"'),
        (gpipe, {"costs": pl.StageCosts([1, 2], 1, 1, unit="ms")}, "or 4 for 4 stages; got 2"),
    ],
)
def test_what_does_not_fit_is_refused_before_processes_start(monkeypatch, program, options, says):
    monkeypatch.setattr(n15, "run_jobs", lambda *_: pytest.fail("processes were started"))
    with pytest.raises(pl.errors.InvalidValue, match=says):
        course.run_stages(program, **{"costs": MS, **options})


@pytest.mark.parametrize(
    ("says", "title", "waits"),
    [
        (
            [
                "rank 0 waits for the gradient of microbatch 1 from rank 1",
                "rank 1 waits for the gradient of microbatch 0 from rank 2",
                "rank 2 sends F1 to rank 1",
                "rank 3 has ended",
            ],
            "Ranks 1 and 2 wait for each other; 0 only waits for them",
            {
                (0, 1): "gradient of microbatch 1",
                (1, 2): "gradient of microbatch 0",
                (2, 1): "sends F1",
            },
        ),
        (
            ["rank 0 waits for the gradient of microbatch 1 from rank 1", "rank 1 computes F1"],
            "No cycle",
            {(0, 1): "gradient of microbatch 1"},
        ),
    ],
)
def test_the_graph_has_an_arrow_for_each_that_waits_and_a_red_cycle(says, title, waits):
    figure = course.plot_waits(says)
    assert figure.layout.title.text.split("<br>")[0] == title
    arrows = [note for note in figure.layout.annotations if note.showarrow]
    texts = [note.text for note in figure.layout.annotations if not note.showarrow]
    drawn = {
        (round(note.ax), round(note.x)): text for note, text in zip(arrows, texts, strict=True)
    }
    assert drawn == waits
    red = [i for i, colour in enumerate(figure.data[0].marker.color) if colour == n15.WRONG]
    assert red == [int(word) for word in title.split(";")[0].split() if word.isdigit()]


# the exercise


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "points", "says"),
    [
        (my_1f1b, 1, "it keeps the rule on all 2 inputs"),
        (gpipe, 0.5, "the last rank holds 8 microbatches. Hint: that is GPipe"),
        (one_at_a_time, 0, "rank 0 holds 1 microbatches, and 1F1B 4"),
        (without_min, 0, "on ranks=4, microbatches=2 yours fails"),
        (never_sends, 0, "and cannot be run: rank 0 waits for"),
        (runs_for_ever, 0, "rank 0 has ended; rank 1 has begun, and has not yet called recv"),
        (never_receives, 0, "F0 is computed before recv('F', 0) (line 3 of your loop). Hint: "),
        (computes_twice, 0, "F0 is computed a second time (line 5 of your loop). Hint: "),
        (fails_on_rank_2, 0, "failed: "),
        (an_unknown_kind, 0, "there is no action X0: the kinds are F, I, W, B"),
        (7, 0, "expected the function itself, as `def my_1f1b(stage):` makes it"),
    ],
)
def test_a_loop_is_right_or_told_why_not(program, points, says):
    earned, why = EXERCISES["15.2"].grade(program)
    assert earned == points
    assert says.lower() in why.lower()
