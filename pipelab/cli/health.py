"""Is everything here, and does every solver answer? Each solves tiny, and its answer is evaluated."""

import platform
import shutil
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement

from pipelab.engine.tolerances import NOT_SOLVED
from pipelab.errors import MissingPackage
from pipelab.evaluation import evaluate
from pipelab.fields import given
from pipelab.files.bundled_folders import data_dir, notebooks_dir
from pipelab.placement import Placement
from pipelab.writeup.cases_csv import load_case


class Finding(NamedTuple):
    """One line of the report."""

    what: str
    found: str
    ok: bool
    needed: bool = True  # False: its absence is reported, not counted


def examine() -> list[Finding]:
    """Look at Python, every required package, the bundled files, each solver, and Chromium."""
    names = ("chromium", "chromium-browser", "google-chrome")
    chromium = next(filter(None, map(shutil.which, names)), "")
    text = chromium or "not found; only the browser tests need it, and are skipped"
    return [
        Finding("Python", platform.python_version(), True),
        *_packages(),
        _folder("notebooks", notebooks_dir(), "*.ipynb"),
        _folder("data", data_dir(), "cases/*/config.csv"),
        _solver("SCIP through PySCIPOpt", _with_scip),
        _solver("HiGHS through cvxpy", _with_cvxpy),
        Finding("Chromium", text, bool(chromium), needed=False),
    ]


def _packages() -> Iterator[Finding]:
    """Look for the packages that pipelab's own metadata requires, and those of its extra `lab`."""
    for wanted in map(Requirement, metadata.requires("pipelab") or []):
        needed = wanted.marker is None or wanted.marker.evaluate({"extra": ""})
        if needed or given(wanted.marker).evaluate({"extra": "lab"}):
            try:
                yield Finding(wanted.name, metadata.version(wanted.name), True)
            except PackageNotFoundError:
                install = wanted.name if needed else '"pipelab[lab]"'
                yield Finding(wanted.name, f"not installed; pip install {install}", False, needed)


def _folder(name: str, folder: Path, pattern: str) -> Finding:
    number = len(list(folder.glob(pattern)))
    return Finding(
        name,
        f"{number} in {folder}" if number else f"none in {folder}; reinstall pipelab",
        number > 0,
    )


def _solver(name: str, run: Callable[[], tuple[float, Placement]]) -> Finding:
    """Solve tiny, and let the evaluator recompute the predicted rate."""
    began = time.perf_counter()
    try:
        predicted, placement = run()
    except MissingPackage as error:  # of an extra
        return Finding(name, str(error), False, needed=False)
    except Exception as error:  # the report shows whatever a broken installation raises
        return Finding(name, f"does not answer ({type(error).__name__}: {error})", False)
    true = evaluate(load_case("tiny", max_gpus_per_stage=2), placement).throughput
    ok = abs(predicted - true) <= NOT_SOLVED * true
    seconds = time.perf_counter() - began
    verdict = "" if ok else f", but predicted {predicted:.6g}"
    return Finding(name, f"tiny: {true:.6g} tokens/s in {seconds:.2f} s{verdict}", ok)


def _with_scip() -> tuple[float, Placement]:
    from pipelab.engine.solving import solve

    result = solve(load_case("tiny", max_gpus_per_stage=2), "joint")
    return result.details["solver_objective"], given(result.placement)


def _with_cvxpy() -> tuple[float, Placement]:
    from pipelab.joint_ilp import solve_by_joint_ilp

    optimum = solve_by_joint_ilp(load_case("tiny", max_gpus_per_stage=2))
    return given(optimum.bound), given(optimum.placement)
