"""Note Ctrl-C without raising KeyboardInterrupt, for code that must not be interrupted anywhere.

Python handles signals in its main thread only, where KeyboardInterrupt may be raised between any two
steps: also between starting a solver and waiting for it.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any


@contextmanager
def noted_interrupts(*, passed_on: bool) -> Iterator[Callable[[], bool]]:
    """Yield a function that says whether Ctrl-C has been pressed.

    If another such context encloses this one, Ctrl-C counts from the beginning of that one.

    Parameters
    ----------
    passed_on : bool
        Whether KeyboardInterrupt is raised as well, wherever the main thread is.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield lambda: False
        return
    arrived: list[int] = getattr(before, "arrived", [])

    def note(number: int, frame: Any) -> None:
        arrived.append(number)
        if passed_on:
            before(number, frame)
            return
        with suppress(KeyboardInterrupt):
            before(number, frame)  # it may note the signal, too

    setattr(note, "arrived", arrived)  # noqa: B010 - a type checker knows no such attribute
    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(arrived)
    finally:
        signal.signal(signal.SIGINT, before)
