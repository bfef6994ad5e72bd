"""Put faults into the package, one at a time, and see whether the tests notice.

    python tests/faults.py                          # every fault of faults.toml, with the whole suite
    python tests/faults.py gap-sign route --tests tests/engine
    python tests/faults.py --map-out map.json       # once: which test file runs which line
    python tests/faults.py --map map.json           # then: tests that run the changed line come first
    python tests/faults.py --shows                  # what each fault changes for a user, without any test

Every run works in one copy of the tracked files in a temporary folder; nothing is changed here, and no
network is needed. "none" is the id of a run without a fault. Tests that fail without any are noted in
the map, and left out with it.
"""

import argparse
import csv
import hashlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
ROOT = HERE.parent.parent
TABLE = HERE.with_suffix(".toml")
PYTEST = ["-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-m"]
EVERY, QUICK, SLOW = "not nightly", "not slow and not nightly", "slow and not nightly"
NO_FAULT = "none"
FAILED, NO_TESTS, USAGE = 1, 5, 4  # exit statuses of pytest
NOTES = "FAULTS_NOTES"  # where the plugin below writes what it saw


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

    def lines(self) -> range:
        """The lines of the file here that the text touches, from 1."""
        before, _, _ = (ROOT / self.file).read_text(encoding="utf-8").partition(self.old)
        first = before.count("\n") + 1
        return range(first, first + self.old.count("\n") + 1)


def faults() -> dict[str, Fault]:
    """All faults by their id."""
    table = tomllib.loads(TABLE.read_text(encoding="utf-8"))["fault"]
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


def run(root: Path, arguments: Sequence[str], limit: float, **more: str) -> tuple[int | None, str]:
    """Run Python in the copy: its exit status, None if it took too long, and what it printed."""
    paths = [str(root), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)} | more
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=root,
        env=environment,
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
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        said, _ = process.communicate()
        return None, said
    return process.returncode, said


# Which test file runs which line


class Notes:
    """A pytest plugin: tells coverage which test file is running, and notes how long each takes and what fails."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.failed: list[str] = []

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Begin the context of a test."""
        import coverage

        current = coverage.Coverage.current()
        if current is not None:
            current.switch_context(nodeid.partition("::")[0])

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Note one phase of a test."""
        self.seconds[report.nodeid.partition("::")[0]] += report.duration
        if report.failed and report.nodeid not in self.failed:
            self.failed.append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Write it all down."""
        said = {"seconds": self.seconds, "failed": self.failed}
        Path(os.environ[NOTES]).write_text(json.dumps(said), encoding="utf-8")


def pytest_configure(config: Any) -> None:
    """Take part in a run of pytest as a plugin, where a map is made."""
    if NOTES in os.environ:
        config.pluginmanager.register(Notes(), "faults-notes")


@dataclass
class Map:
    """Which test file ran which line of the package.

    Attributes
    ----------
    lines : mapping of file to mapping of test file to its lines
    digest : mapping of file to its text's digest when the map was made
    seconds : mapping of test file to its time
    failed : list of str
        Tests that fail without a fault.
    """

    lines: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    digest: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path | None) -> "Map":
        """From a file; an empty one without."""
        return cls() if path is None else cls(**json.loads(path.read_text(encoding="utf-8")))

    def first(self, fault: Fault | None) -> list[str]:
        """The test files that ran a changed line, the quickest first; of a file changed since, all that ran it."""
        if fault is None:
            return []
        known = self.lines.get(fault.file, {})
        if self.digest.get(fault.file) == digest(ROOT / fault.file):
            changed = set(fault.lines())
            # A statement of several lines is known by its first.
            every = {line for lines in known.values() for line in lines}
            changed.add(max((line for line in every if line <= min(changed)), default=0))
            known = {test: lines for test, lines in known.items() if changed & set(lines)}
        there = (test for test in known if (ROOT / test).is_file())
        return sorted(there, key=lambda test: self.seconds.get(test, 0.0))


def digest(path: Path) -> str:
    """Tell whether a file is as it was."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def make_map(target: Path, tests: Sequence[str], limit: float) -> None:
    """Run the suite once under coverage."""
    import coverage

    with copied() as root:
        data, notes = root.parent / "coverage", root.parent / "notes.json"
        settings = root.parent / "coveragerc"
        settings.write_text(f"[run]\nsource = {root / 'pipelab'}\ndata_file = {data}\n")
        # As a module of its own: what pytest collects under this name is another.
        (root.parent / "faults_notes.py").write_text(HERE.read_text(encoding="utf-8"))
        arguments = ["-m", "coverage", "run", f"--rcfile={settings}", *PYTEST, EVERY]
        path = os.pathsep.join([str(root.parent), os.environ.get("PYTHONPATH", "")])
        arguments = [*arguments, "-p", "faults_notes", *tests]
        paths = os.pathsep.join([str(root), path])
        status, said = run(root, arguments, limit, **{NOTES: str(notes), "PYTHONPATH": paths})
        if status not in (0, FAILED) or not notes.exists():
            raise SystemExit(f"no map: pytest ended with {status}\n{said[-4000:]}")
        found, known = coverage.CoverageData(str(data)), Map(**json.loads(notes.read_text()))
        found.read()
        for name in found.measured_files():
            own = Path(name).resolve().relative_to(root.resolve()).as_posix()
            by_test: defaultdict[str, list[int]] = defaultdict(list)
            for line, contexts in found.contexts_by_lineno(name).items():
                for test in filter(None, contexts):
                    by_test[test].append(line)
            known.lines[own] = {test: sorted(lines) for test, lines in by_test.items()}
            known.digest[own] = digest(root / own)
        target.write_text(json.dumps(vars(known)), encoding="utf-8")
    print(
        f"{len(known.lines)} files, {len(known.seconds)} test files, {sum(known.seconds.values()):.0f} s"
    )
    for test in known.failed:
        print(f"fails without a fault: {test}")


# One fault, and the tests


@dataclass(frozen=True)
class Seen:
    """Whether the tests noticed: "seen", "not seen" or "too long"; the first test that failed."""

    id: str
    outcome: str
    test: str
    seconds: float


def tried(root: Path, fault: Fault | None, tests: Sequence[str], known: Map, limit: float) -> Seen:
    """Run the tests of a copy with one fault; the likely ones first, and of these the quick ones."""
    name, began = NO_FAULT if fault is None else fault.id, time.monotonic()

    def seen(outcome: str, test: str = "") -> Seen:
        return Seen(name, outcome, test, round(time.monotonic() - began, 1))

    wanted = list(tests) or ["tests", "pipelab"]
    likely = [test for test in known.first(fault) if _within(test, wanted)]
    left_out = [f"--deselect={test}" for test in known.failed]
    others = [path for path in wanted if path not in likely]
    if others:
        others += [f"--ignore={test}" for test in likely]
    with nullcontext() if fault is None else fault.put_into(root):
        for some, marks in ((likely, QUICK), (likely, SLOW), (others, EVERY)):
            if not some:
                continue
            left = max(1.0, limit - (time.monotonic() - began))
            status, said = run(root, [*PYTEST, marks, "-x", "-rfE", *left_out, *some], left)
            if status is None:
                return seen("too long")
            if status == USAGE:
                raise SystemExit(f"pytest did not understand:\n{said[-2000:]}")
            if status not in (0, NO_TESTS):
                found = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", said, flags=re.M)
                return seen("seen", found[1] if found else f"pytest ended with {status}")
    return seen("not seen")


def _within(test: str, paths: Iterable[str]) -> bool:
    """Whether a test file is one of these, or in one of these folders."""
    wanted = [(ROOT / path.partition("::")[0]).resolve() for path in paths]
    own = (ROOT / test).resolve()
    return any(own == path or path in own.parents for path in wanted)


# What a user sees


def answer(root: Path, program: str, limit: float) -> str:
    """What a program prints in a copy: all of it, or the last line of its error."""
    status, said = run(root, ["-W", "ignore", "-c", program], limit)
    lines = said.strip().splitlines() or [""]
    if status is None:
        return "takes too long"
    return "\n".join(lines) if status == 0 else lines[-1]


def shown(fault: Fault, limit: float) -> tuple[str, str]:
    """What the program of a fault prints without it and with it."""
    with copied() as root:
        right = answer(root, fault.shows, limit)
        with fault.put_into(root):
            return right, answer(root, fault.shows, limit)


def show(chosen: Iterable[Fault], limit: float) -> bool:
    """Print what every fault changes; whether all do what is written."""
    fine = True
    for fault in chosen:
        found = shown(fault, limit)
        good = found == (fault.right, fault.wrong) and found[0] != found[1]
        fine &= good
        print(
            f"{fault.id}: {found[0]!r} → {found[1]!r}{'' if good else '  NOT AS WRITTEN'}",
            flush=True,
        )
    return fine


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("ids", nargs="*", help="of faults.toml, or none; by default all faults")
    parser.add_argument("--tests", nargs="+", default=[], metavar="PATH", help="run these only")
    parser.add_argument("--map", type=Path, metavar="FILE", help="of --map-out: likely tests first")
    parser.add_argument("--map-out", type=Path, metavar="FILE", help="make the map and end")
    parser.add_argument("--csv", type=Path, default=Path("faults.csv"), help="where results go")
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds for each fault")
    parser.add_argument("--shows", action="store_true", help="run no tests: show what changes")
    asked = parser.parse_args(arguments)
    if asked.map_out is not None:
        make_map(asked.map_out, asked.tests, asked.limit)
        return 0
    table: Mapping[str, Fault | None] = {**faults(), NO_FAULT: None}
    if unknown := [name for name in asked.ids if name not in table]:
        parser.error(f"there is no fault {unknown[0]!r}")
    chosen = [table[name] for name in asked.ids or [n for n in table if n != NO_FAULT]]
    if asked.shows:
        return not show(filter(None, chosen), asked.limit)
    known, results = Map.read(asked.map), []
    with copied() as root, asked.csv.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(Seen.__dataclass_fields__)
        for fault in chosen:
            one = tried(root, fault, asked.tests, known, asked.limit)
            results.append(one)
            rows.writerow(vars(one).values())
            file.flush()
            print(f"{one.id:<32} {one.outcome:<9} {one.seconds:7.1f} s  {one.test}", flush=True)
    number = sum(one.outcome == "seen" for one in results)
    print(f"{number} of {len(results)} seen; {asked.csv}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
