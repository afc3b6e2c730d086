"""Unit tests of ratios.py: python3 -m unittest discover -s tests/bench"""

import math
import random
import unittest
from unittest import mock

from ratios import interval, interval_by_sets, median, order_of, rounds_of, sets_of, student, summarise

STATES = ["bare", "idle", "consumer", "left"]


class Ratios(unittest.TestCase):
    def test_median(self):
        self.assertEqual(median([3, 1, 2]), 2)
        self.assertEqual(median([4, 1, 2, 3]), 2.5)

    def test_every_state_is_everywhere_equally(self):
        orders = [order_of(number, STATES) for number in range(2 * len(STATES))]
        for order in orders:
            self.assertEqual(sorted(order), sorted(STATES))
        for place in range(len(STATES)):
            self.assertEqual(sorted(order[place] for order in orders), sorted(2 * STATES))
        for a in STATES:
            for b in STATES:
                before = sum(order.index(a) < order.index(b) for order in orders)
                self.assertEqual(before, len(orders) // 2 if a != b else 0)

    def test_interval_has_the_ranks_of_the_tables(self):
        # n: ranks of the 95 % sign-test interval for a median, counted from 1.
        for n, (low, high) in {6: (1, 6), 10: (2, 9), 20: (6, 15), 40: (14, 27), 100: (40, 61)}.items():
            self.assertEqual(interval(range(1, n + 1)), (low, high))
        self.assertIsNone(interval([1, 2, 3, 4, 5]))

    def test_interval_covers_the_true_median(self):
        rng = random.Random(1)
        held = 0
        for _ in range(1000):
            low, high = interval([rng.lognormvariate(0, 1) for _ in range(40)])
            held += low <= 1 <= high
        self.assertGreaterEqual(held, 940)

    def test_student_has_the_quantiles_of_the_tables(self):
        for freedom, quantile in {4: 2.776, 7: 2.365, 30: 2.042, math.inf: 1.960}.items():
            self.assertAlmostEqual(student(freedom, 0.95), quantile, delta=0.002)

    def test_interval_by_sets_covers_the_true_median(self):
        # Eight processes that differ, five rounds each that hardly do. Between rounds taken for independent ones the
        # true median would be less than three quarters of the time.
        rng = random.Random(1)
        held = naive = 0
        with mock.patch("ratios.DRAWS", 200):
            for _ in range(200):
                sets = [[math.exp(of + rng.gauss(0, 0.3)) for _ in range(5)] for of in (rng.gauss(0, 1) for _ in range(8))]
                low, high = interval_by_sets(sets)
                held += low <= 1 <= high
                low, high = interval([value for values in sets for value in values])
                naive += low <= 1 <= high
        self.assertGreaterEqual(held, 184)
        self.assertLess(naive, 150)

    def test_rounds_that_share_processes_count_as_sets(self):
        def one(number, state, value, **set_of):
            return {"run": "a", "round": number, "state": state, "values": {"x": value}, **set_of}

        def measured(size, rounds):
            of = [{"set": number // size} if size else {} for number in range(rounds)]
            return [one(n, state, value, **of[n]) for n in range(rounds) for state, value in (("bare", 10), ("idle", 11 + n % 3))]

        def idle(measurements):
            return summarise(rounds_of(measurements), "x", sets_of(measurements))["idle"]

        # Files from before there were sets.
        alone = idle(measured(0, 40))
        self.assertEqual((alone["sets"], alone["interval"]), (None, (1.1, 1.2)))
        few = idle(measured(10, 40))
        self.assertEqual((few["n"], few["sets"], few["interval"]), (40, 4, None))
        low, high = idle(measured(5, 40))["interval"]
        self.assertTrue(1.1 <= low <= 1.2 <= high <= 1.3)
        self.assertEqual(idle(measured(5, 40)), idle(measured(5, 40)))
        # Both kinds together: a round without a set is one of its own.
        old = [{**one, "run": "old"} for one in measured(0, 3)]
        self.assertEqual(idle(measured(5, 40) + old)["sets"], 11)

    def test_ratios_are_taken_within_a_round(self):
        # The machine slows down from round to round; the ratio does not.
        rounds = [{"bare": {"x": b}, "idle": {"x": 1.5 * b}, "consumer": {"x": b + 500}} for b in range(1000, 1010)]
        rows = summarise(rounds, "x")
        self.assertEqual(rows["bare"]["value"], 1004.5)
        self.assertAlmostEqual(rows["idle"]["ratio"], 1.5)
        self.assertAlmostEqual(rows["idle"]["interval"][0], 1.5)
        self.assertEqual(rows["consumer"]["difference"], 500)

    def test_what_is_missing_is_left_out(self):
        rounds = [{"bare": {"x": 10}, "idle": {"x": 20}}, {"idle": {"x": 1000}}, {"bare": {"x": None}, "idle": {"x": 7}}]
        rows = summarise(rounds, "x")
        self.assertEqual((rows["idle"]["n"], rows["idle"]["ratio"]), (1, 2))
        self.assertEqual(summarise(rounds, "y"), {})

    def test_measurements_of_several_runs_are_merged(self):
        def one(run, number, group, state, **values):
            return {"run": run, "round": number, "group": group, "state": state, "values": values}

        rounds = rounds_of([one("a", 0, "g", "bare", x=1), one("b", 0, "g", "bare", x=2), one("a", 0, "h", "bare", y=3)])
        self.assertEqual(rounds, [{"bare": {"x": 1, "y": 3}}, {"bare": {"x": 2}}])


if __name__ == "__main__":
    unittest.main()
