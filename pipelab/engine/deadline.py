"""When a solve has to end: its time limit, its stop and Ctrl-C in one object, made once and handed down.

Code that lists, builds or searches calls `check` at least every 0.1 s, and `ask` with the progress after every node,
solve or round. The code that created the deadline catches `Ended` and keeps the best result so far.
"""

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from pipelab.engine.solvers.solver_run import Progress
from pipelab.errors import TooLarge
from pipelab.interrupts import noted_interrupts

Made = TypeVar("Made")

clock = time.perf_counter  # of every deadline; a test may put one in its place that counts looks
_POLL_SECONDS = 0.05  # how soon a stop is noticed


class Ended(Exception):
    """A deadline has passed. Never reaches a user: the method that made the deadline catches it.

    Attributes
    ----------
    reason : "stop", "interrupt" or "time limit"
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Criterion(threading.Event):
    """A function of Progress that says when to end, as an event: set once it has said so.

    It is asked at points that depend on work alone. Where a question has parts, their nodes are added up.

    Parameters
    ----------
    ends : function of Progress
    """

    def __init__(self, ends: Callable[[Progress], object]) -> None:
        super().__init__()
        self.ends = ends
        self.known = Progress(seconds=0.0)  # with all nodes so far
        self._last = 0  # nodes of the search that told last
        self._tell: Callable[[Progress, int], bool] = lambda known, more: bool(ends(known))

    def ask(self, moment: Progress) -> None:
        """Ask whether to end now."""
        again = moment.nodes < self._last  # another search has begun
        more = moment.nodes - (0 if again else self._last)
        self._last = moment.nodes
        self._asked(moment, more)

    def _asked(self, moment: Progress, more: int) -> bool:
        self.known = replace(moment, nodes=self.known.nodes + more)
        if not self.is_set() and self._tell(self.known, more):
            self.set()
        return self.is_set()

    def part(self, read: Callable[[Progress], Progress]) -> "Criterion":
        """Return the criterion of a part; `read` makes of its progress that of the whole, but for the nodes."""
        part = Criterion(self.ends)
        part._tell = lambda known, more: self._asked(read(known), more)
        if self.is_set():
            part.set()
        return part


Stop = threading.Event | Callable[[Progress], object] | None


def stop_of(stop: Stop) -> threading.Event | None:
    """Return what a user gave as an event."""
    if stop is None or isinstance(stop, threading.Event):
        return stop
    return Criterion(stop)


def apart(stop: threading.Event | None) -> threading.Event | None:
    """Return the stop of a side question, whose incumbents and bounds are not those of the whole."""
    if not isinstance(stop, Criterion):
        return stop
    return stop.part(lambda moment: replace(stop.known, seconds=moment.seconds))


class Deadline:
    """When to end: at a time, or earlier on request.

    Parameters
    ----------
    seconds : float or None
        From now on; None: without end.
    stop : threading.Event or None
        Set from anywhere to end, or a `Criterion`.
    interrupted : function without arguments
        Whether Ctrl-C was pressed; see `noted_interrupts`.

    Attributes
    ----------
    began, end : float
        By `clock`; `end` is infinite where time is not limited.
    work : float
        Seconds that a part may take of work that a solver counts (`within`); infinite where a clock counts.
    notes : list of str
        What the result of the call has to say about how it was found; parts of a deadline share it.

    Examples
    --------
    >>> Deadline(0).reason, Deadline(60).reason, NEVER.reason
    ('time limit', None, None)
    """

    def __init__(
        self,
        seconds: float | None = None,
        stop: threading.Event | None = None,
        interrupted: Callable[[], bool] = lambda: False,
    ) -> None:
        self.began = clock()
        self.end = math.inf if seconds is None else self.began + float(seconds)
        self.stop = stop
        self.interrupted = interrupted
        self.work = math.inf
        self.notes: list[str] = []

    @property
    def asks(self) -> bool:
        """Whether a criterion is asked."""
        return isinstance(self.stop, Criterion)

    @property
    def by_work(self) -> bool:
        """Whether work alone decides on the end, so that the answer is the same on every machine."""
        return self.asks and not self.limited

    @property
    def limited(self) -> bool:
        """Whether time is limited at all."""
        return self.end < math.inf

    @property
    def spent(self) -> float:
        """Seconds since it was made."""
        return clock() - self.began

    @property
    def left(self) -> float:
        """Seconds to its end, at least 0; infinite where time is not limited."""
        return max(0.0, self.end - clock())

    def share(self, parts: int = 1) -> float | None:
        """Return an equal share of the seconds left, as a `time_limit`; None where time is not limited."""
        return self.left / parts if self.limited else None

    def part(self, parts: int = 1) -> dict[str, Any]:
        """Return time limit and stop of one of so many questions that share the seconds left."""
        return {"time_limit": self.share(parts), "stop": apart(self.stop)}

    @property
    def called_off(self) -> str | None:
        """ "stop" or "interrupt" if an end was requested, whatever the time; else None."""
        if self.stop is not None and self.stop.is_set():
            return "stop"
        return "interrupt" if self.interrupted() else None

    @property
    def reason(self) -> str | None:
        """What ended it: "stop", "interrupt" or "time limit"; None before the end."""
        return self.called_off or ("time limit" if clock() >= self.end else None)

    def check(self) -> None:
        """Raise `Ended` once there is a reason; costs less than a microsecond."""
        reason = self.reason
        if reason is not None:
            raise Ended(reason)

    def slices(self, number: int, step: int) -> Iterator[slice]:
        """Cut so many rows into parts of `step`; `check` before each."""
        for first in range(0, number, step):
            self.check()
            yield slice(first, first + step)

    def ask(self, moment: Progress) -> None:
        """Ask the criterion, if there is one, whether to end now."""
        if isinstance(self.stop, Criterion):
            self.stop.ask(moment)

    def tell(self, on_progress: Callable | None = None, **known: Any) -> Progress:
        """Make the progress of this moment of what is known; hand it to `on_progress`, and ask the criterion."""
        moment = Progress(seconds=self.spent, **known)
        if on_progress is not None:
            on_progress(moment)
        self.ask(moment)
        return moment

    def counts(self) -> None:
        """Count another question that was answered on the way, and ask."""
        self.apart().tell(nodes=1)

    def within(self, seconds: float) -> "Deadline":
        """Return a deadline with the same stop and Ctrl-C, at most `seconds` from now and never after this one.

        Where work decides, solvers count these seconds as work: no clock ends the part.
        """
        part = Deadline(
            math.inf if self.by_work else min(seconds, self.left), self.stop, self.interrupted
        )
        part.work = min(seconds, self.work) if self.by_work else math.inf
        part.notes = self.notes
        return part

    def apart(self) -> "Deadline":
        """Return a deadline that ends at this moment for a side question; see the function `apart`."""
        part = self.within(math.inf)
        part.stop = apart(self.stop)
        return part

    def remark(self, reason: str = "") -> str:
        """Return a result's reason with the notes."""
        return "; ".join(dict.fromkeys([reason, *self.notes] if reason else self.notes))


NEVER = Deadline()


def made_in_time(make: Callable[[Deadline], Made], deadline: Deadline, late: float = 0.3) -> Made:
    """Run `make(deadline)`. If the deadline has passed, allow at most `late` seconds more.

    For steps that take a moment on most problems, and without which there is no result at all.

    Raises
    ------
    Ended
        `make` takes longer.
    """
    try:
        return make(deadline)
    except Ended as end:
        try:
            return make(NEVER if deadline.by_work else Deadline(late))
        except Ended:
            raise end from None


def waited_for(
    make: Callable[[], Made],
    deadline: Deadline,
    interrupt: Callable[[], object] = lambda: None,
    grace: float = 0.0,
    name: str = "pipelab-made",
) -> Made:
    """Run `make()` in a thread of its own, and do not wait for it longer than the deadline.

    For single steps of numpy, scipy and solvers that take seconds. The thread then ends by itself.

    Parameters
    ----------
    make : function without arguments
    deadline : Deadline
    interrupt : function without arguments
        Asks `make` to end. Called after the deadline, again and again until `make` ends: a solver
        forgets a request that comes before it starts.
    grace : float
        Seconds after the deadline in which `make` may still end in order, and return what it has.
    name : str
        Of the thread.

    Raises
    ------
    Ended
        The deadline was first, and `make` took longer than the grace.
    """
    made: list[Made] = []
    failure: list[BaseException] = []
    done = threading.Event()

    def work() -> None:
        try:
            made.append(make())
        except BaseException as error:  # carried over to the thread that waits
            failure.append(error)
        finally:
            done.set()

    if deadline.asks:
        deadline.check()
    threading.Thread(target=work, name=name, daemon=True).start()
    reason, patience = None, math.inf
    while not done.wait(_POLL_SECONDS):
        if reason is None and (reason := deadline.reason) is not None:
            # a solver that its own work has ended ends in order, however long that takes
            patience = math.inf if deadline.asks and reason == "stop" else clock() + grace
        if reason is not None:
            interrupt()
            if clock() >= patience:
                raise Ended(reason)
    if failure:
        raise failure[0]
    return made[0]


@contextmanager
def deadline_of(time_limit: float | None, stop: Stop = None) -> Iterator[Deadline]:
    """Return the deadline of one call by a user, in which Ctrl-C is noted and not raised.

    Parameters
    ----------
    time_limit : float or None
        Seconds.
    stop : threading.Event, function of Progress, or None
        Given by the user.

    Raises
    ------
    TooLarge
        The memory of this machine does not suffice.
    """
    with noted_interrupts(passed_on=False) as interrupted:
        try:
            yield Deadline(time_limit, stop_of(stop), interrupted)
        except MemoryError as error:
            why = f"this needs more memory than there is ({error}); take fewer layers or GPUs"
            raise TooLarge(why) from None
