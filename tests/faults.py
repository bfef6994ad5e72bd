"""Put faults into the package, one at a time, and see whether the tests notice.

    python tests/faults.py                          # every fault of faults.toml, with the whole suite
    python tests/faults.py gap-sign route --tests tests/engine
    python tests/faults.py --map-out map            # once, until a file changes: which test runs which line
    python tests/faults.py --map map                # then: tests that run the changed line come first
    python tests/faults.py --shows                  # what each fault changes for a user, without any test

Every fault is put into one copy of the tracked files in a temporary folder; nothing is changed here, and no
network is needed. "none" is the id of a run without a fault.
"""

import argparse
import csv
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve()
ROOT = HERE.parent.parent
PYTEST = ["-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-m"]
EVERY, QUICK, SLOW = "not nightly", "not slow and not nightly", "slow and not nightly"
NO_TESTS, USAGE = 5, 4  # exit statuses of pytest


@dataclass(frozen=True)
class Fault:
    """One fault: in which file which text becomes which, what is wrong then, and how that shows."""

    id: str
    file: str
    old: str
    new: str
    what: str
    shows: str  # a Python program that prints something else with the fault
    right: str  # what it prints without
    wrong: str  # and with it

    @contextmanager
    def put_into(self, root: Path) -> Iterator[None]:
        """Change the file, and change it back; its text must be there once."""
        path = root / self.file
        text = path.read_text(encoding="utf-8")
        if (times := text.count(self.old)) != 1:
            raise SystemExit(f"{self.id}: the old text is {times} times in {self.file}")
        # Python may take a compiled file for that of another text of the same second and size.
        compiled = Path(importlib.util.cache_from_source(str(path)))
        try:
            compiled.unlink(missing_ok=True)
            path.write_text(text.replace(self.old, self.new), encoding="utf-8")
            yield
        finally:
            compiled.unlink(missing_ok=True)
            path.write_text(text, encoding="utf-8")

    def likely(self, data: Path | None, wanted: Sequence[str]) -> list[str]:
        """The test files of these folders that ran a changed line, by what coverage noted."""
        if data is None:
            return []
        import coverage

        known = coverage.CoverageData(str(data))
        known.read()
        before, _, _ = (ROOT / self.file).read_text(encoding="utf-8").partition(self.old)
        first = before.count("\n") + 1
        by_line = known.contexts_by_lineno(self.file)
        # A statement of several lines is known by its first.
        start = max((line for line in by_line if line <= first), default=first)
        ran = {
            context.partition(".")[0]  # "test_file.test_function"
            for line, contexts in by_line.items()
            if start <= line <= first + self.old.count("\n")
            for context in contexts
        }
        files = [file for path in wanted for file in sorted(ROOT.joinpath(path).rglob("test_*.py"))]
        return [str(file.relative_to(ROOT)) for file in files if file.stem in ran]


def faults() -> dict[str, Fault]:
    """All faults by their id."""
    table = tomllib.loads(HERE.with_suffix(".toml").read_text(encoding="utf-8"))["fault"]
    found = {row["id"]: Fault(**row) for row in table}
    if len(found) != len(table):
        raise SystemExit("two faults have one id")
    return found


@contextmanager
def copied() -> Iterator[Path]:
    """A copy of the tracked files, in a repository of its own."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    with tempfile.TemporaryDirectory(prefix="faults-", ignore_cleanup_errors=True) as folder:
        root = Path(folder) / "pipelab"
        for name in filter(None, listed.stdout.decode().split("\0")):
            if (ROOT / name).is_file():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, root / name)
        who = ["-c", "user.name=faults", "-c", "user.email=faults@example.org"]
        for command in (["init", "-q"], ["add", "-A"], [*who, "commit", "-q", "-m", "A copy"]):
            subprocess.run(["git", *command], cwd=root, check=True, capture_output=True)
        yield root


def run(root: Path, arguments: Sequence[str], limit: float) -> tuple[int | None, str]:
    """Run Python in the copy: its exit status, None if it took too long, and what it printed."""
    paths = [str(root), *filter(None, [os.environ.get("PYTHONPATH")])]
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=root,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # and what it started
        process.communicate()
        return None, ""
    return process.returncode, said


def make_map(target: Path, tests: Sequence[str], limit: float) -> None:
    """Run the suite once under coverage, each test a context."""
    target = target.resolve()
    with copied() as root:
        settings = root.parent / "coveragerc"
        settings.write_text(
            "[run]\nsource = pipelab\nrelative_files = true\ndynamic_context = test_function\n"
            f"data_file = {target}\n"
        )
        under = ["-m", "coverage", "run", f"--rcfile={settings}"]
        status, said = run(root, [*under, *PYTEST, EVERY, *tests], limit)
    print(said[-2000:] if status else f"{target} tells which test runs which line")


def tried(
    root: Path, fault: Fault | None, tests: Sequence[str], data: Path | None, limit: float
) -> tuple[str, str]:
    """Run the tests of a copy with one fault, likely ones first: "seen", "not seen" or "too long", and by which."""
    ends = time.monotonic() + limit
    likely = fault.likely(data, tests) if fault else []
    others = [*tests, *(f"--ignore={test}" for test in likely)]
    with fault.put_into(root) if fault else nullcontext():
        for some, marks in ((likely, QUICK), (likely, SLOW), (others, EVERY)):
            if not some:
                continue
            left = max(1.0, ends - time.monotonic())
            status, said = run(root, [*PYTEST, marks, "-x", "-rfE", *some], left)
            if status is None:
                return "too long", ""
            if status == USAGE:
                raise SystemExit(f"pytest did not understand:\n{said[-2000:]}")
            if status not in (0, NO_TESTS):
                found = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", said, flags=re.M)
                return "seen", found[1] if found else f"pytest ended with {status}"
    return "not seen", ""


def answer(root: Path, program: str, limit: float) -> str:
    """What a program prints in a copy: all of it, or the last line of its error."""
    status, said = run(root, ["-W", "ignore", "-c", program], limit)
    lines = said.strip().splitlines() or [""]
    return "\n".join(lines) if status == 0 else lines[-1]


def shows(root: Path, fault: Fault, limit: float) -> bool:
    """Print what a fault changes for a user; whether it is what is written."""
    right = answer(root, fault.shows, limit)
    with fault.put_into(root):
        wrong = answer(root, fault.shows, limit)
    fine = (right, wrong) == (fault.right, fault.wrong) and right != wrong
    print(f"{fault.id}: {right!r} → {wrong!r}{'' if fine else '  NOT AS WRITTEN'}", flush=True)
    return fine


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("ids", nargs="*", help="of faults.toml, or none; by default all faults")
    whole = ["tests", "pipelab"]
    parser.add_argument("--tests", nargs="+", default=whole, metavar="PATH", help="run these only")
    parser.add_argument("--map", type=Path, metavar="FILE", help="of --map-out: likely tests first")
    parser.add_argument("--map-out", type=Path, metavar="FILE", help="make the map and end")
    parser.add_argument("--csv", type=Path, default=Path("faults.csv"), help="where results go")
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds for each fault")
    parser.add_argument("--shows", action="store_true", help="run no tests: show what changes")
    asked = parser.parse_args(arguments)
    if asked.map_out is not None:
        make_map(asked.map_out, asked.tests, asked.limit)
        return 0
    table: dict[str, Fault | None] = {**faults(), "none": None}
    if unknown := [name for name in asked.ids if name not in table]:
        parser.error(f"there is no fault {unknown[0]!r}")
    chosen = {name: table[name] for name in asked.ids or [*faults()]}
    with copied() as root:
        if asked.shows:
            found = [shows(root, fault, asked.limit) for fault in chosen.values() if fault]
            return not all(found)
        with asked.csv.open("w", encoding="utf-8", newline="") as file:
            rows, seen = csv.writer(file), 0
            rows.writerow(("id", "outcome", "test"))
            for name, fault in chosen.items():
                outcome, test = tried(root, fault, asked.tests, asked.map, asked.limit)
                seen += outcome == "seen"
                rows.writerow((name, outcome, test))
                file.flush()
                print(f"{name:<32} {outcome:<9} {test}", flush=True)
    print(f"{seen} of {len(chosen)} seen; {asked.csv}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
