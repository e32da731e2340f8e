"""The effective task policy, after defaults, file and flags were merged.

I1  A policy is immutable; `replace` makes a new one.
I2  Every leaf value has an origin: `default`, `file` (with a line) or `flag`.
I3  Host names here are canonical (lower-case A-labels, no trailing dot); `*.` at the front is the only wildcard.

Plain slotted classes: this module is on the `saggar run` path (see `core.decision`). Sizes are bytes, times seconds.
"""

from __future__ import annotations

from saggar.core.decision import Frozen
from saggar.policy.section import Section
from saggar.policy.tools import ToolsPolicy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MIB = 1024 * 1024
GIB = 1024 * MIB

TIERS = ("auto", "process", "gvisor", "microvm", "container")
WORKSPACE_MODES = ("copy-on-write", "read-only", "read-write", "none")
#: top directories that a cell has of its own: nothing of the host's is shown there, as a workspace no more than as a path to read
OWN_DIRECTORIES = ("proc", "sys", "dev")
#: rules of one policy; each has a synthetic address of 198.18.0.0/15
MAX_RULES = 4096


class Origin(Frozen):
    """Where a value came from. kind: `default`, `file` or `flag`; file and line are set for `file`."""

    __slots__ = ("file", "kind", "line")
    kind: str
    file: str
    line: int

    def __init__(self, kind: str, file: str = "", line: int = 0) -> None:
        self._set(kind=kind, file=file, line=line)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.kind == "file" else self.kind


class IsolationPolicy(Section):
    """`[isolation]`. tier: a floor, or `auto`. read: host paths bound read-only at the same path inside."""

    __slots__ = ("read", "tier")
    tier: str
    read: tuple[str, ...]

    def __init__(self, *, tier: str = "auto", read: tuple[str, ...] = ()) -> None:
        self._set(tier=tier, read=read)


class LimitsPolicy(Section):
    """`[limits]`. Bytes, tasks, CPUs and seconds; timeout_s None means no wall-clock limit.
    require: `any` (a watchdog will do) or `enforced`."""

    __slots__ = ("cpus", "disk_bytes", "memory_bytes", "output_bytes", "require", "tasks", "timeout_s")
    memory_bytes: int
    tasks: int
    cpus: float
    disk_bytes: int
    output_bytes: int
    timeout_s: float | None
    require: str

    def __init__(
        self,
        *,
        memory_bytes: int = GIB,
        tasks: int = 256,
        cpus: float = 1.0,
        disk_bytes: int = GIB,
        output_bytes: int = 16 * MIB,
        timeout_s: float | None = 600.0,
        require: str = "any",
    ) -> None:
        self._set(
            memory_bytes=memory_bytes,
            tasks=tasks,
            cpus=cpus,
            disk_bytes=disk_bytes,
            output_bytes=output_bytes,
            timeout_s=timeout_s,
            require=require,
        )


class WorkspacePolicy(Section):
    """`[workspace]`. path: absolute host directory, or "" for the current one. mode: one of WORKSPACE_MODES.
    protect: extra protected path patterns. unsafe_broad: the workspace may be `/` or a home directory."""

    __slots__ = ("mode", "path", "protect", "unsafe_broad")
    path: str
    mode: str
    protect: tuple[str, ...]
    unsafe_broad: bool

    def __init__(
        self,
        *,
        path: str = "",
        mode: str = "copy-on-write",
        protect: tuple[str, ...] = (),
        unsafe_broad: bool = False,
    ) -> None:
        self._set(path=path, mode=mode, protect=protect, unsafe_broad=unsafe_broad)


class EgressRule(Section):
    """One `[[egress.allow]]`. host: canonical name, or `*.` and a name (one label). ports: TCP ports.
    connect_to: `(address literal, port)` to dial in place of DNS, for loopback upstreams; audited.
    allow_metadata: the name may be one of a cloud's metadata service.
    enabled: false: everything is made ready for it (listeners, credential, the trust inside), and nothing is let through until
    the operator says `saggar allow`.
    id: stable name used in decisions (`egress.allow[2]` or the file's own `id`).

    http: canonical JSON text of what makes the host a terminated one (credential, rules, budget; `policy.http`), "" for a
    tunnelled one; on its way to the broker it holds the compiled terms instead.

    An exact rule beats a wildcard that covers the same host."""

    __slots__ = ("allow_metadata", "connect_to", "enabled", "host", "http", "id", "ports")
    id: str
    host: str
    ports: tuple[int, ...]
    connect_to: tuple[str, int] | None
    allow_metadata: bool
    http: str
    enabled: bool

    def __init__(
        self,
        *,
        host: str,
        ports: tuple[int, ...] = (443,),
        connect_to: tuple[str, int] | None = None,
        allow_metadata: bool = False,
        http: str = "",
        enabled: bool = True,
        id: str = "",  # noqa: A002  # the policy file's own word
    ) -> None:
        self._set(
            id=id,
            host=host,
            ports=ports,
            connect_to=connect_to,
            allow_metadata=allow_metadata,
            http=http,
            enabled=enabled,
        )

    @property
    def terminated(self) -> bool:
        """Whether requests to the host are read, not only its name."""
        return bool(self.http)

    def same_terms(self, other: EgressRule) -> bool:
        """Whether both give the same rights to whoever reaches them, host, ports and id aside."""
        return self.replace(id="", host="", ports=()) == other.replace(id="", host="", ports=())

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "host": self.host,
            "ports": list(self.ports),
            "connect_to": list(self.connect_to) if self.connect_to else None,
            "allow_metadata": self.allow_metadata,
            "http": self.http,
            **({} if self.enabled else {"enabled": False}),
        }


class EgressPolicy(Section):
    """`[egress]`. Nothing listed is nothing allowed. budget: canonical JSON text, "" for none. processes: of the broker's,
    that serve the task's connections."""

    __slots__ = ("allow", "budget", "processes")
    allow: tuple[EgressRule, ...]
    budget: str
    processes: int

    def __init__(self, *, allow: tuple[EgressRule, ...] = (), budget: str = "", processes: int = 1) -> None:
        self._set(allow=allow, budget=budget, processes=processes)

    def to_json(self) -> dict[str, Any]:
        return {"allow": [r.to_json() for r in self.allow]}


class EnvironmentPolicy(Section):
    """`[environment]`. set: variables given to the command; pass_: names copied from the caller's environment."""

    __slots__ = ("pass_", "set")
    set: tuple[tuple[str, str], ...]
    pass_: tuple[str, ...]

    def __init__(self, *, set: tuple[tuple[str, str], ...] = (), pass_: tuple[str, ...] = ()) -> None:  # noqa: A002
        self._set(set=set, pass_=pass_)


class Policy(Section):
    """All that one task may do. `origins` maps a dotted key (`limits.memory`) to where its value came from."""

    __slots__ = ("egress", "environment", "file", "isolation", "limits", "origins", "tools", "workspace")
    isolation: IsolationPolicy
    limits: LimitsPolicy
    workspace: WorkspacePolicy
    egress: EgressPolicy
    environment: EnvironmentPolicy
    tools: ToolsPolicy
    file: str
    origins: dict[str, Origin]

    def __init__(
        self,
        *,
        isolation: IsolationPolicy | None = None,
        limits: LimitsPolicy | None = None,
        workspace: WorkspacePolicy | None = None,
        egress: EgressPolicy | None = None,
        environment: EnvironmentPolicy | None = None,
        tools: ToolsPolicy | None = None,
        file: str = "",
        origins: dict[str, Origin] | None = None,
    ) -> None:
        self._set(
            isolation=isolation or IsolationPolicy(),
            limits=limits or LimitsPolicy(),
            workspace=workspace or WorkspacePolicy(),
            egress=egress or EgressPolicy(),
            environment=environment or EnvironmentPolicy(),
            tools=tools or ToolsPolicy(),
            file=file,
            origins=dict(origins or {}),
        )

    def __hash__(self) -> int:
        return hash((self.isolation, self.limits, self.workspace, self.egress, self.environment, self.tools, self.file))
