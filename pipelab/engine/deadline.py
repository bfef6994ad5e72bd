"""When a solve has to end: its time limit, its stop and Ctrl-C in one object, made once and handed down.

Code that lists, builds or searches calls `check` at least every 0.1 s. The code that created the
deadline catches `Ended` and keeps the best result so far.
"""

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

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


class Deadline:
    """When to end: at a time, or earlier on request.

    Parameters
    ----------
    seconds : float or None
        From now on; None: without end.
    stop : threading.Event or None
        Set from anywhere to end.
    interrupted : function without arguments
        Whether Ctrl-C was pressed; see `noted_interrupts`.

    Attributes
    ----------
    began, end : float
        By `clock`; `end` is infinite where time is not limited.
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
        self.notes: list[str] = []

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
        """An equal share of the seconds left, as a `time_limit`; None where time is not limited."""
        return self.left / parts if self.limited else None

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

    def within(self, seconds: float) -> "Deadline":
        """A deadline with the same stop and Ctrl-C, at most `seconds` from now and never after this one."""
        part = Deadline(min(seconds, self.left), self.stop, self.interrupted)
        part.notes = self.notes
        return part

    def remark(self, reason: str = "") -> str:
        """A result's reason with the notes."""
        return "; ".join(dict.fromkeys([reason, *self.notes] if reason else self.notes))


class Watched(Deadline):
    """A deadline that calls `tick` from `check` every `every` seconds.

    Parameters
    ----------
    deadline : Deadline
    tick : function without arguments
    every : float
        Seconds.
    """

    def __init__(self, deadline: Deadline, tick: Callable[[], None], every: float) -> None:
        super().__init__(None, deadline.stop, deadline.interrupted)
        self.began, self.end, self.notes = deadline.began, deadline.end, deadline.notes
        self.tick, self.every = tick, every
        self._last = clock()

    def check(self) -> None:
        """See `Deadline.check`."""
        super().check()
        if clock() >= self._last + self.every:
            self._last = clock()
            self.tick()


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
            return make(Deadline(late))
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

    threading.Thread(target=work, name=name, daemon=True).start()
    reason, patience = None, math.inf
    while not done.wait(_POLL_SECONDS):
        if reason is None and (reason := deadline.reason) is not None:
            patience = clock() + grace
        if reason is not None:
            interrupt()
            if clock() >= patience:
                raise Ended(reason)
    if failure:
        raise failure[0]
    return made[0]


@contextmanager
def deadline_of(
    time_limit: float | None, stop: threading.Event | None = None
) -> Iterator[Deadline]:
    """The deadline of one call by a user, in which Ctrl-C is noted and not raised.

    Parameters
    ----------
    time_limit : float or None
        Seconds.
    stop : threading.Event or None
        Given by the user.

    Raises
    ------
    TooLarge
        The memory of this machine does not suffice.
    """
    with noted_interrupts(passed_on=False) as interrupted:
        try:
            yield Deadline(time_limit, stop, interrupted)
        except MemoryError as error:
            why = f"this needs more memory than there is ({error}); take fewer layers or GPUs"
            raise TooLarge(why, {}) from None
