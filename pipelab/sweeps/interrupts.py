"""Ctrl-C ends a sweep, even where it meets a solver that takes it for its own.

A solve that is interrupted ends calmly with the best it has; in a sweep with one process the
next point would simply follow. So the signal is noted on its way.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipelab.kinds import DataFrame

__all__ = ["noted_interrupts"]


@contextmanager
def noted_interrupts() -> Iterator[Callable[[], None]]:
    """Within it, calling what it yields raises KeyboardInterrupt once one has arrived.

    Python handles signals in its main thread only; in another one there is nothing to note.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield lambda: None
        return
    arrived = threading.Event()

    def note(number: Any, frame: "DataFrame") -> None:
        arrived.set()
        before(number, frame)

    def check() -> None:
        if arrived.is_set():
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, note)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)
