"""Ratios to bare within rounds: their median and a 95 % interval that assumes nothing about the spread."""

import math


def order_of(number, states):
    """The order in which round `number` runs its states: over 2 * n rounds each of the n states is at each
    place twice, and each comes before each other as often as after it."""
    turn = number % len(states)
    order = [*states[turn:], *states[:turn]]
    return order[::-1] if number // len(states) % 2 else order


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


def rounds_of(measurements):
    """`measurements`: dicts with run, round, group, state and values. Gives a list of rounds, each
    state -> {row: value}, of the groups' measurements of one round together."""
    rounds = {}
    for one in measurements:
        states = rounds.setdefault((one["run"], one["round"]), {})
        states.setdefault(one["state"], {}).update(one["values"])
    return [rounds[key] for key in sorted(rounds)]


def summarise(rounds, row):
    """Of one row, state -> n (rounds), value (median) and, but for bare, the median of (state / bare of the
    same round) with its interval, and the median of the differences. Rounds without bare are left out."""
    pairs = {}
    for states in rounds:
        bare = states.get("bare", {}).get(row)
        if not bare:
            continue
        for state, values in states.items():
            if values.get(row) is not None:
                pairs.setdefault(state, []).append((values[row], bare))
    summary = {}
    for state, of in pairs.items():
        ratios = [value / bare for value, bare in of]
        summary[state] = {"n": len(of), "value": median([value for value, _ in of])}
        if state != "bare":
            summary[state] |= {
                "ratio": median(ratios),
                "interval": interval(ratios),
                "difference": median([value - bare for value, bare in of]),
            }
    return summary
