"""The commands of the README work as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def blocks(kind):
    with open(f"{ROOT}/README.md") as f:
        return re.findall(
            rf"<!-- tests/e2e/test_readme\.py runs this block -->\n```{kind}\n(.*?)```", f.read(), re.DOTALL
        )


@pytest.mark.requires_userns
@pytest.mark.requires_program("curl")
def test_the_examples_run(place):
    (shell,) = blocks("sh")
    (python,) = blocks("python")
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

    def call(*argv):
        return subprocess.run(argv, cwd=work, env=environment, capture_output=True, text=True, check=False, timeout=100)

    done = call("sh", "-e", "-c", shell)
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

    with open(f"{place}/example.py", "w") as f:
        f.write(python)
    done = call(sys.executable, f"{place}/example.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("agent\nFalse exit 6\nrefused: host_not_listed elsewhere.example\n")
    assert re.search(r"^memory (enforced|watchdog)$", done.stdout, re.MULTILINE)
    head = done.stdout.split()[-1]
    assert call("saggar", "log", "verify", "--head", head).returncode == 0
