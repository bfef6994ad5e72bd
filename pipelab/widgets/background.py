"""Work beside the kernel's loop: one job at a time, a newer one ends the older, and a sign if it takes longer."""

import asyncio
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

SIGN_AFTER_S = 0.3  # what takes longer says that it is at work
# one mark for whatever is at work in this kernel and has not been shown yet
under_way: set[object] = set()


async def at_rest() -> None:
    """Wait until every explorer of this kernel shows all that it was going to show by itself."""
    while under_way:
        await asyncio.sleep(0.1)


class Beside:
    """Runs jobs in a thread and hands their results back on the loop that asked, where widgets may be touched.

    Without a loop (in a script or a test) a job runs at once, and what would come later does not
    come.

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
        # Two, so that a newer job need not wait for an older one to notice that it is not wanted
        # any more.
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="pipelab-explore")

    def run(
        self,
        job: Callable[[threading.Event], Any],
        then: Callable[[Any, BaseException | None], None],
    ) -> None:
        """Start `job(stop)`; `then(value, error)` follows unless a newer job was started in between."""
        self.cancel()
        stop, number = self._stop, self._number
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            then(*_outcome(job, stop))
            return

        def too_long() -> None:
            if number == self._number:
                self._sign(True)

        timer = loop.call_later(SIGN_AFTER_S, too_long)

        mark = object()
        under_way.add(mark)

        def done(value: Any, error: BaseException | None) -> None:
            timer.cancel()
            under_way.discard(mark)
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
        """When nothing happened for so long: go through `items(stop)` in a thread, `each` on the loop."""
        stop, number = self._stop, self._number
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return

        mark = object()
        under_way.add(mark)

        def arrived(item: Any) -> None:
            if number == self._number:
                each(item)

        def work() -> None:
            try:
                for item in items(stop):
                    if stop.is_set():
                        return
                    loop.call_soon_threadsafe(arrived, item)
            except Exception as error:  # nobody waits for this thread: the loop tells of it
                told = {"message": "looking further failed", "exception": error}
                loop.call_soon_threadsafe(loop.call_exception_handler, told)
            finally:
                loop.call_soon_threadsafe(under_way.discard, mark)

        def start() -> None:
            if number == self._number:
                self._threads.submit(work)
            else:
                under_way.discard(mark)

        loop.call_later(wait_s, start)

    def cancel(self) -> None:
        """Ask whatever is at work to end; its result is not wanted any more."""
        self._stop.set()
        self._stop = threading.Event()
        self._number += 1


def _outcome(
    job: Callable[[threading.Event], Any], stop: threading.Event
) -> tuple[object, BaseException | None]:
    try:
        return job(stop), None
    except Exception as error:  # told in place by whoever asked
        return None, error
