"""When SCIP's models are freed: at once, or, where that takes seconds, after the answer."""

import threading
from typing import Any

from pipelab.engine.deadline import Deadline

# columns of a model whose freeing waits until its answer was given
_LARGE, _FREE_AFTER_SECONDS = 50_000, 0.5
_FREE_IF_LEFT_SECONDS = 1.0  # what a solve needs for freeing the models before it
_UNFREED: dict[object, tuple] = {}  # models that wait for it, with their columns


def free(model: Any, variables: list, *parts: Any) -> None:
    """Free a model that has been read.

    Freeing a large model takes seconds, with Python's lock held: not before the answer is given.
    """
    if len(variables) <= _LARGE:
        _free_now(model)
        return
    mark = object()
    _UNFREED[mark] = (model, variables, *parts)
    waiting = threading.Timer(_FREE_AFTER_SECONDS, _free_marked, (mark,))
    waiting.daemon = True
    waiting.start()


def _free_marked(mark: object) -> None:
    parts = _UNFREED.pop(mark, None)
    if parts is not None:
        _free_now(parts[0])


def _free_now(model: Any) -> None:
    """Model and event handler refer to each other: Python itself would free them after gigabytes of others."""
    if hasattr(model, "free"):  # since PySCIPOpt 6.3, where they do
        model.free()


def free_waiting(deadline: Deadline) -> None:
    """Free at the beginning of a solve what would otherwise hold it up later, maybe at its end."""
    while _UNFREED and deadline.left > _FREE_IF_LEFT_SECONDS:
        for mark in list(_UNFREED):
            _free_marked(mark)
