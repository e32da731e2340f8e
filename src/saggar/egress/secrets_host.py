"""The secrets process: holds secrets and CA keys, and answers the broker per task and destination.

`python -I -m saggar.egress.secrets_host CONTROL_FD BROKER_FD`: two AF_UNIX SOCK_SEQPACKET sockets, one JSON object a message.

I1  A credential is given only for the task and the host that the supervisor bound it to.
I2  A leaf is minted only for a host that the supervisor listed as terminated for that task; a removed task's CA is gone.
I3  Whatever fails gives `{"ok": false}` with a text that holds no secret; nothing older is given in its place.
I4  Slow sources (command, vault, token endpoint) never hold up others; each credential is fetched once at a time.

supervisor → secrets: `{"op":"start","env":{…},"files":[…],"commands":bool,"network":bool}` first, once;
`{"op":"add","cell","task","hosts":[pattern…],"secrets":[SecretSpec…]}`, answered by
`{"event":"added","cell","ca":PEM}` (with a memfd of roots: and one of Java's trust store); `{"op":"remove","cell"}`; `{"op":"rotate","cell"}`: what was fetched is forgotten.
broker → secrets: `{"op":"leaf","id","cell","host"}`, `{"op":"get","id","cell","credential","host","date"}`; `{"op":"peer"}` with a
descriptor: the end of another process of the broker's, which may ask the same and is told what the broker is told.
secrets → broker: `{"id","ok",…}`; `{"event":"forget","cell"}`: leases given for the cell are over. A file's watching
descriptor (O_PATH) comes along by SCM_RIGHTS.
"""

from __future__ import annotations

import array
import http.client
import json
import os
import random
import selectors
import signal
import socket
import ssl
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from saggar.core.errors import PeerError
from saggar.egress import sigv4
from saggar.egress.ca_host import TaskCa, java_store
from saggar.egress.lockdown_host import lock_down
from saggar.egress.oauth import MARGIN_S, Token, TokenCache, TokenRefused, parse_token, token_request
from saggar.egress.sources_host import (
    LIMIT_BYTES,
    Reading,
    SourceError,
    VaultKv,
    ends_within,
    read,
    read_file,
    unreachable,
)
from saggar.egress.terms import Source

if TYPE_CHECKING:
    from collections.abc import Mapping

MESSAGE_BYTES = 60 * 1024
TOKEN_S = 10.0
_SLOW = ("command", "vault", "keyring")


class Held:
    """One credential of one cell."""

    __slots__ = (
        "epoch",
        "facts",
        "given",
        "host",
        "kind",
        "lock",
        "refresh",
        "sources",
        "tokens",
        "tokens_epoch",
        "version",
    )

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self.host: str = spec["host"]
        self.kind: str = spec["kind"]
        self.sources = {role: Source.parse(text) for role, text in spec["sources"].items()}
        self.facts: dict[str, Any] = spec["facts"]
        self.lock = threading.Lock()
        #: raised when other values are given than the last time: the broker's connections go by it
        self.version = 0
        self.given: dict[str, str] = {}
        #: raised by a rotation; what was read before it is read again
        self.epoch = 0
        self.tokens = TokenCache()
        self.tokens_epoch = 0
        #: the refresh token as its source last had it; the endpoint's own answers may have replaced it since
        self.refresh = ""

    @property
    def slow(self) -> bool:
        return self.kind == "oauth2" or any(s.kind in _SLOW for s in self.sources.values())


class Cell:
    __slots__ = ("ca", "held", "hosts")

    def __init__(self, ca: TaskCa, hosts: list[str], held: dict[str, Held]) -> None:
        self.ca = ca
        self.hosts = hosts
        self.held = held


def covers(pattern: str, host: str) -> bool:
    """Whether `host` is the name itself, or one label under a `*.` pattern (as in `egress.match`)."""
    if pattern.startswith("*."):
        label, dot, parent = host.partition(".")
        return bool(label and dot) and parent == pattern[2:]
    return pattern == host


class Secrets:
    """All cells of one broker. Every answer goes to whoever asked, from whichever thread made it."""

    def __init__(self, broker: socket.socket) -> None:
        #: the broker first, then its further processes
        self.peers = [broker]
        self._cells: dict[str, Cell] = {}
        self._env: dict[str, str] = {}
        self._pool = ThreadPoolExecutor(max_workers=8, thread_name_prefix="source")
        # an answer goes out in one piece with the look at its epoch, a rotation in one piece with its `forget`
        self._gate = threading.Lock()
        self.report: dict[str, str] = {}

    # supervisor's side

    def control(self, message: dict[str, Any], roots: str) -> tuple[dict[str, Any], int] | None:
        """Follow one order; the answer and a descriptor that goes with it (-1: none). roots: PEM, for Java's store."""
        op = message["op"]
        if op == "start":
            self._env = message["env"]
            self.report = lock_down(files=message["files"], commands=message["commands"], network=message["network"])
            return {"event": "ready", "lockdown": self.report}, -1
        cell = message["cell"]
        if op == "add":
            old = self._cells.get(cell)
            ca = old.ca if old is not None else TaskCa(message["task"], time.time())
            held = {s["credential"]: Held(s) for s in message["secrets"]}
            self._cells[cell] = Cell(ca, message["hosts"], held)
            if old is not None:
                self._tell_all({"event": "forget", "cell": cell})
            return {"event": "added", "cell": cell, "ca": ca.pem}, _store(ca.pem, roots)
        if op == "remove":
            self._cells.pop(cell, None)
            self._tell_all({"event": "forget", "cell": cell})
        elif op == "rotate" and cell in self._cells:
            with self._gate:
                for one in self._cells[cell].held.values():
                    one.epoch += 1
                self._tell_all({"event": "forget", "cell": cell})
        return None

    # broker's side

    def ask(self, message: dict[str, Any], peer: socket.socket) -> None:
        """Answer one question of the broker, now or from a worker thread."""
        cell = self._cells.get(message["cell"])
        if cell is None:
            _fail(peer, message, "no such task")
        elif message["op"] == "leaf":
            _leaf(peer, message, cell)
        elif message["op"] == "get":
            held = cell.held.get(message["credential"])
            if held is None or not covers(held.host, message["host"]):
                _fail(peer, message, "the credential is not bound to this host")
            elif held.slow:
                self._pool.submit(self._get, message, held, peer)
            else:
                self._get(message, held, peer)
        else:
            _fail(peer, message, "no such question")

    def _get(self, message: dict[str, Any], held: Held, peer: socket.socket) -> None:
        with held.lock:
            while True:
                epoch = held.epoch
                if held.tokens_epoch != epoch:
                    held.tokens.drop()
                    held.tokens_epoch = epoch
                answer, watch_fd = self._answer(message, held)
                with self._gate:
                    current = held.epoch == epoch
                    if current:
                        _send(peer, answer, watch_fd)
                if watch_fd >= 0:
                    os.close(watch_fd)
                if current:
                    return

    def _answer(self, message: dict[str, Any], held: Held) -> tuple[dict[str, Any], int]:
        try:
            values, lease_s, watch_fd = self._values(held, message)
        except (SourceError, PeerError) as e:
            return {"id": message["id"], "ok": False, "error": str(e)}, -1
        except Exception as e:  # noqa: BLE001  # a worker thread must answer whatever happens (I3)
            return {"id": message["id"], "ok": False, "error": f"the source failed: {type(e).__name__}"}, -1
        if values != held.given:
            held.version += 1
            held.given = values
        return {
            "id": message["id"],
            "ok": True,
            "values": values,
            "lease_s": lease_s,
            "version": held.version,
        }, watch_fd

    def _values(self, held: Held, message: dict[str, Any]) -> tuple[dict[str, str], float, int]:
        if held.kind == "oauth2":
            now = time.monotonic()
            token = held.tokens.get(now, lambda refresh: self._fetch_token(held, refresh, now))
            return {"value": token.value}, max(0.0, token.ends - MARGIN_S - now), -1
        readings = {role: self._read(source) for role, source in held.sources.items()}
        lease_s = min(r.lease_s for r in readings.values())
        watch_fd = readings["value"].watch_fd
        for role, reading in readings.items():
            if role != "value" and reading.watch_fd >= 0:
                os.close(reading.watch_fd)
        if held.kind == "sigv4":
            date = str(message["date"])
            scope = sigv4.Scope(held.facts["region"], held.facts["service"])
            values = {r: x.value for r, x in readings.items() if r != "value"}
            values |= {"signing_key": sigv4.derive(readings["value"].value, date, scope).hex(), "date": date}
            return values, lease_s, watch_fd
        return {"value": readings["value"].value}, lease_s, watch_fd

    def _read(self, source: Source) -> Reading:
        store = self._store() if source.kind == "vault" else None
        return read(source, self._env, store)

    def _store(self) -> VaultKv:
        address = self._env.get("VAULT_ADDR") or self._env.get("BAO_ADDR")
        if not address:
            raise SourceError("no vault address is configured (`VAULT_ADDR`)")
        namespace = self._env.get("VAULT_NAMESPACE", "")
        ca_file = self._env.get("VAULT_CACERT", "")
        return VaultKv(address, self._vault_token, namespace=namespace, ca_file=ca_file, jitter=random.random)

    def _vault_token(self) -> str:
        token = self._env.get("VAULT_TOKEN") or self._env.get("BAO_TOKEN")
        if token:
            return token
        path = self._env.get("VAULT_TOKEN_FILE")
        if not path:
            raise SourceError("no vault token is configured (`VAULT_TOKEN` or `VAULT_TOKEN_FILE`)")
        text, watch_fd = read_file(path)
        os.close(watch_fd)
        return text.strip()

    def _fetch_token(self, held: Held, refresh: str, now: float) -> Token:
        source = held.sources.get("refresh_token")
        if source is None:
            return self._ask_for_token(held, "", now)
        if refresh:
            try:
                return self._ask_for_token(held, refresh, now)
            except TokenRefused as e:
                # the operator may have put another one there, since that one was no good any more
                if e.code != "invalid_grant" or self._read_once(source) == held.refresh:
                    raise
        held.refresh = self._read_once(source)
        return self._ask_for_token(held, held.refresh, now)

    def _ask_for_token(self, held: Held, refresh: str, now: float) -> Token:
        facts = held.facts
        headers, body = token_request(
            client_id=facts["client_id"], client_secret=self._read_once(held.sources["value"]), refresh_token=refresh,
            scope=facts.get("scope", ""), audience=facts.get("audience", ""), in_body=bool(facts.get("in_body", False)),
        )  # fmt: skip
        status, answer = _post(facts["token_url"], headers, body, self._env.get("SSL_CERT_FILE", ""))
        return parse_token(status, answer, now)

    def _read_once(self, source: Source) -> str:
        reading = self._read(source)
        if reading.watch_fd >= 0:
            os.close(reading.watch_fd)
        return reading.value

    def _tell_all(self, message: dict[str, Any]) -> None:
        for peer in self.peers:
            _send(peer, message)


def _leaf(peer: socket.socket, message: dict[str, Any], cell: Cell) -> None:
    host = message["host"]
    if not any(covers(p, host) for p in cell.hosts):
        _fail(peer, message, "the host is not terminated for this task")
        return
    certificate, key = cell.ca.leaf(host)
    _send(peer, {"id": message["id"], "ok": True, "certificate": certificate, "key": key})


def _fail(peer: socket.socket, message: dict[str, Any], text: str) -> None:
    _send(peer, {"id": message.get("id"), "ok": False, "error": text})


def _send(peer: socket.socket, message: dict[str, Any], fd: int = -1) -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))] if fd >= 0 else []
    with suppress(OSError):
        peer.sendmsg([json.dumps(message).encode()], rights)


def _post(url: str, headers: list[tuple[str, str]], body: bytes, ca_file: str) -> tuple[int, bytes]:
    parts = urlsplit(url)
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        context = ssl.create_default_context(cafile=ca_file or None)
        connection = http.client.HTTPSConnection(parts.hostname or "", parts.port, timeout=TOKEN_S, context=context)
    else:
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=TOKEN_S)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        with closing(connection), ends_within(connection, TOKEN_S):
            connection.request("POST", target, body=body, headers=dict(headers))
            answer = connection.getresponse()
            return answer.status, answer.read(LIMIT_BYTES)
    except ssl.SSLCertVerificationError as e:
        raise PeerError(f"the token endpoint's certificate cannot be verified: {e.verify_message}") from None
    except (OSError, http.client.HTTPException) as e:
        raise PeerError(f"the token endpoint does not answer: {unreachable(e, TOKEN_S)}") from None


def _store(ca_pem: str, roots: str) -> int:
    """A memfd with Java's trust store, -1 where none is wanted."""
    if not roots:
        return -1
    data = java_store(ca_pem, roots)
    fd = os.memfd_create("store", os.MFD_CLOEXEC)
    os.write(fd, data)
    return fd


def _reply(control: socket.socket, answer: dict[str, Any], fd: int) -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))] if fd >= 0 else []
    control.sendmsg([json.dumps(answer).encode()], rights)
    if fd >= 0:
        os.close(fd)


def serve(control: socket.socket, broker: socket.socket) -> None:
    """Until the supervisor or the broker is gone."""
    secrets = Secrets(broker)
    selector = selectors.DefaultSelector()
    selector.register(control, selectors.EVENT_READ)
    selector.register(broker, selectors.EVENT_READ)
    while True:
        # the supervisor first: what it adds or removes counts for a question that came at the same time
        ready = sorted((key.fileobj for key, _ in selector.select()), key=lambda s: s is not control)
        for sock in ready:
            try:
                data, fds, _, _ = socket.recv_fds(sock, MESSAGE_BYTES, 4, socket.MSG_CMSG_CLOEXEC)  # type: ignore[arg-type]  # only sockets were registered
            except ConnectionResetError:
                data, fds = b"", []  # it died with answers of ours unread
            message = json.loads(data) if data else {}
            if sock is control or sock is broker:
                if not data:
                    return
            elif not data:
                _part(secrets, selector, sock)  # type: ignore[arg-type]
                continue
            if sock is control:
                answer = secrets.control(message, _text_of(fds))
                if answer is not None:
                    _reply(control, *answer)
            elif sock is broker and message["op"] == "peer":
                peer = socket.socket(fileno=fds[0])
                secrets.peers.append(peer)
                selector.register(peer, selectors.EVENT_READ)
            else:
                secrets.ask(message, sock)  # type: ignore[arg-type]


def _part(secrets: Secrets, selector: selectors.BaseSelector, peer: socket.socket) -> None:
    """A further process of the broker's is gone; what that means for the cell is the broker's to say."""
    selector.unregister(peer)
    secrets.peers.remove(peer)
    peer.close()


def _text_of(fds: list[int]) -> str:
    text = ""
    for fd in fds:
        text = os.pread(fd, os.fstat(fd).st_size, 0).decode("ascii", "ignore")
        os.close(fd)
    return text


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # the caller's directory is the workspace as often as not: no name here counts from it, nor does any program's
    os.chdir("/")
    control = socket.socket(fileno=int(sys.argv[1]))
    broker = socket.socket(fileno=int(sys.argv[2]))
    serve(control, broker)
    # worker threads may be waiting for a source: nothing of theirs is needed any more
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
