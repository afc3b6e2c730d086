"use strict";
// The flame graph, outermost frame on top.
const flame = (() => {
  const F = data.flame, ROW = 18, canvas = $("flame");
  const nodes = F.nodes.map(([name, depth, total]) => ({ name, depth, total, x: 0, parent: -1 }));
  // Nodes come outer before inner and in order, so each begins where its elder sibling ends.
  const path = [], filled = [];
  let deepest = 0;
  nodes.forEach((n, i) => {
    path.length = n.depth;
    n.parent = n.depth ? path[n.depth - 1] : -1;
    n.x = n.depth ? filled[n.depth - 1] : 0;
    if (n.depth) filled[n.depth - 1] += n.total;
    filled[n.depth] = n.x;
    path.push(i);
    deepest = Math.max(deepest, n.depth);
  });
  let zoomed = 0, lit = null, width = 800;
  const colours = F.names.map(colour);
  const height = (deepest + 1) * ROW;

  function place(n) {
    const z = nodes[zoomed];
    const from = (n.x - z.x) / z.total, to = (n.x + n.total - z.x) / z.total;
    return [Math.max(0, from) * width, Math.min(1, to) * width];
  }
  function draw() {
    width = Math.max(400, canvas.parentElement.clientWidth);
    const g = fit(canvas, width, height);
    for (const n of nodes) {
      const [left, right] = place(n);
      if (right - left < 0.5) continue;
      const above = n.depth < nodes[zoomed].depth;
      g.globalAlpha = (lit && !lit[n.name]) ? 0.2 : above ? 0.5 : 1;
      g.fillStyle = n.depth ? colours[n.name] : css("--line");
      g.fillRect(left, n.depth * ROW, Math.max(0.5, right - left - (right - left > 3 ? 1 : 0)), ROW - 1);
      if (right - left > 30) {
        g.fillStyle = n.depth && !dark.matches ? "#111" : css("--text");
        label(g, F.names[n.name], left + 4, n.depth * ROW + ROW / 2, right - left - 8);
      }
      g.globalAlpha = 1;
    }
  }
  function hit(e) {
    const r = canvas.getBoundingClientRect();
    const px = e.clientX - r.left, depth = Math.floor((e.clientY - r.top) / ROW);
    return nodes.findIndex((n) => {
      if (n.depth !== depth) return false;
      const [left, right] = place(n);
      return px >= left && px < right;
    });
  }
  canvas.addEventListener("mousemove", (e) => {
    const n = nodes[hit(e)];
    if (!n) return tip(e, null);
    const parent = nodes[n.parent];
    tip(e, F.names[n.name], [
      duration(n.total) + ", " + percent(n.total, nodes[0].total) + " of all",
      parent && parent !== nodes[0] ? percent(n.total, parent.total) + " of " + F.names[parent.name] : "",
    ]);
  });
  canvas.addEventListener("mouseleave", (e) => tip(e, null));
  canvas.addEventListener("click", (e) => {
    const i = hit(e);
    if (i >= 0) {
      zoomed = i;
      later(draw);
    }
  });
  $("flame-reset").onclick = () => {
    zoomed = 0;
    later(draw);
  };
  $("flame-find").oninput = () => {
    const wanted = $("flame-find").value.toLowerCase();
    lit = wanted === "" ? null : F.names.map((n) => n.toLowerCase().includes(wanted));
    // A frame inside a frame that matches counts once.
    let ns = 0, skip = Infinity;
    if (lit) {
      for (const n of nodes) {
        if (n.depth > skip) continue;
        skip = Infinity;
        if (lit[n.name]) {
          ns += n.total;
          skip = n.depth;
        }
      }
    }
    $("flame-found").textContent = lit ? duration(ns) + ", " + percent(ns, nodes[0].total) : "";
    later(draw);
  };
  note("flame-notes", F.cut);
  return { draw, ok: nodes.length > 0 && nodes[0].total > 0, nodes };
})();
