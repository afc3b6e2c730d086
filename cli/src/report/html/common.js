"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);

// ---- words ----
function duration(ns) {
  if (ns === null || ns === undefined) return "no time";
  if (ns < 1e3) return Math.round(ns) + " ns";
  if (ns < 1e6) return (ns / 1e3).toFixed(2) + " us";
  if (ns < 1e9) return (ns / 1e6).toFixed(2) + " ms";
  return (ns / 1e9).toFixed(2) + " s";
}
const count = (n) => String(n).replace(/\B(?=(\d{3})+$)/g, ",");
function percent(part, whole) {
  if (!whole) return "-";
  const p = (100 * part) / whole;
  return part > 0 && p < 0.05 ? "< 0.1 %" : p.toFixed(1) + " %";
}

// ---- elements: texts of the recording are only ever set as text ----
function element(tag, text, cls) {
  const e = document.createElement(tag);
  if (text !== undefined && text !== null) e.textContent = text;
  if (cls) e.className = cls;
  return e;
}
function note(where, text) {
  if (text) $(where).append(element("p", text, "cut"));
}

// ---- colours: one name, one colour, everywhere ----
const dark = matchMedia("(prefers-color-scheme: dark)");
function hash(text) {
  let h = 2166136261;
  for (let i = 0; i < text.length; i++) h = Math.imul(h ^ text.charCodeAt(i), 16777619);
  h ^= h >>> 15;
  return (Math.imul(h, 2246822519) ^ (h >>> 13)) >>> 0;
}
const hues = [212, 24, 152, 276, 44, 190, 338, 96, 236, 8, 168, 306];
function colour(text) {
  const h = hash(text);
  const light = (dark.matches ? 40 : 58) + ((h >>> 8) % 4) * 5;
  return `hsl(${hues[h % hues.length]} ${46 + ((h >>> 16) % 3) * 9}% ${light}%)`;
}
function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// ---- canvas ----
function fit(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = width + "px";
  canvas.style.height = height + "px";
  const g = canvas.getContext("2d");
  g.setTransform(ratio, 0, 0, ratio, 0, 0);
  g.clearRect(0, 0, width, height);
  g.font = "12px system-ui, sans-serif";
  g.textBaseline = "middle";
  return g;
}
// As much of a text as there is room for; widths are guessed, then the text is clipped by the caller's room.
function label(g, text, x, y, room) {
  if (room < 24) return;
  const most = Math.floor(room / 6.8);
  g.fillText(text.length > most ? text.slice(0, Math.max(1, most - 1)) + "…" : text, x, y, room);
}

// ---- tooltip ----
function tip(event, title, lines) {
  const t = $("tip");
  if (!title) {
    t.style.display = "none";
    return;
  }
  t.replaceChildren(element("b", title), element("span", "\n" + lines.filter(Boolean).join("\n")));
  t.style.display = "block";
  const box = t.getBoundingClientRect();
  t.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - box.width - 8)) + "px";
  const below = event.clientY + 16;
  t.style.top = (below + box.height > innerHeight ? Math.max(4, event.clientY - box.height - 10) : below) + "px";
}
let pending = new Set();
function later(draw) {
  if (pending.size === 0) {
    requestAnimationFrame(() => {
      const all = pending;
      pending = new Set();
      for (const f of all) f();
    });
  }
  pending.add(draw);
}
