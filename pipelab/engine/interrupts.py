"""Ctrl-C noted on its way, so that whoever must not be torn apart by it can look when it suits.

Python handles signals in its main thread only, and there KeyboardInterrupt may come up between any
two steps: also between starting a solver and waiting for it.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any


@contextmanager
def noted_interrupts(*, passed_on: bool) -> Iterator[Callable[[], bool]]:
    """Within it, what it yields says whether Ctrl-C has been pressed.

    Also before it began, where another one is around it.

    Parameters
    ----------
    passed_on : bool
        Whether KeyboardInterrupt is raised nevertheless, wherever the main thread happens to be.
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
