"""What a repository is expected to have besides code: one version, and files that GitHub can read."""

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


# How long something took: a clock less another reading of it, or what an answer says of itself.
TIMED = (
    r"(perf_counter|monotonic|process_time|time\.time)\(\) *-"
    r"|\bassert (result|found|answer|deployment|best)\.seconds\b"
)


def test_no_test_depends_on_how_fast_the_machine_is():
    """Clocks end what waits; no test measures by one."""
    assert re.search(TIMED, "took = time.perf_counter() - began")
    tests = set((ROOT / "tests").rglob("*.py")) - set((ROOT / "tests" / "benchmarks").iterdir())
    measures = [path.name for path in tests if re.search(TIMED, path.read_text("utf-8"))]
    assert measures == [Path(__file__).name]
