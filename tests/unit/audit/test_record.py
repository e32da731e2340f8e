"""Lines, hashes, and hostile content."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inline_snapshot import snapshot

from saggar.audit.canonical import encode
from saggar.audit.record import FIELDS, GENESIS, MAX_LINE, build, digest, plain, tail_of
from saggar.core.errors import ParseError


def make(**changes):
    fields = {
        "seq": 7, "time": "2026-11-30T10:00:00.000000Z", "task": "t", "layer": "L2", "kind": "egress.decision",
        "effect": "deny", "reason": "host_not_listed", "rule": "", "detail": {"host": "a.test"}, "prev": GENESIS,
    }  # fmt: skip
    return build(**{**fields, **changes})


def test_line_is_canonical_and_hashed_without_hash():
    line, hash_ = make()
    assert line.decode() == snapshot(
        '{"detail":{"host":"a.test"},"effect":"deny","hash":"85b7aa9cad5d7534d2f60d974814ab3fa9f9f0ba3ba20664b3294bec8c910d42","kind":"egress.decision","layer":"L2","prev":"0000000000000000000000000000000000000000000000000000000000000000","reason":"host_not_listed","rule":"","seq":7,"task":"t","time":"2026-11-30T10:00:00.000000Z"}\n'
    )
    record = json.loads(line)
    assert tuple(sorted(record)) == FIELDS
    assert encode(record) + b"\n" == line
    assert record.pop("hash") == hash_ == digest(encode(record))


@pytest.mark.parametrize(
    ("detail", "shown"),
    [
        ({"host": "\ud800x"}, {"host": "\\ud800x"}),
        ({"head": b"GET \xff\0"}, {"head": "GET \\xff\x00"}),
        ({"n": 10**30}, {"n": "1" + "0" * 30}),
        ({"n": float("nan")}, {"n": "nan"}),
        ({3: {"x"}}, {"3": "{'x'}"}),
        ({"path": "x" * 200_000}, None),
    ],
)
def test_i3_nothing_makes_a_record_unwritable(detail, shown):
    line, _ = make(detail=detail)
    record = json.loads(line)
    assert len(line) <= MAX_LINE
    assert tail_of(line[:-1])[0] == 7
    if shown is None:
        assert record["detail"]["detail_bytes"] > 200_000
        assert len(record["detail"]["detail_sha256"]) == 64
    else:
        assert record["detail"] == shown


def test_i2_long_words_stay_within_the_line():
    line, _ = make(effect="\x01" * 99999, kind="\x01" * 99999, reason="\x01" * 99999, rule="\x01" * 99999, task="\x01" * 99999,
                   layer="\x01" * 99999, detail={"a": "\x01" * 99999})  # fmt: skip
    assert len(line) <= MAX_LINE
    assert tail_of(line[:-1])[0] == 7


@pytest.mark.parametrize(
    "detail",
    [
        {"hash": "0" * 64},
        {"x": '"hash":"' + "0" * 64 + '","kind":'},
        {"prev": "0" * 64, "seq": 9, "hash": "f" * 64},
        {"a": {"detail": {"hash": "0" * 64, "seq": 1}}},
    ],
)
def test_detail_cannot_pose_as_the_record(detail):
    line, hash_ = make(detail=detail)
    assert tail_of(line[:-1]) == (7, hash_)


@given(st.text(), st.text(), st.text())
def test_i3_for_any_words(reason, rule, value):
    line, hash_ = make(reason=reason, rule=rule, detail={"v": value, value: 1})
    assert tail_of(line[:-1]) == (7, hash_)


@given(st.binary(max_size=300))
def test_tail_of_gives_a_value_or_parse_error(data):
    with pytest.raises(ParseError):
        tail_of(data)


def test_plain_survives_cycles():
    loop = {}
    loop["me"] = loop
    encode(plain(loop))


def test_words_of_a_wrong_type_are_shown_not_fatal():
    line, _ = make(effect=None, rule=3, reason=b"x")
    record = json.loads(line)
    assert (record["effect"], record["rule"], record["reason"]) == ("None", "3", "x")
