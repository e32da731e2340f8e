"""The gateway on a Unix socket, for workers in processes of their own.

I1  A peer's uid is read from the kernel and must be in the list; beyond that a peer is trusted with nothing: each call
    brings a token and a proof of possession, and local (HMAC) tokens are refused.
I2  A stream that breaks the protocol is closed; it never costs more than one frame of memory and one thread.
I3  A worker learns of a refusal that it was refused, not why.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Container
from typing import Any

from saggar.capability.gateway import Gateway
from saggar.capability.unix_host import listen
from saggar.capability.wire import MAX_FRAME, Frames, answer, frame, proof_of
from saggar.core.errors import ParseError

MAX_PEERS = 64
IDLE_S = 600.0
_PEER = struct.Struct("iII")


class GatewaySocket:
    """Serves a gateway at `path` (mode 0600), or on sockets handed to `serve`, until `close`."""

    def __init__(self, gateway: Gateway, path: str = "", *, uids: Container[int] | None = None) -> None:
        """uids: of workers; by default our own alone. Raises `OSError`."""
        self._gateway = gateway
        self._uids: Container[int] = uids if uids is not None else frozenset({os.getuid()})
        self._slots = threading.BoundedSemaphore(MAX_PEERS)
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener: socket.socket | None = None
        self.path = path
        if path:
            self._listen(path)

    def _listen(self, path: str) -> None:
        listener = self._listener = listen(path, MAX_PEERS)
        threading.Thread(target=self._accept, args=(listener,), name="saggar-gateway", daemon=True).start()

    def close(self) -> None:
        with self._lock:
            peers = list(self._open)
        for peer in [*peers, *([self._listener] if self._listener else [])]:
            try:
                peer.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        if self._listener is not None:
            self._listener.close()
        if self.path and os.path.exists(self.path):
            os.unlink(self.path)

    def serve(self, peer: socket.socket) -> None:
        """Serve one connected socket from a thread of its own; it is closed at the end."""
        if not self._slots.acquire(blocking=False):
            peer.close()
            return
        with self._lock:
            self._open.add(peer)
        threading.Thread(target=self._peer, args=(peer,), name="saggar-gateway-peer", daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            self.serve(peer)

    def _peer(self, peer: socket.socket) -> None:
        try:
            with peer:
                _, uid, _ = _PEER.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
                if uid in self._uids:
                    peer.settimeout(IDLE_S)
                    self._talk(peer)
        except (OSError, ParseError):
            pass  # I2
        finally:
            with self._lock:
                self._open.discard(peer)
            self._slots.release()

    def _talk(self, peer: socket.socket) -> None:
        frames = Frames()
        while data := peer.recv(65536):
            for message in frames.feed(data):
                peer.sendall(_bounded(self._handle(message)))

    def _handle(self, message: dict[str, Any]) -> dict[str, Any]:
        op = message.get("op")
        if op == "tools" and message.keys() == {"op", "token"}:
            return {"tools": self._tools(message["token"])}
        if op != "call" or message.keys() != {"op", "token", "tool", "args", "proof"}:
            raise ParseError("not a request", reason="request_form")
        proof = proof_of(message["proof"])
        outcome = self._gateway.call(message["token"], message["tool"], message["args"], proof=proof, outside=True)
        return answer(outcome)

    def _tools(self, token: str) -> list[dict[str, Any]]:
        names = self._gateway.granted_to(token)
        known = self._gateway.declarations()
        return [
            {"name": n, "description": known[n].description, "parameters": known[n].parameters_schema()}
            for n in sorted(names)
            if n in known
        ]


def _bounded(reply: dict[str, Any]) -> bytes:
    try:
        return frame(reply)
    except ParseError:
        short = {k: reply[k] for k in ("call_id",) if k in reply}
        return frame(short | {"status": "failed", "public": f"the result is longer than {MAX_FRAME} bytes"})
