"""One harmless line a record."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saggar.audit.human import harmless, line_of

RECORD = {
    "time": "2026-11-30T10:00:00.123456Z", "layer": "L2", "effect": "deny", "kind": "egress.decision",
    "reason": "host_not_listed", "rule": "", "detail": {"host": "a.test", "port": 443},
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "10:00:00.123 L2       deny  egress.decision host_not_listed host=a.test port=443"),
        ({"rule": "egress.allow[0]", "effect": "allow", "detail": {}},
         "10:00:00.123 L2       allow egress.decision host_not_listed rule=egress.allow[0]"),
        ({"effect": "", "kind": "run.start", "reason": "", "layer": "L1", "detail": {"argv": ["sh", "-c", "a b"], "ok": None}},
         '10:00:00.123 L1             run.start  argv=["sh","-c","a b"] ok=null'),
        ({"detail": {"host": "a b=\"c"}}, '10:00:00.123 L2       deny  egress.decision host_not_listed host="a b=\\"c"'),
        ({"detail": {"host": ""}}, '10:00:00.123 L2       deny  egress.decision host_not_listed host=""'),
    ],
)  # fmt: skip
def test_line(changes, line):
    assert line_of({**RECORD, **changes}) == line


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("\x1b[2J\x07", "\\x1b[2J\\x07"),
        ("a\nb\r", "a\\nb\\r"),
        ("\x9b31m", "\\x9b31m"),
        ("\u202e\u2066", "\\u202e\\u2066"),
        ("\\x1b", "\\\\x1b"),
        ("é", "é"),
        ("\ud800", "\\ud800"),
    ],
)
def test_harmless(text, shown):
    assert harmless(text) == shown


@given(st.text(), st.text(), st.text())
def test_i1_i2_nothing_to_obey(reason, key, value):
    line = line_of({**RECORD, "reason": reason, "rule": value, "detail": {key: value, "x": [value]}})
    assert line.isprintable()


@given(st.text(), st.text())
def test_harmless_is_injective(a, b):
    assert (harmless(a) == harmless(b)) == (a == b)
