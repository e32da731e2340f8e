from __future__ import annotations

import pytest

from saggar.core.errors import ParseError
from saggar.core.label import DIRECTORY, SYSTEM, UNTRUSTED, USER, Label, Source, join

MAIL = Label(
    [Source("tool", "read_inbox", call="c1", field="[].body", principal="eve@x.test")],
    readers=["me@x.test"],
    integrity=UNTRUSTED,
)
WORD = Label([Source("user", span=(3, 9))])


def test_a_review_text_is_not_made_trusted_by_its_trusted_frame():
    frame = Label([Source("system", "template")], integrity=SYSTEM)
    assert join(frame, MAIL).integrity == UNTRUSTED


def test_readers_intersect_and_public_does_not_widen():
    assert join(WORD, MAIL).readers == {"me@x.test"}
    assert join(MAIL, MAIL.replace(readers=["you@x.test"])).readers == frozenset()


@pytest.mark.parametrize(
    ("integrity", "floor", "holds"),
    [
        (USER, DIRECTORY, True),
        (SYSTEM, DIRECTORY, True),
        (DIRECTORY, DIRECTORY, True),
        (UNTRUSTED, DIRECTORY, False),
        (DIRECTORY, USER, False),
    ],
)
def test_at_least(integrity, floor, holds):
    assert Label(integrity=integrity).at_least(floor) is holds


def test_source_reads_well():
    assert str(next(iter(MAIL.sources))) == "tool read_inbox.[].body by eve@x.test (call c1)"
    assert str(next(iter(WORD.sources))) == "user [3:9]"


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (None, "label"),
        ({}, "label"),
        ({"sources": [], "integrity": "user"}, "label"),  # I4: readers must be said
        ({"sources": [{}], "readers": None, "integrity": "user"}, "label_source"),
        ({"sources": [{"kind": "tool", "x": 1}], "readers": None, "integrity": "user"}, "label_source"),
        ({"sources": [{"kind": "user", "span": [1]}], "readers": None, "integrity": "user"}, "label_source"),
        ({"sources": [], "readers": [1], "integrity": "user"}, "label_readers"),
        ({"sources": [], "readers": None, "integrity": "root"}, "label_integrity"),
    ],
)
def test_refused(raw, reason):
    with pytest.raises(ParseError) as err:
        Label.from_json(raw)
    assert err.value.reason == reason


def test_immutable():
    with pytest.raises(AttributeError):
        MAIL.integrity = "user"
