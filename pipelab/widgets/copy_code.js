export default { render({ model, el }) {
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
  box.append(head, text, button); el.append(box); } }
