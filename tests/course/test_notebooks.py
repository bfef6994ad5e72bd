"""Every notebook runs, in silence, and its results are what they should be."""

import ast
import linecache
import re
import symtable
import warnings

import nbformat
import plotly.graph_objects as go
import pytest

from lab_session import CHROMIUM
from notebook_results import IN_JUPYTERLAB, RESULTS, check_figure, with_statements
from pipelab.cli.static_pages.kernel_client import notebook_client
from pipelab.files.bundled_folders import notebooks_dir

FIGURE = "application/vnd.plotly.v1+json"
SOLUTIONS = sorted(notebooks_dir().glob("solutions/*.ipynb"))
NOTEBOOKS = sorted(
    p for p in notebooks_dir().rglob("*.ipynb") if ".ipynb_checkpoints" not in p.parts
)

COURSE = sorted(notebooks_dir().glob("[0-9][0-9]_*.ipynb"))
FOLD = re.compile(r"<summary>Solution</summary>.*?```python\n(.*?)```", flags=re.S)
CHECK = re.compile(r"course\.check\(\"(\d\d\.\d)\"")


def _name(path):
    return path.relative_to(notebooks_dir()).as_posix()


def test_every_notebook_has_asserted_results():
    assert {_name(p) for p in NOTEBOOKS} == set(RESULTS)


@pytest.mark.slow
@pytest.mark.parametrize("path", SOLUTIONS, ids=_name)
def test_solution(path, capsys):
    """In this process, where a warning is an error: starting a kernel takes longer than most solutions do."""
    names = {}
    for cell in with_statements(path, _name(path)).cells:
        if cell.cell_type == "code":
            shown = _run(cell.source, names)
            repr(shown)  # as a notebook does
            if isinstance(shown, go.Figure):
                _check(shown.to_plotly_json())
    assert capsys.readouterr().err == ""


def _run(source, names):
    """Run a cell; what its last line comes to, as a notebook shows it."""
    name = f"cell {len(linecache.cache)}"  # its source is kept, as a kernel does
    linecache.cache[name] = len(source), None, source.splitlines(keepends=True), name
    *body, last = ast.parse(source).body
    if not isinstance(last, ast.Expr):
        body, last = [*body, last], ast.Expr(ast.Constant(None))
    exec(compile(ast.fix_missing_locations(ast.Module(body, [])), name, "exec"), names)
    return eval(compile(ast.fix_missing_locations(ast.Expression(last.value)), name, "eval"), names)


@pytest.mark.slow
@pytest.mark.parametrize("path", COURSE, ids=_name)
def test_a_folded_solution_is_accepted_as_it_stands(path):
    """Pasted into its notebook, above its check; in this process, as solutions are."""
    names, verdicts = {}, {}
    for source in _with_folded_solutions(path):
        shown = _run(source, names)
        if check := CHECK.search(source):
            verdicts[check[1]] = str(shown)
    assert len(verdicts) >= 2
    assert [said for said in verdicts.values() if ": right" not in said] == []


def _with_folded_solutions(path):
    """The code cells up to the last check, with every folded solution above its own."""
    cells = nbformat.read(path, as_version=4).cells
    folds = [s for c in cells if c.cell_type == "markdown" for s in FOLD.findall(c.source)]
    code = [c.source for c in cells if c.cell_type == "code"]
    checks = [i for i, source in enumerate(code) if CHECK.search(source)]
    for i, solution in zip(checks, folds, strict=True):
        above, check, rest = code[i].partition("course.check(")
        code[i] = f"{above}{solution}{check}{rest}"
    return _used(code[: checks[-1] + 1])


def _used(code):
    """Checks, and the cells before that bind a name which they or another of these cells read.

    The whole notebook runs in `test_notebook`; in 11, what its exercises do not use takes a minute.
    """
    read, kept = set(), []
    for source in reversed(code):
        tables = [cell := symtable.symtable(source, "cell", "exec")]
        for table in tables:
            tables += table.get_children()
        bound = {s.get_name() for s in cell.get_symbols() if s.is_assigned() or s.is_imported()}
        if CHECK.search(source) or bound & read:
            names = (s for table in tables for s in table.get_symbols())
            read |= {s.get_name() for s in names if s.is_global() and s.is_referenced()}
            kept.append(source)
    return kept[::-1]


def _check(figure):
    layout = figure["layout"]
    axes = [axis.get("title", {}).get("text") for key, axis in layout.items() if "axis" in key]
    kinds = {trace["type"] for trace in figure["data"]}
    check_figure(layout["title"]["text"], axes, kinds, layout.get("annotations"))


# Three minutes together; by day only what their exercises use (above).
LONG = ("11", "15", "16", "17", "18")


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(p, marks=pytest.mark.nightly) if p.name[:2] in LONG else p
        for p in NOTEBOOKS
        if p not in SOLUTIONS
    ],
    ids=_name,
)
def test_notebook(path):
    if CHROMIUM and path.name[:2] in IN_JUPYTERLAB:
        pytest.skip("test_browser.py runs it in JupyterLab, with the same statements")
    notebook = with_statements(path, _name(path))
    with warnings.catch_warnings():
        # of the client's own machinery; the kernel's are checked below
        warnings.simplefilter("ignore")
        notebook_client(notebook, timeout=300).execute()
    outputs = [o for c in notebook.cells if c.cell_type == "code" for o in c.outputs]
    assert [o.text for o in outputs if o.get("name") == "stderr"] == []
    figures = [o.data[FIGURE] for o in outputs if FIGURE in o.get("data", {})]
    assert figures or path.name == "glossary.ipynb"
    for figure in figures:
        _check(figure)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=_name)
def test_no_reader_is_sent_to_a_file_outside_the_notebooks(path):
    """`pipelab lab` serves their folder and nothing above it; what the data mean stands in data.md."""
    text = "\n".join(
        c.source for c in nbformat.read(path, as_version=4).cells if c.cell_type == "markdown"
    )
    assert "README.md" not in text
    assert "](../.." not in text
