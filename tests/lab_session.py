"""A page of a real JupyterLab, seen through a real Chromium, for the browser tests.

Also a camera: `python tests/lab_session.py NOTEBOOK PICTURE.png` runs a notebook and takes
one picture of all of it.
"""

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nbformat

from lab_server import LabServer, lab_server

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
_FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
]  # fmt: skip

_SIZE = {"width": 1400, "height": 1000}
_NAME = "notebook.ipynb"

# Clicking "Run All" as soon as the kernel says idle is a race: the session may not be
# connected yet, and nothing runs. The application object knows, and its promise ends with
# the last cell.
_RUN_ALL = """async () => {
  const app = window.jupyterapp; await app.restored;
  for (let i = 0; i < 300 && !app.shell.currentWidget?.sessionContext; i++) await new Promise(r => setTimeout(r, 100));
  const panel = app.shell.currentWidget;
  await panel.context.ready; await panel.sessionContext.ready; await panel.sessionContext.session.kernel.info;
  await app.commands.execute('notebook:run-all-cells');
  return panel.content.widgets.filter(c => c.model.type === 'code').map(c => c.model.executionCount); }"""

# Notes when a key or button went down, and when plotly has finished drawing something else than
# before, under a title without a certain text.
_WATCH = """([figure, waiting]) => {
  const g = document.querySelectorAll('.js-plotly-plot')[figure];
  const title = () => (g.querySelector('.gtitle') || {}).textContent ?? '';
  const seen = () => title()
    + [...g.querySelectorAll('.barlayer path, .scatterlayer path, .heatmaplayer image, .ytick text')]
      .map(p => p.getAttribute('d') || p.getAttribute('href') || p.textContent).join();
  const before = seen();
  window.pipelabDrawn = null; window.pipelabPressed = null;
  const down = () => { window.pipelabPressed ??= performance.now(); };
  for (const kind of ['keydown', 'mousedown', 'change'])
    document.addEventListener(kind, down, {capture: true, once: true});
  const drawn = () => { if (window.pipelabPressed === null || seen() === before) return;
    if (waiting && title().includes(waiting)) return;
    window.pipelabDrawn = performance.now(); g.removeListener('plotly_afterplot', drawn); };
  g.on('plotly_afterplot', drawn); }"""

# Reads the notebook's file again and gives it a kernel of its own; the one before is ended by the
# server.
_ANEW = """async () => {
  const app = window.jupyterapp; await app.restored;
  const panel = app.shell.currentWidget;
  await panel.context.ready; await panel.sessionContext.ready;
  await panel.context.revert();
  await panel.sessionContext.changeKernel({name: 'python3'}); }"""

# Resolves when nothing has been added to the page or taken away for a while: the last figures and
# formulas are there. Cursors blink by their styles, which do not count.
_SETTLED = """() => new Promise(settled => {
  const began = performance.now();
  let last = began;
  const watch = new MutationObserver(() => { last = performance.now(); });
  watch.observe(document.body, {childList: true, subtree: true, characterData: true});
  const look = () => {
    const now = performance.now();
    if (now - last < 400 && now - began < 10000) { setTimeout(look, 50); return; }
    watch.disconnect(); settled(); };
  look(); })"""

_BAD_OUTPUT = (
    ".jp-OutputArea-output[data-mime-type='application/vnd.jupyter.stderr'], "
    ".jp-RenderedText[data-mime-type='application/vnd.jupyter.error']"
)


class LabPage:
    """One notebook open in JupyterLab."""

    def __init__(self, page, server: LabServer, folder: str):
        self.page, self._server, self._folder = page, server, folder
        self.notebook = None
        self.errors: list[str] = []
        self.requests_elsewhere: set[str] = set()
        page.on("pageerror", self._note_error)
        page.on("request", self._note_request)

    def _note_error(self, error) -> None:
        # JupyterLab says so, in its own time, of what it had asked a kernel that was then replaced. And anywidget
        # gives the script of a chart two seconds, which a busy machine may not have; charts are counted elsewhere.
        harmless = "Canceled future for create_subshell_request", "[anywidget] Failed to initialize"
        if not any(said in str(error) for said in harmless):
            self.errors.append(str(error))

    def _note_request(self, request) -> None:
        address = self._server.address
        own = (address, address.replace("http", "ws"), "data:", "blob:")
        if not request.url.startswith(own):
            self.requests_elsewhere.add(request.url.split("?")[0])

    def open(self, name: str) -> None:
        """Open a notebook in single-document mode, with nothing left of the one before (`reset`)."""
        self.page.goto(
            f"{self._server.address}/doc/tree/{self._folder}/{name}?reset&token={self._server.token}",
            wait_until="domcontentloaded",
        )
        self.page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=90_000)

    def show(self, notebook) -> None:
        """Another notebook in the place of the one that is open, with a kernel of its own.

        Loading JupyterLab takes as long as most explorers' tests. A second document would leave the
        first on the page, out of sight, where a locator may find it before what it looks for.
        """
        self.notebook = notebook
        nbformat.write(notebook, self._server.root / self._folder / _NAME)
        self.page.set_viewport_size(_SIZE)
        self.page.evaluate(_ANEW)
        self.errors.clear()
        self.requests_elsewhere.clear()

    def run_all(self, settle: bool = True) -> list[int | None]:
        """Run every cell; the execution counts of the code cells."""
        counts = self.page.evaluate(_RUN_ALL)
        if settle:
            self.settle()
        self.charts_drawn()
        return counts

    def settle(self) -> None:
        """Wait until nothing on the page changes, 10 s at most."""
        self.page.evaluate(_SETTLED)

    def save(self) -> None:
        """Save the notebook."""
        self.page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")

    def charts_drawn(self, least: int = 0, timeout: float = 240_000) -> None:
        """Wait until no chart of an explorer is still to be drawn, and there are so many at least."""
        self.page.wait_for_function(
            """least => document.querySelectorAll('.pipelab-chart[data-drawn=yes]').length >= least
                 && !document.querySelector('.pipelab-chart[data-drawn=no]')""",
            arg=least, timeout=timeout,
        )  # fmt: skip

    def bad_outputs(self) -> list[str]:
        """Text of every stderr or error output."""
        return self.page.eval_on_selector_all(
            _BAD_OUTPUT, "es => es.map(e => e.textContent.slice(0, 400))"
        )

    def figures(self) -> list[dict]:
        """Of every plotly figure: its title, what its axes say, and the outlines of what it draws."""
        return self.page.evaluate(
            """() => [...document.querySelectorAll('.js-plotly-plot')].map(g => ({
                 title: (g.querySelector('.gtitle') || {}).textContent || '',
                 bars: [...g.querySelectorAll('.barlayer .point path')].map(p => p.getAttribute('d')),
                 lines: [...g.querySelectorAll('.scatterlayer path.js-line')].map(p => p.getAttribute('d')),
                 points: g.querySelectorAll('.scatterlayer .points path').length,
                 cells: g.querySelectorAll('.heatmaplayer image').length,
                 axes: Object.keys(g.layout).filter(k => k.includes('axis')).map(k => g.layout[k].title?.text || ''),
                 kinds: g.data.map(trace => trace.type || 'scatter'),
                 annotations: (g.layout.annotations || []).length,
                 width: g.getBoundingClientRect().width }))"""
        )

    def too_wide(self, width: int) -> list[str]:
        """Outputs that must be scrolled sideways on a page of so many pixels; it stays as wide as that.

        Figures are drawn anew for the new width, one after the other: until none is left, or 60 s.
        """
        self.page.set_viewport_size({"width": width, "height": 1000})
        for _ in range(300):
            self.page.wait_for_timeout(200)
            found = self.page.eval_on_selector_all(
                ".jp-OutputArea-output",
                """all => all.filter(e => e.scrollWidth > e.clientWidth + 2).map(
                     e => `${e.scrollWidth - e.clientWidth} px: ${e.innerText.slice(0, 60)}`)""",
            )
            if not found:
                break
        return found

    def time_of(self, act, figure: int = 0, waiting: str = "", timeout: float = 240_000) -> float:
        """Milliseconds from the key press or click in `act()` until a figure has been drawn with something else.

        A drawing whose title has the text `waiting` does not count.
        """
        self.page.evaluate(_WATCH, [figure, waiting])
        act()
        self.page.wait_for_function("() => window.pipelabDrawn !== null", timeout=timeout)
        return self.page.evaluate("() => window.pipelabDrawn - window.pipelabPressed")

    def handle(self, label: str):
        """The handle of the slider with this label; it takes the arrow keys."""
        slider = self.page.locator(
            ".widget-slider", has=self.page.locator(f"label:text-is('{label}')")
        )
        return slider.locator(".noUi-handle").first

    def press(self, label: str, key: str = "ArrowRight") -> None:
        """Press a key on a slider."""
        self.handle(label).focus()
        self.page.keyboard.press(key)

    def picture(self, path: Path) -> None:
        """One picture of the whole notebook."""
        height = self.page.evaluate(
            "() => [...document.querySelectorAll('.jp-Cell')].reduce((h, c) => h + c.getBoundingClientRect().height, 0)"
        )
        self.page.set_viewport_size({"width": 1400, "height": int(height) + 160})
        scroll_up = "() => document.querySelectorAll('.jp-WindowedPanel-outer').forEach(e => e.scrollTop = 0)"
        for _ in range(2):  # figures that come into sight change the height once more
            self.page.wait_for_timeout(700)
            self.page.evaluate(scroll_up)
        self.page.screenshot(path=str(path))


@contextmanager
def lab(server: LabServer, notebooks: Path) -> Iterator[LabPage]:
    """A page on a copy of a folder of notebooks."""
    from playwright.sync_api import sync_playwright

    with server.serving(notebooks) as folder, sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=_FLAGS)
        yield LabPage(browser.new_page(viewport=_SIZE), server, folder)
        browser.close()


@contextmanager
def one_page(server: LabServer) -> Iterator[LabPage]:
    """A page that shows one notebook after the other (`LabPage.show`)."""
    with tempfile.TemporaryDirectory() as folder:
        nbformat.write(notebook_of(), Path(folder) / _NAME)
        with lab(server, Path(folder)) as page:
            page.open(_NAME)
            yield page


def notebook_of(*cells: str):
    """A notebook of these cells of code."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    notebook.metadata["kernelspec"] = {
        "name": "python3",
        "display_name": "Python 3",
        "language": "python",
    }
    return notebook


@contextmanager
def explorer(page: LabPage, *cells: str) -> Iterator[None]:
    """Show a notebook of these cells, run, its charts drawn; nothing may have gone wrong in the end."""
    page.show(notebook_of(*cells))
    assert page.run_all() == list(range(1, len(cells) + 1))
    page.charts_drawn(least=1)
    yield
    assert page.bad_outputs() == []
    assert page.errors == []
    assert page.requests_elsewhere == set()


if __name__ == "__main__":
    notebook, picture = Path(sys.argv[1]), Path(sys.argv[2])
    with lab_server() as server, lab(server, notebook.parent) as opened:
        opened.open(notebook.name)
        print("execution counts", opened.run_all())
        print("stderr or errors", opened.bad_outputs())
        print("page errors", opened.errors, "elsewhere", opened.requests_elsewhere)
        for figure in opened.figures():
            print(
                "figure", figure["title"], len(figure["bars"]), "bars", round(figure["width"]), "px"
            )
        opened.picture(picture)
