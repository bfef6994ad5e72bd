"""Every notebook runs, in silence, its solutions are right, and its results and figures are what they should be."""

import ast
import linecache
import math
import re

import ipywidgets
import pytest
from make_solutions import FOLD
from nbclient import NotebookClient
from nbclient.output_widget import OutputWidget
from nbformat.v4 import new_code_cell, new_notebook
from plotly.basedatatypes import BaseFigure

from notebook_results import RESULTS, check_figure, drawing_cells, with_statements
from pipelab.course import controls
from pipelab.course.checks import EXERCISES, group_of
from pipelab.course.exercises import Number
from pipelab.files.bundled_folders import notebooks_dir

NOTEBOOKS = sorted(
    p for p in notebooks_dir().rglob("*.ipynb") if ".ipynb_checkpoints" not in p.parts
)
CHECK = re.compile(r"course\.check\(\"(\d\d\.\d)\", \w+\)$")
# Four minutes together: by day only their solutions, which have the same functions.
LONG = ("03", "06", "11", "12", "13", "15", "16", "17")


def _name(path):
    return path.relative_to(notebooks_dir()).as_posix()


def _marked(path):
    long = _name(path).startswith(LONG)
    return pytest.param(path, marks=pytest.mark.nightly if long else pytest.mark.slow)


def test_statements_are_about_notebooks():
    assert set(RESULTS) <= {_name(p) for p in NOTEBOOKS}


@pytest.mark.parametrize("path", [_marked(p) for p in NOTEBOOKS], ids=_name)
def test_notebook(path, capsys, caplog, monkeypatch):
    """In this process, where a warning is an error: starting a kernel takes longer than most do.

    A check is run as it stands, and again with the folded solution above it. In the end every panel is shown again.
    """
    figures, verdicts, names, collected = [], {}, {}, []
    for module in (ipywidgets.widgets.interaction, controls):
        monkeypatch.setattr(module, "display", lambda what: figures.extend(_figures_of(what)))
    monkeypatch.setattr(ipywidgets.Output, "__enter__", lambda output: collected.append(output))
    notebook = with_statements(path, _name(path))
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    folds = iter(FOLD.findall(text))
    for cell in notebook.cells:
        if cell.cell_type != "code" or not cell.source:
            continue
        shown = _run(cell.source, names)
        repr(shown)  # as a notebook does
        figures += _figures_of(shown)
        if check := CHECK.search(cell.source):
            if path.parent == notebooks_dir():
                assert "not attempted yet" in str(shown)
                assert not _on_the_page(names, EXERCISES[check[1]])
                _run(next(folds), names)
                shown = _run(check[0], names)
            verdicts[check[1]] = str(shown)
    for function in names.values():  # a control may be moved when all cells have run
        if isinstance(panel := getattr(function, "widget", None), controls._Panel):
            panel.update()
    assert [said for said in verdicts.values() if ": right" not in said] == []
    if path.parent == notebooks_dir() and path.name[0].isdigit():
        assert set(verdicts) == {name for name in EXERCISES if group_of(name) == path.name[:2]}
    assert (capsys.readouterr().err, caplog.messages) == ("", [])
    assert collected == []  # `controls` says why
    assert len(figures) >= len(drawing_cells(notebook))
    for figure in figures:
        axes = [axis.title.text for axis in (*figure.select_xaxes(), *figure.select_yaxes())]
        kinds = {trace.type for trace in figure.data}
        check_figure(figure.layout.title.text, axes, kinds, figure.layout.annotations)


@pytest.mark.slow
def test_a_client_without_a_browser_shows_a_panel_and_writes_nothing_while_it_waits(monkeypatch):
    """As `jupyter nbconvert --execute` and papermill run notebooks: `controls` says why."""
    written = []
    monkeypatch.setattr(OutputWidget, "send", lambda *message: written.append(message))
    panel = """
from pipelab import course
@course.interact(n=(1, 9))
def figure(n=3):
    print(f"{n} GPUs")
    return course.show_table([{"GPUs": n}])
"""
    notebook = new_notebook(cells=[new_code_cell(panel)])
    NotebookClient(notebook, timeout=60).execute()
    assert written == []
    states = notebook.metadata.widgets["application/vnd.jupyter.widget-state+json"]["state"]
    (shown,) = [
        model["state"]["outputs"] for model in states.values() if "outputs" in model["state"]
    ]
    assert [output["output_type"] for output in shown] == ["stream", "display_data"]
    assert shown[0]["text"] == "3 GPUs\n"
    assert "text/html" in shown[1]["data"]


def _on_the_page(names, exercise):
    """The names under which the notebook has the answer already, if that is a number."""
    if not isinstance(exercise, Number):
        return []
    target, found = exercise.target(), []  # computed once: a notebook may hold 200,000 numbers
    for name, value in names.items():
        values = [*value.values()] if isinstance(value, dict) else value
        for one in values if isinstance(values, list | tuple) else [values]:
            number = getattr(one, "throughput", one)
            if isinstance(number, int | float) and math.isclose(number, target, rel_tol=1e-4):
                found.append(name)
    return found


def _run(source, names):
    """Run a cell; what its last line comes to, as a notebook shows it."""
    name = f"cell {len(linecache.cache)}"  # its source is kept, as a kernel does
    linecache.cache[name] = len(source), None, source.splitlines(keepends=True), name
    *body, last = ast.parse(source).body
    if not isinstance(last, ast.Expr):
        body, last = [*body, last], ast.Expr(ast.Constant(None))
    exec(compile(ast.fix_missing_locations(ast.Module(body, [])), name, "exec"), names)
    return eval(compile(ast.fix_missing_locations(ast.Expression(last.value)), name, "eval"), names)


def _figures_of(shown):
    """A figure, or those of a widget."""
    if isinstance(shown, BaseFigure):
        return [shown]
    return [f for part in getattr(shown, "children", ()) for f in _figures_of(part)]
