"""Every flip, drop and swap in the rules' modules is noticed by their tests. About 15 minutes on a busy core."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_mutant_is_noticed():
    modules = [f"saggar.capability.{name}" for name in ("rule", "rule_check", "rules", "builtin", "narrower")]
    words = [sys.executable, os.path.join(ROOT, "scripts", "mutate.py"), *modules]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=3500)
    assert done.returncode == 0, done.stdout + done.stderr
