// Draws the memory map. Each panel rasterises its rectangles into an image and, in the same pass, into an array that
// says which rectangle a pixel shows. That array answers every hover in constant time, and a picture of 100,000
// rectangles costs no more than its pixels. Rectangles below a pixel are blended by their share of it.
"use strict";
(() => {
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

  class Panel {
    constructor(source, index) {
      this.source = source;
      this.index = index;
      this.count = source.first.length;
      this.nodes = source.node || null;
      this.hover = -1;
      this.pin = -1;
      this.matches = null;
      this.dirty = true;
      this.pending = false;
      this.buildTones();
      this.buildLive();
      this.buildPage();
    }

    nodeOf(i) { return this.nodes ? this.nodes[i] : i; }
    nameOf(i) {
      const node = this.nodeOf(i);
      return (this.source.names && this.source.names[node]) || "buffer " + node;
    }

    buildTones() {
      const low = Math.log(Math.max(1, smallest)), span = Math.log(Math.max(1, largest)) - low || 1;
      this.tone = new Uint8Array(this.count);
      for (let i = 0; i < this.count; ++i) {
        const shade = Math.round((Math.log(Math.max(1, this.source.bytes[i])) - low) / span * (kShades - 1));
        this.tone[i] = shade * kJitters + (Math.imul(this.nodeOf(i) + 1, 0x9E3779B1) >>> 16) % kJitters;
      }
    }

    // The live bytes as steps: from liveTimes[k] on there are liveBytes[k].
    buildLive() {
      const { first, last, bytes } = this.source, events = new Map();
      for (let i = 0; i < this.count; ++i) {
        events.set(first[i], (events.get(first[i]) || 0) + bytes[i]);
        events.set(last[i], (events.get(last[i]) || 0) - bytes[i]);
      }
      this.liveTimes = Float64Array.from(events.keys()).sort();
      this.liveBytes = new Float64Array(this.liveTimes.length);
      let live = 0;
      this.livePeak = 0;
      this.liveTimes.forEach((time, k) => {
        live += events.get(time);
        this.liveBytes[k] = live;
        this.livePeak = Math.max(this.livePeak, live);
      });
    }
    // The last step that starts at or before t, or -1.
    liveIndex(t) {
      let low = 0, high = this.liveTimes.length;
      while (low < high) {
        const mid = (low + high) >> 1;
        if (this.liveTimes[mid] <= t) low = mid + 1; else high = mid;
      }
      return low - 1;
    }
    liveAt(t) { const k = this.liveIndex(t); return k < 0 ? 0 : this.liveBytes[k]; }

    buildPage() {
      const section = element("section");
      section.append(element("h2", "", this.source.title));
      const facts = element("dl", "facts");
      for (const [name, value] of this.source.facts) {
        const pair = element("div");
        pair.append(element("dt", "", name), element("dd", "", value));
        facts.append(pair);
      }
      if (this.source.facts.length) section.append(facts);
      const chart = element("div", "chart");
      this.canvas = element("canvas");
      this.canvas.tabIndex = 0;
      this.canvas.setAttribute("role", "application");
      this.canvas.setAttribute("aria-label", this.source.title + ": " + exact(this.count) +
        " rectangles, time across, offset up. Arrow keys pan, plus and minus zoom, n and p step through buffers.");
      chart.append(this.canvas);
      this.detail = element("div", "detail");
      section.append(chart, this.detail);
      if (this.source.notes.length) {
        const notes = element("ul", "notes");
        this.source.notes.forEach((note) => notes.append(element("li", "", note)));
        section.append(notes);
      }
      byId("panels").append(section);
      this.context = this.canvas.getContext("2d");
      this.base = document.createElement("canvas");
      this.listen();
      new ResizeObserver(() => this.invalidate()).observe(chart);
      this.showDetail();
    }

    // ---- geometry, in CSS pixels -------------------------------------------------------------------------------
    layout() {
      const width = this.canvas.clientWidth, height = this.canvas.clientHeight;
      const live = Math.max(56, Math.round(height * kLiveShare));
      this.width = width;
      this.height = height;
      this.mapWidth = Math.max(1, width - kLeft - kRight);
      this.mapHeight = Math.max(1, height - kTop - live - kAxis - 10);
      this.liveTop = kTop + this.mapHeight + kAxis;
      this.liveHeight = Math.max(1, height - this.liveTop - 4);
    }
    xOf(t) { return kLeft + (t - view.t0) / (view.t1 - view.t0) * this.mapWidth; }
    yOf(b) { return kTop + (1 - (b - view.b0) / (view.b1 - view.b0)) * this.mapHeight; }
    timeAt(x) { return view.t0 + (x - kLeft) / this.mapWidth * (view.t1 - view.t0); }
    bytesAt(y) { return view.b0 + (1 - (y - kTop) / this.mapHeight) * (view.b1 - view.b0); }
    liveY(bytes) { return this.liveTop + (1 - bytes / (tallest * 1.06)) * this.liveHeight; }
    // What is drawn at a point: an index, or -1.
    pick(x, y) {
      if (!this.ids || x < kLeft || y < kTop) return -1;
      const px = Math.floor((x - kLeft) * this.ratio), py = Math.floor((y - kTop) * this.ratio);
      if (px < 0 || py < 0 || px >= this.idWidth || py >= this.idHeight) return -1;
      return this.ids[py * this.idWidth + px];
    }

    // ---- drawing -----------------------------------------------------------------------------------------------
    invalidate() { this.dirty = true; this.request(); }
    request() {
      if (this.pending) return;
      this.pending = true;
      requestAnimationFrame(() => { this.pending = false; this.draw(); });
    }
    draw() {
      if (this.canvas.clientWidth === 0) return;
      this.layout();
      const ratio = Math.min(window.devicePixelRatio || 1, 2);
      const wide = Math.round(this.width * ratio), high = Math.round(this.height * ratio);
      if (this.canvas.width !== wide || this.canvas.height !== high) {
        this.canvas.width = wide;
        this.canvas.height = high;
        this.dirty = true;
      }
      if (this.dirty || this.ratio !== ratio) {
        this.ratio = ratio;
        this.drawBase();
        this.dirty = false;
      }
      const context = this.context;
      context.setTransform(1, 0, 0, 1, 0, 0);
      context.drawImage(this.base, 0, 0);
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      this.drawMarks(context);
    }

    drawBase() {
      const base = this.base;
      base.width = this.canvas.width;
      base.height = this.canvas.height;
      const context = base.getContext("2d");
      context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
      context.fillStyle = colours.card;
      context.fillRect(0, 0, this.width, this.height);
      this.drawRectangles(context);
      this.drawLabels(context);
      this.drawAxes(context);
      this.drawLive(context);
    }

    drawRectangles(context) {
      const W = this.idWidth = Math.max(1, Math.round(this.mapWidth * this.ratio));
      const H = this.idHeight = Math.max(1, Math.round(this.mapHeight * this.ratio));
      const image = context.createImageData(W, H), pixels = new Uint32Array(image.data.buffer);
      // What the panel holds is a shade darker than what lies beyond: two panels compare at a glance.
      const held = Math.min(H, Math.max(0, Math.round(H - (this.source.size - view.b0) * H / (view.b1 - view.b0))));
      pixels.fill(colours.beyondPacked, 0, held * W);
      pixels.fill(colours.chartPacked, held * W);
      const ids = this.ids = new Int32Array(W * H).fill(-1);
      const { first, last, offset, bytes } = this.source;
      const sx = W / (view.t1 - view.t0), sy = H / (view.b1 - view.b0);
      const edgeFrom = 4 * this.ratio;
      this.labelled = [];
      for (let i = 0; i < this.count; ++i) {
        if (last[i] <= view.t0 || first[i] >= view.t1 || offset[i] >= view.b1 || offset[i] + bytes[i] <= view.b0) continue;
        const x0 = (first[i] - view.t0) * sx, x1 = (last[i] - view.t0) * sx;
        const y0 = H - (offset[i] + bytes[i] - view.b0) * sy, y1 = H - (offset[i] - view.b0) * sy;
        const quiet = this.matches !== null && !this.matches.has(this.nodeOf(i));
        const tone = this.tone[i], colour = quiet ? colours.dim[tone] : colours.fill[tone];
        const wide = x1 - x0, high = y1 - y0;
        let left = Math.round(x0), right = Math.max(Math.round(x1), left + 1);
        let top = Math.round(y0), bottom = Math.max(Math.round(y1), top + 1);
        left = Math.max(left, 0);
        top = Math.max(top, 0);
        right = Math.min(right, W);
        bottom = Math.min(bottom, H);
        if (left >= right) left = right - 1;
        if (top >= bottom) top = bottom - 1;
        if (left < 0 || top < 0) continue;
        const share = Math.min(1, wide) * Math.min(1, high);
        if (share < 1) {
          const weight = Math.round(256 * Math.max(share, 0.12));
          for (let y = top; y < bottom; ++y) {
            for (let at = y * W + left, end = y * W + right; at < end; ++at) {
              const old = pixels[at], rb = old & 0xFF00FF, g = old & 0x00FF00;
              pixels[at] = (255 << 24 | (rb + (((colour & 0xFF00FF) - rb) * weight >> 8) & 0xFF00FF) |
                            (g + (((colour & 0x00FF00) - g) * weight >> 8) & 0x00FF00)) >>> 0;
              ids[at] = i;
            }
          }
          continue;
        }
        for (let y = top; y < bottom; ++y) {
          pixels.fill(colour, y * W + left, y * W + right);
          ids.fill(i, y * W + left, y * W + right);
        }
        if (wide >= edgeFrom && high >= edgeFrom) {
          const edge = colours.edge[tone];
          pixels.fill(edge, top * W + left, top * W + right);
          for (let y = top; y < bottom; ++y) pixels[y * W + right - 1] = edge;
          if (!quiet && right - left > 34 * this.ratio && bottom - top > 13 * this.ratio && this.labelled.length < 4000)
            this.labelled.push(i);
        }
      }
      context.putImageData(image, Math.round(kLeft * this.ratio), Math.round(kTop * this.ratio));
    }

    drawLabels(context) {
      const { first, last, offset, bytes } = this.source;
      const area = (i) => (last[i] - first[i]) * bytes[i];
      const chosen = this.labelled.sort((a, b) => area(b) - area(a)).slice(0, 250);
      context.font = "11px system-ui, 'Noto Sans', 'DejaVu Sans', sans-serif";
      context.textBaseline = "middle";
      context.textAlign = "left";
      for (const i of chosen) {
        const x0 = Math.max(this.xOf(first[i]), kLeft), x1 = Math.min(this.xOf(last[i]), kLeft + this.mapWidth);
        const y0 = Math.max(this.yOf(offset[i] + bytes[i]), kTop), y1 = Math.min(this.yOf(offset[i]), kTop + this.mapHeight);
        const room = x1 - x0 - 10;
        let text = this.nameOf(i);
        const wide = context.measureText(text).width;
        if (wide > room) {
          // The end of a tensor's name says more than its beginning.
          const keep = Math.floor(text.length * room / wide) - 1;
          if (keep < 5) continue;
          text = "\u2026" + text.slice(-keep);
        }
        context.fillStyle = colours.dark[this.tone[i]] ? "rgba(255,255,255,.92)" : "rgba(16,28,38,.86)";
        context.fillText(text, x0 + 5, (y0 + y1) / 2);
      }
    }

    drawAxes(context) {
      const right = kLeft + this.mapWidth, bottom = kTop + this.mapHeight;
      context.font = "11px system-ui, 'Noto Sans', 'DejaVu Sans', sans-serif";
      context.fillStyle = colours.soft;
      context.textBaseline = "middle";
      context.textAlign = "right";
      const byteStep = niceByteStep(view.b1 - view.b0, Math.max(2, this.mapHeight / 60));
      for (let b = Math.ceil(view.b0 / byteStep) * byteStep; b <= view.b1; b += byteStep) {
        const y = this.yOf(b);
        context.fillText(formatBytes(b, byteStep < 1024 ** 2 ? 2 : 1), kLeft - 8, Math.min(Math.max(y, kTop + 5), bottom - 4));
        context.fillRect(kLeft - 4, Math.round(y), 4, 0.75);
      }
      context.textAlign = "center";
      context.textBaseline = "top";
      const timeStep = niceStep(view.t1 - view.t0, Math.max(2, this.mapWidth / 110));
      for (let t = Math.ceil(view.t0 / timeStep) * timeStep; t <= view.t1; t += timeStep) {
        const x = this.xOf(t), text = exact(t), half = context.measureText(text).width / 2;
        context.fillText(text, Math.min(Math.max(x, kLeft + half), right - half), bottom + 6);
        context.fillRect(Math.round(x), bottom, 0.75, 4);
      }
      // How much the panel holds, and where its blocks end.
      const rule = (b, colour, dash) => {
        const y = this.yOf(b);
        if (y < kTop || y > bottom) return;
        context.strokeStyle = colour;
        context.setLineDash(dash);
        context.beginPath();
        context.moveTo(kLeft, y);
        context.lineTo(right, y);
        context.stroke();
        context.setLineDash([]);
      };
      context.lineWidth = 1;
      for (const block of this.source.blocks.length > 1 ? this.source.blocks : []) {
        rule(block.base + block.bytes, colours.faint, [2, 3]);
        if (this.yOf(block.base) - this.yOf(block.base + block.bytes) > 14) {
          context.textAlign = "right";
          context.textBaseline = "top";
          context.fillStyle = colours.soft;
          context.fillText(block.name, right - 4, Math.max(kTop, this.yOf(block.base + block.bytes)) + 3);
        }
      }
      if (this.source.bound && this.source.bound < this.source.size) rule(this.source.bound, colours.bound, [5, 4]);
      rule(this.source.size, colours.ink, []);
      const top = this.yOf(this.source.size);
      if (top > kTop && top < bottom) {
        const text = formatBytes(this.source.size, 2), wide = context.measureText(text).width + 10;
        context.fillStyle = colours.ink;
        context.beginPath();
        context.roundRect(right - wide, top < kTop + 20 ? top : top - 17, wide, 17, 3);
        context.fill();
        context.fillStyle = colours.card;
        context.textAlign = "right";
        context.textBaseline = "middle";
        context.fillText(text, right - 5, (top < kTop + 20 ? top : top - 17) + 9);
      }
    }

    // The live bytes under the map: for each column of pixels the highest step in it.
    drawLive(context) {
      const right = kLeft + this.mapWidth, bottom = this.liveTop + this.liveHeight;
      context.fillStyle = colours.chart;
      context.fillRect(kLeft, this.liveTop, this.mapWidth, this.liveHeight);
      const curve = new Path2D(), columns = Math.ceil(this.mapWidth);
      for (let column = 0; column < columns; ++column) {
        const from = this.timeAt(kLeft + column), to = this.timeAt(kLeft + column + 1);
        let k = this.liveIndex(from), high = k < 0 ? 0 : this.liveBytes[k];
        for (++k; k < this.liveTimes.length && this.liveTimes[k] < to; ++k) high = Math.max(high, this.liveBytes[k]);
        const y = this.liveY(high);
        if (column === 0) curve.moveTo(kLeft, y);
        curve.lineTo(kLeft + column, y);
        curve.lineTo(Math.min(kLeft + column + 1, right), y);
      }
      const area = new Path2D(curve);
      area.lineTo(right, bottom);
      area.lineTo(kLeft, bottom);
      area.closePath();
      context.globalAlpha = 0.3;
      context.fillStyle = colours.live;
      context.fill(area);
      context.globalAlpha = 1;
      context.lineWidth = 1.25;
      context.lineJoin = "round";
      context.strokeStyle = colours.live;
      context.stroke(curve);
      context.font = "11px system-ui, 'Noto Sans', 'DejaVu Sans', sans-serif";
      context.textAlign = "right";
      context.textBaseline = "middle";
      context.fillStyle = colours.soft;
      context.fillText("live", kLeft - 8, this.liveTop + this.liveHeight / 2 - 7);
      context.fillText("bytes", kLeft - 8, this.liveTop + this.liveHeight / 2 + 7);
      if (this.source.bound) {
        const y = this.liveY(this.source.bound), text = "bound " + formatBytes(this.source.bound, 2);
        context.strokeStyle = colours.bound;
        context.lineWidth = 1.25;
        context.setLineDash([5, 4]);
        context.beginPath();
        context.moveTo(kLeft, y);
        context.lineTo(right, y);
        context.stroke();
        context.setLineDash([]);
        const wide = context.measureText(text).width + 8, below = y - this.liveTop < 16;
        context.fillStyle = colours.chart;
        context.globalAlpha = 0.85;
        context.fillRect(right - wide, below ? y + 2 : y - 16, wide, 14);
        context.globalAlpha = 1;
        context.fillStyle = colours.bound;
        context.fillText(text, right - 4, below ? y + 9.5 : y - 8.5);
      }
    }

    drawMarks(context) {
      const bottom = kTop + this.mapHeight, right = kLeft + this.mapWidth;
      context.save();
      context.beginPath();
      context.rect(kLeft, 0, this.mapWidth, this.height);
      context.clip();
      if (this.crossTime !== undefined) {
        const x = this.xOf(this.crossTime), y = this.liveY(this.liveAt(this.crossTime));
        context.strokeStyle = colours.faint;
        context.lineWidth = 1;
        context.beginPath();
        context.moveTo(x, kTop);
        context.lineTo(x, bottom);
        context.moveTo(x, this.liveTop);
        context.lineTo(x, this.liveTop + this.liveHeight);
        context.stroke();
        context.fillStyle = colours.live;
        context.beginPath();
        context.arc(x, y, 3, 0, 7);
        context.fill();
        const text = formatBytes(this.liveAt(this.crossTime), 2) + " live";
        context.font = "11px system-ui, 'Noto Sans', 'DejaVu Sans', sans-serif";
        const wide = context.measureText(text).width, onLeft = x + wide + 14 > right;
        context.textAlign = onLeft ? "right" : "left";
        context.textBaseline = "alphabetic";
        context.fillStyle = colours.ink;
        context.fillText(text, x + (onLeft ? -7 : 7), this.liveTop + this.liveHeight - 5);
      }
      context.beginPath();
      context.rect(kLeft, kTop, this.mapWidth, this.mapHeight);
      context.clip();
      if (this.hover >= 0 && this.hover !== this.pin) this.outline(context, this.hover, colours.ink, 1.5);
      if (this.pin >= 0) {
        const node = this.nodeOf(this.pin);
        if (this.nodes === null) this.outline(context, this.pin, colours.accent, 2.5);
        else for (let i = 0; i < this.count; ++i) if (this.nodes[i] === node) this.outline(context, i, colours.accent, 2.5);
      }
      context.restore();
    }
    outline(context, i, colour, width) {
      const { first, last, offset, bytes } = this.source;
      const x0 = this.xOf(first[i]), x1 = this.xOf(last[i]), y0 = this.yOf(offset[i] + bytes[i]), y1 = this.yOf(offset[i]);
      context.strokeStyle = colour;
      context.lineWidth = width;
      context.strokeRect(x0, y0, Math.max(x1 - x0, 2), Math.max(y1 - y0, 2));
    }

    // ---- words about a buffer ----------------------------------------------------------------------------------
    lines(i) {
      const { first, last, offset, bytes, block, blocks } = this.source;
      const base = block ? blocks[block[i]].base : 0, start = offset[i] - base;
      const place = block && blocks.length > 1 ? " of " + blocks[block[i]].name : "";
      return [
        formatBytes(bytes[i], 2) + (bytes[i] >= 1024 ? " (" + exact(bytes[i]) + " bytes)" : ""),
        data.unit + "s " + exact(first[i]) + " to " + exact(last[i]) + " (" + exact(last[i] - first[i]) + ")",
        "offset " + exact(start) + " to " + exact(start + bytes[i]) + place,
      ];
    }
    showTip(i, x, y) {
      if (i < 0) { tip.hidden = true; return; }
      tip.replaceChildren(element("b", "", this.nameOf(i)), ...this.lines(i).map((line) => element("span", "", line)));
      tip.hidden = false;
      const wide = tip.offsetWidth, high = tip.offsetHeight;
      tip.style.left = Math.max(8, x + 16 + wide > innerWidth ? x - wide - 14 : x + 16) + "px";
      tip.style.top = Math.max(8, y + 16 + high > innerHeight ? y - high - 12 : y + 16) + "px";
    }
    // Whose bytes these were just before, and whose they are next.
    neighbours(i) {
      const { first, last, offset, bytes } = this.source;
      const before = [], after = [];
      let latest = -Infinity, earliest = Infinity;
      for (let j = 0; j < this.count; ++j) {
        if (j === i || offset[j] >= offset[i] + bytes[i] || offset[j] + bytes[j] <= offset[i]) continue;
        if (last[j] <= first[i] && last[j] >= latest) {
          if (last[j] > latest) before.length = 0;
          latest = last[j];
          before.push(j);
        }
        if (first[j] >= last[i] && first[j] <= earliest) {
          if (first[j] < earliest) after.length = 0;
          earliest = first[j];
          after.push(j);
        }
      }
      return { before, after };
    }
    showDetail() {
      if (this.pin < 0) {
        this.detail.replaceChildren(element("span", "", this.count === 0 ? "Nothing lives here."
          : "Point at a buffer to name it, click to pin it. Wheel zooms, drag pans."));
        return;
      }
      const head = element("div");
      head.append(element("span", "pin"), element("b", "", this.nameOf(this.pin)), "  " + this.lines(this.pin).join(" \u00b7 "));
      const { before, after } = this.neighbours(this.pin);
      const row = element("div");
      const list = (title, found) => {
        row.append(title);
        if (found.length === 0) row.append("nobody");
        found.slice(0, 3).forEach((j, k) => {
          const link = element("a", "", this.nameOf(j));
          link.href = "#";
          link.addEventListener("click", (event) => { event.preventDefault(); this.setPin(j, true); });
          row.append(k > 0 ? ", " : "", link);
        });
        if (found.length > 3) row.append(" and " + exact(found.length - 3) + " more");
      };
      list("These bytes before: ", before);
      list("  \u00b7  after: ", after);
      this.detail.replaceChildren(head, row);
    }
    setPin(i, reveal = false) {
      this.pin = i;
      if (i >= 0) byId("announce").textContent = this.nameOf(i) + ", " + this.lines(i).join(", ");
      this.showDetail();
      if (reveal && i >= 0) this.reveal(i);
      this.request();
    }
    // Brings a rectangle into view, and makes it large enough to see.
    reveal(i) {
      const { first, last, offset, bytes } = this.source;
      const next = { ...view };
      const fit = (low, high, from, to, a, b) => {
        const span = Math.min(view[to] - view[from], Math.max((high - low) * 12, 1e-9));
        if (low >= view[from] && high <= view[to] && (high - low) * 60 > view[to] - view[from]) return;
        const centre = (low + high) / 2;
        next[a] = centre - span / 2;
        next[b] = centre + span / 2;
      };
      fit(first[i], last[i], "t0", "t1", "t0", "t1");
      fit(offset[i], offset[i] + bytes[i], "b0", "b1", "b0", "b1");
      setView(next);
    }
    step(by) {
      if (this.count === 0) return;
      if (!this.order) {
        const { first, offset } = this.source;
        this.order = Uint32Array.from({ length: this.count }, (_, i) => i)
          .sort((a, b) => first[a] - first[b] || offset[a] - offset[b]);
        this.rank = new Uint32Array(this.count);
        this.order.forEach((i, at) => { this.rank[i] = at; });
      }
      const from = this.hover >= 0 ? this.rank[this.hover] : this.pin >= 0 ? this.rank[this.pin] : by > 0 ? -1 : this.count;
      this.hover = this.order[(from + by + this.count) % this.count];
      this.reveal(this.hover);
      this.layout();
      const box = this.canvas.getBoundingClientRect(), { first, last, offset, bytes } = this.source;
      this.showTip(this.hover, box.left + this.xOf((Math.max(first[this.hover], view.t0) + Math.min(last[this.hover], view.t1)) / 2),
                   box.top + this.yOf(offset[this.hover] + bytes[this.hover] / 2));
      byId("announce").textContent = this.nameOf(this.hover) + ", " + this.lines(this.hover).join(", ");
      this.request();
    }

    // ---- search ------------------------------------------------------------------------------------------------
    find(text) {
      this.matches = null;
      this.matchList = [];
      if (text !== "") {
        this.matches = new Set();
        const wanted = text.toLowerCase();
        for (let i = 0; i < this.count; ++i) {
          if (!this.nameOf(i).toLowerCase().includes(wanted)) continue;
          if (!this.matches.has(this.nodeOf(i))) this.matchList.push(i);
          this.matches.add(this.nodeOf(i));
        }
      }
      this.invalidate();
      return this.matchList.length;
    }

    // ---- mouse and touch ---------------------------------------------------------------------------------------
    listen() {
      const canvas = this.canvas, pointers = new Map();
      let moved = false, start = null;
      const at = (event) => {
        const box = canvas.getBoundingClientRect();
        return [event.clientX - box.left, event.clientY - box.top];
      };
      canvas.addEventListener("focus", () => { focusPanel = this; });
      canvas.addEventListener("wheel", (event) => {
        event.preventDefault();
        const [x, y] = at(event);
        const by = Math.pow(1.0016, Math.max(-400, Math.min(400, event.deltaY || event.deltaX)));
        zoomAt(this.timeAt(x), this.bytesAt(Math.min(y, kTop + this.mapHeight)), event.altKey ? 1 : by,
               event.shiftKey || y > kTop + this.mapHeight ? 1 : by);
      }, { passive: false });
      canvas.addEventListener("pointerdown", (event) => {
        canvas.setPointerCapture(event.pointerId);
        pointers.set(event.pointerId, at(event));
        moved = false;
        start = { view: { ...view }, points: [...pointers.values()].map((p) => [...p]) };
      });
      canvas.addEventListener("pointermove", (event) => {
        const [x, y] = at(event);
        if (pointers.has(event.pointerId)) {
          pointers.set(event.pointerId, [x, y]);
          this.drag(start, [...pointers.values()]);
          const [sx, sy] = start.points[0];
          if (Math.abs(x - sx) + Math.abs(y - sy) > 4) moved = true;
          if (moved) { canvas.classList.add("dragging"); tip.hidden = true; return; }
        }
        const over = x >= kLeft && x <= kLeft + this.mapWidth;
        for (const panel of panels) {
          const cross = over ? this.timeAt(x) : undefined;
          if (panel.crossTime !== cross) { panel.crossTime = cross; panel.request(); }
        }
        this.hover = this.pick(x, y);
        this.showTip(this.hover, event.clientX, event.clientY);
        this.request();
      });
      const up = (event) => {
        const was = pointers.delete(event.pointerId);
        canvas.classList.remove("dragging");
        if (was && !moved && event.type === "pointerup") {
          const found = this.pick(...at(event));
          this.setPin(found === this.pin ? -1 : found);
        }
        start = { view: { ...view }, points: [...pointers.values()].map((p) => [...p]) };
      };
      canvas.addEventListener("pointerup", up);
      canvas.addEventListener("pointercancel", up);
      canvas.addEventListener("pointerleave", () => {
        if (pointers.size > 0) return;
        this.hover = -1;
        tip.hidden = true;
        panels.forEach((panel) => { panel.crossTime = undefined; panel.request(); });
      });
      canvas.addEventListener("dblclick", (event) => {
        const [x, y] = at(event);
        zoomAt(this.timeAt(x), this.bytesAt(y), 0.4, 0.4);
      });
    }
    // One finger pans; two zoom around the point between them.
    drag(start, points) {
      const from = start.view, a = start.points, dt = from.t1 - from.t0, db = from.b1 - from.b0;
      if (points.length === 1 || a.length < 2) {
        const byTime = (a[0][0] - points[0][0]) / this.mapWidth * dt, byBytes = (points[0][1] - a[0][1]) / this.mapHeight * db;
        setView({ t0: from.t0 + byTime, t1: from.t1 + byTime, b0: from.b0 + byBytes, b1: from.b1 + byBytes });
        return;
      }
      const spread = (p) => Math.max(20, Math.hypot(p[0][0] - p[1][0], p[0][1] - p[1][1]));
      const scale = spread(a) / spread(points);
      const t = from.t0 + ((a[0][0] + a[1][0]) / 2 - kLeft) / this.mapWidth * dt;
      const b = from.b0 + (1 - ((a[0][1] + a[1][1]) / 2 - kTop) / this.mapHeight) * db;
      setView({ t0: t - (t - from.t0) * scale, t1: t + (from.t1 - t) * scale, b0: b - (b - from.b0) * scale, b1: b + (from.b1 - b) * scale });
    }
  }

  // ---- the page ------------------------------------------------------------------------------------------------
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
})();
