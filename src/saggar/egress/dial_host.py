"""Resolve outside, check every answer, dial the checked literal, and look at who answered.

I1  Only an `AuthorizedRequest` is resolved or dialled: no DNS before allow.
I2  All answers are checked; one that is refused refuses the name (all or nothing).
I3  What is dialled is a literal from that very answer; the name is not asked for again for this connection.
I4  After the connect the peer's address must be the one that was dialled.
I5  `connect_to` is the only way to an address that the table refuses, and it is the policy's, recorded beforehand.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from ipaddress import ip_address
from typing import TYPE_CHECKING

from saggar.egress.addresses import first_refusal
from saggar.egress.wire_host import wait_writable

if TYPE_CHECKING:
    from collections.abc import Callable

    from saggar.egress.authorize import AuthorizedRequest

RESOLVE_S = 10.0
CONNECT_S = 10.0
#: an address that does not answer gets this long before the next one is tried
ATTEMPT_S = 2.5
#: how long a checked answer serves further connections of the same cell
CACHE_S = 5.0
MAX_ADDRESSES = 16
#: names a cell may have resolved in a burst, and each second after it
RESOLVE_BURST = 100.0
#: at once for one cell: names that nobody answers hold a thread for the resolver's whole time-out, and the threads are shared
MAX_LOOK_UPS = 4
RESOLVE_RATE = 20.0


class DialError(Exception):
    """The destination could not be dialled. reason is one of the broker's; detail goes to the audit log alone."""

    def __init__(self, reason: str, **detail: object) -> None:
        super().__init__(reason)
        self.reason = reason
        self.detail = detail


def look_up(host: str) -> list[str]:
    """The host's own answer for a canonical name, each address once. Blocking. Raises OSError.

    The dot at the end keeps the resolver's search list out: `api.allowed.test` must never become
    `api.allowed.test.corp.internal`.
    """
    answers = socket.getaddrinfo(f"{host}.", None, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    return list(dict.fromkeys(str(a[4][0]) for a in answers))


def is_own_address(address: str) -> bool:
    """Whether `address` is one of this host's. Connecting a UDP socket sends nothing; it asks the routing table."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as probe:
        try:
            probe.connect((address, 9))
            return bool(probe.getsockname()[0] == address)
        except OSError:
            return False


class Dialer:
    """Resolves and dials for one cell; cache and rate are the cell's own, so cells learn nothing of each other."""

    __slots__ = ("_answers", "_epoch", "_look_up", "_pending", "_pool", "_room", "_stamp", "_tokens")

    def __init__(self, pool: ThreadPoolExecutor, look_up: Callable[[str], list[str]] = look_up) -> None:
        self._pool = pool
        self._look_up = look_up
        # by name and by whether metadata addresses are let through: an answer was checked for that alone
        self._answers: dict[tuple[str, bool], tuple[float, tuple[str, ...]]] = {}
        self._pending: dict[tuple[str, bool], asyncio.Future[tuple[str, ...]]] = {}
        self._room = asyncio.Semaphore(MAX_LOOK_UPS)
        self._epoch = 0
        self._tokens = RESOLVE_BURST
        self._stamp = 0.0

    async def dial(self, request: AuthorizedRequest) -> socket.socket:
        """A connected, non-blocking socket. Raises DialError: `resolve_failed`, `resolve_rate`, `address_refused`,
        `unreachable`, `peer_mismatch`, `out_of_descriptors`."""
        override = request.rule.connect_to
        if override is not None:
            return await self._attempt(override[0], override[1], CONNECT_S)
        addresses = await self.resolve(request)
        deadline = asyncio.get_running_loop().time() + CONNECT_S
        for index, address in enumerate(addresses):
            last = index == len(addresses) - 1
            left = deadline - asyncio.get_running_loop().time()
            try:
                return await self._attempt(address, request.destination.port, left if last else min(ATTEMPT_S, left))
            except DialError as e:
                if last or e.reason != "unreachable":
                    raise
        raise DialError("unreachable", cause="no address is left")

    def begin(self, request: AuthorizedRequest) -> Begun | None:
        """A dial begun where no name has to be asked for and there is one address. None: `dial`. Raises DialError."""
        override = request.rule.connect_to
        if override is not None:
            return begin(*override)
        known = self._answers.get((request.destination.host, request.rule.allow_metadata))
        if known is None or len(known[1]) != 1 or known[0] <= asyncio.get_running_loop().time():
            return None  # of several addresses each has its time, and the next one its chance
        return begin(known[1][0], request.destination.port)

    async def resolve(self, request: AuthorizedRequest) -> tuple[str, ...]:
        """The checked addresses of the destination. Raises DialError."""
        host, metadata = key = request.destination.host, request.rule.allow_metadata
        loop = asyncio.get_running_loop()
        known = self._answers.get(key)
        if known is not None and known[0] > loop.time():
            return known[1]
        pending = self._pending.get(key)
        if pending is None:
            self._spend(loop.time())
            pending = asyncio.ensure_future(self._resolve(host, metadata=metadata))
            self._pending[key] = pending
            pending.add_done_callback(lambda done: self._forget(key, done))
        return await asyncio.shield(pending)

    def forget(self) -> None:
        """Ask anew from here on: the rules changed. A look-up under way serves those who wait for it, and is not kept."""
        self._answers.clear()
        self._pending.clear()
        self._epoch += 1

    def _forget(self, key: tuple[str, bool], done: asyncio.Future[tuple[str, ...]]) -> None:
        if self._pending.get(key) is done:
            del self._pending[key]
        if not done.cancelled():
            done.exception()  # seen, though everybody who waited may be gone

    def _spend(self, now: float) -> None:
        self._tokens = min(RESOLVE_BURST, self._tokens + (now - self._stamp) * RESOLVE_RATE)
        self._stamp = now
        if self._tokens < 1:
            raise DialError("resolve_rate")
        self._tokens -= 1

    async def _resolve(self, host: str, *, metadata: bool) -> tuple[str, ...]:
        loop = asyncio.get_running_loop()
        epoch = self._epoch
        try:
            async with asyncio.timeout(RESOLVE_S):
                await self._room.acquire()
                looking = self._pool.submit(self._look_up, host)
                # the place is taken until the thread is free, which may be long after we have given up on it
                looking.add_done_callback(lambda _: loop.call_soon_threadsafe(self._room.release))
                addresses = await asyncio.wrap_future(looking)
        except (OSError, UnicodeError) as e:  # TimeoutError is an OSError
            raise DialError("resolve_failed", cause=str(e) or "no answer in time") from None
        if not addresses:
            raise DialError("resolve_failed", cause="no address")
        if len(addresses) > MAX_ADDRESSES:
            raise DialError("address_refused", cause="too_many_addresses")
        refused, reason = first_refusal(addresses, metadata=metadata)
        if not reason:
            refused = next((a for a in addresses if is_own_address(a)), "")
            reason = "host_address" if refused else ""
        if reason:
            raise DialError("address_refused", address=refused, cause=reason)
        checked = tuple(addresses)
        if len(self._answers) > 1024:
            self._answers.clear()
        if epoch == self._epoch:
            self._answers[host, metadata] = (loop.time() + CACHE_S, checked)
        return checked

    async def _attempt(self, address: str, port: int, timeout_s: float) -> socket.socket:
        begun = begin(address, port)
        return begun.sock if begun.connected else await begun.wait(timeout_s)


class Begun:
    """One address being dialled. connected: with whom it should be (I4)."""

    __slots__ = ("_address", "connected", "sock")

    def __init__(self, sock: socket.socket, address: str, *, connected: bool) -> None:
        self.sock = sock
        self._address = address
        self.connected = connected

    async def wait(self, timeout_s: float = CONNECT_S) -> socket.socket:
        """The socket, connected. Raises DialError; it is closed then."""
        sock = self.sock
        try:
            await wait_writable(sock, max(timeout_s, 0.05))
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            _check_peer(_peer(sock), self._address, code)
        except OSError as e:
            sock.close()
            raise DialError("unreachable", cause=str(e) or "no answer in time") from None
        except BaseException:
            with suppress(OSError):
                sock.close()
            raise
        return sock


def begin(address: str, port: int) -> Begun:
    """Dial a literal. Raises DialError."""
    try:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    except OSError as e:
        raise DialError("out_of_descriptors", cause=str(e)) from None
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        code = sock.connect_ex((address, port))
        peer = _peer(sock)  # near by, the handshake is over before `connect` returns
        if peer or code != errno.EINPROGRESS:
            _check_peer(peer, address, code)
    except OSError as e:
        sock.close()
        raise DialError("unreachable", cause=str(e)) from None
    except BaseException:
        sock.close()
        raise
    return Begun(sock, address, connected=bool(peer))


def _peer(sock: socket.socket) -> str:
    """The address of the peer; "" while not connected."""
    try:
        return str(sock.getpeername()[0])
    except OSError:
        return ""


def _check_peer(peer: str, address: str, code: int) -> None:
    """Whether `connect` succeeded, and with whom (I4). Raises DialError."""
    if not peer:
        raise DialError("unreachable", cause=os.strerror(code or errno.ECONNREFUSED))
    if peer != address and ip_address(peer) != ip_address(address):
        raise DialError("peer_mismatch", dialled=address, peer=peer)
