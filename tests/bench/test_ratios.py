"""Unit tests of ratios.py: python3 -m unittest discover -s tests/bench"""

import random
import unittest

from ratios import ORDERS, STATES, interval, median, order_of, summarise


class Ratios(unittest.TestCase):
    def test_median(self):
        self.assertEqual(median([3, 1, 2]), 2)
        self.assertEqual(median([4, 1, 2, 3]), 2.5)

    def test_every_order_is_used_equally(self):
        self.assertEqual(len(set(ORDERS)), 6)
        for order in ORDERS:
            self.assertEqual(sorted(order), sorted(STATES))
        used = [order_of(pair) for pair in range(12)]
        self.assertTrue(all(used.count(order) == 2 for order in ORDERS))

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

    def test_ratios_are_taken_within_a_pair(self):
        # The machine slows down from pair to pair; the ratio does not.
        pairs = [{"bare": {"x": b}, "idle": {"x": 1.5 * b}, "consumer": {"x": b + 500}} for b in range(1000, 1010)]
        rows = summarise(pairs, "x")
        self.assertEqual(rows["bare"]["ns"], 1004.5)
        self.assertAlmostEqual(rows["idle"]["ratio"], 1.5)
        self.assertAlmostEqual(rows["idle"]["interval"][0], 1.5)
        self.assertEqual(rows["consumer"]["difference_ns"], 500)


if __name__ == "__main__":
    unittest.main()
