"""Is everything here, and does every solver answer? Each solves tiny, and its answer is evaluated."""

import platform
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from importlib.metadata import PackageNotFoundError
from pathlib import Path

from packaging.requirements import Requirement

from pipelab.engine.tolerances import NOT_SOLVED
from pipelab.errors import MissingPackage
from pipelab.evaluation import evaluate
from pipelab.fields import given
from pipelab.io.cases_csv import load_case
from pipelab.io.paths import data_dir, notebooks_dir
from pipelab.placement import Placement


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    what: str
    found: str
    ok: bool
    needed: bool = True  # False: its absence is reported, not counted


def examine() -> list[Finding]:
    """Look at Python, every required package, the bundled files, each solver, and Chromium."""
    findings = [Finding("Python", platform.python_version(), True)]
    findings += [_package(name) for name in _listed()]
    findings += [_package(name, "lab") for name in _listed("lab")]
    findings += [
        _folder("notebooks", notebooks_dir(), "*.ipynb"),
        _folder("data", data_dir(), "cases/*/config.csv"),
    ]
    solvers = {
        "SCIP through PySCIPOpt": _with_scip,
        "HiGHS through cvxpy": _with_cvxpy,
    }
    findings += [_solver(name, run) for name, run in solvers.items()]
    chromium = (
        shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )
    text = chromium or "not found; only the browser tests need it, and are skipped"
    return [*findings, Finding("Chromium", text, bool(chromium), needed=False)]


def _listed(extra: str = "") -> list[str]:
    """Names of the packages that pipelab's own metadata requires, or that an extra adds."""
    requirements = map(Requirement, metadata.requires("pipelab") or [])
    if not extra:
        return [r.name for r in requirements if r.marker is None or r.marker.evaluate()]
    marks = [(r.name, r.marker) for r in requirements if r.marker is not None]
    return [n for n, m in marks if m.evaluate({"extra": extra}) and not m.evaluate({"extra": ""})]


def _package(name: str, extra: str = "") -> Finding:
    try:
        return Finding(name, metadata.version(name), True)
    except PackageNotFoundError:
        wanted = f'"pipelab[{extra}]"' if extra else name
        return Finding(name, f"not installed; pip install {wanted}", False, needed=not extra)


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
    from pipelab.solving import solve

    result = solve(load_case("tiny", max_gpus_per_stage=2), "joint")
    return result.details["solver_objective"], given(result.placement)


def _with_cvxpy() -> tuple[float, Placement]:
    from pipelab.joint_ilp import solve_by_joint_ilp

    optimum = solve_by_joint_ilp(load_case("tiny", max_gpus_per_stage=2))
    return given(optimum.bound), given(optimum.placement)
