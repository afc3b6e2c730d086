"""Ratios to bare within rounds: their median and a 95 % interval. Where each round has processes of its own, the
interval assumes nothing about the spread; where rounds share a set of processes, sets are what is drawn again."""

import math
import random
import statistics

# Fewer say too little about the next one.
SETS_MIN = 5
DRAWS = 2000


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


def interval_by_sets(sets, confidence=0.95):
    """The bootstrap interval of the median over all values in `sets`, lists of values that depend on each other:
    sets are drawn, with replacement. Few of them show too little spread, so the interval is widened around the median
    as Student's t and n / (n - 1) would for a mean; tried on normal and skewed sets, it holds the true median as often
    as it should (test_ratios.py). None when there are fewer than SETS_MIN. The same values give the same interval."""
    n = len(sets)
    if n < SETS_MIN:
        return None
    rng = random.Random(0)
    middle = median([value for of in sets for value in of])
    drawn = sorted(median([value for of in rng.choices(sets, k=n) for value in of]) for _ in range(DRAWS))
    outside = round(DRAWS * (1 - confidence) / 2)
    wider = student(n - 1, confidence) / student(math.inf, confidence) * math.sqrt(n / (n - 1))
    return middle - wider * (middle - drawn[outside]), middle + wider * (drawn[-1 - outside] - middle)


def student(freedom, confidence):
    """The quantile of Student's t that so much of it lies within, by its expansion (0.1 % off from 4 on)."""
    z = statistics.NormalDist().inv_cdf((1 + confidence) / 2)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / freedom ** (at + 1) for at, term in enumerate(terms))


def rounds_of(measurements):
    """`measurements`: dicts with run, round, group, state and values. Gives a list of rounds, each
    state -> {row: value}, of the groups' measurements of one round together."""
    rounds = {}
    for one in measurements:
        states = rounds.setdefault((one["run"], one["round"]), {})
        states.setdefault(one["state"], {}).update(one["values"])
    return [rounds[key] for key in sorted(rounds)]


def sets_of(measurements):
    """For each of `rounds_of`, which rounds it shares its processes with: those of an equal key."""
    keys = {}
    for one in measurements:
        key = ("set", one["set"]) if "set" in one else ("round", one["round"])
        keys[one["run"], one["round"]] = (one["run"], *key)
    return [keys[key] for key in sorted(keys)]


def summarise(rounds, row, sets=None):
    """Of one row, state -> n (rounds), value (median) and, but for bare, the median of (state / bare of the
    same round) with its interval, and the median of the differences. Rounds without bare are left out.
    `sets`: as sets_of gives them; without, every round is one of its own."""
    pairs = {}
    for at, states in enumerate(rounds):
        bare = states.get("bare", {}).get(row)
        if not bare:
            continue
        for state, values in states.items():
            if values.get(row) is not None:
                pairs.setdefault(state, []).append((values[row], bare, sets[at] if sets else at))
    summary = {}
    for state, of in pairs.items():
        ratios = [value / bare for value, bare, _ in of]
        summary[state] = {"n": len(of), "value": median([value for value, _, _ in of])}
        if state != "bare":
            together = {}
            for ratio, (_, _, key) in zip(ratios, of):
                together.setdefault(key, []).append(ratio)
            alone = len(together) == len(of)
            summary[state] |= {
                "ratio": median(ratios),
                "interval": interval(ratios) if alone else interval_by_sets(list(together.values())),
                "difference": median([value - bare for value, bare, _ in of]),
                "sets": None if alone else len(together),
            }
    return summary
