"""A worker ends with the process that started it, even where that one was killed and could not say so."""

import os
import threading
import time

_EVERY_S = 0.25


def end_with(parent: int) -> None:
    """Run in a worker: ends this process as soon as `parent` has ended; joblib's workers would wait for minutes."""
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while _is_there(parent):
        time.sleep(_EVERY_S)
    os._exit(1)


def _is_there(parent: int) -> bool:
    if os.name == "posix":
        return os.getppid() == parent  # a child whose parent has ended gets another one
    import psutil

    return psutil.pid_exists(parent)
