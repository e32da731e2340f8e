"""Every fault by its name and line."""

from __future__ import annotations

import json

import pytest

from saggar.audit.canonical import encode
from saggar.audit.record import GENESIS, build, digest
from saggar.audit.verify import verify


def chain(count=5, task="t", start=0, prev=GENESIS):
    lines = []
    for seq in range(start, start + count):
        line, prev = build(
            seq=seq, time="2026-11-30T10:00:00.000000Z", task=task, layer="L2", kind="egress.decision", effect="deny",
            reason="host_not_listed", rule="", detail={"n": seq}, prev=prev,
        )  # fmt: skip
        lines.append(line)
    return lines


def rehash(line, **changes):
    record = json.loads(line) | changes
    record.pop("hash")
    return encode(record | {"hash": digest(encode(record))}) + b"\n"


def head_of(line):
    return json.loads(line)["hash"]


def faults(report):
    return [(f.line, f.kind) for f in report.faults]


L = chain()
CASES = [
    ("whole", L, {}, []),
    ("empty", [], {}, []),
    ("edited", [L[0], L[1].replace(b"deny", b"allo"), *L[2:]], {}, [(2, "edited"), (3, "gap")]),
    ("edited and hashed anew", [L[0], rehash(L[1], effect="allow"), *L[2:]], {}, [(3, "unlinked")]),
    ("gap", [L[0], *L[2:]], {}, [(2, "gap")]),
    ("first record gone", L[1:], {}, [(1, "gap")]),
    ("swapped", [L[0], L[2], L[1], *L[3:]], {}, [(2, "gap"), (3, "reordered"), (4, "gap")]),
    ("repeated", [L[0], L[1], L[1], *L[2:]], {}, [(3, "reordered")]),
    ("duplicate key", [L[0], L[1].replace(b'"rule":""', b'"rule":"","rule":"x"'), *L[2:]], {}, [(2, "duplicate_key"), (3, "gap")]),
    ("spaced", [L[0], L[1].replace(b'"rule":""', b'"rule": ""'), *L[2:]], {}, [(2, "not_canonical"), (3, "gap")]),
    ("field gone", [L[0], L[1].replace(b'"rule":"",', b""), *L[2:]], {}, [(2, "fields"), (3, "gap")]),
    ("field type", [rehash(L[0], effect=1)], {}, [(1, "fields")]),
    ("not an object", [b"[]\n"], {}, [(1, "fields")]),
    ("garbage", [L[0], b"\x00\x01\n", *L[1:]], {}, [(2, "malformed")]),
    ("blank line", [L[0], b"\n", *L[1:]], {}, [(2, "malformed")]),
    ("carriage return", [L[0][:-1] + b"\r\n"], {}, [(1, "not_canonical")]),
    ("cut in the middle", [*L[:4], L[4][:40]], {}, [(5, "torn")]),
    ("newline cut", [*L[:4], L[4][:-1]], {}, [(5, "torn")]),
    ("end cut, nothing known", L[:3], {}, []),
    ("end cut, head known", L[:3], {"head": head_of(L[4])}, [(3, "truncated")]),
    ("all cut, head known", [], {"head": head_of(L[4])}, [(0, "truncated")]),
    ("grown since the head", L, {"head": head_of(L[2])}, []),
    ("foreign log", chain(2, task="u"), {"task": "t"}, [(1, "foreign_task"), (2, "foreign_task")]),
    ("foreign record", [*L[:2], *chain(1, task="u", start=2, prev=head_of(L[1]))], {}, [(3, "foreign_task")]),
    ("rewritten whole", chain(5, task="t", start=0, prev="1" * 64), {}, [(1, "unlinked")]),
]  # fmt: skip


@pytest.mark.parametrize(("lines", "options", "expected"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_faults(lines, options, expected):
    report = verify(lines, **options)
    assert faults(report) == expected
    assert report.ok == (not expected)


def test_i1_any_changed_byte_is_found():
    data = b"".join(chain(3))
    for at in range(len(data)):
        for flip in (1, 0x20, 0x80):
            changed = bytearray(data)
            changed[at] ^= flip
            assert not verify(bytes(changed).splitlines(keepends=True)).ok, (at, flip)


def test_i1_any_dropped_or_added_byte_is_found():
    data = b"".join(chain(2))
    for at in range(len(data)):
        assert not verify(lines_of(data[:at] + data[at + 1 :])).ok, at
        assert not verify(lines_of(data[:at] + b" " + data[at:])).ok, at


def lines_of(data):
    return [part + b"\n" for part in data.split(b"\n")[:-1]] + (
        [data.rsplit(b"\n", 1)[-1]] if not data.endswith(b"\n") else []
    )


def test_i2_report_names_line_and_cause():
    report = verify([L[0], *L[2:]])
    assert str(report.faults[0]) == "line 2: gap: record 2 follows record 0: 1 missing"
