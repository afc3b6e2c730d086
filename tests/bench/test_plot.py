"""Unit tests of plot.py: python3 -m unittest discover -s tests/bench"""

import unittest
import xml.dom.minidom

import plot


class Plot(unittest.TestCase):
    def test_every_ratio_has_its_place(self):
        rows = {
            "a <call>": {
                "bare": {"n": 6, "value": 1},
                "idle": {"n": 6, "value": 1, "ratio": 1.0, "interval": (0.99, 1.02), "difference": 0},
                "consumer": {"n": 3, "value": 2, "ratio": 12.5, "interval": None, "difference": 1},
            }
        }
        document = xml.dom.minidom.parseString(plot.svg(rows, {"idle": "idle & quiet"}, "GPU"))
        places = [float(c.getAttribute("cx")) for c in document.getElementsByTagName("circle")]
        self.assertEqual(len(places), 2)
        self.assertLess(places[0], places[1])
        self.assertTrue(all(plot.LEFT <= place <= plot.LEFT + plot.WIDTH for place in places))
        thick = [line for line in document.getElementsByTagName("line") if line.hasAttribute("stroke-width")]
        self.assertEqual(len(thick), 1)


if __name__ == "__main__":
    unittest.main()
