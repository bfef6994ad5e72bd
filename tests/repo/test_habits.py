"""What a repository is expected to have besides code: one version, and files that GitHub can read."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import pipelab as pl
from clone import PROJECT, ROOT, text_of

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


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
    newest = re.search(r"^## (\S+)$", text_of("CHANGELOG.md"), re.M)
    cited = _yaml(ROOT / "CITATION.cff")
    assert {pl.__version__, newest[1], str(cited["version"])} == {PROJECT["version"]}
    assert [one["name"] for one in cited["authors"]] == [a["name"] for a in PROJECT["authors"]]
    assert cited["license"] == PROJECT["license"]


def test_a_public_address_stands_everywhere_or_nowhere():
    readme = text_of("README.md")
    stands = {
        "urls of the project": "Repository" in PROJECT.get("urls", {}),
        "citation": "repository-code" in _yaml(ROOT / "CITATION.cff"),
        "Binder": "mybinder.org" in readme,
        "the picture leads to the page": re.search(r"mix\.png\)\]\(https:\S+/mix\.html\)", readme)
        is not None,
    }
    assert len(set(stands.values())) == 1, stands


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
    (published,) = [
        step["with"]["path"] for step in jobs["site"]["steps"] if "pages" in step.get("uses", "")
    ]
    assert published == built.split()[-1]
    assert (jobs["site"]["needs"], jobs["publish"]["needs"]) == ("test", "site")
    # Ubuntu has no package of the browser; its image has one.
    assert not [run for run in runs if "apt-get install" in run and "chrom" in run]
    installed = re.findall(r"\.\[([\w,]+)\]", WORKFLOWS[0].read_text(encoding="utf-8"))
    assert set(",".join(installed).split(",")) <= set(PROJECT["optional-dependencies"])
    ends = [row["python"] for row in jobs["ends"]["strategy"]["matrix"]["include"]]
    assert f">={ends[0]}" == PROJECT["requires-python"]


def test_the_hooks_run_what_the_tests_check():
    repos = _yaml(ROOT / ".pre-commit-config.yaml")["repos"]
    run = {hook["entry"].split()[0] for repo in repos for hook in repo["hooks"]}
    listed = PROJECT["optional-dependencies"]["test"]
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
