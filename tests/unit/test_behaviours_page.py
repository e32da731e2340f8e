"""docs/BEHAVIOURS.md names tests that exist, and no number is missing."""

import ast
import re
from pathlib import Path

from saggar.bench.egress.attempts import ATTEMPTS, RESOLUTIONS
from saggar.bench.egress.terminated import ATTACKS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "BEHAVIOURS.md").read_text(encoding="utf-8")


def test_each_named_test_exists():
    named = re.findall(r"`(tests/[^`:]+)::(test_\w+)`", PAGE)
    assert len(named) > 50
    known = {}
    for path, name in named:
        if path not in known:
            tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
            known[path] = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert name in known[path], f"{path}::{name}"


def test_each_row_has_its_number_once_and_something_that_holds_it():
    rows = re.findall(r"^\| (\d+) \| .+ \| (.+) \|$", PAGE, re.MULTILINE)
    assert [int(number) for number, _ in rows] == [*range(1, 41), *range(1, 17), *range(1, 73)]
    assert all("`" in held or held == "another tier" for _, held in rows)


def test_each_named_row_of_the_bench_has_attempts():
    made = {a.row for a in (*ATTEMPTS, *RESOLUTIONS, *ATTACKS)}
    named = set(re.findall(r"`attempts ([0-9-]+)`", PAGE))
    assert named <= made
    # and every attempt's row stands on the page ("huge" is a head that is too large: row 29)
    assert made - named == {"huge"}
