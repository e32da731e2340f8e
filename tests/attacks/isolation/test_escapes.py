"""Every attempt of `saggar bench escapes`, each a test of its own, run once in a real cell."""

import os

import pytest

from saggar.bench.escapes.attempts import ATTEMPTS
from saggar.bench.escapes.bench_host import Bench, inside_source
from saggar.bench.escapes.cli import summary


@pytest.fixture(scope="module")
def rows():
    before = dict(os.environ)
    try:
        return {row.name: row for row in Bench().run()}
    finally:
        os.environ.clear()
        os.environ.update(before)


@pytest.mark.timeout(600)
def test_at_least_sixty_attempts_were_proven_possible_outside_and_none_broke_out(rows):
    result = summary(list(rows.values()))
    assert result["breaches"] == 0, [r for r in result["rows"] if r["verdict"] == "breach"]
    assert result["errors"] == 0, [r for r in result["rows"] if r["verdict"] == "error"]
    assert result["attempts"] >= 100


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [a.name for a in ATTEMPTS])
def test_attempt(rows, name):
    row = rows[name]
    assert row.verdict in ("held", "unproven"), f"{row.verdict}: {row.evidence}"
    assert row.audit_seq > 0
    assert row.run_id


def test_names_are_unique_and_the_inside_program_knows_every_action():
    names = [a.name for a in ATTEMPTS]
    assert len(set(names)) == len(names)
    scope = {"__name__": "inside"}
    exec(compile(inside_source().replace("sys.exit(main())", ""), "inside", "exec"), scope)
    assert {a.action for a in ATTEMPTS} <= set(scope["ATTEMPTS"])
