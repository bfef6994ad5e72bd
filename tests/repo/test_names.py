"""Names say what things are: a class has its name alone, a docstring says what one gets, an answer is built by name."""

import ast
import inspect
from collections import Counter

import pytest

import pipelab as pl
from clone import parsed_package

pytestmark = pytest.mark.slow  # the whole package is parsed

EMPTY_BEGINNINGS = (
    "The same",
    "Those",
    "What is none",
    "So many",
    "As many as",
    "None of",
    "What came",
)


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.Module]:
    """Every module of the package, parsed, by its path in the package."""
    return parsed_package()


def _classes(tree):
    return [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]


def test_a_public_name_or_an_option_comes_only_where_one_goes():
    options = [name for name in inspect.signature(pl.deploy).parameters if name != "problem"]
    assert len(pl.__all__) <= 49
    assert len(options) <= 13


def test_no_two_classes_have_one_name(trees):
    """An underscore tells nobody which of two is meant."""
    number = Counter(node.name.lstrip("_") for tree in trees.values() for node in _classes(tree))
    assert [name for name in number if number[name] > 1] == []


def test_a_docstring_says_what_one_gets(trees):
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    unclear = [
        (path, text.partition("\n")[0])
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, documented)
        and (text := ast.get_docstring(node) or "").startswith(EMPTY_BEGINNINGS)
    ]
    assert unclear == []


def test_what_the_engine_hands_on_is_built_by_name(trees):
    engine = {path: tree for path, tree in trees.items() if path.startswith("engine/")}
    records = {
        node.name
        for tree in engine.values()
        for node in _classes(tree)
        if "frozen=True" in "".join(map(ast.unparse, node.decorator_list))
        or "NamedTuple" in map(ast.unparse, node.bases)
    }
    positional = [
        (path, ast.unparse(node.func), node.lineno)
        for path, tree in engine.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).rpartition(".")[2] in records
        and len(node.args) > 2
    ]
    assert positional == []
