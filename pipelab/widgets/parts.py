"""Small parts that every explorer has: a progress sign, text in place, code to copy, what charts share."""

from html import escape

import anywidget
import ipywidgets as widgets
import traitlets

from pipelab.display import REFUSED
from pipelab.figures.live import plotly_js


class Shared(anywidget.AnyWidget):
    """Invisible: brings plotly.js to the page, once for all charts of a kernel, and keeps keys for the controls.

    Without the mark, JupyterLab takes arrow keys and other keys in a menu or on a slider for its own
    shortcuts.
    """

    bundle = traitlets.Unicode().tag(sync=True)
    # As a module of its own, plotly.js finds neither `module` nor `define`, and leaves itself with
    # the window.
    _esm = """
    const load = (text) => {
      const url = URL.createObjectURL(new Blob([text], {type: "text/javascript"}));
      return import(url).then(() => globalThis.Plotly).finally(() => URL.revokeObjectURL(url)); };
    const mark = ({ target }) => {
      if (target.matches("select, .noUi-handle")) target.dataset.lmSuppressShortcuts = "true"; };
    const keep = (el) => {
      if (!el.isConnected) return setTimeout(keep, 50, el);
      let root = el;
      for (let up = el; up; up = up.parentElement?.closest(".jupyter-widgets")) root = up;
      root.addEventListener("focusin", mark); };
    export default {
      initialize({ model }) { globalThis.pipelabPlotly ??= load(model.get("bundle")); },
      render({ el }) { keep(el); } };"""


_shared: list[Shared] = []


def shared() -> Shared:
    """The one of this kernel; every explorer shows it."""
    if not _shared:
        _shared.append(Shared(bundle=plotly_js()))
    return _shared[0]


class CopyCode(anywidget.AnyWidget):
    """The code that makes the present state again, with a button that copies it."""

    code = traitlets.Unicode().tag(sync=True)
    _esm = """export default { render({ model, el }) {
      const box = document.createElement("details"), head = document.createElement("summary");
      const text = document.createElement("pre"), button = document.createElement("button");
      head.textContent = "Copy as code: the lines that reproduce this state";
      text.tabIndex = 0; text.className = "pipelab-code";
      text.style.cssText = "padding:8px;margin:6px 0;background:#F5F5F5;color:#111;overflow:auto;font-size:12px";
      button.textContent = "Copy"; button.className = "lm-Widget jupyter-widgets jupyter-button";
      const show = () => { text.textContent = model.get("code"); button.textContent = "Copy"; };
      button.onclick = async () => {
        try { await navigator.clipboard.writeText(model.get("code")); button.textContent = "Copied"; }
        catch { getSelection().selectAllChildren(text); button.textContent = "Selected: press Ctrl+C"; } };
      model.on("change:code", show); show();
      box.append(head, text, button); el.append(box); } }"""


class Words(widgets.HTML):
    """Text in place: what a title does not say, or why a value is refused."""

    def say(self, *lines: str) -> None:
        """Plain lines, escaped; empty ones are left out."""
        self.value = "".join(
            f"<div style='line-height:1.6'>{escape(line)}</div>" for line in lines if line
        )

    def explain(self, error: BaseException) -> None:
        """Why there is nothing to show, marked as refused."""
        sign = f"<b style='color:{REFUSED.ink}'>{REFUSED.symbol}</b> "
        self.value = f"<div role='alert' style='line-height:1.6'>{sign}{escape(str(error))}</div>"


def reload_note() -> widgets.HTML:
    """What to do when the page was loaded anew."""
    text = "If controls or charts are missing after a reload of the page: Run ▸ Run All Cells."
    note = widgets.HTML(f"<div style='color:#555;font-size:12px'>{text}</div>")
    return note.add_class("pipelab-live-only")  # a static copy leaves it out
