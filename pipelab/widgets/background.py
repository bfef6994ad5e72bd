"""Work in threads beside the kernel's loop: a newer job cancels the older one, and a sign shows slow jobs."""

import asyncio
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

SIGN_AFTER_S = 0.3  # a job that takes longer shows a sign
# one mark for each job of this kernel whose result is not shown yet
pending: set[object] = set()


async def at_rest() -> None:
    """Wait until every explorer of this kernel shows everything it computes without a further input."""
    while pending:
        await asyncio.sleep(0.1)


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the loop of a notebook's kernel; None in a script or a test."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class Beside:
    """Runs jobs in a thread and returns their results on the calling loop, where widgets may be changed.

    Without a loop (in a script or a test) a job runs at once, and `later` does nothing.

    Parameters
    ----------
    sign : function of bool
        Called with True once a job takes longer than `SIGN_AFTER_S`, and with False when it is
        over.
    """

    def __init__(self, sign: Callable[[bool], None]) -> None:
        self._sign = sign
        self._stop = threading.Event()
        self._number = 0
        # Two, so that a newer job need not wait until an older one notices that it is cancelled.
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="pipelab-explore")

    @property
    def follows(self) -> bool:
        """Whether there is a loop, so that `later` does anything."""
        return running_loop() is not None

    def run(
        self,
        job: Callable[[threading.Event], Any],
        then: Callable[[Any, BaseException | None], None],
    ) -> None:
        """Start `job(stop)`; `then(value, error)` follows unless a newer job was started in between."""
        self.cancel()
        stop, number = self._stop, self._number
        loop = running_loop()
        if loop is None:
            then(*_outcome(job, stop))
            return

        def too_long() -> None:
            if number == self._number:
                self._sign(True)

        timer = loop.call_later(SIGN_AFTER_S, too_long)

        mark = object()
        pending.add(mark)

        def done(value: Any, error: BaseException | None) -> None:
            timer.cancel()
            pending.discard(mark)
            if number == self._number:
                self._sign(False)
                then(value, error)

        def work() -> None:
            value, error = _outcome(job, stop)
            loop.call_soon_threadsafe(done, value, error)

        self._threads.submit(work)

    def later(
        self,
        items: Callable[[threading.Event], Iterable],
        each: Callable[[Any], None],
        wait_s: float,
    ) -> None:
        """After `wait_s` without a newer job: iterate `items(stop)` in a thread, and call `each` on the loop."""
        stop, number = self._stop, self._number
        loop = running_loop()
        if loop is None:
            return

        mark = object()
        pending.add(mark)

        def arrived(item: Any) -> None:
            if number == self._number:
                each(item)

        def work() -> None:
            try:
                for item in items(stop):
                    if stop.is_set():
                        return
                    loop.call_soon_threadsafe(arrived, item)
            except Exception as error:  # no caller waits for this thread: report it on the loop
                context = {"message": "looking further failed", "exception": error}
                loop.call_soon_threadsafe(loop.call_exception_handler, context)
            finally:
                loop.call_soon_threadsafe(pending.discard, mark)

        def start() -> None:
            if number == self._number:
                self._threads.submit(work)
            else:
                pending.discard(mark)

        loop.call_later(wait_s, start)

    def cancel(self) -> None:
        """Cancel the running job; its result is dropped."""
        self._stop.set()
        self._stop = threading.Event()
        self._number += 1


def _outcome(
    job: Callable[[threading.Event], Any], stop: threading.Event
) -> tuple[object, BaseException | None]:
    try:
        return job(stop), None
    except Exception as error:  # the caller shows it
        return None, error
