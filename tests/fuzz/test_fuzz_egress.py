"""Coverage-guided fuzzing of every parser of the egress wall, `SAGGAR_FUZZ_S` (15) seconds each: part of `scripts/test --slow`."""

import os
import re
import subprocess
import sys

import pytest

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fuzz_egress.py")
SECONDS = int(os.environ.get("SAGGAR_FUZZ_S", "15"))

with open(SCRIPT, encoding="utf-8") as f:
    NAMES = re.findall(r'^    "([a-z\\-]+)": ', f.read().partition("PARSERS = {")[2].partition("\n}")[0], re.MULTILINE)


def test_every_parser_is_there():
    assert {
        "hello",
        "request",
        "response",
        "query",
        "greeting",
        "socks",
        "chunked",
        "admitted",
        "answer",
        "frames",
    } <= set(NAMES)


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 120)
@pytest.mark.parametrize("name", NAMES)
def test_a_value_or_parse_error_in_bounded_time_and_memory(name, tmp_path):
    pytest.importorskip("atheris", reason="coverage-guided fuzzing needs atheris (the `fuzz` extra)")
    done = subprocess.run(
        [sys.executable, SCRIPT, name, f"-max_total_time={SECONDS}"],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    runs = re.search(r"Done (\d+) runs", done.stderr)
    assert runs is not None
    assert int(runs[1]) > 1000
