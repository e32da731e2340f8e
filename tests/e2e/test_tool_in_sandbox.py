"""A tool whose body runs in a real cell: it has its arguments, the policy's world, and nothing of the host's process."""

from __future__ import annotations

import os
from decimal import Decimal

import pytest

from saggar.capability.declare import tool
from saggar.core.errors import PeerError, UsageError
from saggar.core.tool import FieldLabel
from saggar.policy.model import LimitsPolicy, Policy, WorkspacePolicy
from saggar.runtime.tool_body_host import CellBody, source_of, value_of
from saggar.testing.capability_desk import make_desk

PUBLIC = {"*": FieldLabel(integrity="untrusted", readers="*", private=False)}
SECRET = "host only"


@tool("read:sandbox", effect="read", roles={"path": "selector"}, labels=PUBLIC, runs="sandbox")
def look(path: str) -> dict[str, bool]:
    """What the body can see."""
    import os
    import socket

    print("this is not the result")
    try:
        # the cell's own listener takes every connection and resets what no rule names
        with socket.create_connection(("192.0.2.1", 443), timeout=3) as peer:
            peer.sendall(b"hello")
            reached = bool(peer.recv(1))
    except OSError:
        reached = False
    return {"file": os.path.exists(path), "reached": reached, "environment": "SAGGAR_TEST_SECRET" in os.environ}


@tool("read:sum", effect="read", roles={"price": "option", "times": "option"}, labels=PUBLIC, runs="sandbox")
async def total(price: Decimal, times: int = 2) -> str:
    import asyncio

    await asyncio.sleep(0)
    return str(price * times)


@tool("read:secret", effect="read", roles={}, labels=PUBLIC, runs="sandbox")
def leaky() -> str:
    return SECRET


@tool("read:lie", effect="read", roles={}, labels=PUBLIC, runs="sandbox")
def lying() -> list[str]:
    return {"not": "a list"}


@tool("read:loop", effect="read", roles={}, labels=PUBLIC, runs="sandbox")
def looping() -> None:
    while True:
        pass


TOOLS = [look, total, leaky, lying, looping]
CAPS = ["read:sandbox[path=*]", "read:sum[price=*, times=*]", "read:secret", "read:lie", "read:loop"]


@pytest.fixture
def gateway(tmp_path, monkeypatch):
    monkeypatch.setenv("SAGGAR_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("SAGGAR_TEST_SECRET", "x")
    (tmp_path / "work").mkdir()
    (tmp_path / "secret.txt").write_text("x")
    monkeypatch.chdir(tmp_path / "work")
    policy = Policy(
        limits=LimitsPolicy(timeout_s=20.0),
        workspace=WorkspacePolicy(mode="none"),
    )
    desk, log, _ = make_desk(*CAPS, tools=TOOLS, sandbox=CellBody(policy))
    desk.gateway._timeout_s = 20.0
    return desk.gateway, desk.gateway.token(CAPS), log, tmp_path


def test_the_body_sees_the_cell_and_not_the_host(gateway):
    gate, token, log, path = gateway
    out = gate.call(token, "look", {"path": str(path / "secret.txt")})
    assert out.status == "done", (out, log.records[-1])
    assert out.value == {"file": False, "reached": False, "environment": False}
    assert os.path.exists(path / "secret.txt")


def test_async_bodies_and_revived_arguments(gateway):
    gate, token, log, _ = gateway
    out = gate.call(token, "total", {"price": "1.50"})
    assert (out.status, out.value) == ("done", "3.00"), log.records[-1]


def test_what_cannot_be_carried_over_is_not_run_here(gateway):
    gate, token, log, _ = gateway
    out = gate.call(token, "leaky", {})
    assert (out.status, out.value) == ("failed", None)
    assert log.of("capability.outcome")[-1]["detail"]["error"] == "UsageError"
    with pytest.raises(UsageError, match="uses `SECRET`"):
        source_of(leaky.unguarded)
    with pytest.raises(UsageError, match=r"no source|of its own"):
        source_of(len)


def test_a_result_of_another_type_is_refused(gateway):
    gate, token, log, _ = gateway
    assert gate.call(token, "lying", {}).status == "failed"
    assert log.of("capability.outcome")[-1]["detail"]["error"] == "PeerError"


def test_a_body_that_does_not_end_is_ended(gateway):
    gate, token, log, _ = gateway
    gate._timeout_s = 2.0
    assert gate.call(token, "looping", {}).status == "failed"
    assert log.of("capability.outcome")[-1]["detail"]["error"] == "LimitExceeded"


@pytest.mark.parametrize(
    "stdout", [b"", b"x", b"MARK", b"MARK{", b'MARK{"a":1,"a":2}', b"MARK[1]", b'MARK["a"]x', b"other" * 9, b"MARKNaN"]
)
def test_the_sandboxs_word_is_parsed_strictly(stdout):
    with pytest.raises(PeerError):
        value_of(lying.declaration, stdout.replace(b"MARK", b"mark\n"), "mark\n")
