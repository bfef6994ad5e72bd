"""The page on the thin part is complete: its modules need no others, and its definitions no engine."""

import ast
import dataclasses
import pickle
import re
import subprocess
import sys
from functools import cache

import make_thin_part
import nbformat
import pytest

import pipelab as pl
from pipelab import course
from pipelab.files.bundled_folders import in_clone, notebooks_dir

pytestmark = pytest.mark.skipif(
    not in_clone(), reason="about the clone, and this is an installed package"
)

WITHOUT_ENGINE = """
import pickle, sys
from importlib import import_module
sys.modules["pipelab.engine"] = None  # importing it is an error now
modules, asked = pickle.load(sys.stdin.buffer)
for module in modules:
    import_module(module)
answers = []
for problem, (module, function) in asked:
    solve = getattr(import_module(f"pipelab.{module}"), function)
    answers.append(solve(problem).throughput)
sys.stdout.buffer.write(pickle.dumps(answers))
"""


@cache
def _sections():
    """The page's sections by their headings."""
    _, *parts = make_thin_part.PAGE.read_text("utf-8").split("\n## ")
    return dict(part.split("\n", 1) for part in parts)


def _listed(*without):
    """The names of the modules in the page's tables."""
    sections = [text for heading, text in _sections().items() if heading not in without]
    paths = [path for text in sections for _, path, *_ in make_thin_part.ROW.findall(text)]
    return [path.removesuffix(".py").replace("/", ".") for path in paths]


def _definitions():
    """By a cell's call, the module and the function that the page names."""
    text = _sections()["What the cells call, and its definition"]
    row = r'^\| `pl\.solve\(problem(?:, "(\w+)")?\)` \| `(\w+)\.(\w+)`'
    return {
        method or "auto": (module, name) for method, module, name in re.findall(row, text, re.M)
    }


def _beyond():
    text = _sections()["What the cells call, and its definition"]
    said = text[text.index("Cells also call") : text.index("This list only")]
    return set(re.findall(r"`((?:pl|course)\.\w+)`", said))


@cache
def _cells():
    """The code of notebooks 01 to 06, parsed."""
    books = sorted(notebooks_dir().glob("0[1-6]_*.ipynb"))
    code = [c.source for b in books for c in nbformat.read(b, 4).cells if c.cell_type == "code"]
    return [node for source in code for node in ast.walk(ast.parse(source))]


def _smaller(problem, layers):
    """A problem of the course with fewer layers, and one GPU of each type."""
    model, kept = problem.model, {}
    for name in ("weight_factors", "work_factors"):
        factors = getattr(model, name)
        kept[name] = factors and (*factors[: layers - 1], factors[-1])
    model = dataclasses.replace(model, layers=layers, **kept)
    one_each = problem.cluster.with_counts({gpu.type: 1 for gpu in problem.cluster.kinds})
    return dataclasses.replace(problem, model=model, cluster=one_each)


PROBLEMS = {
    "auto": lambda: _smaller(course.three_sites(), layers=6),
    "exhaustive": lambda: _smaller(course.five_gpus(), layers=8),
    "joint": course.seven_gpus,
    "aggregated": lambda: course.one_network(2),
}


@pytest.mark.slow  # solvers are imported, and asked
def test_each_method_in_a_cell_has_a_definition_that_needs_no_engine():
    """And that answers what the method answers, on the notebook's problem or a smaller one."""
    calls = [node for node in _cells() if isinstance(node, ast.Call)]
    solves = [call for call in calls if ast.unparse(call.func) == "pl.solve"]
    methods = {call.args[1].value if len(call.args) > 1 else "auto" for call in solves}
    definitions = _definitions()
    assert methods == set(definitions) == set(PROBLEMS)
    problems = {method: PROBLEMS[method]() for method in methods}
    asked = [(problems[method], definitions[method]) for method in methods]
    modules = _listed("What shows it")
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_ENGINE],
        input=pickle.dumps((modules, asked)),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    for method, throughput in zip(methods, pickle.loads(done.stdout), strict=True):
        engine = pl.solve(problems[method], method)
        assert engine.status == "optimal"
        assert throughput == pytest.approx(engine.throughput, rel=1e-9), method


def test_what_the_cells_call_beyond_the_thin_part_only_becomes_less():
    """Names of `pl` and of `course`; a notebook's module has what the notebook alone needs."""
    homes = {}
    for package in (pl, course):
        stub = make_thin_part.ROOT / package.__name__.replace(".", "/") / "__init__.pyi"
        for node in ast.parse(stub.read_text("utf-8")).body:
            home = f"{package.__name__}." if node.level else ""
            for alias in node.names:
                module = f"{home}{node.module}" if node.module else f"{home}{alias.name}"
                homes[f"{'pl' if package is pl else 'course'}.{alias.name}"] = module
    named = {ast.unparse(node) for node in _cells() if isinstance(node, ast.Attribute)}
    thin = {*_listed(), "pipelab.engine.solving", "pipelab.course"}
    beyond = {
        name
        for name in named & set(homes)
        if homes[name] not in thin and not homes[name].startswith("pipelab.course.")
    }
    assert beyond == _beyond()
    assert len(beyond) <= 6


def test_the_modules_of_the_page_need_no_others():
    modules = _listed("What shows it")
    assert len(modules) == len(set(modules))
    for module in modules:
        path = make_thin_part.ROOT / f"{module.replace('.', '/')}.py"
        imports = [
            n for n in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(n, ast.ImportFrom)
        ]
        needed = {n.module for n in imports if n.module.startswith("pipelab")}
        assert needed <= set(modules), f"{module}: a row for these in {make_thin_part.PAGE.name}"


def test_the_page_says_how_many_lines_each_module_has():
    page = make_thin_part.PAGE.read_text("utf-8")
    counted = make_thin_part.made(page)
    said = [int(row[2].replace(",", "")) for row in make_thin_part.ROW.findall(page)]
    now = [int(row[2].replace(",", "")) for row in make_thin_part.ROW.findall(counted)]
    assert said == pytest.approx(now, rel=0.2, abs=30), "run python tests/make_thin_part.py"
    sums = [int(make_thin_part.SUM.search(text)[0].replace(",", "")) for text in (page, counted)]
    assert sums[0] == pytest.approx(sums[1], rel=0.05), "run python tests/make_thin_part.py"
