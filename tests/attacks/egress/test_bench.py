"""`saggar bench egress` itself: every attempt holds, and its verdicts are not given away."""

import json
import os
import subprocess
import sys
from collections import Counter

import pytest

from saggar.bench.egress.attempts import ATTEMPTS, RESOLUTIONS
from saggar.bench.egress.bench_host import Bench
from saggar.bench.egress.terminated import ATTACKS
from saggar.testing.egress_cell import EgressCell

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))


def bench(*names, **environ):
    argv = [sys.executable, "-m", "saggar", "bench", "egress", "--json", *names]
    env = {**os.environ, "PYTHONPATH": os.path.join(ROOT, "src"), **environ}
    return subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False, env=env)


def test_names_are_unique_and_many():
    names = [a.name for a in (*ATTEMPTS, *RESOLUTIONS, *ATTACKS)]
    assert [n for n, count in Counter(names).items() if count > 1] == []
    assert len(names) >= 120


@pytest.mark.timeout(330)
def test_every_attempt_holds():
    done = bench()
    result = json.loads(done.stdout)
    assert (result["breaches"], result["errors"]) == (0, 0), done.stderr
    assert result["attempts"] == len(ATTEMPTS) + len(RESOLUTIONS) + len(ATTACKS)
    assert done.returncode == 0


def test_a_wall_that_lets_through_is_a_breach(monkeypatch):
    """The judge, tried on a wall with a hole: a broker that takes every resolved address for good."""
    real = EgressCell.__init__

    def holed(self, rules, **kwargs):
        real(
            self,
            rules,
            tweak="import saggar.egress.dial_host as d; d.first_refusal = lambda *a, **k: ('', '')",
            **kwargs,
        )

    monkeypatch.setattr(EgressCell, "__init__", holed)
    (row,) = Bench().run(["resolves to 10.0.0.1"])
    assert row.verdict != "held"


def test_missing_rules_are_seen_as_breaches(monkeypatch):
    """The judge of the terminated hosts, tried on a policy that forgot its rules: what they stop must not be called held."""
    from saggar.bench.egress import attack, terminated_host

    holed = tuple((i, h, {k: v for k, v in t.items() if k != "rules"}) for i, h, t in attack.TERMS)
    monkeypatch.setattr(terminated_host, "TERMS", holed)
    rows = Bench().run(
        [
            f"terminated: {n}"
            for n in ("denied path /v1/files/x", "unlisted path /admin", "method DELETE without a rule")
        ]
    )
    assert [r.verdict for r in rows] == ["breach"] * 3
