const pause = (ms) => new Promise(go => setTimeout(go, ms));
const buttons = ["toImage", "zoom2d", "pan2d", "autoScale2d", "resetScale2d"];  // each a stop for the Tab key
const config = {displaylogo: false, responsive: false, modeBarButtons: [buttons]};
const fold = (text, most) => text.split("<br>").flatMap((line) => {
  const small = line.startsWith("<sup>"), parts = [];
  for (const word of line.replace(/<\/?sup>/g, "").split(" ")) {
    const longer = [...parts.slice(-1), word].join(" ");
    if (parts.length && longer.length <= (small ? 1.4 : 1) * most) parts.splice(-1, 1, longer);
    else parts.push(word); }
  return parts.map((part) => small ? `<sup>${part}</sup>` : part); });
// On a phone, titles and labels get more lines, labels a third of the width, and the legend stands below.
const narrow = (layout, data, width) => {
  if (width >= 620) return layout;
  const lines = fold(layout.title?.text ?? "", width / 9.5), before = layout.title?.text?.split("<br>").length ?? 0;
  const more = 19 * (lines.length - before), left = Math.min(layout.margin?.l ?? 80, Math.round(0.36 * width));
  const label = (text) => fold(text, (left - 12) / 6.4).join("<br>"), axes = {};
  for (const name of Object.keys(layout).filter((key) => key.startsWith("yaxis") && layout[key].ticktext))
    axes[name] = {...layout[name], ticktext: layout[name].ticktext.map(label), tickfont: {size: 10}};
  const named = layout.showlegend === false ? [] : data.filter((trace) => trace.name && trace.showlegend !== false);
  const title = {...layout.title, text: lines.join("<br>")}, below = 22 * named.length;
  const height = (layout.height ?? 400) + more + below;
  const margin = {l: left, r: 20, t: (layout.margin?.t ?? 78) + more, b: (layout.margin?.b ?? 56) + below};
  const xaxis = {...layout.xaxis, ...(layout.xaxis?.dtick && {dtick: null, nticks: 6})};
  const legend = {orientation: "v", x: 0, xanchor: "left", yref: "container", y: 0, yanchor: "bottom"};
  return {...layout, ...axes, title, height, margin, xaxis, legend}; };
async function render({ model, el }) {
  const box = document.createElement("div");
  box.className = "pipelab-chart"; box.dataset.drawn = "no";
  box.setAttribute("role", "figure");
  box.textContent = "… the chart is being drawn";
  box.style.color = "#555";
  el.style.cssText += "min-width:0;overflow:hidden"; el.append(box);
  let gone = false, at_work = false, wanted = false, started = false;
  const read = () => JSON.parse(model.get("drawing"));
  const draw = async () => {
    if (at_work) { wanted = true; return; }  // the newest drawing is all that counts
    at_work = true;
    do {
      wanted = false;
      const { data, layout } = read();
      const title = (layout.title?.text ?? "").replace(/<br>/g, ". ").replace(/<[^>]*>/g, "")
        .replace(/&lt;/g, "<").replace(/&gt;/g, ">").replace(/&amp;/g, "&");
      box.setAttribute("aria-label", title);
      if (!started) { box.textContent = ""; box.style.color = ""; }
      const shown = narrow(layout, data, el.clientWidth);
      await Plotly.react(box, data, {...shown, template, width: el.clientWidth}, config);
      if (!started) {
        started = true; box.dataset.drawn = "yes";
        box.on("plotly_relayout", (change) => {
          const [low, high] = change["xaxis.range"] ?? [change["xaxis.range[0]"], change["xaxis.range[1]"]];
          if (low !== undefined) model.set("zoomed", [low, high]);
          else if (change["xaxis.autorange"]) model.set("zoomed", null);
          else return;
          model.save_changes(); });
      }
    } while (wanted && !gone);
    at_work = false; };
  box.style.minHeight = `${read().layout.height ?? 400}px`;
  for (let i = 0; i < 1200 && !globalThis.pipelabPlotly; i++) await pause(50);
  const template = JSON.parse(model.get("look")), Plotly = await globalThis.pipelabPlotly;
  if (!Plotly) { box.textContent = "The charts could not be loaded. Run ▸ Run All Cells."; return; }
  const fit = () => {
    if (gone || !el.clientWidth) return;
    if (!started) draw();
    else if (Math.abs(box._fullLayout.width - el.clientWidth) > 1) {
      if (Math.min(box._fullLayout.width, el.clientWidth) < 620) draw();
      else Plotly.relayout(box, {width: el.clientWidth}); } };
  const watch = new ResizeObserver(() => requestAnimationFrame(fit)); watch.observe(el);
  const change = () => { box.style.minHeight = ""; if (el.clientWidth) draw(); };
  model.on("change:drawing", change);
  return () => { gone = true; watch.disconnect(); model.off("change:drawing", change); Plotly.purge(box); }; }
export default { render };
