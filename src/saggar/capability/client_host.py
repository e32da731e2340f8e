"""A worker's side of the gateway socket: it holds a key and a token, and can make its token only narrower."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from time import time
from typing import Any

from saggar.capability.grant import Grant
from saggar.capability.keys import PrivateKey
from saggar.capability.mint import attenuate
from saggar.capability.request import request_hash
from saggar.capability.token import parse
from saggar.capability.unix_host import connect
from saggar.capability.verify import prove
from saggar.capability.wire import Frames, call_request, frame
from saggar.core.errors import PeerError


class GatewayClient:
    """Calls tools over a socket at `path`, or over a connected one.

    key: the worker's own; its public half is what the token is minted for.
    """

    def __init__(self, where: str | socket.socket, token: str, key: PrivateKey) -> None:
        """Raises `OSError`, and `ParseError` for what is no token."""
        self.token = token
        self._key = key
        self._task = parse(token).blocks[-1].claims.task
        self._socket = connect(where) if isinstance(where, str) else where
        self._frames = Frames()

    @property
    def grants(self) -> tuple[Grant, ...]:
        """What the token says it grants; the gateway decides."""
        return parse(self.token).blocks[-1].claims.grants

    def call(self, tool: str, args: Mapping[str, Any], *, call_id: str = "") -> dict[str, Any]:
        """`{"status", "value"?, "public", "call_id"}`. call_id: one-shot. Raises `PeerError`."""
        digest = request_hash(self._task, tool, args)
        proof = prove(self.token, digest, key=self._key, call_id=call_id or os.urandom(16).hex(), wall=time())
        return self.request(call_request(self.token, tool, args, proof))

    def tools(self) -> list[dict[str, Any]]:
        """Name, description and parameters of the tools that the token names."""
        found = self.request({"op": "tools", "token": self.token})["tools"]
        return list(found)

    def attenuated(self, grants: Sequence[Grant], holder: bytes, *, ttl_s: int = 60) -> str:
        """A narrower token for the process that holds the key `holder`. Raises `UsageError`."""
        return attenuate(self.token, grants, key=self._key, holder=holder, random=os.urandom, ttl_s=ttl_s, wall=time())

    def request(self, message: Mapping[str, Any]) -> dict[str, Any]:
        self._socket.sendall(frame(message))
        while data := self._socket.recv(65536):
            for reply in self._frames.feed(data):
                return reply
        raise PeerError("the gateway closed the connection")

    def close(self) -> None:
        self._socket.close()
