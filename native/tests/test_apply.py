# SPDX-License-Identifier: MIT
"""apply.py on a tree made from the patch itself: applied, repeated, refused, and never half done."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

NATIVE = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(NATIVE))
import apply as applier  # noqa: E402 - found by the path set above

PIN = json.loads((NATIVE / "llama.cpp.json").read_text())
COMMIT = PIN["commit"]
PATCH = applier.parse_patch((NATIVE / PIN["patch"]).read_text())


def make_tree(folder: Path) -> None:
    """The patched files as the commit has them where the hunks are; other lines do not matter here."""
    for name, hunks in PATCH.items():
        lines: list[str] = []
        for start, hunk in hunks:
            lines += [f"line {i}\n" for i in range(len(lines) + 1, start)]
            lines += [line[1:] for line in hunk if line[0] != "+"]
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join([*lines, "last line\n"]))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(NATIVE / "apply.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


class Apply(unittest.TestCase):
    def setUp(self) -> None:
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.tree = Path(holder.name) / "llama.cpp"
        make_tree(self.tree)

    def refused(self, *arguments: object) -> str:
        before = contents(self.tree)
        result = run(*arguments)
        self.assertEqual(result.returncode, 1, result)
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        self.assertEqual(contents(self.tree), before)
        return result.stderr

    def test_applies_and_repeats(self) -> None:
        first = run(self.tree, "--commit", COMMIT)
        self.assertEqual(first.returncode, 0, first.stderr)
        after = contents(self.tree)
        for name, hunks in PATCH.items():
            text = after[name].decode()
            for _place, hunk in hunks:
                for line in hunk:
                    if line[0] == "+":
                        self.assertIn(line[1:], text)
        for path in (NATIVE / "src").rglob("*.cpp"):
            self.assertEqual(after[f"ggml/src/edge-moe/{path.relative_to(NATIVE)}"], path.read_bytes())
        again = run(self.tree, "--commit", COMMIT)
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertIn("already applied", again.stdout)
        self.assertEqual(contents(self.tree), after)

    def test_same_as_patch(self) -> None:
        other = self.tree.with_name("other")
        make_tree(other)
        run(self.tree, "--commit", COMMIT)
        try:
            subprocess.run(["patch", "-p1", "--fuzz=0", "-s", "-i", NATIVE / PIN["patch"]], cwd=other, check=True)
        except FileNotFoundError:
            self.skipTest("no patch program")
        for name in PATCH:
            self.assertEqual((self.tree / name).read_text(), (other / name).read_text())

    def test_repairs_an_interrupted_run(self) -> None:
        run(self.tree, "--commit", COMMIT)
        complete = contents(self.tree)
        make = self.tree.with_name("fresh")
        make_tree(make)
        name = next(iter(PATCH))
        (self.tree / name).write_bytes((make / name).read_bytes())
        (self.tree / "ggml/src/edge-moe/src/old.cpp").write_text("of an earlier version")
        self.assertEqual(run(self.tree, "--commit", COMMIT).returncode, 0)
        self.assertEqual(contents(self.tree), complete)

    def test_other_commit(self) -> None:
        other = "1" * 40
        message = self.refused(self.tree, "--commit", other)
        self.assertIn(other, message)
        for known in applier.read_pins():
            self.assertIn(known, message)

    def test_unknown_commit(self) -> None:
        self.assertIn("--commit", self.refused(self.tree))

    def test_commit_is_found(self) -> None:
        git = self.tree / ".git"
        git.mkdir()
        (git / "HEAD").write_text("ref: refs/heads/main\n")
        (git / "packed-refs").write_text(f"# pack-refs\n{COMMIT} refs/heads/main\n")
        self.assertEqual(applier.commit_of(self.tree), COMMIT)
        (git / "refs/heads").mkdir(parents=True)
        (git / "refs/heads/main").write_text("2" * 40 + "\n")
        self.assertEqual(applier.commit_of(self.tree), "2" * 40)
        (git / "HEAD").write_text(COMMIT + "\n")
        self.assertEqual(run(self.tree).returncode, 0)

    def test_submodule_of_an_archive(self) -> None:
        (self.tree / ".git").write_text("gitdir: ../modules/llama.cpp\n")
        modules = self.tree.parent / "modules/llama.cpp"
        modules.mkdir(parents=True)
        (modules / "HEAD").write_text(COMMIT + "\n")
        self.assertEqual(applier.commit_of(self.tree), COMMIT)

    def test_changed_source(self) -> None:
        name = sorted(PATCH)[-1]
        path = self.tree / name
        path.write_text("another first line\n" + path.read_text())
        self.assertIn(name, self.refused(self.tree, "--commit", COMMIT))

    def test_missing_source(self) -> None:
        (self.tree / sorted(PATCH)[-1]).unlink()
        self.assertIn("missing", self.refused(self.tree, "--commit", COMMIT))

    def test_not_a_tree(self) -> None:
        self.assertIn("not a llama.cpp source tree", self.refused(self.tree / "ggml"))

    def test_pins(self) -> None:
        pins = applier.read_pins()
        self.assertEqual(len(pins), len(list(NATIVE.glob(applier.PINS))))
        for pin in pins.values():
            hunks = applier.parse_patch(applier.read_patch(pin)).values()
            changed = sum(line[0] in "+-" for file in hunks for _place, hunk in file for line in hunk)
            self.assertLessEqual(changed, 40, "the patch is to stay small; put code into glue/")


if __name__ == "__main__":
    unittest.main()
