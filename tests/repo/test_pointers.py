"""What a page or a comment points to is there: paths, modules, and names in them."""

import re
from pkgutil import resolve_name

import pytest

from clone import PACKAGE, ROOT

MODULES = sorted(PACKAGE.rglob("*.py"))
ELSEWHERE = {"solver_constrained.py"}  # of a program that was published, and is cited
FOLDERS = ("pipelab", "tests", "docs", "requirements")
NAMES = {found.name for folder in FOLDERS for found in (ROOT / folder).rglob("*.py")}
PATH = re.compile(r"[\w*./]*(/[\w*.]*|\w\.py)")
DOTTED = re.compile(r"`(pipelab(?:\.\w+)+)`")


def _missing(text):
    """Paths of the clone in backticks that are not there; one without a folder may lie in any."""
    spans = re.findall(r"`([^`]+)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))
    for path in [word for span in spans for word in span.split() if PATH.fullmatch(word)]:
        first, slash, _ = path.partition("/")
        if "nNN" in path or first in ("", "..") or path in ELSEWHERE:
            continue
        if slash:
            folders = [folder for folder in (ROOT, PACKAGE) if (folder / first).is_dir()]
            there = not folders or any(list(f.glob(path.rstrip("/"))) for f in folders)
        else:
            there = path in NAMES
        if not there:
            yield path


PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_path_that_a_page_names_exists(page):
    text = page.read_text("utf-8")
    assert list(_missing(text)) == []
    links = {link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link}
    assert [link for link in links if not (page.parent / link).exists()] == []


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
