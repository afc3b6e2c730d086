"use strict";
// The timeline: fixed labels at the left, lanes that scroll up and down, a ruler that stays.
const timeline = (() => {
  const T = data.timeline, ROW = 19, HEAD = 24, RULER = 26, GUTTER = 250;
  const bytes = Uint8Array.from(atob($("items").textContent), (c) => c.charCodeAt(0));
  let at = 0;
  function next() {
    let n = 0, scale = 1, b;
    do {
      b = bytes[at++];
      n += (b & 127) * scale;
      scale *= 128;
    } while (b & 128);
    return n;
  }
  // Of each 64 slices their time and the longest, so that a million in one view need not be looked at one by one.
  const GROUP = 64;
  function summarise(lane) {
    lane.groups = Math.floor(lane.n / GROUP);
    lane.busy = new Float64Array(lane.groups);
    lane.longest = new Uint32Array(lane.groups);
    for (let g = 0; g < lane.groups; g++) {
      let best = g * GROUP;
      for (let i = best; i < (g + 1) * GROUP; i++) {
        lane.busy[g] += lane.dur[i];
        if (lane.dur[i] > lane.dur[best]) best = i;
      }
      lane.longest[g] = best;
    }
  }
  const rows = []; // {head} or {lane}
  let process = -1, y = 0;
  for (const lane of T.lanes) {
    if (lane.process !== process) {
      process = lane.process;
      const p = data.processes[process];
      rows.push({ y, h: HEAD, head: p ? p.name : "(unknown)", share: p ? ["sampled: " + p.share, ...p.devices].join(" · ") : "" });
      y += HEAD;
    }
    lane.start = new Float64Array(lane.n);
    lane.dur = new Float64Array(lane.n);
    lane.name = new Uint32Array(lane.n);
    lane.details = new Uint32Array(lane.n);
    let t = 0;
    for (let i = 0; i < lane.n; i++) {
      t += next();
      lane.start[i] = t;
      const d = next();
      lane.dur[i] = d === 0 ? Infinity : d - 1;
      lane.name[i] = next();
      lane.details[i] = next();
    }
    summarise(lane);
    rows.push({ y, h: ROW, lane });
    y += ROW;
  }
  const height = y, length = Math.max(1, T.length);
  const colours = T.names.map(colour);
  const view = { from: -length * 0.01, to: length * 1.01 };
  let lit = null; // per name: highlighted
  const canvas = $("lanes-canvas"), box = $("lanes"), ruler = $("ruler");
  const shown = Math.min(height, 620);
  box.style.height = shown + "px";
  let width = 800, choose = null;

  const x = (t) => GUTTER + ((t - view.from) / (view.to - view.from)) * (width - GUTTER);
  const time = (px) => view.from + ((px - GUTTER) / (width - GUTTER)) * (view.to - view.from);
  function move(from, to) {
    const span = Math.min(Math.max(to - from, 20), length * 1.1);
    const mid = (from + to) / 2;
    view.from = Math.max(-length * 0.05, Math.min(mid - span / 2, length * 1.05 - span));
    view.to = view.from + span;
    later(draw);
  }
  function zoom(factor, around) {
    move(around - (around - view.from) * factor, around + (view.to - around) * factor);
  }
  // First slice of a lane that ends at or after t; lanes have no overlap.
  function first(lane, t) {
    let low = 0, high = lane.n;
    while (low < high) {
      const mid = (low + high) >> 1;
      if (lane.start[mid] + lane.dur[mid] < t) low = mid + 1;
      else high = mid;
    }
    return low;
  }

  function step(span) {
    const raw = span / Math.max(2, (width - GUTTER) / 110);
    const power = Math.pow(10, Math.floor(Math.log10(raw)));
    return [1, 2, 5, 10].map((f) => f * power).find((s) => s >= raw) || power * 10;
  }
  function tick(t, s) {
    const unit = s >= 1e9 ? [1e9, "s"] : s >= 1e6 ? [1e6, "ms"] : s >= 1e3 ? [1e3, "us"] : [1, "ns"];
    const n = t / unit[0];
    return (Math.abs(n - Math.round(n)) < 1e-6 ? String(Math.round(n)).replace(/\B(?=(\d{3})+$)/g, ",") : n.toFixed(1)) + " " + unit[1];
  }
  function drawRuler() {
    const g = fit(ruler, width, RULER);
    g.fillStyle = css("--panel");
    g.fillRect(0, 0, width, RULER);
    g.fillStyle = css("--soft");
    g.fillText("visible: " + duration(view.to - view.from), 8, RULER / 2);
    const s = step(view.to - view.from);
    for (let t = Math.ceil(view.from / s) * s; t <= view.to; t += s) {
      const px = x(t);
      g.fillRect(px, RULER - 6, 1, 6);
      if (px > GUTTER + 2 && px < width - 70) g.fillText(tick(t, s), px + 4, RULER / 2);
    }
    if (choose) {
      g.fillStyle = css("--accent");
      g.globalAlpha = 0.35;
      g.fillRect(Math.min(choose[0], choose[1]), 0, Math.abs(choose[1] - choose[0]), RULER);
      g.globalAlpha = 1;
    }
    return s;
  }

  function drawLane(g, lane, top) {
    const h = lane.kind === "launch" ? ROW - 9 : ROW - 3;
    const y0 = top + (ROW - h) / 2;
    let i = first(lane, view.from);
    // What is narrower than a pixel is gathered: the column shows the longest of what lies in it.
    const pixel = (view.to - view.from) / (width - GUTTER);
    let column = -1, best = -1, busy = 0;
    const flush = () => {
      if (column < 0) return;
      // How full the column is shows as how strong it is.
      const full = lane.kind === "launch" ? 1 : Math.min(1, busy / (pixel * 0.9));
      g.globalAlpha = (lit && !lit[lane.name[best]] ? 0.15 : 1) * (0.4 + 0.6 * full);
      g.fillStyle = colours[lane.name[best]];
      g.fillRect(column, y0, 1, h);
      g.globalAlpha = 1;
      column = -1;
    };
    for (; i < lane.n && lane.start[i] <= view.to; i++) {
      const left = Math.max(x(lane.start[i]), GUTTER);
      const right = Math.min(x(lane.start[i] + lane.dur[i]), width);
      const group = i / GROUP, last = i + GROUP - 1;
      if (!lit && group < lane.groups && i % GROUP === 0 && x(lane.start[last] + lane.dur[last]) < Math.floor(left) + 1) {
        const c = Math.floor(left);
        if (c !== column) {
          flush();
          column = c;
          best = lane.longest[group];
          busy = 0;
        }
        busy += lane.busy[group];
        if (lane.dur[lane.longest[group]] > lane.dur[best]) best = lane.longest[group];
        i = last;
        continue;
      }
      if (right - left < 1) {
        const c = Math.floor(left);
        if (c !== column) {
          flush();
          column = c;
          best = i;
          busy = lane.dur[i];
        } else {
          busy += lane.dur[i];
          const better = lit ? (lit[lane.name[i]] || 0) - (lit[lane.name[best]] || 0) : 0;
          if (better > 0 || (better === 0 && lane.dur[i] > lane.dur[best])) best = i;
        }
        continue;
      }
      flush();
      const name = lane.name[i];
      g.globalAlpha = lit && !lit[name] ? 0.15 : 1;
      g.fillStyle = colours[name];
      g.fillRect(left, y0, Math.max(1, right - left - (right - left > 4 ? 1 : 0)), h);
      if (right - left > 30 && lane.kind !== "launch") {
        g.fillStyle = dark.matches ? "#fff" : "#111";
        label(g, T.names[name], left + 4, top + ROW / 2, right - left - 8);
      }
      g.globalAlpha = 1;
    }
    flush();
  }

  function draw() {
    width = Math.max(400, box.clientWidth);
    const s = drawRuler();
    const h = box.clientHeight, top = box.scrollTop;
    const g = fit(canvas, width, h);
    $("lanes-space").style.height = Math.max(0, height - h) + "px";
    g.fillStyle = css("--line");
    for (let t = Math.ceil(view.from / s) * s; t <= view.to; t += s) if (x(t) > GUTTER) g.fillRect(x(t), 0, 1, h);
    g.fillRect(GUTTER - 1, 0, 1, h);
    for (const row of rows) {
      const y0 = row.y - top;
      if (y0 + row.h < 0 || y0 > h) continue;
      if (row.head !== undefined) {
        g.fillStyle = css("--panel");
        g.fillRect(0, y0, width, row.h);
        g.fillStyle = css("--text");
        g.font = "bold 12px system-ui, sans-serif";
        g.fillText(row.head, 8, y0 + row.h / 2);
        const w = g.measureText(row.head).width;
        g.font = "12px system-ui, sans-serif";
        g.fillStyle = css("--soft");
        g.fillText(row.share, 20 + w, y0 + row.h / 2);
        continue;
      }
      g.fillStyle = css("--soft");
      label(g, row.lane.label, 8, y0 + ROW / 2, GUTTER - 14);
      drawLane(g, row.lane, y0);
    }
  }

  function hit(event) {
    const r = canvas.getBoundingClientRect();
    const px = event.clientX - r.left, py = event.clientY - r.top + box.scrollTop;
    if (px < GUTTER) return null;
    const row = rows.find((row) => py >= row.y && py < row.y + row.h);
    if (!row || !row.lane) return null;
    const lane = row.lane, t = time(px), slack = ((view.to - view.from) / (width - GUTTER)) * 2;
    let best = -1;
    for (let i = first(lane, t - slack), n = 0; i < lane.n && lane.start[i] <= t + slack && n < 10000; i++, n++) {
      if (lane.start[i] <= t && t <= lane.start[i] + lane.dur[i]) return { lane, i };
      if (best < 0 || lane.dur[i] > lane.dur[best]) best = i;
    }
    return best < 0 ? null : { lane, i: best };
  }

  function hover(event) {
    const found = hit(event);
    if (!found) return tip(event, null);
    const { lane, i } = found, d = lane.dur[i];
    const length = lane.kind === "launch" ? "launch returned" : d === Infinity ? "open at the end" : duration(d);
    tip(event, T.names[lane.name[i]], [
      length + ", at " + duration(lane.start[i]),
      T.details[lane.details[i]],
      lane.label,
    ]);
  }

  // Drags: on the lanes they move, on the ruler they choose.
  let drag = null;
  canvas.addEventListener("pointerdown", (e) => {
    drag = { x: e.clientX, from: view.from, to: view.to };
    canvas.setPointerCapture(e.pointerId);
  });
  canvas.addEventListener("pointermove", (e) => {
    if (!drag) return hover(e);
    tip(e, null);
    const dt = ((drag.x - e.clientX) / (width - GUTTER)) * (drag.to - drag.from);
    move(drag.from + dt, drag.to + dt);
  });
  const release = () => (drag = null);
  canvas.addEventListener("pointerup", release);
  canvas.addEventListener("pointercancel", release);
  canvas.addEventListener("pointerleave", (e) => tip(e, null));
  canvas.addEventListener("dblclick", (e) => zoom(0.4, time(e.clientX - canvas.getBoundingClientRect().left)));
  ruler.addEventListener("pointerdown", (e) => {
    const px = e.clientX - ruler.getBoundingClientRect().left;
    choose = [px, px];
    ruler.setPointerCapture(e.pointerId);
  });
  ruler.addEventListener("pointermove", (e) => {
    if (!choose) return;
    choose[1] = e.clientX - ruler.getBoundingClientRect().left;
    later(draw);
  });
  ruler.addEventListener("pointerup", () => {
    if (!choose) return;
    const [a, b] = choose.map(time);
    const wide = Math.abs(choose[1] - choose[0]) > 4;
    choose = null;
    if (wide) move(Math.min(a, b), Math.max(a, b));
    else later(draw);
  });
  box.addEventListener(
    "wheel",
    (e) => {
      const px = e.clientX - canvas.getBoundingClientRect().left;
      if (e.ctrlKey || e.metaKey || e.altKey) {
        e.preventDefault();
        zoom(Math.exp(Math.max(-1, Math.min(1, e.deltaY / 250))), time(Math.max(px, GUTTER)));
      } else if (e.shiftKey || Math.abs(e.deltaX) > Math.abs(e.deltaY)) {
        e.preventDefault();
        const dt = (((e.deltaX || e.deltaY) / width) * (view.to - view.from)) / 2;
        move(view.from + dt, view.to + dt);
      }
    },
    { passive: false },
  );
  box.addEventListener("scroll", () => later(draw));
  const middle = () => (view.from + view.to) / 2;
  const keys = {
    w: () => zoom(0.5, middle()),
    s: () => zoom(2, middle()),
    a: () => move(view.from - (view.to - view.from) * 0.2, view.to - (view.to - view.from) * 0.2),
    d: () => move(view.from + (view.to - view.from) * 0.2, view.to + (view.to - view.from) * 0.2),
    0: () => move(-length * 0.01, length * 1.01),
  };
  document.addEventListener("keydown", (e) => {
    if (e.target.tagName === "INPUT" || e.ctrlKey || e.metaKey || e.altKey) return;
    if (keys[e.key]) keys[e.key]();
  });
  $("zoom-in").onclick = keys.w;
  $("zoom-out").onclick = keys.s;
  $("zoom-all").onclick = keys[0];

  function find(text, whole) {
    const wanted = text.toLowerCase();
    lit = wanted === "" ? null : T.names.map((n) => (whole ? n === text : n.toLowerCase().includes(wanted)) | 0);
    let n = 0, ns = 0;
    if (lit) {
      for (const lane of T.lanes) {
        if (lane.kind !== "kernel") continue;
        for (let i = 0; i < lane.n; i++) {
          if (lit[lane.name[i]]) {
            n++;
            ns += lane.dur[i];
          }
        }
      }
    }
    $("found").textContent = lit ? count(n) + " kernels, " + duration(ns) + " of GPU time drawn" : "";
    later(draw);
  }
  $("find").oninput = () => find($("find").value, false);
  return { draw, find, view, move, rows, ok: T.lanes.length > 0 };
})();
