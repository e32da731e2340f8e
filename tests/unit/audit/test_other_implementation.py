"""Canonical form and chain against another implementation: ECMAScript's own, by Node."""

from __future__ import annotations

import json
import os
import random
import struct
import subprocess

import pytest

from saggar.audit.canonical import encode
from saggar.audit.sink_host import AuditLog
from saggar.audit.verify import verify

pytestmark = pytest.mark.requires_program("node")

#: RFC 8785 in terms of the language that it is written in: sorted keys, JSON.stringify for the rest
CANONICAL = """
function canonical(v) {
  if (v === null || typeof v !== 'object') return JSON.stringify(v);
  if (Array.isArray(v)) return '[' + v.map(canonical).join(',') + ']';
  return '{' + Object.keys(v).sort().map(k => JSON.stringify(k) + ':' + canonical(v[k])).join(',') + '}';
}
const text = require('fs').readFileSync(process.argv[1], 'utf8');
"""
VALUES = "process.stdout.write(text.split('\\n').slice(0, -1).map(l => canonical(JSON.parse(l))).join('\\n') + '\\n');"
CHAIN = """
let prev = '0'.repeat(64), seq = 0;
for (const line of text.split('\\n').slice(0, -1)) {
  const record = JSON.parse(line), hash = record.hash;
  if (canonical(record) !== line) throw new Error('form of ' + seq);
  delete record.hash;
  if (require('crypto').createHash('sha256').update(canonical(record)).digest('hex') !== hash) throw new Error('hash of ' + seq);
  if (record.prev !== prev || record.seq !== seq) throw new Error('link of ' + seq);
  prev = hash; seq += 1;
}
console.log(seq + ' ' + prev);
"""


def node(script, path):
    done = subprocess.run(["node", "-e", CANONICAL + script, path], capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def values(count):
    dice = random.Random(8785)
    for _ in range(count):
        (number,) = struct.unpack("<d", dice.randbytes(8))
        if number == number and abs(number) != float("inf"):
            yield number
        yield dice.uniform(-1, 1) * 10 ** dice.randrange(-12, 25)
        yield float(dice.randrange(10**18))
        yield dice.randrange(-(2**53) + 1, 2**53)
        yield "".join(
            chr(dice.choice([dice.randrange(0x80), dice.randrange(0xD800), dice.randrange(0xE000, 0x110000)]))
            for _ in range(6)
        )
        yield {chr(dice.randrange(0xE000, 0x11000)) + str(i): [None, True, {}] for i in range(4)}


def test_canonical_form_is_what_ecmascript_prints(tmp_path):
    path = tmp_path / "values"
    ours = b"".join(encode(value) + b"\n" for value in values(3000))
    path.write_bytes(ours)
    assert node(VALUES, str(path)) == ours


def test_a_log_verifies_without_a_line_of_ours(tmp_path):
    path = str(tmp_path / "audit.jsonl")
    log = AuditLog(path, "t")
    for value in values(30):
        log.append("egress.decision", layer="L2", effect="deny", reason="ü\u2028\x7f", detail={"v": value})
    seq, head = log.head()
    assert node(CHAIN, path).decode().split() == [str(seq + 1), head]


def test_published_vectors():
    """docs/audit-vectors.json: logs and what is wrong with them, for whoever writes another verifier."""
    here = os.path.dirname(__file__)
    with open(os.path.join(here, "..", "..", "..", "docs", "audit-vectors.json")) as f:
        vectors = json.load(f)
    assert len(vectors) >= 15
    for vector in vectors:
        lines = [line.encode() for line in vector["log"].splitlines(keepends=True)]
        report = verify(lines, task=vector["task"], head=vector["head"])
        assert [[x.line, x.kind] for x in report.faults] == vector["faults"], vector["name"]
        assert report.head == vector["last"], vector["name"]
