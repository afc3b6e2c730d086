"""Paired ratios of launch costs: their median and a 95 % interval that assumes nothing about the spread."""

import math

STATES = ("bare", "idle", "consumer")
ORDERS = (
    ("bare", "idle", "consumer"),
    ("consumer", "bare", "idle"),
    ("idle", "consumer", "bare"),
    ("consumer", "idle", "bare"),
    ("bare", "consumer", "idle"),
    ("idle", "bare", "consumer"),
)


def order_of(pair):
    """The order in which pair number `pair` runs its states: each order as often as any other."""
    return ORDERS[pair % len(ORDERS)]


def median(values):
    values = sorted(values)
    return (values[len(values) // 2] + values[(len(values) - 1) // 2]) / 2


def interval(values, confidence=0.95):
    """The narrowest pair of order statistics, equally far from both ends, that holds the true median with at
    least this probability; None when there are too few values (five or less at 95 %)."""
    values = sorted(values)
    n = len(values)
    outside, rank = 0.0, 0
    # P(fewer than `rank` + 1 of n values lie below the true median), binomial with p = 1/2.
    while rank < n:
        outside += math.comb(n, rank) / 2**n
        if 2 * outside > 1 - confidence:
            break
        rank += 1
    if rank == 0:
        return None
    return values[rank - 1], values[n - rank]


def summarise(pairs, key):
    """`pairs`: one dict per pair, state -> {key: ns}. Per state: median ns, and for the others the median of
    (state / bare of the same pair), its interval, and the median of the differences in ns."""
    bare = [pair["bare"][key] for pair in pairs]
    rows = {"bare": {"ns": median(bare)}}
    for state in STATES[1:]:
        cost = [pair[state][key] for pair in pairs]
        ratios = [c / b for c, b in zip(cost, bare)]
        rows[state] = {
            "ns": median(cost),
            "ratio": median(ratios),
            "interval": interval(ratios),
            "difference_ns": median([c - b for c, b in zip(cost, bare)]),
        }
    return rows
