// As a module of its own, plotly.js finds neither `module` nor `define`, and leaves itself with the window.
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
  render({ el }) { keep(el); } };
