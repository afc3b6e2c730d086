"use strict";
// Tables that sort by a click; a few hundred rows at once.
const PAGE = 200;
function table(where, columns, rows, cut, pick) {
  const box = element("div", null, "frame table"), t = element("table");
  const head = element("tr"), body = element("tbody"), more = element("div", null, "bar");
  let by = columns.findIndex((c) => c.first), up = false, shown = PAGE;
  columns.forEach((c, i) => {
    const th = element("th", c.title, c.text ? "text" : "");
    if (c.hint) th.title = c.hint;
    th.onclick = () => {
      up = by === i ? !up : !!c.text;
      by = i;
      fill();
    };
    head.append(th);
  });
  const value = (c, row) => {
    const v = c.key(row);
    return v === null || v === undefined ? -1 : v;
  };
  function fill() {
    [...head.children].forEach((th, i) => {
      th.classList.toggle("by", i === by);
      th.classList.toggle("up", i === by && up);
    });
    const c = columns[by], sign = up ? 1 : -1;
    rows.sort((a, b) => {
      const x = value(c, a), y = value(c, b);
      return sign * (x < y ? -1 : x > y ? 1 : 0);
    });
    body.replaceChildren(
      ...rows.slice(0, shown).map((row) => {
        const tr = element("tr", null, pick ? "pick" : "");
        if (pick) tr.onclick = () => pick(row);
        for (const c of columns) {
          const td = element("td", null, c.text ? "text " + (c.cls || "") : "");
          td.append(c.show ? c.show(row) : String(c.key(row)));
          tr.append(td);
        }
        return tr;
      }),
    );
    more.replaceChildren();
    if (rows.length > shown) {
      const b = element("button", "Show more");
      b.onclick = () => {
        shown += 5 * PAGE;
        fill();
      };
      more.append(b, element("span", `${count(shown)} of ${count(rows.length)} rows`, "count"));
    }
  }
  t.append(element("thead"), body);
  t.firstChild.append(head);
  box.append(t);
  $(where).append(box, more);
  note(where, cut);
  fill();
}

function meter(part, whole) {
  const e = element("span"), m = element("span", null, "meter"), i = element("i");
  i.style.width = whole ? Math.max(0, Math.min(100, (100 * part) / whole)) + "%" : "0";
  m.append(i);
  e.append(m, element("span", percent(part, whole), "share"));
  return e;
}
function named(name, lines) {
  const e = element("div"), head = element("div", name, "head");
  head.title = name;
  e.append(head);
  for (const line of lines) e.append(element("div", line, "sub"));
  return e;
}
const time = (title, field, first, hint) => ({ title, key: (r) => r[field], show: (r) => duration(r[field]), first, hint });
const number = (title, field, hint) => ({ title, key: (r) => r[field], show: (r) => count(r[field]), hint });
const calls = {
  title: "Calls",
  key: (r) => r.calls,
  show: (r) => (r.no_time ? named(count(r.calls), [count(r.no_time) + " without time"]) : count(r.calls)),
};

function kernelTable() {
  const K = data.kernels;
  table("kernels", [
    { title: "Share", key: (r) => r.total, show: (r) => meter(r.total, data.total_ns), hint: "of GPU time recorded" },
    time("Total", "total", true),
    calls,
    time("Mean", "mean"),
    time("Shortest", "min"),
    time("Longest", "max"),
    { title: "Kernel", text: true, cls: "name", key: (r) => r.name,
      show: (r) => named(r.name, r.callers.map((c) => "launched by " + c)) },
  ], K.rows, K.cut, (row) => {
    $("find").value = row.name;
    timeline.find(row.name, true);
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    $("timeline-section").scrollIntoView({ behavior: still ? "auto" : "smooth" });
  });
}

// By rank, so that the frequent ones differ.
const reasonColours = new Map();
const colourOf = (i) => `hsl(${hues[i % hues.length]} 55% ${(dark.matches ? 42 : 60) - 9 * (Math.floor(i / hues.length) % 3)}%)`;
function stallTable() {
  const S = data.stalls;
  S.reasons.forEach(([reason], i) => reasonColours.set(reason, colourOf(i)));
  $("stalls").append(element("p", `${count(S.samples)} PC samples: how often a warp was found there, and why it did not issue. Samples are no time, and not all that happened.`, "hint"));
  const legend = element("div", null, "legend");
  for (const [reason, n] of S.reasons.slice(0, 14)) {
    const e = element("span"), dot = element("i");
    dot.style.background = reasonColours.get(reason);
    e.append(dot, `${reason} ${percent(n, S.samples)}`);
    legend.append(e);
  }
  $("stalls").append(legend);
  table("stalls", [
    { title: "Share", key: (r) => r.samples, show: (r) => meter(r.samples, S.samples), hint: "of all samples" },
    number("Samples", "samples", "waiting or not"),
    { ...number("Waiting", "waiting", "samples whose warp issued nothing"), first: true },
    { title: "Source", text: true, cls: "name", key: (r) => r.place, show: (r) => named(r.place, ["in " + r.function]) },
    { title: "Reasons", text: true, key: (r) => r.words, show: reasons },
  ], S.rows, S.cut);
  for (const text of S.notes) note("stalls", text);
}
function reasons(row) {
  const e = element("span"), bar = element("div", null, "stack");
  for (const [reason, n] of row.reasons) {
    const part = element("i");
    part.style.width = (100 * n) / row.samples + "%";
    part.style.background = reasonColours.get(reason);
    part.title = `${reason}: ${count(n)} (${percent(n, row.samples)})`;
    bar.append(part);
  }
  e.append(bar, element("div", row.words, "sub"));
  return e;
}

function rangeTable() {
  const R = data.ranges;
  table("ranges", [
    { title: "Share", key: (r) => r.gpu, show: (r) => meter(r.gpu, data.total_ns), hint: "of GPU time recorded; ranges nest, so shares overlap" },
    time("GPU time", "gpu", true),
    number("Kernels", "kernels"),
    time("CPU time", "cpu", false, "from begin to end"),
    { title: "Count", key: (r) => r.count,
      show: (r) => named(count(r.count), [r.open ? count(r.open) + " open at the end" : "", r.marks ? count(r.marks) + " marks" : ""].filter(Boolean)) },
    { title: "Range", text: true, cls: "name", key: (r) => r.name, show: (r) => named(r.name || "(no message)", r.domain ? ["domain " + r.domain] : []) },
  ], R.rows, R.cut);
}

function nodeTable() {
  const N = data.nodes;
  table("nodes", [
    { title: "Share", key: (r) => r.total, show: (r) => meter(r.total, data.total_ns), hint: "of GPU time recorded" },
    time("Total", "total", true),
    calls,
    time("Mean", "mean"),
    number("Graph", "graph"),
    { title: "Node", key: (r) => Number(r.node), show: (r) => r.node },
    { title: "Process", text: true, key: (r) => r.process },
    { title: "Kernel", text: true, cls: "name", key: (r) => r.name, show: (r) => named(r.name, []) },
  ], N.rows, N.cut);
}
