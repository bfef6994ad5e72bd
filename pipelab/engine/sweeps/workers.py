"""A task on many points at once: joblib, with whatever backend and number of jobs is configured."""

import os
from collections.abc import Generator, Hashable, Iterator, Mapping
from contextlib import closing, suppress
from typing import Annotated, Any

from annotated_types import Predicate

from pipelab.engine.sweeps.parent import end_with
from pipelab.engine.sweeps.task import Task, failed
from pipelab.errors import PipelabError
from pipelab.fields import described

Jobs = Annotated[
    Annotated[int, Predicate(bool)] | None,  # what joblib knows as a number of jobs
    described("a whole number from 1 on, -1 for all cores, or None"),
]


def answers(
    task: Task, points: Mapping[Any, dict], jobs: int | None
) -> Generator[tuple[Hashable, dict[str, Any]]]:
    """The row of every point, as (key, row), in the order in which they are done.

    Where a worker process dies, it takes its points with it: those that were running then run
    again one by one, so that the one that kills its worker is known. It becomes a failed row. (On a
    Dask cluster joblib does not learn of a worker's death: Dask tries again elsewhere, and after the
    third death joblib waits without end.)
    """
    waiting = dict(points)
    while waiting:
        begun: list[Hashable] = []
        try:
            with closing(_parallel(task, waiting, jobs, begun)) as rows:
                for key, row in rows:
                    del waiting[key]
                    yield key, row
        except Exception as error:
            if not _is_a_death(error):
                raise _explained(error, task) from error
            for key in [key for key in begun if key in waiting]:
                yield key, _alone(task, waiting.pop(key), jobs)


def _parallel(task: Task, points: Mapping[Any, dict], jobs: int | None, begun: list) -> Generator:
    from joblib import Parallel, delayed
    from joblib.parallel import get_active_backend

    def calls() -> Iterator:
        for key, point in list(points.items()):
            begun.append(key)
            yield delayed(_keyed)(task, key, point)

    # Unless the caller, or joblib.parallel_config, says a number: all that the backend has.
    # joblib's own default would be one. The backend itself is never named here, so that the caller
    # can choose it.
    backend, configured = get_active_backend()
    if jobs is None and configured is None:
        jobs = -1
    rows = Parallel(n_jobs=jobs, return_as="generator_unordered", **_watched(backend))(calls())
    try:
        for answer in rows:  # noqa: UP028 - "yield from" would close them, see below
            yield answer
    except BaseException:
        # Where whoever reads the rows was interrupted: closing makes joblib warn of work that was
        # not used.
        with suppress(KeyboardInterrupt):
            rows.throw(KeyboardInterrupt)
        raise


def _watched(backend: Any) -> dict[str, Any]:
    """Have joblib's own worker processes end with this one; where a backend is chosen, its workers are its affair."""
    if type(backend).__name__ != "LokyBackend" or "initializer" in backend.backend_kwargs:
        return {}
    return {"initializer": end_with, "initargs": (os.getpid(),)}


def _keyed(task: Task, key: Hashable, point: dict) -> tuple[Hashable, dict]:
    return key, task(point)


def _alone(task: Task, point: dict, jobs: int | None) -> dict:
    """One point in a worker of its own; if that dies too, the point is the cause."""
    try:
        ((_, row),) = _parallel(task, {0: point}, jobs, [])
        return row
    except Exception as error:
        if not _is_a_death(error):
            raise _explained(error, task) from error
        why = f"the process that worked on it died ({type(error).__name__}); out of memory?"
        return {**point, **vars(failed(why))}


def _is_a_death(error: Exception) -> bool:
    """Whether an error of joblib's means that a worker process ended without an answer."""
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    return isinstance(error, TerminatedWorkerError)


def _explained(error: Exception, task: Task) -> PipelabError:
    """A task turns its own errors into rows, so this one comes from the transport to the workers and back."""
    name = getattr(task.make, "__name__", repr(task.make))
    return PipelabError(
        f"sweep: the workers cannot run {name!r} ({type(error).__name__}: {error}). What {name!r} refers to must be "
        "fit to be copied to other processes; jobs=1 stays in this one"
    )
