"""What a page or a comment points to is there: paths, modules, and names in them."""

import re
from pathlib import Path
from pkgutil import resolve_name

import pytest

from pipelab.files.bundled_folders import in_clone

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "pipelab"
MODULES = sorted(PACKAGE.rglob("*.py"))
ELSEWHERE = {"solver_constrained.py"}  # of a program that was published, and is cited
PATH = re.compile(r"[\w*./]*(/[\w*.]*|\w\.py)")
DOTTED = re.compile(r"`(pipelab(?:\.\w+)+)`")

pytestmark = pytest.mark.skipif(
    not in_clone(), reason="about the clone, and this is an installed package"
)


def _missing(text):
    """Paths in backticks that are not there; one without a folder lies in that of the path before."""
    spans = re.findall(r"`([^`]+)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))
    paths = [word for span in spans for word in span.split() if PATH.fullmatch(word)]
    assert len(paths) > 10
    folder = ROOT
    for path in paths:
        if "/" in path:
            folder = ROOT / (path if path.endswith("/") else path.rpartition("/")[0])
        if not list((ROOT if "/" in path else folder).glob(path.rstrip("/"))):
            yield path


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/the_thin_part.md"])
def test_each_path_that_a_page_names_exists(page):
    text = (ROOT / page).read_text("utf-8")
    assert list(_missing(text)) == []
    links = {link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link}
    assert [link for link in links if not ((ROOT / page).parent / link).exists()] == []


def test_each_module_that_a_comment_names_exists():
    gone = []
    for module in MODULES:
        text = module.read_text("utf-8")
        named = re.findall(r"`((?:\w+/)*\w+\.py)", text) + re.findall(r"tests/[\w/]+\.py", text)
        for path in {*named} - ELSEWHERE:
            if not any((folder / path).exists() for folder in (ROOT, PACKAGE, module.parent)):
                gone.append((module.name, path))
    assert gone == []


@pytest.mark.slow  # modules are imported
def test_each_dotted_name_in_a_comment_exists():
    gone = []
    for module in MODULES:
        for name in set(DOTTED.findall(module.read_text("utf-8"))):
            try:
                resolve_name(name)
            except (ImportError, AttributeError):
                gone.append((module.name, name))
    assert gone == []
