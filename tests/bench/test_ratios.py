"""Unit tests of ratios.py: python3 -m unittest discover -s tests/bench"""

import random
import unittest

from ratios import interval, median, order_of, rounds_of, summarise

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
