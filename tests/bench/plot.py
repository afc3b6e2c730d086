"""The ratios as a picture: one line per call and state, its interval and its median, on a logarithmic axis."""

import html
import math

COLOURS = {"idle": "#2a7f3f", "consumer": "#1f5fa8", "agent": "#1f8f9a", "pc": "#b08a1f", "left": "#7a4fb0", "everything": "#c2571a", "stacks": "#a3202c", "rival": "#8a8a8a"}
LEFT, WIDTH, LINE, TOP = 430, 560, 20, 64
TICKS = (0.9, 1, 1.1, 1.2, 1.5, 2, 3, 5, 10, 20)


def svg(rows, titles, subtitle):
    """`rows`: title of the call -> what ratios.summarise gives."""
    lines = [(call, state, of) for call, summary in rows.items() for state, of in summary.items() if state != "bare"]
    ends = [bound for _, _, of in lines for bound in (of["interval"] or (of["ratio"], of["ratio"]))]
    low, high = math.log(min([0.9, *ends])), math.log(max([1.25, *ends]) * 1.05)

    def x(ratio):
        return LEFT + WIDTH * (math.log(ratio) - low) / (high - low)

    height = TOP + LINE * len(lines) + LINE * len(rows) + 30
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 90}" height="{height}" font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        '<text x="12" y="22" font-size="15">Time relative to bare, median and 95 % interval</text>',
        f'<text x="12" y="42" fill="#555">{html.escape(subtitle)}</text>',
    ]
    for tick in TICKS:
        if low <= math.log(tick) <= high:
            colour = "#444" if tick == 1 else "#ddd"
            out.append(f'<line x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{TOP - 8}" y2="{height - 26}" stroke="{colour}"/>')
            out.append(f'<text x="{x(tick):.1f}" y="{height - 10}" text-anchor="middle">{tick:g}</text>')
    y, previous = TOP, None
    for call, state, of in lines:
        if call != previous:
            out.append(f'<text x="12" y="{y + 12}" font-weight="bold">{html.escape(call)}</text>')
            y, previous = y + LINE, call
        colour = COLOURS.get(state, "#000")
        out.append(f'<text x="24" y="{y + 10}">{html.escape(titles.get(state, state))}</text>')
        if of["interval"]:
            a, b = (x(bound) for bound in of["interval"])
            out.append(f'<line x1="{a:.1f}" x2="{b:.1f}" y1="{y + 6}" y2="{y + 6}" stroke="{colour}" stroke-width="3"/>')
        out.append(f'<circle cx="{x(of["ratio"]):.1f}" cy="{y + 6}" r="4" fill="{colour}"/>')
        out.append(f'<text x="{LEFT + WIDTH + 12}" y="{y + 10}">{of["ratio"]:.3f}</text>')
        y += LINE
    out.append("</svg>")
    return "\n".join(out) + "\n"
