"""What a task may use of the network: requests, bytes, rate, connections, hosts, wall time; per host and per task.

I1  Counters are the task's, never a connection's: reconnecting resets nothing.
I2  A refusal says which limit, how much, and at what status: 429 with `Retry-After` for a rate, 429 else, 413 for a body.
I3  Asking costs O(1) and changes nothing where the answer is no.
I4  A host's limits are the strictest of all rules that name it, whichever of them a connection comes under, and whoever
    came last: use of the host under one rule counts for the others.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from saggar.core.errors import ParseError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


@dataclass(frozen=True, slots=True)
class Limits:
    """None is no limit. Bytes, requests a second (with a burst of as many), seconds of wall time since the start."""

    requests: int | None = None
    bytes_up: int | None = None
    bytes_down: int | None = None
    rate: float | None = None
    connections: int | None = None
    hosts: int | None = None
    wall_s: float | None = None

    @classmethod
    def parse(cls, data: dict[str, Any]) -> Limits:
        """Raises ParseError for an unknown key or a value that is no positive number."""
        known = {f.name for f in fields(cls)}
        for key, value in data.items():
            if key not in known:
                raise ParseError(f"unknown budget `{key}`", reason="bad_budget")
            if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
                raise ParseError(f"budget `{key}` is not a positive number", reason="bad_budget")
        return cls(**data)

    def strictest(self, other: Limits) -> Limits:
        """What holds where both do."""
        if other in (self, NONE):
            return self
        both = {f.name: (getattr(self, f.name), getattr(other, f.name)) for f in fields(self)}
        return Limits(**{name: min((v for v in pair if v is not None), default=None) for name, pair in both.items()})


NONE = Limits()


def no_limits(_host: str) -> Limits:
    return NONE


@dataclass(frozen=True, slots=True)
class Refusal:
    """reason: `budget_requests`, `budget_bytes_up`, … limit: the number. scope: `host` or `task`. retry_after_s: for a rate."""

    reason: str
    limit: float
    scope: str
    status: int = 429
    retry_after_s: int = 0

    @property
    def public(self) -> str:
        what = self.reason.removeprefix("budget_").replace("_", " ")
        return f"the {self.scope}'s budget of {what} ({self.limit:g}) is used up"


class Meter:
    """Counters of one scope."""

    __slots__ = (
        "bytes_down",
        "bytes_up",
        "connections",
        "limits",
        "names",
        "requests",
        "scope",
        "started",
        "tokens",
        "touched",
    )

    def __init__(self, limits: Limits, scope: str, now: float) -> None:
        self.limits = limits
        self.scope = scope
        self.started = now
        self.requests = 0
        self.bytes_up = 0
        self.bytes_down = 0
        self.connections = 0
        #: of the task: how many hosts were connected to; of a host: 1 from its first connection on
        self.names = 0
        self.tokens = max(1.0, limits.rate or 0.0)
        self.touched = now

    def ask(self, now: float) -> Refusal | None:
        """Whether one more request may start now."""
        limits = self.limits
        if limits.requests is not None and self.requests >= limits.requests:
            return Refusal("budget_requests", limits.requests, self.scope)
        if limits.bytes_up is not None and self.bytes_up >= limits.bytes_up:
            return Refusal("budget_bytes_up", limits.bytes_up, self.scope)
        if limits.bytes_down is not None and self.bytes_down >= limits.bytes_down:
            return Refusal("budget_bytes_down", limits.bytes_down, self.scope)
        if limits.wall_s is not None and now - self.started >= limits.wall_s:
            return Refusal("budget_wall", limits.wall_s, self.scope)
        if limits.rate is not None:
            burst = max(1.0, limits.rate)
            tokens = min(burst, self.tokens + (now - self.touched) * limits.rate)
            if tokens < 1.0:
                return Refusal(
                    "budget_rate",
                    limits.rate,
                    self.scope,
                    retry_after_s=max(1, int((1.0 - tokens) / limits.rate + 0.999)),
                )
        return None

    def take(self, now: float) -> None:
        self.requests += 1
        rate = self.limits.rate
        if rate is not None:
            self.tokens = min(max(1.0, rate), self.tokens + (now - self.touched) * rate) - 1.0
            self.touched = now


class Budget:
    """The task's meter and one for each host that has limits or was used."""

    __slots__ = ("_hosts", "_limits_of", "task")

    #: by host
    _hosts: dict[str, Meter]

    def __init__(self, limits: Limits, now: float) -> None:
        self.task = Meter(limits, "task", now)
        self._hosts = {}
        self._limits_of: Callable[[str], Limits] = no_limits

    def limit(self, limits: Limits, limits_of: Callable[[str], Limits] = no_limits) -> None:
        """Other limits from now on, of the task and (`limits_of`: all rules that name a host) of hosts; counters stay (I1)."""
        self.task.limits = limits
        self._limits_of = limits_of
        for host, meter in self._hosts.items():
            meter.limits = limits_of(host)

    def host(self, host: str, limits: Limits | None, now: float) -> Meter:
        """The host's meter, made on first use. limits: of the rule that a connection comes under, None where it can have none;
        they never loosen what holds (I4)."""
        meter = self._hosts.get(host)
        if meter is None:
            meter = self._hosts[host] = Meter(self._limits_of(host).strictest(limits or NONE), "host", now)
        elif limits is not None and meter.limits is not limits:
            meter.limits = meter.limits.strictest(limits)
        return meter

    def open(self, host: Meter, now: float) -> Refusal | None:
        """One more connection to the host of that meter. Close it with `close`."""
        for meter in (host, self.task):
            limit = meter.limits.connections
            if limit is not None and meter.connections >= limit:
                return Refusal("budget_connections", limit, meter.scope)
            wall = meter.limits.wall_s
            if wall is not None and now - meter.started >= wall:
                return Refusal("budget_wall", wall, meter.scope)
        if not host.names:
            hosts = self.task.limits.hosts
            if hosts is not None and self.task.names >= hosts:
                return Refusal("budget_hosts", hosts, "task")
            host.names = 1
            self.task.names += 1
        host.connections += 1
        self.task.connections += 1
        return None

    def close(self, host: Meter) -> None:
        host.connections -= 1
        self.task.connections -= 1

    def request(self, host: Meter, now: float) -> Refusal | None:
        refusal = host.ask(now) or self.task.ask(now)
        if refusal is None:
            host.take(now)
            self.task.take(now)
        return refusal

    def up(self, host: Meter, count: int) -> Refusal | None:
        """`count` more bytes of body towards the upstream; on a refusal they must not be sent."""
        for meter in (host, self.task):
            limit = meter.limits.bytes_up
            if limit is not None and meter.bytes_up + count > limit:
                return Refusal("budget_bytes_up", limit, meter.scope, status=413)
        host.bytes_up += count
        self.task.bytes_up += count
        return None

    def down(self, host: Meter, count: int) -> Refusal | None:
        for meter in (host, self.task):
            limit = meter.limits.bytes_down
            if limit is not None and meter.bytes_down + count > limit:
                return Refusal("budget_bytes_down", limit, meter.scope, status=502)
        host.bytes_down += count
        self.task.bytes_down += count
        return None
