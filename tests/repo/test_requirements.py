"""The locked and the lowest versions agree with pyproject.toml, and name no registry."""

import re

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from clone import PYPROJECT, ROOT

FOLDER = ROOT / "requirements"

EXTRAS = PYPROJECT["project"]["optional-dependencies"]
LAB = [*PYPROJECT["project"]["dependencies"], *EXTRAS["lab"]]
RUN = [*LAB, *EXTRAS["schedules"], *PYPROJECT["build-system"]["requires"]]
TEST = [*LAB, *EXTRAS["test"]]
WANTED = {"locked.txt": RUN, "locked-test.txt": RUN + TEST, "lowest.txt": TEST}
# Every Python and system that the lock is for.
PLACES = [
    {
        "python_version": python,
        "python_full_version": f"{python}.9",
        "sys_platform": system,
        "os_name": os_name,
    }
    for python in ("3.11", "3.12", "3.13", "3.14")
    for system, os_name in (("linux", "posix"), ("darwin", "posix"), ("win32", "nt"))
]


def _entries(name: str) -> list[tuple[Requirement, list[str]]]:
    """Every requirement of a file with its hashes."""
    lines = (FOLDER / name).read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    told = [line for line in lines if line and not line.startswith("#")]
    return [
        (Requirement(line.split("--hash=")[0]), re.findall(r"--hash=(\S+)", line)) for line in told
    ]


@pytest.mark.parametrize("name", WANTED)
def test_every_direct_dependency_is_there_at_an_allowed_version_wherever_pipelab_runs(name):
    entries = [requirement for requirement, _ in _entries(name)]
    places = (
        [{"python_version": "3.11", "python_full_version": "3.11.9"}]
        if name == "lowest.txt"
        else PLACES
    )
    for place in places:
        environment = default_environment() | place
        pinned: dict[str, str] = {}
        for entry in entries:
            if entry.marker is None or entry.marker.evaluate(environment):
                (version,) = entry.specifier
                assert version.operator == "=="
                key = canonicalize_name(entry.name)
                assert key not in pinned, f"{key} stands twice for {place}"
                pinned[key] = version.version
        for line in WANTED[name]:
            wanted = Requirement(line)
            version = pinned.get(canonicalize_name(wanted.name))
            assert version, f"{wanted.name} is missing for {place}: python requirements/make.py"
            assert wanted.specifier.contains(version), f"{line}, but {version} is written down"


@pytest.mark.parametrize("name", ["locked.txt", "locked-test.txt"])
def test_every_locked_version_has_hashes(name):
    entries = _entries(name)
    assert len(entries) > 100
    for requirement, hashes in entries:
        assert hashes, requirement
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", one) for one in hashes), requirement


def test_the_lowest_versions_are_the_bounds_of_pyproject():
    """A bound that nothing installs, such as 2.2 where numpy 2 needs pandas 2.2.2, is the next version above."""
    pinned = {
        canonicalize_name(r.name): next(iter(r.specifier)).version
        for r, _ in _entries("lowest.txt")
    }
    for line in TEST:
        wanted = Requirement(line)
        bound = next((s for s in wanted.specifier if s.operator == ">="), None)
        if bound is None:  # an upper bound on what stands there a second time
            continue
        found = pinned[canonicalize_name(wanted.name)]
        assert found.split(".")[:2] == (bound.version.split(".") + ["0"])[:2], (
            f"{line}, tested with {found}"
        )
