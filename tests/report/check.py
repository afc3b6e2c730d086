#!/usr/bin/env python3
"""Checks outputs of `parcagpu report` with readers that are not ours.

    check.py FOLDER...      each with report.html, .svg, .pftrace, .pb.gz and .jsonl of one recording

A browser for page and flame graph (screenshots are left in FOLDER/shots), pprof's own reader, Perfetto's own
schema and, where TRACE_PROCESSOR names one, its trace processor. The measure is the JSON lines output, and what
FOLDER/expected.json says, where there is one: gpu_ns, kernels, whole (bool), by name.

Prints what cargo prints of tests.
"""

import collections
import csv
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import traceback

from webdriver import Browser


def duration(ns):
    for unit, word in ((10**9, "s"), (10**6, "ms"), (10**3, "us")):
        if ns >= unit:
            return f"{ns / unit:.2f} {word}"
    return f"{ns} ns"


def pictures(folder):
    shots = folder / "shots"
    shots.mkdir(exist_ok=True)
    return shots


class Measure:
    """What the recording has, by its JSON lines."""

    def __init__(self, folder):
        counts = collections.Counter()
        self.ns = 0
        self.by_name = collections.Counter()
        with open(folder / "report.jsonl", encoding="utf-8") as lines:
            for text in lines:
                line = json.loads(text)
                counts[line["type"]] += 1
                if line["type"] == "recording":
                    self.head = line
                if line["type"] == "kernel" and line["gpu_ns"] is not None:
                    counts["timed"] += 1
                    self.ns += line["gpu_ns"]
                    self.by_name[line["demangled"]] += line["gpu_ns"]
        self.counts = counts
        assert self.ns == self.head["gpu_ns"]


def check_counts(folder, measure):
    """The numbers themselves, where they are known from elsewhere."""
    head = measure.head
    assert head["whole"] == (head["launches_sampled"] == head["launches_seen"]), head
    if not head["whole"]:
        assert re.match(r"sampled: .* of the sample", head["notes"][0]), head["notes"]
    file = folder / "expected.json"
    expected = json.loads(file.read_text()) if file.exists() else {}
    for key, wanted in expected.items():
        assert head[key] == wanted, (key, head[key], wanted)
    print(f"  {head['kernels']} kernels, {duration(measure.ns)}; {head['notes'][0]}")


def check_perfetto(folder, measure):
    from google.protobuf.unknown_fields import UnknownFieldSet
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

    def known(message):
        assert not len(UnknownFieldSet(message)), message
        for descriptor, value in message.ListFields():
            if descriptor.message_type:
                for inner in value if descriptor.is_repeated else [value]:
                    known(inner)

    trace = proto.Trace()
    trace.ParseFromString((folder / "report.pftrace").read_bytes())
    categories = {}
    open_slices = collections.defaultdict(list)
    ns = slices = 0
    for i, packet in enumerate(trace.packet):
        if i < 20000:
            known(packet)
        for category in packet.interned_data.event_categories:
            categories[category.iid] = category.name
        event = packet.track_event
        if event.type == event.TYPE_SLICE_BEGIN:
            open_slices[event.track_uuid].append((packet.timestamp, categories[event.category_iids[0]]))
        elif event.type == event.TYPE_SLICE_END:
            begin, category = open_slices[event.track_uuid].pop()
            if category.endswith("kernel"):
                slices += 1
                ns += packet.timestamp - begin
    assert (slices, ns) == (measure.counts["timed"], measure.ns), (slices, ns)
    print(f"  perfetto: {len(trace.packet)} packets by its schema, {slices} kernels, {duration(ns)}")


def query(shell, trace, sql):
    out = subprocess.run(
        [shell, "-q", "/dev/stdin", trace], input=sql, capture_output=True, text=True, timeout=300, check=True
    )
    return list(csv.reader(io.StringIO(out.stdout)))[1:]


def check_trace_processor(folder, measure, shell):
    trace = folder / "report.pftrace"
    bad = query(shell, trace, "select name, value from stats where severity in ('error', 'data_loss') and value > 0;")
    assert not bad, bad
    [[slices, ns]] = query(shell, trace, "select count(*), sum(dur) from slice where category like '%kernel';")
    assert (int(slices), int(ns)) == (measure.counts["timed"], measure.ns)
    deep = query(
        shell, trace, "select count(*) from slice where (category like '%kernel' or category = 'launch') and depth > 0;"
    )
    assert deep == [["0"]], deep
    [[flows]] = query(
        shell,
        trace,
        "select count(*) from flow f join slice a on f.slice_out = a.id join slice b on f.slice_in = b.id "
        "where b.category like '%kernel' and (a.category = 'launch' or a.category = 'graph kernel');",
    )
    [[every]] = query(shell, trace, "select count(*) from flow;")
    assert flows == every
    named = query(shell, trace, "select distinct category from slice where name is null or name = '';")
    assert not named, named
    if measure.counts["timed"] > 1000:
        assert int(flows) > 0.98 * measure.counts["timed"], flows
    print(f"  trace processor: {slices} kernels, {duration(int(ns))}, {flows} arrows")


def check_pprof(folder, measure):
    def pprof(*args):
        command = ["go", "tool", "pprof", *args, str(folder / "report.pb.gz")]
        run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        return run.stdout

    top = pprof("-top", "-unit=ns", "-sample_index=gpu_time")
    [total] = re.findall(r" of (\d+)ns total", top)
    assert int(total) == measure.ns, top[:500]
    share = measure.head["notes"][0].replace("/", " ")
    assert share in top, top[:500]
    for index, wanted in (("kernels", measure.counts["kernel"]), ("pc_samples", measure.head["pc_samples"])):
        raw = pprof("-top", f"-sample_index={index}")
        [total] = re.findall(r" of (\d+) total", raw)
        assert int(total) == wanted, (index, total, wanted)
    lines = pprof("-top", "-lines", "-sample_index=pc_samples")
    tags = pprof("-tags", "-sample_index=pc_samples")
    assert "stall_reason" in tags or not measure.head["pc_samples"], tags
    print(f"  pprof: {measure.ns} ns; first line: {lines.splitlines()[-1][:60].strip()}")


def check_page(folder, measure):
    shots = pictures(folder)
    with Browser() as browser:
        browser.cdp("Emulation.setEmulatedMedia", features=[{"name": "prefers-reduced-motion", "value": "reduce"}])
        browser.open((folder / "report.html").as_uri())
        browser.wait("return document.querySelectorAll('#kernels tbody tr').length > 0", "rows of kernels")
        title = browser.run("return document.title")
        assert title != "broken" and title.startswith("parcagpu"), title
        assert browser.run("return performance.getEntriesByType('resource').length") == 0
        shown = browser.run("return document.querySelector('.total b').textContent")
        assert shown == duration(measure.ns), shown
        notes = browser.run("return [...document.querySelectorAll('.notes li')].map(e => e.textContent)")
        assert notes[: len(measure.head["notes"])] == measure.head["notes"], notes
        browser.shot(shots / "page.png", whole=True)

        # Sorted by time; a click on a heading sorts by it.
        first = "return document.querySelector('#kernels tbody td.name .head').textContent"
        slowest = browser.run(first)
        top = measure.by_name.most_common(1)[0][1]
        assert measure.by_name[slowest] == top, slowest
        browser.run("[...document.querySelectorAll('#kernels th')].find(e => e.textContent === 'Kernel').click()")
        assert browser.run("return document.querySelector('#kernels th.by').textContent") == "Kernel"

        # A click on a kernel finds all of it in the timeline.
        browser.run("[...document.querySelectorAll('#kernels th')].find(e => e.textContent === 'Total').click()")
        browser.run("document.querySelector('#kernels tbody tr').click()")
        found = browser.run("return document.getElementById('found').textContent")
        assert duration(top) in found, (found, top)
        browser.wait("return window.scrollY < 600", "the timeline in view")

        # Dragging on the ruler zooms, and what is under the pointer is told.
        where = browser.run("""
            document.getElementById('find').value = ''; timeline.find('', false);
            document.getElementById('timeline-section').scrollIntoView();
            const r = document.getElementById('ruler').getBoundingClientRect();
            const lane = timeline.rows.findIndex((row) => row.lane && row.lane.kind === 'kernel');
            const row = timeline.rows[lane], l = row.lane, at = Math.floor(l.n / 2);
            const mid = l.start[at] + l.dur[at] / 2, v = timeline.view;
            return {x: r.left + 250 + (mid - v.from) / (v.to - v.from) * (r.width - 250), ruler: r.top + 10,
                    lane: r.bottom + row.y + 9, span: v.to - v.from};""")
        browser.mouse("mousePressed", where["x"] - 6, where["ruler"], button="left", buttons=1, clickCount=1)
        browser.mouse("mouseMoved", where["x"] + 6, where["ruler"], button="left", buttons=1)
        browser.shot(shots / "choosing.png")
        browser.mouse("mouseReleased", where["x"] + 6, where["ruler"], button="left", clickCount=1)
        browser.wait(f"return timeline.view.to - timeline.view.from < {where['span']} / 20", "zoomed in")
        target = browser.run("""
            const row = timeline.rows.find((row) => row.lane && row.lane.kind === 'kernel'), l = row.lane;
            const v = timeline.view, mid = (v.from + v.to) / 2;
            let at = 0;
            for (let i = 0; i < l.n; i++) {
              if (Math.abs(l.start[i] + l.dur[i] / 2 - mid) < Math.abs(l.start[at] + l.dur[at] / 2 - mid)) at = i;
            }
            const r = document.getElementById('lanes-canvas').getBoundingClientRect();
            const time = l.start[at] + l.dur[at] / 2;
            return {x: r.left + 250 + (time - v.from) / (v.to - v.from) * (r.width - 250), y: r.top + row.y + 9,
                    name: data.timeline.names[l.name[at]]};""")
        browser.mouse("mouseMoved", target["x"], target["y"])
        browser.wait("return document.getElementById('tip').style.display === 'block'", "a tooltip")
        tip = browser.run("return document.getElementById('tip').textContent")
        assert "GPU" in tip and "grid" in tip, tip
        assert target["name"] in tip, (tip, target)
        browser.shot(shots / "zoomed.png")
        slow = browser.run("const t = performance.now(); timeline.move(0, 1e15); timeline.draw(); return performance.now() - t")

        # The flame graph zooms too.
        flame = browser.run("""
            document.getElementById('flame-section').scrollIntoView();
            const r = document.getElementById('flame').getBoundingClientRect();
            return {x: r.left + 200, y: r.top + 18 * 2 + 9};""")
        for kind in ("mousePressed", "mouseReleased"):
            browser.mouse(kind, flame["x"], flame["y"], button="left", clickCount=1)
        browser.mouse("mouseMoved", flame["x"] + 3, flame["y"] + 18)
        browser.wait("return document.getElementById('tip').textContent.includes('of all')", "a frame's tooltip")
        browser.shot(shots / "flame.png")
        browser.cdp("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
        browser.open((folder / "report.html").as_uri())
        browser.wait("return document.querySelectorAll('#kernels tbody tr').length > 0", "rows of kernels")
        browser.shot(shots / "dark.png")
        assert browser.run("return document.title") == title
        assert not browser.complaints(), browser.complaints()
        print(f"  page: {shown}, drawn whole in {slow:.0f} ms; slowest kernel {slowest[:50]}")


def check_svg(folder, measure):
    shots = pictures(folder)
    with Browser(1220, 500) as browser:
        browser.open((folder / "report.svg").as_uri())
        browser.wait("return document.querySelectorAll('#frames g').length > 0", "frames")
        texts = browser.run("return [...document.querySelectorAll('text')].map(e => e.textContent)")
        assert any(duration(measure.ns) in text for text in texts), texts[:5]
        assert any(measure.head["notes"][0] == text for text in texts), texts[:5]
        assert not browser.complaints()
        browser.shot(shots / "svg.png")
        print(f"  flame graph: {len(texts)} texts")


def main():
    checks = {
        "counts": check_counts,
        "perfetto": check_perfetto,
        "pprof": check_pprof,
        "page": check_page,
        "flame_graph": check_svg,
    }
    shell = os.environ.get("TRACE_PROCESSOR")
    if shell:
        checks["trace_processor"] = lambda folder, measure: check_trace_processor(folder, measure, shell)
    outcomes = collections.Counter()
    for folder in map(pathlib.Path, sys.argv[1:]):
        folder = folder.resolve()
        measure = Measure(folder)
        for name, check in checks.items():
            outcome = "ok"
            try:
                check(folder, measure)
            except Exception:
                traceback.print_exc()
                outcome = "FAILED"
            outcomes[outcome] += 1
            print(f"test report::{folder.name}::{name} ... {outcome}", flush=True)
    verdict = "FAILED" if outcomes["FAILED"] else "ok"
    print(f"\ntest result: {verdict}. {outcomes['ok']} passed; {outcomes['FAILED']} failed")
    sys.exit(bool(outcomes["FAILED"]) or not outcomes["ok"])


if __name__ == "__main__":
    main()
