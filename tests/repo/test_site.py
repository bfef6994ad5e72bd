"""The site: a small one is built, every link in it leads somewhere, and nothing in it comes from elsewhere."""

import doctest
import importlib.util
import inspect
import io
import json
import re
import warnings
from functools import cache
from html import unescape
from pathlib import Path
from posixpath import normpath
from types import SimpleNamespace
from urllib.parse import unquote

import nbformat
import pytest
from nbformat.v4 import new_output

import pipelab as pl
from clone import ROOT, text_of
from lab_session import CHROMIUM
from pipelab.course.checks import EXERCISES
from pipelab.course.outline import notebooks_of_the_course


def _module(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_for_instructors_says_what_the_notebooks_say():
    """Otherwise: python docs/make_instructors.py."""
    pages = _module("make_instructors").pages()
    for name, text in pages.items():
        assert text == text_of(f"docs/{name}"), name
    made = pages["instructors.md"]
    named = set(re.findall(r"\b\d\d\.\d(?= \()", pages["points.md"]))
    labs = set(re.findall(r"\.\./notebooks/(lab_\w+)\.ipynb", made))
    assert named | labs == set(EXERCISES)
    assert labs == {name for name in EXERCISES if name.startswith("lab_")}


def test_the_sessions_of_the_term_show_every_notebook_and_set_every_lab_after_it():
    """And nothing that is optional; every section is there, and what is to be changed."""
    page = text_of("docs/sessions.md").replace("\n  ", " ")
    points = text_of("docs/points.md")
    spare = set(re.findall(r"^\| (\d\d\.\d) .*?, optional \|", points, re.M))
    books = {book.number: book.file for book in notebooks_of_the_course()}
    shown: set[str] = set()
    home: list[str] = []
    for session in page.split("\n## ")[1:]:
        show, change, homework = re.findall(
            r"^- \*\*(?:Show|Change|Homework)\*\* (.*)$", session, re.M
        )
        for number, file, sections in re.findall(
            r"\[(\d\d)\]\(../notebooks/(.*?)\): ([^·]*)", show
        ):
            assert file == books[number]
            text = text_of(f"notebooks/{file}")
            for section in re.sub(r" \(\d+ minutes\)$", "", sections.strip()).split("; "):
                assert json.dumps(f"## {section}", ensure_ascii=False)[:-1] in text, section
            shown.add(number)
        assert change[:2] in shown
        here = re.findall(r"\d\d\.\d|lab_\w+", homework)
        assert {name[:2] for name in here if name[0].isdigit()} <= shown
        home += here
    assert shown == books.keys()
    assert len(home) == len({*home})  # nothing is set twice
    assert (
        {name for name in EXERCISES if name.startswith("lab_")} <= {*home} <= {*EXERCISES} - spare
    )


def test_the_answers_of_the_exam_are_computed():
    results = doctest.testfile(str(ROOT / "docs" / "exam.md"), module_relative=False)
    assert (results.failed, results.attempted) == (0, 23)


@pytest.mark.parametrize(
    ("stem", "attempted"),
    [
        ("how_a_placement_is_computed", 29),
        pytest.param("within_the_error", 13, marks=pytest.mark.slow),
    ],
)
def test_what_a_page_computes_is_what_it_says(stem, attempted):
    page = text_of(f"docs/{stem}.md")
    code = "\n\n".join(re.findall(r"```pycon\n(.*?)```", page, flags=re.S))
    examples = doctest.DocTestParser().get_doctest(code, {}, "the page", None, 0)
    results = doctest.DocTestRunner().run(examples)
    assert (results.failed, results.attempted) == (0, attempted)
    for path, names in re.findall(r"`(pipelab/[\w/]+\.py)`: ([`\w, ]+) \|", page):
        text = text_of(path)
        for name in re.findall(r"\w+", names):
            assert re.search(rf"(def|class) {name}\b|\b{name}:", text), (path, name)


def test_pictures_of_the_start_page_stand_below_headings_that_there_are(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    for stem, heading in importlib.import_module("pages").PICTURES.items():
        cells = nbformat.read(ROOT / "notebooks" / f"{stem}.ipynb", as_version=4).cells
        wanted = f"^##+ {re.escape(heading)}$"
        (at,) = [n for n, cell in enumerate(cells) if re.search(wanted, cell.source, re.M)]
        assert any(c.cell_type == "code" and "plot" in c.source for c in cells[at:])


@cache
def _drawn():
    figure = pl.plot(pl.load_case("tiny"), pl.solve(pl.load_case("tiny")).placement)
    return figure.to_json()


def _drawn_in_the_first_cell(notebook, name=""):
    """A notebook that is not run: its text, and a figure below its first code, which stands for all of it."""
    drawn = {"application/vnd.plotly.v1+json": json.loads(_drawn())}
    text = [cell for cell in notebook.cells if cell.cell_type == "markdown"]
    code = [cell for cell in notebook.cells if cell.cell_type == "code"][:1]
    for cell in code:
        cell.outputs = [new_output("display_data", nbformat.from_dict(drawn))]
    notebook.cells = [*text[:1], *code, *text[1:]]
    return notebook


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The whole site, but no notebook is run, one picture is taken, and one document's claims are computed."""
    from sphinx.application import Sphinx

    place = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Sphinx's, about what its extensions call
        patch.syspath_prepend(ROOT / "docs")
        pages = importlib.import_module("pages")
        patch.setattr("outputs_as_html.executed", _drawn_in_the_first_cell)
        patch.setattr(pages, "notebooks_of_the_course", lambda: notebooks_of_the_course()[:1])
        patch.setattr(pages, "LIVE_MIX", ("a100-sxm-40=2", "l4=3..4"))
        patch.setattr(pages, "LIVE_SCHEDULES", ("ranks=2..3",))
        claims = pl.course.reproduce(["boostr"])
        patch.setattr(pl.course, "reproduce", lambda: claims)
        complaints = io.StringIO()
        folders = ROOT, ROOT / "docs", place / "site", place / "trees"
        Sphinx(*folders, "html", status=None, warning=complaints).build()
    assert complaints.getvalue() == ""  # `-W`: a link that leads nowhere is one
    return place / "site"


needs_chromium = pytest.mark.skipif(
    not CHROMIUM, reason="no Chromium on this machine: apt install chromium"
)


@pytest.mark.nightly  # half a minute; CI's job `site` builds all of it on each push
@needs_chromium
def test_every_link_of_the_site_leads_somewhere(site):
    pages = list(site.rglob("*.html"))
    texts = {page.relative_to(site).as_posix(): page.read_text(encoding="utf-8") for page in pages}
    assert {"index.html", "docs/index.html", "docs/ledger.html", "search.html"} <= set(texts)
    anchors = {name: set(re.findall(r'\bid="([^"]+)"', text)) for name, text in texts.items()}
    links = 0
    for name, text in texts.items():
        body = re.sub(r"(<script\b[^>]*>).*?</script>", r"\1", text, flags=re.S)
        for target in map(unescape, re.findall(r'\b(?:href|src)="([^"]+)"', body)):
            if target.startswith(("https://", "data:", "mailto:")):
                continue
            there, _, anchor = target.partition("#")
            file = normpath(Path(name).parent / unquote(there.partition("?")[0])) if there else name
            assert (site / file).is_file(), (name, target)
            links += 1
            if anchor and file in texts:
                assert {anchor, unquote(anchor)} & anchors[file], (name, target)
    assert links > 1000
    for name in (name for name in pl.__all__ if not inspect.ismodule(getattr(pl, name))):
        assert f"pipelab.{name}" in anchors["docs/reference.html"], name


@pytest.mark.nightly
@pytest.mark.browser
@needs_chromium
def test_the_site_reads_in_a_browser_from_its_folder(site):
    from playwright.sync_api import sync_playwright

    asked, errors = set(), []
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1000, "height": 900})
        tab.on("request", lambda request: asked.add(request.url))
        tab.on("pageerror", lambda error: errors.append(str(error)))
        tab.on("console", lambda told: errors.append(told.text) if told.type == "error" else None)

        def go(name):
            tab.goto((site / name).as_uri())

        for name in ("reference", "ledger", "using", "how_a_placement_is_computed", "index"):
            go(f"docs/{name}.html")
            assert tab.evaluate("document.documentElement.scrollWidth") <= 1000, name
            formulas = tab.locator("math").evaluate_all("m => m.map(x => x.clientWidth)")
            assert ("computed" in name) == bool(formulas)
            assert all(wide > 4 for wide in formulas)
        assert tab.locator("details.on-this-page").count() == 0
        go("index.html")
        tab.wait_for_url("**/docs/index.html")
        cards = tab.locator(".gallery img")
        assert cards.first.get_attribute("alt").startswith("tiny: 217.5 tokens/s")
        cards.first.scroll_into_view_if_needed()
        tab.wait_for_function("document.querySelector('.gallery img').naturalWidth > 300")
        tab.locator(".gallery a").first.click()
        tab.wait_for_selector(".plotly-graph-div .main-svg")
        tab.wait_for_function(
            "[...document.querySelectorAll('.plotly-graph-div')].every("
            "f => f.querySelector('.main-svg').clientWidth <= f.parentElement.clientWidth)"
        )
        assert tab.locator(".sidebar-tree .current-page").text_content().strip().startswith("00 ")
        # solutions come last in the search, and long pages have their contents
        tab.goto((site / "search.html").as_uri() + "?q=backward")
        tab.wait_for_selector("#search-results li > a")
        tab.wait_for_timeout(500)
        found = tab.locator("#search-results li > a").evaluate_all("a => a.map(x => x.href)")
        solutions = ["/solutions/" in target for target in found]
        assert any(solutions)
        assert not all(solutions)
        assert solutions == sorted(solutions)
        browser.close()
    assert errors == []
    assert all(url.startswith(("file:", "data:", "blob:")) for url in asked)


def test_a_student_is_led_to_no_page_for_lecturers(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    pages = importlib.import_module("pages")
    for tags, doors in ((set(), 1), ({"student"}, 0)):
        app = SimpleNamespace(
            config=SimpleNamespace(root_doc="docs/index"),
            tags=SimpleNamespace(has=tags.__contains__),
        )
        source = [text_of("docs/index.md")]
        pages._generated(app, "docs/index", source)
        assert source[0].count("<b>Teach</b>") == source[0].count("\ninstructors\n") == doors
        assert source[0].count("{toctree}") == 3 + doors
        assert source[0].count("<b>Teach</b>") == doors
