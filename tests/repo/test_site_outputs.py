"""What the site shows of a notebook that was run: formulas, figures, widgets and outputs, without a kernel."""

import asyncio
import base64
from queue import Empty

import ipywidgets as widgets
import nbformat
import numpy as np
import plotly.graph_objects as go
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

import pipelab as pl
from formulas import typeset_html
from outputs_as_html import NOTE, figure_html, figure_of_state, still, with_outputs_as_html
from pipelab.cli import kernel_client
from pipelab.engine.formulations.joint_ilp_forms import joint_formulation
from pipelab.widgets.chart import LiveChart
from run_notebooks import executed

# formulas


def test_formulas_of_outputs_become_mathml_and_code_and_money_stay():
    assert "<mo>&#x0003C;</mo>" in typeset_html("<td>$\\ell &lt; M$</td>")
    assert typeset_html("<pre>$x$</pre>") == "<pre>$x$</pre>"
    asked = pl.course.guess("An L4 ($0.70) or a T4 ($0.35)?", "the T4, per $")
    for shown in (asked, asked("$1 or $2")):
        assert typeset_html(shown._repr_html_()) == shown._repr_html_()
    assert "$" not in typeset_html(joint_formulation(pl.load_case("tiny"))._repr_html_())


# figures and widgets


def test_a_figure_cannot_end_its_script():
    text = figure_html({"data": [], "layout": {"title": {"text": "</script><b>"}, "width": 700}})
    assert text.count("</script>") == 1
    assert "width:100%" in text
    assert '"width": 700' not in text


def _states():
    return widgets.Widget.get_manager_state()["state"]


def test_a_live_chart_is_its_figure():
    bars = {"type": "bar", "y": np.array([1.5, 2.5])}
    chart = LiveChart({"data": [bars], "layout": {"title": {"text": "two bars"}}})
    figure = figure_of_state(_states()[chart.model_id]["state"])
    assert go.Figure(figure).layout == chart.figure.layout
    assert np.frombuffer(base64.b64decode(figure["data"][0]["y"]["bdata"])).tolist() == [1.5, 2.5]
    assert figure_of_state({"value": 3}) is None


def test_controls_are_shown_with_their_values():
    hidden = widgets.HTML("not this", layout={"display": "none"})
    live = widgets.HTML("not this either").add_class("pipelab-live-only")
    box = widgets.VBox([
        widgets.IntSlider(description="T4", value=6), widgets.HTML("<b>limited</b>"), hidden, live,
        widgets.HBox([widgets.Dropdown(description="phase", options=["prefill", "decode"], value="decode")]),
        widgets.Checkbox(description="mixed", value=True), widgets.Button(description="Stop"),
    ])  # fmt: skip
    text = still(box.model_id, _states())
    assert all(part in text for part in (NOTE, "T4 <b>6</b>", "<b>limited</b>", 'class="row"'))
    assert all(part in text for part in ("phase <b>decode</b>", "mixed <b>yes</b>"))
    assert all(part not in text for part in ("Stop", "not this"))
    printed = {"output_type": "stream", "name": "stdout", "text": "five stages"}
    output = widgets.Output(outputs=(printed,))
    assert "five stages" in still(output.model_id, _states())
    assert still("gone", {}) == f'<div class="still"><p class="note">{NOTE}</p></div>'


def test_outputs_are_html_without_warnings_and_answers_are_folded():
    hidden = new_code_cell("how_many", metadata={"jupyter": {"source_hidden": True}})
    drawn = new_code_cell("figure")
    figure = {"application/vnd.plotly.v1+json": {"data": [], "layout": {}}, "text/html": "no"}
    warned = new_output("stream", name="stderr", text="a warning of the machine's")
    drawn.outputs = [new_output("display_data", figure), warned]
    hidden, drawn = with_outputs_as_html(new_notebook(cells=[hidden, drawn])).cells
    assert "remove-input" in hidden.metadata["tags"]
    (shown,) = drawn.outputs
    assert "Plotly.newPlot" in shown["data"]["text/html"]


@pytest.mark.slow
def test_what_an_explorer_finds_after_its_cell_is_shown_and_a_failing_cell_is_named():
    """It is found between cells, when no client listens."""
    pause = "import time; time.sleep(0.5)"
    code = ["import pipelab as pl\npl.explore_mix('tiny')", pause, pause]
    notebook = with_outputs_as_html(executed(new_notebook(cells=[*map(new_code_cell, code)]), "a"))
    text = "".join(output["data"]["text/html"] for output in notebook.cells[0].outputs)
    assert "being solved" not in text
    assert "Adding any one GPU" in text or "would help most" in text
    told = "b: a cell raised ZeroDivisionError: division by zero"
    with pytest.raises(pl.PipelabError, match=told):
        executed(nbformat.v4.new_notebook(cells=[new_code_cell("1 / 0")]), "b")


def test_a_reply_that_woke_nobody_is_found_within_a_second():
    """What nbclient does not do where a cell has widgets: the second look finds what the first was not told of."""
    looked = []

    class Socket:
        async def poll(self, milliseconds):
            looked.append(milliseconds)
            return len(looked) > 1

    class Channel(kernel_client._Channel):
        def __init__(self):
            self.socket = Socket()

        async def _recv(self):
            return {"msg_type": "execute_reply"}

        def __del__(self):
            """There is no socket to close."""

    assert asyncio.run(Channel().get_msg(300)) == {"msg_type": "execute_reply"}
    assert len(looked) == 2
    assert max(looked) <= 1000
    looked[:] = []
    with pytest.raises(Empty):
        asyncio.run(Channel().get_msg(0))
