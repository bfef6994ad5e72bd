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
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    cited = _yaml(ROOT / "CITATION.cff")
    assert {pl.__version__, newest[1], str(cited["version"])} == {project["version"]}
    assert [one["name"] for one in cited["authors"]] == [a["name"] for a in project["authors"]]
    assert cited["license"] == project["license"]


def _missing(address, readme, cited):
    """Where the public address of the repository should stand, and does not; before it has one, nowhere."""
    page = (ROOT / "docs" / "releasing.md").read_text(encoding="utf-8")
    (badge,) = re.findall(r"^ *(\[!\[Binder\].*\))$", page, re.M)
    if not address:
        return ["README.md: a badge"] * ("mybinder.org" in readme)
    owner_and_name = re.fullmatch(r"https://github\.com/([\w.-]+/[\w.-]+)", address)[1]
    badge = badge.replace("OWNER/REPOSITORY", owner_and_name)
    missing = ["README.md: " + badge] * (badge not in readme.splitlines())
    return missing + ["CITATION.cff"] * (cited.get("repository-code") != address)


def test_the_binder_badge_stands_in_the_readme_once_there_is_an_address():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    readme, cited = (ROOT / "README.md").read_text("utf-8"), _yaml(ROOT / "CITATION.cff")
    assert _missing(project["urls"].get("Repository", ""), readme, cited) == []
    # one that is made up
    address = "https://github.com/somebody/elsewhere"
    found = _missing(address, "# pipelab", {})
    assert found[1] == "CITATION.cff"
    link = "https://mybinder.org/v2/gh/somebody/elsewhere/HEAD?urlpath=lab/tree/notebooks)"
    assert found[0].endswith(link)
    badge = found[0].removeprefix("README.md: ")
    assert _missing(address, f"# pipelab\n\n{badge}", {"repository-code": address}) == []
    assert _missing("", badge, {}) == ["README.md: a badge"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schema", "paths"),
    [
        ("github-workflows", WORKFLOWS),
        ("github-issue-forms", [p for p in FORMS if p.name != "config.yml"]),
        ("citation-file-format", [ROOT / "CITATION.cff"]),
    ],
)
def test_github_can_read_it(schema, paths, tmp_path):
    assert paths
    assert _against_schema(schema, *paths)[0] == 0, _against_schema(schema, *paths)[1]


@pytest.mark.slow
def test_the_linter_finds_what_is_wrong_in_a_workflow(tmp_path):
    """So that the test above can fail: a misspelt key is refused."""
    wrong = tmp_path / "ci.yml"
    wrong.write_text(WORKFLOWS[0].read_text(encoding="utf-8").replace("runs-on", "run-on"))
    status, said = _against_schema("github-workflows", wrong)
    assert status != 0
    assert "run-on" in said


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


@pytest.mark.slow
def test_the_hooks_run_what_the_tests_check():
    hooks = [
        hook for repo in _yaml(ROOT / ".pre-commit-config.yaml")["repos"] for hook in repo["hooks"]
    ]
    tests = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    listed = {re.match(r"[\w-]+", line)[0] for line in tests["optional-dependencies"]["test"]}
    assert {hook["entry"].split()[0] for hook in hooks} == {"ruff", "nbstripout"} <= listed
    for hook in hooks:
        done = subprocess.run(
            [sys.executable, "-m", *hook["entry"].split(), "--help"], capture_output=True
        )
        assert done.returncode == 0, hook["id"]
