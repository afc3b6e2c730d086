"""Unit tests of table.py: python3 -m unittest discover -s tests/bench"""

import contextlib
import io
import json
import os
import tempfile
import unittest

from table import read_lines, report

HOST = {"gpu": "G", "cuda": "13.0", "driver": "1", "kernel": "6", "cpus": 2, "date": "2026-01-01"}


def lines_of(run, measurements):
    return "".join(json.dumps(one) + "\n" for one in [{"run": run, "host": HOST}, *({"run": run, **one} for one in measurements)])


class Table(unittest.TestCase):
    def table_of(self, *files):
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as printed:
            names = [os.path.join(folder, str(number)) for number in range(len(files))]
            for name, text in zip(names, files):
                with open(name, "w") as file:
                    file.write(text)
            host, measurements = read_lines(names)
            report(measurements, host)
        return printed.getvalue()

    def test_files_with_and_without_sets_are_merged(self):
        def measured(rounds, **more):
            states = (("bare", 100_000), ("idle", 110_000))
            return [{"round": n, "group": "torch", "state": s, "values": {"mlp": ns}, **more} for n in range(rounds) for s, ns in states]

        old, new = lines_of("a", measured(6)), lines_of("a", measured(5, set=0, lost="3 events dropped"))
        self.assertIn("| PyTorch MLP, step | preloaded, no consumer ever | 6 | 110.0 us | 1.100 | 1.100 to 1.100 |", self.table_of(old))
        table = self.table_of(old, new)
        self.assertIn("| PyTorch MLP, step | preloaded, no consumer ever | 11 | 110.0 us | 1.100 | 1.100 to 1.100 |", table)
        self.assertIn("7 sets", table)
        self.assertIn("lost in 5 of 11 rounds, last: 3 events dropped", table)
        self.assertIn("too few sets", self.table_of(new))

    def test_memory_of_the_launch_rows_has_a_table(self):
        states = (("bare", 1024), ("idle", 3072))
        measured = [{"round": 0, "group": "launch", "state": s, "values": {"driver": 5.0, "rss_kib": kib}} for s, kib in states]
        self.assertIn("| preloaded, no consumer ever | 3.0 | +2.0 |", self.table_of(lines_of("a", measured)))


if __name__ == "__main__":
    unittest.main()
