// What a panel does when it is pointed at, dragged or typed to.
Object.assign(Panel.prototype, {
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
  },
  showTip(i, x, y) {
    if (i < 0) { tip.hidden = true; return; }
    tip.replaceChildren(element("b", "", this.nameOf(i)), ...this.lines(i).map((line) => element("span", "", line)));
    tip.hidden = false;
    const wide = tip.offsetWidth, high = tip.offsetHeight;
    tip.style.left = Math.max(8, x + 16 + wide > innerWidth ? x - wide - 14 : x + 16) + "px";
    tip.style.top = Math.max(8, y + 16 + high > innerHeight ? y - high - 12 : y + 16) + "px";
  },

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
  },
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
  },
});
