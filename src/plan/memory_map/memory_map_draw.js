// Draws a panel. It rasterises its rectangles into an image and, in the same pass, into an array that says which
// rectangle a pixel shows. That array answers every hover in constant time, and a picture of 100,000 rectangles costs
// no more than its pixels. Rectangles below a pixel are blended by their share of it.
Object.assign(Panel.prototype, {
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
  },

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
  },

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
  },

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
  },

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
  },

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
  },

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
  },
  outline(context, i, colour, width) {
    const { first, last, offset, bytes } = this.source;
    const x0 = this.xOf(first[i]), x1 = this.xOf(last[i]), y0 = this.yOf(offset[i] + bytes[i]), y1 = this.yOf(offset[i]);
    context.strokeStyle = colour;
    context.lineWidth = width;
    context.strokeRect(x0, y0, Math.max(x1 - x0, 2), Math.max(y1 - y0, 2));
  },
});
