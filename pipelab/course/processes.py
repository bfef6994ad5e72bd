"""A pipeline of processes: each is one stage, takes a stated time for its work, and sends its results on.

The processes are spawned, as they are on every system, and import this module: it imports neither
NumPy nor the engine, so that they start within a fraction of a second.
"""

import inspect
import os
import signal
import textwrap
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import inf
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

from pipelab.errors import InvalidSchedule, InvalidValue, PipelabError

Row = Sequence[tuple[str, int]]  # the actions of a rank: kind and microbatch

clock = time.perf_counter  # counts from one moment for all processes of a machine

_LOOP = "<your loop>"
_STARTING = 60.0  # seconds without another process that has started, until they are given up
_BEFORE = b"is starting"  # the state of a process that has not started


class Circulating(NamedTuple):
    """What one process is given whose pipeline is a ring, in which sequences circulate."""

    waiting: list[int]  # the sequences that wait here at the start
    passes: int  # through this stage, until the sequences of all stages have ended
    seconds: list[float]  # of a batch, by its number of sequences less one
    pause: tuple[int, float]  # after so many batches, once: seconds


class Job(NamedTuple):
    """What one process is given."""

    rank: int
    ranks: int
    microbatches: int
    program: Row | str  # its actions, or the source of a function that takes a StageProcess
    work: dict[str, float]  # of F, I, B and W: seconds
    delays: dict[int, float] = {}  # seconds that a message takes from a neighbour  # noqa: RUF012
    message_bytes: int = 0
    circulating: Circulating | None = None


class Report(NamedTuple):
    """What a process says at its end; all times by the common clock, from the start."""

    actions: list[tuple[str, int, float, float]]  # kind, microbatch or sequence, start, end
    transits: list[float]  # of messages that were waited for: from sending to receiving


class StageProcess:
    """One rank, as its program sees it.

    Attributes
    ----------
    rank, ranks, microbatches : int
        Its place, and the numbers of ranks and of microbatches.
    """

    def __init__(self, job: Job, pipes: dict[int, Connection], state: Any) -> None:
        self.rank, self.ranks, self.microbatches = job.rank, job.ranks, job.microbatches
        self._job, self._pipes, self._state = job, pipes, state
        self._arrives: dict[tuple[str, int], float] = {}  # when a message may be used
        self._done: set[tuple[str, int]] = set()
        self._once: set[tuple[str, str, int]] = set()  # what a loop may not repeat for ever
        self.report = Report([], [])

    def recv(self, kind: str, microbatch: int) -> None:
        """Wait for what an action needs from a neighbour; at the ends of the pipeline, for nothing."""
        source = self.rank + (-1 if kind == "F" else 1)
        if kind == "W" or source not in self._pipes:
            return
        needed = _result(kind), microbatch
        if self._arrives.get(needed, inf) <= clock():
            return
        what = "activations" if kind == "F" else "gradient"
        self._says(f"waits for the {what} of microbatch {microbatch} from rank {source}")
        while needed not in self._arrives:
            asked = clock()
            result, sent, _ = self._pipes[source].recv()
            if asked < sent:
                self.report.transits.append(clock() - sent)
            self._arrives[result] = sent + self._job.delays.get(source, 0.0)
        time.sleep(max(0.0, self._arrives[needed] - clock()))

    def compute(self, kind: str, microbatch: int) -> None:
        """Work for as long as this kind of action takes, and note start and end."""
        if kind not in self._job.work or microbatch not in range(self.microbatches):
            raise ValueError(
                f"there is no action {kind}{microbatch}: the kinds are {', '.join(self._job.work)}, "
                f"the microbatches 0 to {self.microbatches - 1}"
            )
        needed_here = {"F": [], "W": [("I", microbatch)]}.get(kind, [("F", microbatch)])
        if missing := [f"{made}{i}" for made, i in needed_here if (made, i) not in self._done]:
            raise ValueError(f"{kind}{microbatch} is computed before {missing[0]}")
        source = self.rank + (-1 if kind == "F" else 1)
        needed = _result(kind), microbatch
        if kind != "W" and source in self._pipes and needed not in self._arrives:
            raise ValueError(f"{kind}{microbatch} is computed before recv({kind!r}, {microbatch})")
        self._only_once("computed", kind, microbatch)
        self._says(f"computes {kind}{microbatch}")
        start = clock()
        time.sleep(self._job.work[kind])
        self.report.actions.append((kind, microbatch, start, clock()))
        self._done.add((_result(kind), microbatch))

    def send(self, kind: str, microbatch: int) -> None:
        """Send an action's result to the neighbour that needs it; at the ends, and for W, to nobody."""
        target = self.rank + (1 if kind == "F" else -1)
        if kind == "W" or target not in self._pipes:
            return
        if (_result(kind), microbatch) not in self._done:
            raise ValueError(f"{kind}{microbatch} is sent before it is computed")
        self._only_once("sent", kind, microbatch)
        self._says(f"sends {kind}{microbatch} to rank {target}")
        data = bytes(self._job.message_bytes)
        self._pipes[target].send(((_result(kind), microbatch), clock(), data))

    def _only_once(self, what: str, kind: str, microbatch: int) -> None:
        """Refuse a repetition: each changes the state, so a loop that repeats never seems to hang."""
        if (what, kind, microbatch) in self._once:
            raise ValueError(f"{kind}{microbatch} is {what} a second time")
        self._once.add((what, kind, microbatch))

    def _says(self, text: str) -> None:
        self._state.value = text.encode()


class RingProcess(StageProcess):
    """One stage of a ring, as its loop sees it: batches of sequences come from the stage before, and go to the next."""

    def __init__(
        self, job: Job, ring: Circulating, pipes: dict[int, Connection], state: Any
    ) -> None:
        super().__init__(job, pipes, state)
        self._ring = ring
        self._waiting = [ring.waiting] if ring.waiting else []
        self._batches = 0  # that went on

    def take_one(self) -> list[int]:
        """Wait for a batch, and take the one that came first; after the last pass an empty one."""
        self._wait_for_a_batch()
        return self._waiting.pop(0) if self._waiting else []

    def take_all(self) -> list[int]:
        """Wait for a batch, and take all that wait, as one; after the last pass an empty one."""
        self._wait_for_a_batch()
        taken = [sequence for batch in self._waiting for sequence in batch]
        self._waiting.clear()
        return taken

    def _wait_for_a_batch(self) -> None:
        """Let what has come wait here: at least one batch, and none after the last pass."""
        if len(self.report.actions) >= self._ring.passes:
            self._waiting.clear()
            return
        before = (self.rank - 1) % self.ranks
        self._says(f"waits for a batch from rank {before}, after {self._batches}")
        while not self._waiting or self._pipes[before].poll():
            self._waiting.append(self._pipes[before].recv())

    def serve(self, batch: Sequence[int]) -> None:
        """Work for as long as a batch of this size takes, and note start and end for each of its sequences."""
        self._says(f"serves batch {self._batches}")
        start = clock()
        time.sleep(self._ring.seconds[len(batch) - 1])
        end = clock()
        self.report.actions.extend(("F", sequence, start, end) for sequence in batch)

    def pass_on(self, batch: Sequence[int]) -> None:
        """Send a batch to the next stage, from the last one to the first."""
        self._says(f"sends batch {self._batches}")
        self._pipes[(self.rank + 1) % self.ranks].send(list(batch))
        self._batches += 1
        if self._batches == self._ring.pause[0]:
            time.sleep(self._ring.pause[1])


def _result(kind: str) -> str:
    """Return which result an action makes: a full backward makes an input gradient, too."""
    return "I" if kind == "B" else kind


def _process(job: Job, pipes: dict[int, Connection], parent: Connection, state: Any) -> None:
    """Run one stage; what the process of a stage does from its start to its end."""
    # an interrupt is the parent's, which ends this process
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        if job.circulating is None:
            stage = StageProcess(job, pipes, state)
        else:
            stage = RingProcess(job, job.circulating, pipes, state)
        program = _loop(job.program) if isinstance(job.program, str) else None
        parent.send("ready")
        start = parent.recv()
        time.sleep(max(0.0, start - clock()))
        if program:
            program(stage)
        else:
            _follow(stage, job.program)
        state.value = b"has ended"
        done = stage.report.actions
        actions = [(kind, i, begin - start, end - start) for kind, i, begin, end in done]
        parent.send(stage.report._replace(actions=actions))
    except Exception as error:  # whatever a reader's loop raises
        parent.send(_told(error))
    parent.poll(None)  # what it sent may still be on its way to a neighbour


def _follow(stage: StageProcess, row: Any) -> None:
    for kind, microbatch in row:
        stage.recv(kind, microbatch)
        stage.compute(kind, microbatch)
        stage.send(kind, microbatch)


def _loop(source: str) -> Callable[[StageProcess], object]:
    names: dict[str, Any] = {}
    exec(compile(source, _LOOP, "exec"), names)
    return next(value for name, value in names.items() if name != "__builtins__")


def _told(error: Exception) -> str:
    """Return an error in one line, with the line of the reader's loop."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == _LOOP]
    where = f" (line {lines[-1]} of your loop)" if lines else ""
    return f"{type(error).__name__}: {error}{where}"


def _end_with_parent() -> None:
    """End this process as soon as its parent is gone, however that ended."""
    if parent := parent_process():
        parent.join()
        os._exit(1)


# In the notebook's kernel


def source_of(program: Callable[..., object]) -> str:
    """Return the source of a reader's loop, which the processes run.

    Raises
    ------
    InvalidValue
        It has no source, or is not a function made by `def`.
    """
    expected = "expected a function of one argument, made by def in a cell or a file"
    try:
        source = textwrap.dedent(inspect.getsource(program))
    except (OSError, TypeError):
        source = ""
    if not source.startswith("def "):
        raise InvalidValue("run_stages", [("program", program, expected)])
    return source


def run_jobs(jobs: Sequence[Job], timeout: float) -> tuple[list[Report], float]:
    """Run one process per job; whatever happens, none is left.

    Parameters
    ----------
    jobs : sequence of Job
        Of all ranks, in order; those with `ranks=1` have no neighbours.
    timeout : float
        Seconds after which processes of which none goes on are ended.

    Returns
    -------
    list of Report, float
        Of every process, and the seconds until all had started.

    Raises
    ------
    InvalidSchedule
        No process goes on: says what each of them waits for.
    PipelabError
        A process failed: says which, and why. Or some processes have not started within a minute.
    """
    context, began = get_context("spawn"), clock()
    pipes: list[dict[int, Connection]] = [{} for _ in jobs]
    neighbours = [(left, left + 1) for left, job in enumerate(jobs[:-1]) if job.ranks > 1]
    if jobs[0].circulating:
        neighbours.append((len(jobs) - 1, 0))
    for one, other in neighbours:
        pipes[one][other], pipes[other][one] = context.Pipe()
    states = [context.RawArray("c", 120) for _ in jobs]
    for state in states:
        state.value = _BEFORE
    ends = [context.Pipe() for _ in jobs]
    parts = zip(jobs, pipes, (theirs for _, theirs in ends), states, strict=True)
    processes = [context.Process(target=_process, args=part, daemon=True) for part in parts]
    reports = [report for report, _ in ends]
    connections = [*(one for end in ends for one in end), *(p for of in pipes for p in of.values())]
    with _ended(processes, connections):
        for process in processes:
            process.start()
        _heard(processes, reports, states, _STARTING)
        started = clock() - began
        start = clock() + 0.01
        for report, state in zip(reports, states, strict=True):
            state.value = b"has begun, and has not yet called recv, compute or send"
            report.send(start)
        return _heard(processes, reports, states, timeout), started


@contextmanager
def _ended(processes: Sequence[Any], connections: Sequence[Connection]) -> Iterator[None]:
    """End all processes and close what joined them, whatever happens in between."""
    try:
        yield
    finally:
        started = [process for process in processes if process.pid is not None]
        for process in started:
            process.kill()
        for process in started:
            process.join()
            process.close()
        for connection in connections:
            connection.close()


def _heard(
    processes: Sequence[Any], reports: Sequence[Connection], states: Sequence[Any], timeout: float
) -> list[Any]:
    """Return what every process says next, unless one fails or none goes on for so long."""
    said: dict[int, Any] = {}
    before, since = (0, [b""]), clock()
    while len(said) < len(processes):
        left = {reports[rank]: rank for rank in range(len(processes)) if rank not in said}
        ended = {process.sentinel: rank for rank, process in enumerate(processes)}
        for one in wait([*left, *ended], 0.05):
            rank = left[one] if one in left else ended[one]
            if not reports[rank].poll():  # it has nothing more to say
                code = processes[rank].exitcode
                raise PipelabError(f"rank {rank} failed: its process ended with code {code}")
            said[rank] = reports[rank].recv()
            if isinstance(said[rank], str) and said[rank] != "ready":
                raise PipelabError(f"rank {rank} failed: {said[rank]}")
        now = [state.value for state in states]
        if (len(said), now) != before:
            before, since = (len(said), now), clock()
        elif clock() - since > timeout:
            late = [rank for rank, text in enumerate(now) if text == _BEFORE and rank not in said]
            if late:
                raise PipelabError(
                    f"the processes of ranks {', '.join(map(str, late))} have not started (no "
                    f"progress for {timeout:.3g} s), so nothing has run: try again when this machine "
                    "is less busy, or with fewer ranks"
                )
            stands = [f"rank {rank} {text.decode()}" for rank, text in enumerate(now)]
            hangs = f"this program hangs (no progress for {timeout:.3g} s) and"
            raise InvalidSchedule(stands, hangs)
    return [said[rank] for rank in range(len(processes))]
