"""The static copy: pages that need no kernel and no network, whole links, live figures, or nothing written at all."""

import asyncio
import base64
import re
from pathlib import Path
from posixpath import normpath
from queue import Empty
from urllib.parse import unquote

import ipywidgets as widgets
import nbformat
import numpy as np
import plotly.graph_objects as go
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

import pipelab as pl
from lab_session import CHROMIUM
from pipelab.cli.static_pages import kernel_client, static_copy
from pipelab.cli.static_pages.formulas import typeset, typeset_html
from pipelab.cli.static_pages.one_page import (
    NOTE,
    figure_html,
    figure_of_state,
    page,
    still,
    with_outputs_as_html,
)
from pipelab.engine.formulations.joint_ilp_forms import joint_formulation
from pipelab.files import bundled_folders
from pipelab.files.bundled_folders import notebook_files
from pipelab.widgets.chart import LiveChart

EVERY = notebook_files()
PAGES = ["index.html", *(f"{name}.html" for name in EVERY)]


def _read(name):
    text = EVERY[name].read_text(encoding="utf-8")
    if EVERY[name].suffix == ".md":
        return new_notebook(cells=[new_markdown_cell(text)])
    return nbformat.reads(text, as_version=4)


def _prose(name):
    """The notebook without its code, which has no links and takes long to colour."""
    notebook = _read(name)
    notebook.cells = [cell for cell in notebook.cells if cell.cell_type == "markdown"]
    return notebook


# formulas


def test_formulas_become_mathml_and_code_and_money_stay():
    code = "`$n$`.\n\n```\n$x$\n```\n\n"
    made = typeset(f"It costs $n_s$ and {code}$$\\sum_a x_a$$\n")
    assert made.count("<math") == 2
    assert "<msub><mi>n</mi><mi>s</mi></msub>" in made
    assert 'display="block"' in made
    assert code in made
    assert typeset("from 5 $ to 7 $ per hour") == "from 5 $ to 7 $ per hour"
    assert "<mtext>$ per hour" in typeset(r"$$\text{\$ per hour}$$").replace("&#x000A0;", " ")
    assert "<mo>&#x0003C;</mo>" in typeset_html("<td>$\\ell &lt; M$</td>")
    assert typeset_html("<pre>$x$</pre>") == "<pre>$x$</pre>"
    asked = pl.course.guess("An L4 ($0.70) or a T4 ($0.35)?", "the T4, per $")
    for shown in (asked, asked("$1 or $2")):
        assert typeset_html(shown._repr_html_()) == shown._repr_html_()


def test_every_formula_of_the_notebooks_can_be_typeset():
    count = 0
    for name in EVERY:
        for cell in _read(name).cells:
            if cell.cell_type == "markdown":
                made = typeset(cell.source)
                count += made.count("<math")
                left = re.sub(r"```.*?```|`[^`]*`", "", made, flags=re.S)
                assert not re.search(r"\\[A-Za-z]", left), (name, left)
    assert count > 100
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


# pages


def test_a_page_has_text_figures_and_links_to_the_pages_there_are():
    hidden = new_code_cell("how_many", metadata={"jupyter": {"source_hidden": True}})
    mine = new_code_cell("guess_1('')", metadata={"tags": ["remove-input"]})
    drawn = new_code_cell("figure")
    hidden.outputs = [new_output("display_data", {"text/html": "<details>folded</details>"})]
    figure = {"application/vnd.plotly.v1+json": {"data": [], "layout": {}}, "text/html": "no"}
    warned = new_output("stream", name="stderr", text="a warning of the machine's")
    drawn.outputs = [new_output("display_data", figure), warned]
    links = "[01](b.ipynb#A-part), [02](gone.ipynb), $x$ and [up](../c.ipynb)"
    words = new_markdown_cell(f"# Title & more\n\nTo {links}.\n\n## A part")
    notebook = new_notebook(cells=[words, hidden, mine, drawn])
    names = ["index.html", "c.html", "solutions/a.html", "solutions/b.html"]
    text = page(with_outputs_as_html(notebook), "solutions/a.html", names)
    for part in (
        *("<title>Title &amp; more</title>", '<a href="b.html#A-part">01</a>', "folded"),
        *('<span title="not in this copy">02</span>', '<a href="../c.html">up</a>'),
        *('<script src="../plotly.min.js"></script>', "Plotly.newPlot"),
    ):
        assert part in text
    for left_out in ("how_many", "guess_1", "a warning", ">no<"):
        assert left_out not in text
    assert text.count("<script") == 2


@pytest.mark.slow
def test_links_of_all_pages_are_whole_and_nothing_comes_from_elsewhere():
    texts = {f"{name}.html": page(_prose(name), f"{name}.html", PAGES) for name in EVERY}
    anchors = {name: set(re.findall(r'id="([^"]+)"', text)) for name, text in texts.items()}
    links = 0
    for name, text in texts.items():
        # Nothing is loaded from elsewhere; a reader may go there.
        outside = r'src="(https?:)?//|<link[^>]*href="(https?:)?//|url\((https?:)?//'
        assert not re.search(outside, text)
        assert "not in this copy" not in text
        for target in re.findall(r'href="([^"]+)"', text):
            if target.startswith("https://"):
                continue
            book, _, anchor = target.partition("#")
            there = normpath(Path(name).parent / book) if book else name
            assert there in PAGES, (name, target)
            links += 1
            if anchor and there != "index.html":
                assert {anchor, unquote(anchor)} & anchors[there], (name, target)
    assert links > 200


# the whole copy


@pytest.fixture
def two(monkeypatch, tmp_path):
    """Two tiny notebooks instead of the real ones."""
    root = tmp_path / "notebooks"
    root.mkdir()
    words = "A [question](#First) on $x$, after [B](b.ipynb#Part).\n\n[on](b.ipynb)"
    texts = f"# First\n\n{words}", "# Second\n\n[back](a.ipynb)"
    first, second = (
        new_notebook(cells=[new_markdown_cell(text), new_code_cell(code)])
        for text, code in zip(texts, ("1 + 1", "print(6 * 7)"), strict=True)
    )
    nbformat.write(first, root / "a.ipynb")
    nbformat.write(second, root / "b.ipynb")
    monkeypatch.setattr(bundled_folders, "notebooks_dir", lambda: root)
    return root


@pytest.mark.slow
def test_a_copy_is_written_whole_and_replaced_whole(two, tmp_path):
    target = tmp_path / "new" / "copy"
    pages = static_copy(target)
    assert [p.name for p in pages] == ["index.html", "a.html", "b.html"]
    assert "<pre>42" in pages[2].read_text(encoding="utf-8")
    index = pages[0].read_text(encoding="utf-8")
    assert '<p>A <a href="a.html#First">question</a> on <math' in index
    assert 'after <a href="b.html#Part">B</a>.</p>' in index
    assert ".ipynb" not in index
    assert (target / "plotly.min.js").stat().st_size > 1e6
    alone = static_copy(target, ["a"])
    assert [p.name for p in alone] == ["index.html", "a.html"]
    index = alone[0].read_text(encoding="utf-8")
    assert not (target / "b.html").exists()
    second = nbformat.read(two / "b.ipynb", as_version=4)
    second.cells[1].source = "1 / 0"
    nbformat.write(second, two / "b.ipynb")
    told = r"b\.ipynb: a cell raised ZeroDivisionError: division by zero"
    with pytest.raises(pl.PipelabError, match=told):
        static_copy(target, ["b"])
    assert alone[0].read_text(encoding="utf-8") == index
    assert [p.name for p in target.parent.iterdir()] == ["copy"]


def test_somebodys_folder_is_left_alone(two, tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "letter.txt").write_text("dear")
    for target in (mine, mine / "letter.txt"):
        with pytest.raises(pl.errors.InvalidValue, match="it holds other files"):
            static_copy(target)
    with pytest.raises(pl.errors.UnknownName, match="no notebook 'aa'; did you mean 'a'"):
        static_copy(tmp_path / "copy", ["aa"])
    assert [p.name for p in mine.iterdir()] == ["letter.txt"]


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Pages of a small notebook, which is run, and of the glossary."""
    root = tmp_path_factory.mktemp("static")
    text = "# Small\n\nA rate is $\\frac{n}{T}$; its terms are in the [glossary](glossary.ipynb)."
    solved = "problem = pl.load_case('tiny')\npl.plot(problem, pl.solve(problem).placement)"
    pause = "import time; time.sleep(0.5)"
    code = [f"import pipelab as pl\n{solved}", "pl.explore_mix('tiny')", pause, pause]
    cells = [new_markdown_cell(text), *map(new_code_cell, code)]
    (root / "notebooks").mkdir()
    nbformat.write(new_notebook(cells=cells), root / "notebooks" / "small.ipynb")
    nbformat.write(_read("glossary"), root / "notebooks" / "glossary.ipynb")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bundled_folders, "notebooks_dir", lambda: root / "notebooks")
        return static_copy(root / "copy")


@pytest.mark.browser  # it needs none; the pages of the test below are made once
def test_what_an_explorer_finds_later_is_on_the_page(small):
    """It is found between cells, when no client listens."""
    text = small[2].read_text(encoding="utf-8")
    assert "being solved" not in text
    assert "Adding any one GPU" in text or "would help most" in text


@pytest.mark.browser
@pytest.mark.skipif(not CHROMIUM, reason="no Chromium on this machine: apt install chromium")
def test_the_pages_live_in_a_browser(small):
    from playwright.sync_api import sync_playwright

    errors, asked, drawn, formulas = [], set(), {}, {}
    figures = "[...document.querySelectorAll('.plotly-graph-div')]"
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1200, "height": 900})
        tab.on("pageerror", lambda error: errors.append(str(error)))
        tab.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
        tab.on("request", lambda request: asked.add(request.url))
        for path in small:
            tab.goto(path.as_uri())
            tab.wait_for_function(
                f"() => {figures}.every(f => f.querySelector('.main-svg .gtitle'))"
            )
            drawn[path.stem] = tab.evaluate(f"{figures}.map(f => f.clientWidth)")
            widths = "all => all.map(m => m.getBoundingClientRect().width)"
            formulas[path.stem] = tab.locator("math").evaluate_all(widths)
        # A figure answers: hovering a bar says what it is. The notebook's page is the last.
        bar = tab.locator(".plotly-graph-div .barlayer path").first
        bar.wait_for(state="attached")
        tab.locator(".plotly-graph-div").first.scroll_into_view_if_needed()
        box = bar.bounding_box()
        tab.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2, steps=4)
        tab.wait_for_selector(".hoverlayer .hovertext")
        # A term is one click away.
        tab.get_by_role("link", name="glossary").last.click()
        tab.wait_for_url("**/glossary.html")
        browser.close()
    assert errors == []
    assert all(url.startswith(("file://", "data:", "blob:")) for url in asked)
    assert {name: len(widths) for name, widths in drawn.items()} == {
        "index": 0, "glossary": 0, "small": 4,
    }  # fmt: skip
    assert all(width > 900 for widths in drawn.values() for width in widths)
    assert len(formulas["small"]) == 1
    assert all(width > 4 for widths in formulas.values() for width in widths)


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
