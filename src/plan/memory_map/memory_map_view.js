// What all panels of the memory map share: words and numbers, colours, and the window of time and bytes that is seen.
// The page's scripts are one after the other in one file: view, panel, draw, input, page.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const root = document.documentElement;
const tip = byId("tip");
const kLeft = 66, kTop = 8, kRight = 10, kAxis = 24, kLiveShare = 0.2;

// ---- words and numbers -------------------------------------------------------------------------------------
const kUnits = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
function formatBytes(bytes, digits = 1) {
  let unit = 0, value = bytes;
  while (Math.abs(value) >= 1024 && unit < kUnits.length - 1) { value /= 1024; ++unit; }
  const text = unit === 0 ? String(Math.round(value)) : value.toFixed(digits).replace(/\.?0+$/, "");
  return text + " " + kUnits[unit];
}
const exact = (number) => number.toLocaleString("en-US");
function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

// ---- colours -----------------------------------------------------------------------------------------------
const colours = {};
function parseColour(text) {
  const digits = text.trim().slice(1);
  return [0, 2, 4].map((at) => parseInt(digits.slice(at, at + 2), 16));
}
const pack = (c) => (255 << 24 | c[2] << 16 | c[1] << 8 | c[0]) >>> 0;
const mix = (a, b, t) => a.map((value, i) => Math.round(value + (b[i] - value) * t));
const kShades = 48, kJitters = 3;
function readColours() {
  const style = getComputedStyle(root);
  for (const name of ["page", "card", "chart", "ink", "soft", "faint", "line", "grid", "accent", "bound", "live"])
    colours[name] = style.getPropertyValue("--" + name).trim();
  const chart = parseColour(colours.chart);
  const stops = style.getPropertyValue("--ramp").split(",").map(parseColour);
  colours.ramp = [];
  for (let i = 0; i < kShades; ++i) {
    const at = i / (kShades - 1) * (stops.length - 1), low = Math.min(Math.floor(at), stops.length - 2);
    colours.ramp.push(mix(stops[low], stops[low + 1], at - low));
  }
  // Neighbours of one size stay apart: three close tones of every shade.
  colours.fill = new Uint32Array(kShades * kJitters);
  colours.dim = new Uint32Array(kShades * kJitters);
  colours.edge = new Uint32Array(kShades * kJitters);
  colours.dark = new Uint8Array(kShades * kJitters);
  colours.ramp.forEach((shade, i) => {
    for (let j = 0; j < kJitters; ++j) {
      const tone = mix(shade, chart, j * 0.07), at = i * kJitters + j;
      colours.fill[at] = pack(tone);
      colours.dim[at] = pack(mix(tone, chart, 0.78));
      colours.edge[at] = pack(mix(tone, chart, 0.62));
      colours.dark[at] = 0.299 * tone[0] + 0.587 * tone[1] + 0.114 * tone[2] < 140 ? 1 : 0;
    }
  });
  colours.chartPacked = pack(chart);
  colours.beyondPacked = pack(parseColour(colours.card));
  const ramp = byId("legend-ramp").getContext("2d");
  for (let x = 0; x < 96; ++x) {
    ramp.fillStyle = "rgb(" + colours.ramp[Math.floor(x / 96 * kShades)].join(",") + ")";
    ramp.fillRect(x, 0, 1, 8);
  }
}
function setTheme(theme) {
  root.dataset.theme = theme;
  readColours();
  panels.forEach((panel) => panel.invalidate());
}

// ---- what all panels share ---------------------------------------------------------------------------------
let smallest = Infinity, largest = 0, tallest = 1, firstTime = Infinity, lastTime = -Infinity;
for (const panel of data.panels) {
  tallest = Math.max(tallest, panel.size, panel.bound || 0);
  for (let i = 0; i < panel.bytes.length; ++i) {
    smallest = Math.min(smallest, panel.bytes[i]);
    largest = Math.max(largest, panel.bytes[i]);
    tallest = Math.max(tallest, panel.offset[i] + panel.bytes[i]);
  }
  for (const value of panel.first) firstTime = Math.min(firstTime, value);
  for (const value of panel.last) lastTime = Math.max(lastTime, value);
}
if (!(firstTime < lastTime)) { firstTime = 0; lastTime = 1; }
if (largest === 0) smallest = largest = 1;
const full = { t0: firstTime, t1: lastTime, b0: 0, b1: tallest * 1.02 };
const view = { ...full };
const panels = [];
let query = "", focusPanel = null;

function clampView() {
  const minTime = (full.t1 - full.t0) * 1e-6, minBytes = Math.min(16, full.b1);
  let dt = Math.min(Math.max(view.t1 - view.t0, minTime), full.t1 - full.t0);
  let db = Math.min(Math.max(view.b1 - view.b0, minBytes), full.b1 - full.b0);
  view.t0 = Math.min(Math.max(view.t0, full.t0), full.t1 - dt);
  view.b0 = Math.min(Math.max(view.b0, full.b0), full.b1 - db);
  view.t1 = view.t0 + dt;
  view.b1 = view.b0 + db;
}
function setView(next) {
  Object.assign(view, next);
  clampView();
  panels.forEach((panel) => panel.invalidate());
}
// Keeps the point (t, b) where it is on the screen.
function zoomAt(t, b, byTime, byBytes) {
  setView({ t0: t - (t - view.t0) * byTime, t1: t + (view.t1 - t) * byTime,
            b0: b - (b - view.b0) * byBytes, b1: b + (view.b1 - b) * byBytes });
}
const middle = () => [(view.t0 + view.t1) / 2, (view.b0 + view.b1) / 2];
function pan(byTime, byBytes) {
  const dt = (view.t1 - view.t0) * byTime, db = (view.b1 - view.b0) * byBytes;
  setView({ t0: view.t0 + dt, t1: view.t1 + dt, b0: view.b0 + db, b1: view.b1 + db });
}
const reset = () => setView({ ...full });

// ---- axes --------------------------------------------------------------------------------------------------
function niceStep(span, wanted) {
  const raw = span / wanted, power = Math.pow(10, Math.floor(Math.log10(raw)));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= raw) * power;
  return Math.max(1, step);
}
function niceByteStep(span, wanted) { return Math.max(1, Math.pow(2, Math.ceil(Math.log2(span / wanted)))); }
