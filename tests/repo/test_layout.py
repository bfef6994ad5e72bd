"""Folders are layers, and imports go one way; heavy libraries are not imported with pipelab."""

import ast
import subprocess
import sys
from collections.abc import Container, Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import pipelab as pl
from clone import PACKAGE, parsed_package
from pipelab.reproductions import REPRODUCTIONS, reproduction

pytestmark = pytest.mark.slow  # the whole package is parsed

# Below all: the modules directly in pipelab/. Each folder may import what stands before it.
LAYERS = ["files", "hardware", "writeup", "engine", "io", "figures", "widgets", "course", "cli"]
NOT_WITH_PIPELAB = (
    *("plotly", "pyscipopt", "joblib", "cvxpy"),
    *("numpy", "pydantic", "scipy", "pandas", "tqdm", "ipywidgets"),
)


def _name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.Module]:
    """Every module, parsed, by its name."""
    return {_name(PACKAGE / path): tree for path, tree in parsed_package().items()}


@pytest.fixture(scope="module")
def edges(trees) -> dict[str, set[str]]:
    """What every module imports."""
    return {module: set(_imports(tree, trees)) for module, tree in trees.items()}


def _imports(tree: ast.Module, modules: Container[str]) -> Iterator[str]:
    """What a module imports at its top, inside its functions, or for type checkers alone."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            full = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (one if one in modules else str(node.module) for one in full)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def _layer(module: str) -> int:
    """0 for the modules directly in pipelab/; a new folder has to be given its place."""
    _, *parts = module.split(".")
    if parts == ["__main__"]:  # above all: python -m pipelab
        return 1 + len(LAYERS)
    return 1 + LAYERS.index(parts[0]) if parts and (PACKAGE / parts[0]).is_dir() else 0


def test_nothing_imports_upwards(edges):
    upwards = {(m, o) for m in edges for o in edges[m] & set(edges) if _layer(o) > _layer(m)}
    assert sorted(upwards) == []


def test_no_imports_go_in_a_circle(edges):
    TopologicalSorter({m: edges[m] & set(edges) for m in edges}).prepare()


def test_names_are_imported_from_where_they_lie(edges):
    """Not through a package's list of public names; but the ledger runs lines as a reader pastes them."""
    doors = {_name(stub) for stub in PACKAGE.rglob("__init__.pyi")}
    through_doors = [module for module in edges if edges[module] & doors]
    assert through_doors == ["pipelab.course.ledger.writeup"]


def test_importing_pipelab_loads_no_heavy_library():
    code = f"import sys, pipelab, pipelab.course; print([m for m in {NOT_WITH_PIPELAB} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_what_restates_published_work_is_imported_when_it_is_asked_for_and_not_before(edges):
    """No module below the course imports it; the registry finds all of it."""
    below = [module for module in edges if _layer(module) < 1 + LAYERS.index("course")]
    code = f"""
import importlib, sys
for module in {below}: importlib.import_module(module)
print([module for module in sys.modules if module.startswith("pipelab.course")])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert all(callable(reproduction(asked)) for asked in REPRODUCTIONS)


def test_modules_say_what_they_are_and_none_has_the_name_of_a_function_in_it(trees):
    """Importing the module would put it in the function's place."""
    for module, tree in trees.items():
        assert ast.get_docstring(tree), module
        functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert module.rpartition(".")[2] not in functions, module
    modules = {path.stem for path in PACKAGE.iterdir()}
    assert modules & set(pl.__all__) == {"course", "errors", "hardware", "splits", "writeup"}
