# SPDX-License-Identifier: MIT
"""The command line of edge-moe-sim. The arguments are what runs it: its path, behind an emulator's words if any."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SIM: list[str] = []
# Recordings of real models, where a machine has them beside the project.
TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"
OWN = """\
edge-moe-trace 1 layers=1 experts=8 slots=2 policy=lru
0 1 0+ 1+
0 1 1 2+0
0 1 1 2
0 1 0+2 1
"""


class CommandLine(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def trace(self, text: str) -> str:
        path = self.folder / "a.trace"
        path.write_text(text)
        return str(path)

    def run_sim(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*SIM, *words], capture_output=True, text=True, check=False, timeout=60)

    def refused(self, message: str, *words: str) -> None:
        done = self.run_sim(*words)
        self.assertEqual(done.returncode, 2, done)
        self.assertEqual(done.stdout, "")
        self.assertEqual(done.stderr.count("\n"), 1)
        self.assertTrue(done.stderr.startswith("edge-moe-sim: "), done.stderr)
        self.assertIn(message, done.stderr)

    def test_help(self) -> None:
        done = self.run_sim("--help")
        self.assertEqual(done.returncode, 0)
        for word in ("--policy", "--cycles", "--slots", "--prefill", "--decode-only", "--verify", "--json"):
            self.assertIn(word, done.stdout)

    def test_refusals(self) -> None:
        trace = self.trace(OWN)
        self.refused("no trace given")
        self.refused("cannot read /no/such/file: No such file", "/no/such/file")
        self.refused('no option "--what"', trace, "--what")
        self.refused("one trace at a time", trace, trace)
        self.refused("--cycles needs a value", trace, "--cycles")
        self.refused('--cycles is "two"', trace, "--cycles", "1,two")
        self.refused('--cycles is "nan"', trace, "--cycles", "nan")
        self.refused('--slots is "-1"', trace, "--slots", "-1")
        self.refused("9 slots in each layer", trace, "--slots", "9")
        self.refused("no capacity from 1 to 8 slots", trace, "--cycles", "0.1,5")
        self.refused('--policy is "best": it accepts echo lru', trace, "--policy", "lru,best")
        self.refused('--prefill is "no"', trace, "--prefill", "no")
        self.refused('--slots is ""', trace, "--slots", "")
        self.refused('--policy is ""', trace, "--policy", "lru,")
        self.refused("a.trace:2: column 5", self.trace(OWN[: OWN.index("\n") + 1] + "0 1 9\n"))
        self.refused("cannot be read", str(self.folder))

    def test_json(self) -> None:
        done = self.run_sim(self.trace(OWN), "--json", "--slots", "2,3", "--policy", "lru")
        result = json.loads(done.stdout)
        self.assertEqual(result["default_policy"], "echo")
        self.assertEqual((result["layers"], result["experts"], result["used"]), (1, 8, 2))
        two, three = result["capacities"]
        self.assertEqual((two["slots"], two["cycles"], two["decode_lookups"]), (2, 1, 8))
        self.assertAlmostEqual(two["policies"]["lru"]["hit_rate"], 4 / 8)
        self.assertAlmostEqual(two["lru_one_pool"], 4 / 8)
        self.assertAlmostEqual(three["belady_one_pool"], 5 / 8)

    def test_cycles_that_no_layer_can_hold_are_left_out(self) -> None:
        done = self.run_sim(self.trace(OWN), "--json", "--cycles", "1.5,4,4.5")
        self.assertEqual([row["slots"] for row in json.loads(done.stdout)["capacities"]], [3, 8])

    def test_verify(self) -> None:
        done = self.run_sim(self.trace(OWN), "--verify")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("4 events, 8 lookups: all decided as recorded (lru, 2 slots)", done.stdout)
        done = self.run_sim(self.trace(OWN.replace("2+0", "2")), "--verify")
        self.assertEqual(done.returncode, 1)
        self.assertIn("event 2, layer 0, expert 2: recorded a hit, replayed a load that evicted 0", done.stderr)
        self.refused("dropped events", self.trace(OWN + "# dropped 2 events\n"), "--verify")
        self.refused('recorded with the policy "old"', self.trace(OWN.replace("lru", "old")), "--verify")
        self.refused("has no decisions", self.trace('{"tok": 0, "layers": [[1]]}\n'), "--verify")

    @unittest.skipUnless(TRACES.is_dir(), f"no {TRACES}")
    def test_published_figures(self) -> None:
        for name, lru, belady, goal in (
            ("qwen3-30b-a3b.route.csv", 0.479, 0.734, 0.42),
            ("kimi-linear-48b.route.jsonl", 0.418, 0.642, 0.37),
        ):
            done = self.run_sim(str(TRACES / name), "--json", "--cycles", "2")
            (capacity,) = json.loads(done.stdout)["capacities"]
            self.assertAlmostEqual(capacity["lru_one_pool"], lru, delta=0.001)
            self.assertAlmostEqual(capacity["belady_one_pool"], belady, delta=0.001)
            self.assertGreater(capacity["policies"]["echo"]["gap"], goal)


if __name__ == "__main__":
    SIM = sys.argv[1:]
    del sys.argv[1:]
    unittest.main()
