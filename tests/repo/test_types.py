"""The package's type hints hold together: every function has them, and mypy finds nothing."""

import re
import subprocess
import sys
from importlib.metadata import version

import pytest

from clone import PYPROJECT, ROOT

REVEALED = """
import pipelab as pl

problem = pl.load_case("tiny")
reveal_type(pl.solve(problem))
reveal_type(pl.solve(problem, "joint", "latency", at_least=1))
reveal_type(pl.solve(problem, objective="step_time", schedule="1F1B"))
reveal_type(pl.deploy(problem))
reveal_type(pl.hardware.load_gpus())
reveal_type(pl.errors.TooLarge)
"""


@pytest.mark.slow
@pytest.mark.skipif(
    tuple(map(int, version("numpy").split(".")[:2])) < (2, 4),
    reason="numpy's own types were others before 2.4",
)
def test_mypy_finds_nothing_and_an_editor_knows_what_public_functions_return(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(REVEALED, encoding="utf-8")
    files = [*PYPROJECT["tool"]["mypy"]["files"], str(script)]
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(ROOT / ".mypy_cache"), *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.findall(r'Revealed type is "(.*)"', done.stdout)
    assert found == [
        "pipelab.engine.answers.Result",
        "pipelab.engine.answers.Result",
        "pipelab.engine.training.result.TrainingResult",
        "pipelab.engine.deployments.result.Deployment",
        "dict[str, pipelab.hardware.known_gpus.GPUFacts]",
        "def (message: str =) -> pipelab.errors.TooLarge",
    ], done.stdout
