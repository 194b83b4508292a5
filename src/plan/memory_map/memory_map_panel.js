// One chart: its buffers, what is pinned in it and what is found in it.
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
}
