"""The package: one list of dependencies, two commands, no addresses, notebooks stored clean, style kept."""

import ast
import json
import os
import re
import subprocess
import sys
import zipfile
from importlib import import_module, metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from clone import PROJECT, ROOT, text_of
from pipelab.course.outline import notebooks_of_the_course
from pipelab.writeup.cases_csv import cases as pl_cases


def _tracked():
    """Files under version control; where there is none, every file but what tools leave behind."""
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode == 0 and done.stdout:
        return [ROOT / name for name in done.stdout.split("\0") if name]
    left = {".git", ".venv", "__pycache__", "dist", "build"}
    return [p for p in ROOT.rglob("*") if p.is_file() and not left & set(p.relative_to(ROOT).parts)]


def test_the_conda_environment_is_the_twin_of_pyproject():
    """And within the bounds of `schedules`, too, so that pip replaces nothing that conda installed."""
    environment = yaml.safe_load(text_of("environment.yml"))
    *from_conda, from_pip = environment["dependencies"]
    listed = {Requirement(line).name: Requirement(line).specifier for line in from_conda}
    extras = PROJECT["optional-dependencies"]
    wanted = {"python": SpecifierSet(PROJECT["requires-python"]), "pip": SpecifierSet()}
    for line in [*PROJECT["dependencies"], *extras["lab"]]:
        wanted[Requirement(line).name] = Requirement(line).specifier
    for line in map(Requirement, extras["schedules"]):
        if line.name in wanted:
            wanted[line.name] &= line.specifier
    assert listed == wanted
    assert from_pip == {"pip": ["-e .[schedules]"]}


def test_no_tracked_file_records_a_registrys_address():
    tracked = _tracked()
    lists = [
        path for path in tracked if path.parent.name == "requirements" and path.suffix == ".txt"
    ]
    assert len(lists) >= 3
    address = r"https?:|file:|://|index-url|find-links|@ "
    assert [path for path in lists if re.search(address, path.read_text(encoding="utf-8"))] == []
    assert [p for p in tracked if p.name in ("uv.lock", "pylock.toml", "poetry.lock")] == []


def test_notebooks_are_stored_without_outputs():
    """Otherwise: nbstripout --keep-id notebooks/*.ipynb notebooks/solutions/*.ipynb."""
    notebooks = [path for path in _tracked() if path.suffix == ".ipynb"]
    assert len(notebooks) >= 4
    for path in notebooks:
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            assert not cell.get("outputs"), path
            assert cell.get("execution_count") is None, path


@pytest.mark.parametrize("command", [["check"], ["format", "--check"]])
def test_style_is_kept(command):
    done = subprocess.run(
        [sys.executable, "-m", "ruff", *command, str(ROOT)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    "package", ["pipelab", *(f"pipelab.{d}" for d in ("course", "hardware", "writeup"))]
)
def test_a_stub_lists_the_public_names_once_and_each_exists_and_is_explained(package):
    """For Python (`pipelab.lazy_names`) and for type checkers alike."""
    module = import_module(package)
    listed = module.__all__
    stub = ROOT / package.replace(".", "/") / "__init__.pyi"
    tree = ast.parse(stub.read_text(encoding="utf-8"))
    named = [alias for n in tree.body for alias in getattr(n, "names", [])]
    assert all(alias.name == alias.asname for alias in named)  # else checkers take it for private
    assert [alias.name for alias in named] == listed
    assert dir(module) == sorted(set(listed))
    assert all(getattr(module, name).__doc__ for name in listed)
    with pytest.raises(AttributeError, match="has no attribute 'slove'"):
        getattr(module, "slove")  # noqa: B009


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder away from the clone into which the wheel was installed, with the libraries that are there anyway."""
    place = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(place)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = place.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        # All that installing a wheel of plain Python does, but for its scripts; the environment may
        # have no pip.
        archive.extractall(place / "site")
        (scripts,) = [archive.read(n).decode() for n in names if n.endswith("entry_points.txt")]
    assert "pipelab = pipelab.cli.entry:main" in scripts
    assert "pipelab/_bundled/notebooks/00_start_here.ipynb" in names
    assert "pipelab/_bundled/data/cases/tiny/config.csv" in names
    assert "pipelab/py.typed" in names  # says that the hints may be believed
    assert not [
        n
        for n in names
        if "checkpoint" in n or n.startswith(("tests", "notebooks", "data", "requirements"))
    ]
    return place / "site"


def _away(installed, folder, *command):
    """Run something with the installed pipelab, from a folder of the user's own."""
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=dict(os.environ, PYTHONPATH=str(installed)), capture_output=True,
        text=True, encoding="utf-8",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


EVERY_MODULE = """
import importlib, pkgutil, sys, pipelab
for module in pkgutil.walk_packages(pipelab.__path__, "pipelab."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
sys.argv = ["pipelab", "reproduce", "boostr"]
importlib.import_module("pipelab.cli.entry").main()
"""


@pytest.mark.slow
def test_nothing_needs_docstrings_or_assertions_when_it_runs():
    command = [sys.executable, "-OO", "-c", EVERY_MODULE]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_wheel_stands_alone(installed, tmp_path):
    """Installed elsewhere and run from there, it finds its data and solves."""
    code = "import pipelab as pl; print(pl.__file__); print(round(pl.solve(pl.load_case('tiny')).throughput, 2))"
    said = _away(installed, tmp_path, "-c", f"import sys; {code}{_COMMAND}", "cases")
    place, throughput, *listed = said.splitlines()
    assert place.startswith(str(installed))
    assert throughput == "217.52"
    assert [line.split()[0] for line in listed] == list(pl_cases())


_TOUR = """
import pipelab as pl

problem = pl.load_case("tiny", max_gpus_per_stage=2)
for method in ("aggregated", "joint"):
    result = pl.solve(problem, method)
    assert result.status == "optimal"
assert pl.plot(problem, result.placement).data
assert "No stage is faster" in str(pl.certificate(result))
assert result.evaluation._repr_html_()
for what, call in {
    "pl.explore_mix": lambda: pl.explore_mix,
    "pipelab.joint_ilp": lambda: __import__("pipelab.joint_ilp").joint_ilp.solve_by_joint_ilp(problem),
}.items():
    try:
        call()
    except pl.PipelabError as error:
        assert str(error).startswith(what + " needs ") and 'pip install "pipelab[lab]"' in str(error), error
    else:
        raise AssertionError(f"{what} does without the extra")
"""
_LAB = """
from pipelab.cli.command_line import main

given, sys.argv = sys.argv, ["pipelab", "lab"]
try:
    main()
except SystemExit as ended:
    assert ended.code == 2, ended.code
else:
    raise AssertionError("pipelab lab does without the extra")
sys.argv = given
"""
_COMMAND = """
sys.argv = ["pipelab", *sys.argv[1:]]
from pipelab.cli.command_line import main

main()
"""


def _required_by(names):
    """These packages, and what they require, as far as it is installed here."""
    found, ahead = set(), [canonicalize_name(Requirement(name).name) for name in names]
    while ahead:
        name = ahead.pop()
        if name in found:
            continue
        try:
            lines = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        found.add(name)
        wanted = [r for r in map(Requirement, lines) if not r.marker or r.marker.evaluate()]
        ahead += [canonicalize_name(r.name) for r in wanted]
    return found


def test_solving_plotting_and_the_command_line_do_without_the_extras(installed, tmp_path):
    """Everything but the dependencies and theirs is absent, and an error names the extra."""
    needed = _required_by(PROJECT["dependencies"])
    absent = [
        module
        for module, owners in metadata.packages_distributions().items()
        if not {canonicalize_name(owner) for owner in owners} & needed and module != "pipelab"
    ]
    assert {"jupyterlab", "IPython", "ipywidgets", "cvxpy", "nbconvert", "traitlets"} <= {*absent}
    alone = f"import sys; sys.modules.update(dict.fromkeys({absent}))"  # importing one fails
    code = alone + _TOUR + _LAB + _COMMAND
    done = subprocess.run(
        [sys.executable, "-c", code, "solve", "tiny", "--max-gpus", "2"], cwd=tmp_path, capture_output=True, text=True,
        env=dict(os.environ, PYTHONPATH=str(installed)), encoding="utf-8",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("301.8 tokens/s with 1 in flight, proven optimal")
    assert 'which is not installed; pip install "pipelab[lab]"' in done.stderr


@pytest.mark.slow
def test_an_installed_pipelab_copies_its_notebooks_and_overwrites_nothing(installed, tmp_path):
    mine, theirs = tmp_path / "mine", ROOT / "notebooks"
    mine.mkdir()
    (mine / "00_start_here.ipynb").write_text("my own work")
    _away(installed, tmp_path, "-m", "pipelab", "copy", "mine")
    assert (mine / "00_start_here.ipynb").read_text() == "my own work"
    files = {path.relative_to(theirs) for path in _tracked() if theirs in path.parents}
    files = {name for name in files if name.suffix in (".ipynb", ".md")}
    assert {path.relative_to(mine) for path in mine.rglob("*.[im]*")} == files
    for name in files - {Path("00_start_here.ipynb")}:
        assert (mine / name).read_bytes() == (theirs / name).read_bytes()
    again = _away(installed, tmp_path, "-m", "pipelab", "copy", "mine")
    assert "nothing was changed" in again


def _python_of(page):
    return re.findall(r"```python\n(.*?)```", text_of(page), flags=re.S)


def test_every_page_with_python_is_run():
    """By the tests below, two in test_site.py, those of one's own cost model and, at night, of requests served."""
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
    run = "README adding exam how_a_placement_is_computed how_an_optimum_is_found requests using"
    run += " within_the_error"
    assert {page.stem for page in pages if "```py" in page.read_text("utf-8")} == set(run.split())


def test_the_readmes_ten_lines_say_what_they_come_to(tmp_path, monkeypatch):
    readme = text_of("README.md")
    minutes = [book.minutes for book in notebooks_of_the_course()]
    assert f"{min(minutes)} to {max(minutes)} minutes each" in readme
    (ten_lines,) = _python_of("README.md")
    assert len(ten_lines.strip().splitlines()) - 1 == 10  # and an empty one
    monkeypatch.chdir(tmp_path)  # a plan is written
    space: dict = {}
    exec(ten_lines, space)
    stated = re.search(r"# ([\d,.]+ tokens/s with \d+ in flight, proven optimal)", ten_lines)[1]
    assert space["result"].sentence.startswith(stated)
    assert (tmp_path / "plan.json").exists()


def test_an_optimum_is_found_as_its_page_says(capsys):
    page, space = text_of("docs/how_an_optimum_is_found.md"), {}
    for block in _python_of("docs/how_an_optimum_is_found.md"):
        exec(block, space)
    result, rates = space["result"], space["result"].details["instance"]
    assert (result.status, result.throughput, result.bound) == ("optimal", 40_000, 40_000)
    listed = ", ".join(f"{rate:,.0f}" for rate in rates.thresholds)
    listed = listed.replace("40,000", "40,000 (the slow links)")
    assert listed in " ".join(page.split())
    for gpus, row in zip(rates.composition, rates.rate, strict=True):
        cells = " | ".join(f"{rate:,.0f}" for rate in row)
        assert f"| one {rates.types[gpus.argmax()].type} GPU | {cells} |" in page
    asked = [(s.rate, s.answer) for s in result.details["subproblems"]]
    assert asked == [(50_000, "yes"), (50_000, "no"), (40_000, "yes")]
    said = capsys.readouterr().out
    for seconds in (0.05, 0.051, 0.086):
        assert f"{seconds:g} seconds per pass" in said
        assert f"{1000 * seconds:.0f} ms" in page
    chosen = space["pl"].solve(space["problem"])
    assert (chosen.in_flight, chosen.throughput) == (4, 40_000)
    assert "so 4 in flight" in page


@pytest.mark.slow
def test_the_python_of_the_tour_runs_and_says_what_it_says(tmp_path, monkeypatch):
    blocks = _python_of("docs/using.md")
    monkeypatch.chdir(tmp_path)  # cases, plans and sweeps are written
    space: dict = {}
    for block in blocks:  # what takes a reader's patience is ended early
        block = re.sub(r"time_limit=\d+", "time_limit=0.3", block)
        block = block.replace('served, "rate"', 'served, "rate", time_limit=0.3')
        exec(block.replace('path="sweep.csv"', 'path="sweep.csv", jobs=1'), space)
    pl, result, timeline = space["pl"], space["result"], space["timeline"]
    own = pl.load_case("my_cluster", max_gpus_per_stage=2)
    assert space["plan"] == pl.solve(own, "aggregated").placement
    assert space["sweep"].complete
    told = (result.status, round(result.throughput, 3), round(result.bound, 3))
    assert str(told).replace("'", '"') in blocks[1]
    assert f"{result.placement.stages[0].gpus}" in blocks[1]
    assert f"({timeline.makespan}, {timeline.bubble_fraction:.3f}…)" in "".join(blocks)
    cost = space["kept"].cost_of_rules().sentence.partition("plans:")[0]
    assert f'# "{cost}plans: …"' in "".join(blocks)
