"""Unit tests of schedule.py: python3 -m unittest discover -s tests/bench"""

import contextlib
import io
import unittest

from schedule import run_rounds


class Missing(Exception):
    pass


class Runner:
    """Runs up to `size` rounds a turn, whose measurements come with the next one."""

    def __init__(self, group, size, log):
        self.group, self.size, self.log, self.held = group, size, log, []

    def turn(self, number, most):
        if not self.size:
            raise Missing("not here")
        ended, self.held = self.held, [(self.group, number + at) for at in range(min(self.size, most))]
        return len(self.held), ended

    def finish(self):
        ended, self.held = self.held, []
        return ended

    def close(self):
        self.log.append(f"{self.group} closed")


def ran(sizes, rounds, limit=60):
    log, written = [], []
    runners = {group: Runner(group, size, log) for group, size in sizes.items()}
    with contextlib.redirect_stderr(io.StringIO()):
        run_rounds(runners, rounds, limit, Missing, written.extend)
    assert log == [f"{group} closed" for group in sizes]
    return written


class Schedule(unittest.TestCase):
    def test_the_first_group_has_three_rounds_for_one_of_the_others(self):
        written = ran({"a": 1, "b": 1}, 9)
        self.assertEqual("".join(group for group, _ in written), "abaaabaaabaa")
        self.assertEqual([number for group, number in written if group == "a"], list(range(9)))

    def test_sets_end_before_another_group_measures(self):
        written = ran({"a": 1, "sets": 5}, 21)
        self.assertEqual([number for group, number in written if group == "sets"], list(range(7)))
        first = written.index(("sets", 0))
        self.assertEqual(written[first : first + 5], [("sets", number) for number in range(5)])
        self.assertEqual(len(written), 28)

    def test_a_group_that_cannot_run_is_left_out(self):
        self.assertEqual(ran({"a": 0, "b": 2}, 6), [("b", 0), ("b", 1)])

    def test_there_is_one_turn_when_the_time_is_over(self):
        self.assertEqual(ran({"a": 2}, 6, limit=0), [("a", 0), ("a", 1)])


if __name__ == "__main__":
    unittest.main()
