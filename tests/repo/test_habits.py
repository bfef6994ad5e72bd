"""What a repository is expected to have besides code: one version, and files that GitHub can read."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import pipelab as pl
from pipelab.files.bundled_folders import in_clone

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))

pytestmark = pytest.mark.skipif(
    not in_clone(), reason="about the clone, and this is an installed package"
)


def _yaml(path):
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def _against_schema(schema, *paths):
    """What GitHub's own schema says of these files; the schemas come with check-jsonschema."""
    done = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}"]
        + [str(path) for path in paths],
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr


def test_the_version_is_the_same_everywhere():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    newest = re.search(r"^## (\S+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    cited = _yaml(ROOT / "CITATION.cff")
    assert {pl.__version__, newest[1], str(cited["version"])} == {project["version"]}
    assert [one["name"] for one in cited["authors"]] == [a["name"] for a in project["authors"]]
    assert cited["license"] == project["license"]


def test_the_binder_badge_stands_in_the_readme_once_there_is_an_address():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    address = project["urls"].get("Repository", "")
    readme, cited = (ROOT / "README.md").read_text("utf-8"), _yaml(ROOT / "CITATION.cff")
    assert ("mybinder.org" in readme) == bool(address)
    assert address.removeprefix("https://github.com/") in readme
    assert cited.get("repository-code", "") == address


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schema", "paths"),
    [
        ("github-workflows", WORKFLOWS),
        ("github-issue-forms", [p for p in FORMS if p.name != "config.yml"]),
        ("citation-file-format", [ROOT / "CITATION.cff"]),
    ],
)
def test_github_can_read_it(schema, paths):
    assert paths
    assert _against_schema(schema, *paths)[0] == 0, _against_schema(schema, *paths)[1]


def test_the_workflow_runs_the_tests_and_publishes_the_site_it_built():
    jobs = _yaml(WORKFLOWS[0])["jobs"]
    runs = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert ".ci/run" in runs
    (built,) = [run for run in runs if "sphinx-build" in run]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert built.removesuffix(" site") + " FOLDER" in readme
    (published,) = [
        step["with"]["path"] for step in jobs["site"]["steps"] if "pages" in step.get("uses", "")
    ]
    assert published == built.split()[-1]
    assert jobs["site"]["needs"] == "test"
    assert jobs["publish"]["needs"] == "site"
    assert not re.search(r"index-url|://", WORKFLOWS[0].read_text().replace("${{", ""))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (installed,) = re.findall(r"\.\[([\w,]+)\]", " ".join(runs))
    assert set(installed.split(",")) <= set(project["optional-dependencies"])


def test_jobs_take_the_browser_that_ubuntus_image_has():
    """Ubuntu has no package of it; Debian has, and there `.ci/run` installs it if none of these is found."""
    jobs = _yaml(WORKFLOWS[0])["jobs"].values()
    runs = [
        step["run"]
        for job in jobs
        if "ubuntu" in job["runs-on"]
        for step in job["steps"]
        if "run" in step
    ]
    assert not [run for run in runs if "apt-get install" in run and re.search("chrom", run)]
    looked_for = re.search(
        r"! command -v (.*) >", (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    )[1]
    for reader in (ROOT / "tests" / "lab_session.py", ROOT / "docs" / "pages.py"):
        assert ", ".join(map('"{}"'.format, looked_for.split())) in reader.read_text(
            encoding="utf-8"
        )


def test_the_hooks_run_what_the_tests_check():
    repos = _yaml(ROOT / ".pre-commit-config.yaml")["repos"]
    run = {hook["entry"].split()[0] for repo in repos for hook in repo["hooks"]}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    listed = project["optional-dependencies"]["test"]
    assert run == {"ruff", "nbstripout"} <= {re.match(r"[\w-]+", line)[0] for line in listed}


CLOCKS = {"perf_counter", "monotonic", "time", "process_time"}
ANSWERS = {"result", "found", "answer", "deployment", "stopped", "best"}


def _reads_a_clock(node, measured):
    """Whether an expression has a clock in it, a variable that was computed from one, or how long an answer took."""
    for part in ast.walk(node):
        named = part.func if isinstance(part, ast.Call) else None
        if (
            isinstance(named, ast.Attribute)
            and named.attr in CLOCKS
            and _name(named.value) == "time"
        ):
            return True
        if isinstance(named, ast.Name) and named.id in CLOCKS - {"time"}:
            return True
        took = isinstance(part, ast.Attribute) and part.attr == "seconds"
        if _name(part) in measured - {None} or (took and _name(part.value) in ANSWERS):
            return True
    return False


def _name(node):
    return getattr(node, "id", None)


def _pairs(target, value):
    both = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
    return zip(target.elts, value.elts, strict=True) if both else [(target, value)]


def _timed_assertions(source):
    """The lines of assertions about a time that was measured."""
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        measured = set[str | None]()
        for _ in range(3):  # of what was computed from what was computed
            for node in ast.walk(function):
                if isinstance(node, ast.Assign):
                    for target, value in _pairs(node.targets[0], node.value):
                        measured |= {_name(target)} if _reads_a_clock(value, measured) else set()
                collects = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
                if collects and any(_reads_a_clock(own, measured) for own in node.args):
                    measured |= {_name(node.func.value)} - {None}
        for node in ast.walk(function):
            if isinstance(node, ast.Assert) and _reads_a_clock(node.test, measured):
                yield node.lineno


def test_no_test_depends_on_how_fast_the_machine_is():
    timed = """
def test_it():
    began, stalls = time.perf_counter(), []
    stalls.append(time.perf_counter() - began)
    took = time.monotonic() - began
    assert max(stalls) < 1
    assert took < 2
    assert pl.solve(problem).status
    assert result.seconds < 3
"""
    assert list(_timed_assertions(timed)) == [6, 7, 9]
    found = {
        f"{path.name}:{line}"
        for path in (ROOT / "tests").rglob("*.py")
        if re.search(
            r"perf_counter|monotonic|time\.time|process_time|\.seconds\b", path.read_text("utf-8")
        )
        for line in _timed_assertions(path.read_text("utf-8"))
    }
    assert found == set()
