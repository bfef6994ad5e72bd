"""Where a module lies, what it may import, how long it may be, and what it may be called.

The tables below say it. An exception names one import, file or module, with the reason; an exception
that no longer occurs fails its test, so that the lists only get shorter.
"""

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import pipelab as pl
from pipelab.io.paths import in_clone
from slow_tests import SLOW

PACKAGE = Path(__file__).parent.parent / "pipelab"

pytestmark = pytest.mark.skipif(
    not in_clone(), reason="about the clone, and this is an installed package"
)

# Which part a module belongs to: the longest of these that its name begins with decides. Modules
# directly under pipelab/ are the front, and `pipelab/__init__.py` is the package.
PARTS = {
    "pipelab.hardware": "hardware",
    # the write-up's cost model: its cases are files, and the engine has formulas for it alone
    "pipelab.hardware.linear_rates": "rates",
    "pipelab.engine": "engine",
    "pipelab.figures": "figures",
    "pipelab.widgets": "widgets",
    "pipelab.course": "course",
    # io/ has three: files of any kind, files that hold what the engine found, and programs.
    "pipelab.io.case_files": "files",
    "pipelab.io.cases_csv": "files",
    "pipelab.io.csv_cells": "files",
    "pipelab.io.paths": "files",
    "pipelab.io.whole_files": "files",
    "pipelab.io": "formats",
    "pipelab.io.command_line": "programs",
    "pipelab.io.entry": "programs",
    "pipelab.io.commands": "programs",
    "pipelab.io.grading": "programs",
    "pipelab.io.health": "programs",
    "pipelab.io.lab": "programs",
    "pipelab.io.static": "programs",
    "pipelab.io.terminal": "programs",
}

# What each part may import beside itself, whether at the top or inside a function. Every line names
# only parts that stand above it: data flows downwards. (The course reads the package as notebooks do.)
MAY_IMPORT = {
    "front": set(),
    "package": {"front"},
    "rates": {"front"},
    "files": {"front", "rates"},
    "hardware": {"front", "files"},
    "engine": {"front", "rates", "files"},
    "formats": {"front", "files", "engine"},
    "figures": {"front", "files", "hardware", "engine"},
    "widgets": {"front", "rates", "files", "hardware", "engine", "figures"},
    "course": {"front", "package", "rates", "files", "hardware", "engine", "figures"},
    "programs": {"front", "files", "hardware", "engine", "formats", "figures", "course"},
}

# These name other modules in strings, in one table each, and import them when they are first used.
TABLES = {"pipelab", "pipelab.solving", "pipelab.plotting"}

# Imports against the table: (who, whom).
AGAINST = [
    # cost models fill the engine's tables
    ("pipelab.hardware.measured_times", "pipelab.engine.layer_runs"),
    ("pipelab.hardware.measured_times", "pipelab.engine.stage_arrays"),
    ("pipelab.hardware.pass_times", "pipelab.engine.layer_runs"),
    ("pipelab.hardware.roofline", "pipelab.engine.stage_arrays"),
    ("pipelab.hardware.transformer", "pipelab.engine.layer_runs"),
    # a case in the newest form has real GPUs
    ("pipelab.io.cases_csv", "pipelab.hardware.newest_cases"),
    # Ctrl-C while modules are imported is noted by the call
    ("pipelab", "pipelab.engine.interrupts"),
]

# Imports that close a circle inside one part: (who, whom).
CIRCULAR: list[tuple[str, str]] = []

# A heavy library, and who may import it: the beginnings of module names.
LIBRARIES = {
    "plotly": ("pipelab.figures.", "pipelab.course.n", "pipelab.course.pictures"),
    # An exercise runs rows that its reader wrote with PySCIPOpt.
    "pyscipopt": ("pipelab.engine.solvers.scip", "pipelab.course.n03"),
    "joblib": ("pipelab.engine.sweeps.workers",),
    "cvxpy": ("pipelab.joint_ilp", "pipelab.course.n05"),
}
NOT_WITH_PIPELAB = (*LIBRARIES, "numpy", "pydantic", "scipy", "pandas", "tqdm", "ipywidgets")

# Modules with the name of a function in them.
LIKE_THEIR_FUNCTION: list[str] = []


def _name(path):
    """A file's dotted name as a module."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


@cache
def _tree(module):
    return ast.parse(FILES[module].read_text(encoding="utf-8"))


def _is_front(module):
    return module.count(".") == 1 and FILES[module].name != "__init__.py"


def _part(module):
    if module == "pipelab":
        return "package"
    if _is_front(module):
        return "front"
    starts = [start for start in PARTS if f"{module}.".startswith(f"{start}.")]
    assert starts, f"{module} belongs to no part"
    return PARTS[max(starts, key=len)]


def _imported(node):
    """What is imported below a node when it runs, lazily or not, but not for type checkers alone."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr) or (
            isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
        ):
            continue
        if isinstance(child, ast.ImportFrom):
            assert not child.level, "imports give the whole name"
            for alias in child.names:
                full = f"{child.module}.{alias.name}"
                yield full if full in FILES else child.module
        elif isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        yield from _imported(child)


@cache
def _imported_names(module):
    return set(_imported(_tree(module)))


@cache
def _modules_in_strings(module):
    """Modules inside pipelab that are named in a string, alone or as "module:function"."""
    if not re.search(r"""["']pipelab\.""", FILES[module].read_text(encoding="utf-8")):
        return set()  # most modules: walking through all trees takes a second
    texts = {n.value for n in ast.walk(_tree(module)) if isinstance(n, ast.Constant)}
    inside = set(FILES) - {"pipelab"}
    return {text.partition(":")[0] for text in texts if isinstance(text, str)} & inside


@cache
def _imports(module):
    """The modules of pipelab that a module imports."""
    strings = set() if module in TABLES else _modules_in_strings(module)
    return (_imported_names(module) & set(FILES) | strings) - {module}


@cache
def _edges():
    return {(module, other) for module in FILES for other in _imports(module)}


def _against(edges):
    parts = {edge: (_part(edge[0]), _part(edge[1])) for edge in edges}
    return {edge for edge, (one, two) in parts.items() if two not in MAY_IMPORT[one] | {one}}


def _only(found, exceptions):
    """Nothing is found but the exceptions, and every exception is found."""
    assert sorted(found - set(exceptions)) == [], "new"
    assert sorted(set(exceptions) - found) == [], "no longer an exception: delete it from the list"


def _circular(edges):
    """The edges that are left when all have gone that lead to an end, or come from a beginning."""
    while True:
        inside = {one for one, _ in edges} & {other for _, other in edges}
        kept = {edge for edge in edges if inside >= set(edge)}
        if kept == edges:
            return kept
        edges = kept


def test_the_table_itself_points_one_way():
    above = set()
    for part, others in MAY_IMPORT.items():
        assert others <= above, part
        above.add(part)
    assert above == {"front", "package", *PARTS.values()}
    assert {_part(module) for module in FILES} == above


def test_imports_point_one_way():
    _only(_against(_edges()), AGAINST)


def test_no_imports_go_in_a_circle():
    """Not even lazily; imports against the table are the matter of the test above."""
    edges = _edges() - _against(_edges()) - set(CIRCULAR)
    assert _circular(edges) == set()
    assert [edge for edge in CIRCULAR if edge not in _circular(edges | {edge})] == []
    assert _edges() >= set(CIRCULAR)


def test_only_the_tables_name_modules_in_strings_across_parts():
    """One module outside imports from strings, and only its own neighbours."""
    callers = {
        module
        for module in FILES
        if any(isinstance(n, ast.Name) and n.id == "import_module" for n in ast.walk(_tree(module)))
    }
    assert callers <= TABLES


def test_heavy_libraries_have_one_home():
    for module in FILES:
        imported = {name.partition(".")[0] for name in _imported_names(module)}
        for library in imported & set(LIBRARIES):
            assert module.startswith(LIBRARIES[library]), (module, library)


def test_importing_pipelab_loads_no_heavy_library():
    code = f"import sys, pipelab, pipelab.course; print([m for m in {NOT_WITH_PIPELAB} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"  # speed is measured by tests/benchmarks/imports.py


def test_modules_say_what_they_are():
    for module, path in FILES.items():
        assert path.read_text(encoding="utf-8").startswith('"""'), module


def test_no_module_has_the_name_of_a_function_in_it():
    """Importing the module would put it in the function's place."""
    alike = set()
    for module in FILES:
        own = module.rpartition(".")[2]
        if any(isinstance(n, ast.FunctionDef) and n.name == own for n in _tree(module).body):
            alike.add(module)
    _only(alike, LIKE_THEIR_FUNCTION)
    directly = {path.stem for path in PACKAGE.iterdir()}
    assert directly & set(pl.__all__) == set()


def test_every_slow_test_exists():
    for file, tests in SLOW.items():
        text = (PACKAGE.parent / file).read_text(encoding="utf-8")
        missing = [test for test in tests if f"def {test.rpartition('.')[2]}(" not in text]
        assert missing == [], file
