"""A held request's client is kept waiting, where its protocol allows it."""

import asyncio
import os
import socket
import sys

import pytest

from saggar.egress import hold_host

sys.path.insert(0, os.path.dirname(__file__))
from terminated_rig import HOST, Rig, ok

ASK = {"rules": [{"effect": "ask"}]}
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


@pytest.mark.parametrize(
    ("request_head", "kept"),
    [
        (b"GET / HTTP/1.1\r\nHost: %s\r\n\r\n", True),
        (b"GET / HTTP/1.0\r\nHost: %s\r\n\r\n", False),
        # it would take it for leave to send its body
        (b"POST / HTTP/1.1\r\nHost: %s\r\nContent-Length: 1\r\nExpect: 100-continue\r\n\r\n", False),
    ],
)
def test_interim_answers(monkeypatch, request_head, kept):
    monkeypatch.setattr(hold_host, "KEEP_ALIVE_S", (0.01, 0.02))
    with Rig(ok(), ASK) as rig:

        async def slowly(_decision):
            await asyncio.sleep(0.3)
            return "approved"

        monkeypatch.setattr(rig.port, "approve", slowly)
        with socket.create_connection(rig.address) as raw, rig.context().wrap_socket(raw, server_hostname=HOST) as tls:
            tls.settimeout(10)
            tls.sendall(request_head % HOST.encode())
            data = b""
            while (
                not data.removeprefix(CONTINUE)
                .removeprefix(CONTINUE)
                .startswith((b"HTTP/1.1 2", b"HTTP/1.0 2", b"HTTP/1.1 100"))
            ):
                data += tls.recv(9999)
                if data == CONTINUE and not kept:
                    tls.sendall(b"x")
        if kept:
            assert data.startswith(CONTINUE + CONTINUE + b"HTTP/1.1 200")
        else:
            assert not data.startswith(CONTINUE + CONTINUE)
