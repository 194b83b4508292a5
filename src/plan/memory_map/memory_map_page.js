// The page around the panels: search, buttons, keys, and what a link can ask for.
let match = -1;
function search(text) {
  query = text;
  match = -1;
  const total = panels.reduce((sum, panel) => sum + panel.find(text), 0);
  byId("found").textContent = text === "" ? "" : total === 0 ? "none" : exact(total) + (total === 1 ? " match" : " matches");
  return total;
}
function nextMatch(by) {
  const all = panels.flatMap((panel) => panel.matchList.map((i) => [panel, i]));
  if (query === "" || all.length === 0) return;
  match = (match + by + all.length) % all.length;
  const [panel, i] = all[match];
  panels.forEach((other) => { if (other !== panel) other.setPin(-1); });
  panel.setPin(i, true);
  byId("found").textContent = exact(match + 1) + " of " + exact(all.length);
}
function clear() {
  panels.forEach((panel) => panel.setPin(-1));
  byId("search").value = "";
  search("");
  tip.hidden = true;
}

byId("title").textContent = document.title = data.title;
byId("subtitle").textContent = data.subtitle;
byId("legend-small").textContent = formatBytes(smallest === Infinity ? 0 : smallest);
byId("legend-large").textContent = formatBytes(largest);
const fragment = new URLSearchParams(location.hash.slice(1));
root.dataset.theme = fragment.get("theme") || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
readColours();
byId("panels").style.setProperty("--columns", Math.min(2, data.panels.length));
data.panels.forEach((source, index) => panels.push(new Panel(source, index)));
focusPanel = panels[0] || null;

let chosen = fragment.has("theme");
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (event) => {
  if (!chosen) setTheme(event.matches ? "dark" : "light");
});
const toggleTheme = () => { chosen = true; setTheme(root.dataset.theme === "dark" ? "light" : "dark"); };
const toggleHelp = () => {
  const keys = byId("keys");
  keys.hidden = !keys.hidden;
  byId("help").setAttribute("aria-expanded", String(!keys.hidden));
};
byId("zoom-in").addEventListener("click", () => zoomAt(...middle(), 0.6, 0.6));
byId("zoom-out").addEventListener("click", () => zoomAt(...middle(), 1 / 0.6, 1 / 0.6));
byId("reset").addEventListener("click", reset);
byId("theme").addEventListener("click", toggleTheme);
byId("help").addEventListener("click", toggleHelp);
byId("search").addEventListener("input", (event) => search(event.target.value));
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey) return;
  if (event.key === "Escape") { clear(); document.activeElement.blur(); return; }
  if (event.target.id === "search") {
    if (event.key === "Enter") nextMatch(event.shiftKey ? -1 : 1);
    return;
  }
  const byTime = event.altKey ? 1 : 0.6, byBytes = event.shiftKey && event.key !== "+" ? 1 : 0.6;
  const actions = {
    "/": () => byId("search").focus(), "?": toggleHelp, t: toggleTheme, 0: reset,
    "+": () => zoomAt(...middle(), byTime, byBytes), "=": () => zoomAt(...middle(), byTime, byBytes),
    "-": () => zoomAt(...middle(), 1 / byTime, 1 / byBytes),
    ArrowLeft: () => pan(-0.15, 0), ArrowRight: () => pan(0.15, 0), ArrowUp: () => pan(0, 0.15), ArrowDown: () => pan(0, -0.15),
    n: () => focusPanel && focusPanel.step(1), p: () => focusPanel && focusPanel.step(-1),
    Enter: () => focusPanel && focusPanel.hover >= 0 && focusPanel.setPin(focusPanel.hover),
  };
  if (event.target.tagName === "BUTTON" && (event.key === "Enter" || event.key === " ")) return;
  const action = actions[event.key];
  if (!action) return;
  event.preventDefault();
  action();
});

// A link can carry a theme, a search, a pinned buffer (by name) and a window: #theme=dark&find=conv&pin=conv_1&window=t0,t1,b0,b1
if (fragment.has("window")) {
  const [t0, t1, b0, b1] = fragment.get("window").split(",").map(Number);
  setView({ t0, t1, b0, b1 });
}
if (fragment.has("find")) { byId("search").value = fragment.get("find"); search(fragment.get("find")); }
if (fragment.has("pin")) {
  for (const panel of panels)
    for (let i = 0; i < panel.count; ++i)
      if (panel.nameOf(i) === fragment.get("pin")) { panel.setPin(i); break; }
}
// For scripts and tests: where things are, and what is where.
window.memoryMap = { panels, view, full, setView, search, reset };
