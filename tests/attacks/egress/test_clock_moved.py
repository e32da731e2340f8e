"""The wall clock is moved while a task runs, by ten days and both ways: budgets, leases and deadlines do not look at it."""

import json
import ssl

import pytest

from saggar.audit.verify import verify
from saggar.policy.model import EgressRule
from saggar.testing.egress_cell import EgressCell
from saggar.testing.upstream import TestPki, Upstream

ELSEWHERE = "203.0.113.9"
TUNNEL, MODEL = "api.allowed.test", "model.allowed.test"
SECRET = "sk-" + "C" * 48
#: the broker's clock is ahead by as many seconds as a file says; it is opened before the broker locks itself in
MOVED = """
import os, time
_offset = os.open({path!r}, os.O_RDONLY | os.O_CREAT)
def moved(real=time.time):
    return real() + float(os.pread(_offset, 100, 0) or 0)
time.time = moved
"""


@pytest.fixture
def moving(tmp_path):
    """(cell, set the clock off by so many seconds, context for the tunnel)."""
    path = tmp_path / "offset"
    pki = TestPki(str(tmp_path), [TUNNEL, MODEL])
    key = {"source": "env:CLOCK_KEY", "env": "KEY", "format": "openai"}
    terms = {"credential": key, "rules": [{"methods": ["GET"], "paths": ["/**"]}], "ca": pki.ca_file}
    with Upstream(context=pki.server_context()) as upstream:
        rules = [
            EgressRule(id="t", host=TUNNEL, connect_to=upstream.address),
            EgressRule(id="m", host=MODEL, connect_to=upstream.address, http=json.dumps(terms)),
        ]
        budget = json.dumps({"wall_s": 120, "requests": 1000})
        cell = EgressCell(rules, tweak=MOVED.format(path=str(path)), env={"CLOCK_KEY": SECRET}, budget=budget)
        with cell:
            yield cell, lambda seconds: path.write_text(str(seconds)), ssl.create_default_context(cafile=pki.ca_file)


def ask(sock, context, name, key=b""):
    with context.wrap_socket(sock, server_hostname=name) as tls:
        field = b"Authorization: Bearer %s\r\n" % key if key else b""
        tls.sendall(b"GET /x HTTP/1.1\r\nHost: %s\r\n%s\r\n" % (name.encode(), field))
        return tls.recv(65536)


@pytest.mark.parametrize("days", [10, -10])
def test_a_clock_that_is_moved_changes_nothing(moving, days):
    cell, move, outside = moving
    inside = ssl.create_default_context(cadata=cell.ca_pem)
    key = cell.environment["KEY"].encode()
    with outside.wrap_socket(cell.connect(ELSEWHERE, 443), server_hostname=TUNNEL) as kept:
        kept.sendall(b"GET /before HTTP/1.1\r\nHost: %s\r\n\r\n" % TUNNEL.encode())
        assert kept.recv(65536).startswith(b"HTTP/1.1 200")
        move(days * 86400)
        # what was open stays open; what is new is served: the wall-time budget of two minutes is not used up
        kept.sendall(b"GET /after HTTP/1.1\r\nHost: %s\r\n\r\n" % TUNNEL.encode())
        assert kept.recv(65536).startswith(b"HTTP/1.1 200")
        assert ask(cell.connect(ELSEWHERE, 443), outside, TUNNEL).startswith(b"HTTP/1.1 200")
        for _ in range(2):
            # the leaf is minted after the move
            assert ask(cell.connect(ELSEWHERE, 443), inside, MODEL, key).startswith(b"HTTP/1.1 200")
        with pytest.raises((ssl.SSLError, OSError)):
            ask(cell.connect(ELSEWHERE, 443), outside, "evil.test")
    cell.wait_record(effect="deny", reason="host_not_listed")
    records = cell.records()
    assert not [r for r in records if r["reason"].startswith("budget")]
    assert sum(r["effect"] == "allow" for r in records) == 4
    # the records tell the clock as it was, and their order is the chain's
    times = [r["time"] for r in records]
    assert times != sorted(times) or days > 0
    with open(cell.audit_path, "rb") as f:
        assert verify(f.readlines(), task="t").ok
