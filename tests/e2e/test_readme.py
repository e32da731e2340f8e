"""The commands of the README work as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def test_the_example_runs(place):
    with open(f"{ROOT}/README.md") as f:
        (block,) = re.findall(
            r"<!-- tests/e2e/test_readme\.py runs this block -->\n```sh\n(.*?)```", f.read(), re.DOTALL
        )
    work, programs = f"{place}/work", f"{place}/bin"
    os.mkdir(work)
    os.mkdir(programs)
    with open(f"{programs}/saggar", "w") as f:
        f.write(f'#!/bin/sh\nexec {sys.executable} -m saggar "$@"\n')
    os.chmod(f"{programs}/saggar", 0o755)
    environment = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "HOME": f"{place}/home",
        "PYTHONPATH": f"{ROOT}/src",
        "SAGGAR_STATE_DIR": f"{place}/state",
    }
    done = subprocess.run(
        ["sh", "-e", "-c", block], cwd=work, env=environment, capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "agent\n" in done.stdout
    assert "saggar: refused" in done.stderr
    assert "egress.d" in done.stdout
    assert "+++ b/plan.txt" in done.stdout
    assert "sound: " in done.stdout
    assert "task.toml: sound; host rules: 1, warnings: 0" in done.stdout
    assert 'host = "example.org"' in done.stdout
    assert done.stdout.endswith("contained\n")
    assert sorted(os.listdir(work)) == ["task.toml"]
