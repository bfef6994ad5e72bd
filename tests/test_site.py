"""The site: a small one is built, every link in it leads somewhere, and nothing in it comes from elsewhere."""

import importlib.util
import re
import shutil
import warnings
from html import unescape
from pathlib import Path
from posixpath import normpath
from urllib.parse import unquote

import nbformat
import pytest
from nbformat.v4 import new_output

import pipelab as pl
from pipelab.course import notebooks_of_the_course
from pipelab.course.checks import EXERCISES
from pipelab.io.paths import in_clone, notebooks_dir
from pipelab.io.static.one_page import page

ROOT = Path(__file__).parent.parent
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
NAMES = ("00_start_here", "glossary")

pytestmark = pytest.mark.skipif(
    not in_clone(), reason="about the clone, and this is an installed package"
)


def _module(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_for_instructors_says_what_the_notebooks_say():
    """Otherwise: python docs/make_instructors.py."""
    made = _module("make_instructors").page()
    assert made == (ROOT / "docs" / "instructors.md").read_text(encoding="utf-8")
    named = set(re.findall(r"\b\d\d\.\d(?= \()", made))
    assert named == set(EXERCISES)
    lectures = made.partition("## Three lectures")[2].partition("## Grading")[0]
    assert set(re.findall(r"\b\d\d\.\d\b", lectures)) <= set(EXERCISES)
    numbers = {book.number for book in notebooks_of_the_course()}
    assert set(re.findall(r"\b\d\d\b(?![.\d])(?! minutes)", lectures)) - {"90"} == numbers


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"Is it better to leave them idle?"', '"Is it blue?"', "00: 0 questions of the notebook"),
        ('[00."00.2"]', '[00."00.3"]', "00: expected 00.1, 00.2, prediction and words"),
    ],
)
def test_a_rubric_is_about_what_the_notebook_asks(tmp_path, monkeypatch, old, new, said):
    module, text = _module("make_instructors"), (ROOT / "docs" / "rubrics.toml").read_text("utf-8")
    assert text.count(old) == 1
    (tmp_path / "rubrics.toml").write_text(text.replace(old, new), encoding="utf-8")
    monkeypatch.setattr(module, "RUBRICS", tmp_path / "rubrics.toml")
    with pytest.raises(SystemExit, match=re.escape(said)):
        module.page()


def test_the_gallery_names_headings_that_there_are():
    for name, heading in _module("build").PICTURES.items():
        cells = nbformat.read(notebooks_dir() / f"{name}.ipynb", as_version=4).cells
        lines = [line for cell in cells for line in cell.source.splitlines()]
        assert f"## {heading}" in lines, (name, heading)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The frame, the whole reference, the claims of one document, and two notebooks, one with a figure."""
    place = tmp_path_factory.mktemp("site")
    for name in NAMES:
        notebook = nbformat.read(notebooks_dir() / f"{name}.ipynb", as_version=4)
        code = next((cell for cell in notebook.cells if cell.cell_type == "code"), None)
        if code is not None:
            figure = pl.plot(pl.load_case("tiny"), pl.solve(pl.load_case("tiny")).placement)
            drawn = {"application/vnd.plotly.v1+json": figure.to_plotly_json()}
            code.outputs = [new_output("display_data", nbformat.from_dict(_plain(drawn)))]
        text = page(notebook, f"{name}.html", [f"{each}.html" for each in NAMES])
        (place / "pages").mkdir(exist_ok=True)
        (place / "pages" / f"{name}.html").write_text(text, encoding="utf-8")
    from pipelab.figures.live import plotly_js

    (place / "pages" / "plotly.min.js").write_text(plotly_js(), encoding="utf-8")
    ledger = pl.reproduce(["boostr"])
    with warnings.catch_warnings():  # Sphinx's, about what its extensions call
        warnings.simplefilter("ignore")
        _module("build").build(place / "site", pages=place / "pages", ledger=ledger)
    return place / "site"


def _plain(figure):
    import json

    from plotly.utils import PlotlyJSONEncoder

    return json.loads(json.dumps(figure, cls=PlotlyJSONEncoder))


needs_chromium = pytest.mark.skipif(
    not CHROMIUM, reason="no Chromium on this machine: apt install chromium"
)


@pytest.mark.browser
@needs_chromium
def test_every_link_of_the_site_leads_somewhere(site):
    texts = {
        path.relative_to(site).as_posix(): path.read_text(encoding="utf-8")
        for path in site.rglob("*.html")
    }
    assert {"index.html", "ledger.html", "search.html", "api/index.html"} <= set(texts)
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
    for name in pl.__all__:
        assert any(f"pipelab.{name}" in anchors[f] for f in anchors if f.startswith("api/")), name


@pytest.mark.browser
@needs_chromium
def test_the_site_reads_in_a_browser_from_its_folder(site):
    from playwright.sync_api import sync_playwright

    asked, errors = set(), []
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for width in (1000, 1400):
            tab = browser.new_page(viewport={"width": width, "height": 900})
            tab.on("request", lambda request: asked.add(request.url))
            tab.on("pageerror", lambda error: errors.append(str(error)))
            tab.on(
                "console",
                lambda message: errors.append(message.text) if message.type == "error" else None,
            )
            for name in ("api/index.html", "ledger.html", "docs/using.html", "index.html"):
                tab.goto((site / name).as_uri())
                assert tab.evaluate("document.documentElement.scrollWidth") <= width, (name, width)
        cards = tab.locator(".gallery img")
        assert cards.first.get_attribute("alt").startswith("tiny: 217.5 tokens/s")
        cards.first.scroll_into_view_if_needed()
        tab.wait_for_function("document.querySelector('.gallery img').naturalWidth > 300")
        tab.locator(".gallery a").first.click()
        tab.wait_for_selector(".figure .main-svg")
        tab.goto((site / "search.html").as_uri() + "?q=bottleneck")
        found = tab.locator("#search-results li a")
        found.first.wait_for()
        assert any("notebooks/" in link for link in found.evaluate_all("a => a.map(x => x.href)"))
        browser.close()
    assert errors == []
    assert all(url.startswith(("file:", "data:", "blob:")) for url in asked)


def test_somebodys_folder_is_left_alone(tmp_path):
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(SystemExit, match="holds something else"):
        _module("build").build(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]
