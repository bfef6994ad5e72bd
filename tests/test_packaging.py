"""The house: one list of dependencies, two commands, no addresses, notebooks stored clean, style kept."""

import ast
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

from pipelab.paths import in_clone

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

pytestmark = pytest.mark.skipif(not in_clone(), reason="about the clone, and this is an installed package")


def _tracked():
    """Files under version control; where there is none, every file but what tools leave behind."""
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode == 0 and done.stdout:
        return [ROOT / name for name in done.stdout.split("\0") if name]
    left = {".git", ".venv", "__pycache__", "dist", "build"}
    return [p for p in ROOT.rglob("*") if p.is_file() and not left & set(p.relative_to(ROOT).parts)]


def test_the_conda_environment_is_the_twin_of_pyproject():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    listed = {line.replace(" ", "") for line in environment["dependencies"] if isinstance(line, str)}
    wanted = {line.replace(" ", "") for line in PROJECT["dependencies"]}
    assert listed == wanted | {"python" + PROJECT["requires-python"], "pip"}
    assert {"pip": ["-e ."]} in environment["dependencies"]


def test_no_tracked_file_records_a_registrys_address():
    locks = [p for p in _tracked() if "lock" in p.name or p.name.startswith("requirements")]
    assert [p for p in locks if "://" in p.read_text(encoding="utf-8")] == []
    assert [p for p in _tracked() if p.name in ("uv.lock", "pylock.toml", "poetry.lock")] == []


def test_ci_runs_the_readmes_own_test_command():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    commands = re.findall(r"^(python3 -m venv .*)$", readme, flags=re.M)
    assert len(commands) == 2
    pattern = re.search(r"s/\^\\\((.*?)\\\)\$/", (ROOT / ".ci" / "run").read_text(encoding="utf-8")).group(1)
    assert [c for c in commands if re.fullmatch(pattern, c)] == [commands[1]]
    assert commands[1].endswith("-m pytest")


def test_notebooks_are_stored_without_outputs():
    notebooks = [str(p) for p in _tracked() if p.suffix == ".ipynb"]
    assert len(notebooks) >= 4
    done = subprocess.run([sys.executable, "-m", "nbstripout", "--verify", *notebooks], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("command", [["check"], ["format", "--check"]])
def test_style_is_kept(command):
    done = subprocess.run([sys.executable, "-m", "ruff", *command, str(ROOT)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_modules_are_short_and_say_what_they_are():
    for path in (ROOT / "pipelab").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert text.startswith('"""'), path
        assert text.count("\n") <= 330, f"{path} would be two rooms"


def test_imports_point_one_way():
    """Only plots know plotly, scip.py PySCIPOpt, one room joblib; and importing pipelab loads none of them."""
    for path in (ROOT / "pipelab").rglob("*.py"):
        text, name = path.read_text(encoding="utf-8"), path.relative_to(ROOT / "pipelab").as_posix()
        if re.search(r"^\s*(import|from) plotly\b", text, flags=re.M):
            assert name.startswith(("plots/", "theme", "kinds")), name
        if "pyscipopt import" in text:
            assert name == "scip.py", name
        if "joblib import" in text:
            assert name == "sweeps/workers.py", name
        if "import cvxpy" in text:
            assert name.startswith("formulations/"), name
    heavy = ("numpy", "pydantic", "scipy", "plotly", "cvxpy", "pyscipopt", "pandas", "joblib", "tqdm", "ipywidgets")
    code = f"import sys, pipelab; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"  # speed is measured by tests/benchmarks/imports.py


def test_a_public_name_is_the_function_even_where_a_module_is_called_the_same():
    code = (
        "import pipelab as pl, pipelab.solve, pipelab.evaluate, pipelab.compare, pipelab.plots.gantt; "
        "from pipelab import solve; "
        "print(all(callable(f) for f in (pl.solve, pl.evaluate, pl.compare, pl.gantt, pl.sweep, solve)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"


def test_type_checkers_are_told_the_same_names_as_python():
    """What `if TYPE_CHECKING:` imports in `pipelab/__init__.py` is what is imported when first used."""
    import pipelab as pl

    tree = ast.parse((ROOT / "pipelab" / "__init__.py").read_text(encoding="utf-8"))
    (block,) = [n for n in tree.body if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"]
    told = {alias.name: line.module for line in block.body for alias in line.names}
    assert told == pl._LATER
    assert len(set(pl.__all__)) == len(pl.__all__)


def test_every_public_name_exists_and_is_explained():
    import pipelab as pl

    for name in pl.__all__:
        assert getattr(pl, name).__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'slove'"):
        getattr(pl, "slove")  # noqa: B009


def test_a_wheel_stands_alone(tmp_path):
    """Built, unpacked elsewhere and run from there, it finds its data and notebooks."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / "site")
    assert "pipelab/_bundled/notebooks/00_start_here.ipynb" in names
    assert "pipelab/_bundled/data/cases/tiny/config.csv" in names
    assert "pipelab/py.typed" in names  # says that the hints may be believed
    assert not [n for n in names if "checkpoint" in n or n.startswith(("tests", "notebooks", "data"))]
    code = (
        "import pathlib, pipelab, pipelab.lab as lab; print(pipelab.__file__); "
        "print(round(pipelab.solve(pipelab.load_case('tiny')).throughput, 2)); "
        "print(len(lab.copy_notebooks(pathlib.Path('mine'))))"
    )
    environment = dict(os.environ, PYTHONPATH=str(tmp_path / "site"))
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    place, throughput, copied = done.stdout.split()
    assert place.startswith(str(tmp_path))
    assert throughput == "217.52"
    assert int(copied) == len(list((tmp_path / "mine").rglob("*.ipynb"))) > 2


def test_the_readmes_python_runs_and_says_what_it_says(tmp_path, monkeypatch):
    block, *others = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.S)
    space: dict = {}
    exec(block, space)
    monkeypatch.chdir(tmp_path)  # a sweep writes its file
    for other in others:
        exec(other, space)
    assert space["pl"].solve(space["real"], "aggregated").status == "optimal"
    assert space["sweep"].complete
    result = space["result"]
    assert (result.status, round(result.throughput, 3), round(result.bound, 3)) == ("optimal", 301.784, 301.784)
    assert result.placement.stages[0].gpus == (0, 1)
    for told in ('("optimal", 301.784, 301.784)', "(0, 1)"):
        assert told in block
