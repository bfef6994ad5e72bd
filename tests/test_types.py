"""The package's type hints hold together: every function has them, and mypy finds nothing."""

import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

from pipelab.io.paths import in_clone

ROOT = Path(__file__).parent.parent

pytestmark = pytest.mark.skipif(
    not in_clone(), reason="about the clone, and this is an installed package"
)


@pytest.mark.skipif(
    tuple(map(int, version("numpy").split(".")[:2])) < (2, 4),
    reason="numpy's own types were others before 2.4",
)
def test_mypy_finds_nothing():
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(ROOT / ".mypy_cache")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_types_are_ignored_only_where_it_is_said_which_and_why():
    """No blanket `# type: ignore`, and no module is left out but those of libraries that ship no types."""
    for path in (ROOT / "pipelab").rglob("*.py"):
        for line in path.read_text(encoding="utf-8").splitlines():
            if "type: ignore" in line:
                assert "type: ignore[" in line, f"{path}: {line.strip()}"
                assert line.count("#") >= 2, f"{path}: say why: {line.strip()}"
    overrides = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
        "mypy"
    ]["overrides"]
    for one in overrides:
        assert set(one) == {"module", "ignore_missing_imports"}, one
        assert not [module for module in one["module"] if module.startswith(("pipelab", "*"))]
