"""Work in threads beside the kernel's loop: a newer job cancels the older one, and a sign shows slow jobs."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

SIGN_AFTER_S = 0.3  # a job that takes longer shows a sign
# the tasks of this kernel that an explorer waits for
pending: set[asyncio.Task] = set()
_NO_MORE = object()


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


def follow(task: asyncio.Task) -> None:
    """Let `at_rest` wait for a task, and the loop report what it raises, since no caller waits for it."""

    def ended(task: asyncio.Task) -> None:
        pending.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            context = {"message": "an explorer's work failed", "exception": error}
            task.get_loop().call_exception_handler(context)

    pending.add(task)
    task.add_done_callback(ended)


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
        self._tasks: list[asyncio.Task] = []
        # Two, so that a newer job need not wait until an older one notices that it is cancelled.
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="pipelab-explore")

    def run(
        self,
        job: Callable[[threading.Event], Any],
        then: Callable[[Any, BaseException | None], None],
    ) -> None:
        """Start `job(stop)`; `then(value, error)` follows unless a newer job was started in between."""
        self._drop()
        loop, stop = running_loop(), self._stop
        if loop is None:
            then(*outcome(job, stop))
            return
        work = loop.run_in_executor(self._threads, outcome, job, stop)
        timer = loop.call_later(SIGN_AFTER_S, lambda: stop.is_set() or self._sign(True))

        async def wait() -> None:
            try:
                value, error = await work
            finally:
                timer.cancel()
            self._sign(False)
            then(value, error)

        self._start(wait())

    def later(
        self,
        items: Callable[[threading.Event], Iterator],
        take: Callable[[Any], None],
        wait_s: float,
    ) -> None:
        """Iterate `items(stop)` in a thread after `wait_s` without a newer job, and `take` each on the loop."""
        loop, stop = running_loop(), self._stop
        if loop is None:
            return

        async def iterate() -> None:
            await asyncio.sleep(wait_s)
            known = items(stop)
            while True:
                item = await loop.run_in_executor(self._threads, next, known, _NO_MORE)
                if item is _NO_MORE:
                    return
                take(item)

        self._start(iterate())

    def cancel(self) -> None:
        """Cancel the running job; its result is dropped, and the sign goes."""
        self._drop()
        self._sign(False)

    def _drop(self) -> None:
        self._stop.set()
        self._stop = threading.Event()
        for task in self._tasks:
            task.cancel()
        self._tasks = []

    def _start(self, work: Coroutine) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.append(task)
        follow(task)


def outcome(
    job: Callable[[threading.Event], Any], stop: threading.Event
) -> tuple[Any, BaseException | None]:
    """Return what a job comes to, or what it raises."""
    try:
        return job(stop), None
    except Exception as error:  # the caller shows it
        return None, error
