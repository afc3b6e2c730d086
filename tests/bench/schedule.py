"""Whose turn it is: groups take turns, the first of them three times as often, until their rounds are done or the
time is over."""

import sys
import time

from states import note

# With several groups in one call: those after the first have one round for so many of the first.
TURN = 3


def goals_of(groups, rounds):
    return {group: rounds if place == 0 else -(-rounds // TURN) for place, group in enumerate(groups)}


def next_of(goals, done):
    """The group that is furthest behind, the first one of those; None when all are done."""
    behind = [group for group, goal in goals.items() if done[group] < goal]
    return min(behind, key=lambda group: done[group] / goals[group]) if behind else None


def run_rounds(runners, rounds, limit, missing, write):
    """`runners`: group -> what runs its turns. A group whose turn raises `missing` is left out. Measurements go to
    `write` as they come."""
    began, longest, previous = time.monotonic(), {}, None
    goals = goals_of(runners, rounds)
    done = dict.fromkeys(goals, 0)
    try:
        while group := next_of(goals, done):
            start = time.monotonic()
            if limit - (start - began) < 1.2 * longest.get(group, 0) and any(done.values()):
                note(f"{group}: stopped after {done[group]} of {goals[group]} rounds: --limit {limit:g}")
                del goals[group]
                continue
            if previous not in (None, group):
                # What is still ending would disturb the other group.
                write(runners[previous].finish())
            previous = group
            try:
                ran, measurements = runners[group].turn(done[group], goals[group] - done[group])
            except missing as why:
                note(f"no rows of group {group}: {why}")
                del goals[group]
                continue
            write(measurements)
            done[group] += ran
            longest[group] = max(longest.get(group, 0), time.monotonic() - start)
            if sys.stderr.isatty():
                print(f"\r{group}: {done[group]} of {goals[group]} rounds ", end="", file=sys.stderr, flush=True)
        if previous:
            write(runners[previous].finish())
    finally:
        for runner in runners.values():
            runner.close()
