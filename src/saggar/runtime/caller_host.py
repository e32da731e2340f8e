"""Who asks for a run, and how: the caller's user, its options, and what its runs are prepared with.

I1  A root that may not map owners is refused: its cell would run as host root.
"""

from __future__ import annotations

import os

from saggar.core.errors import Unenforceable
from saggar.isolation import bwrap_host
from saggar.isolation.state_host import SWEEP_RUNS, State, open_state, state_path
from saggar.isolation.workspace_host import CallerIds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_CAP_SYS_ADMIN = 1 << 21


class Session:
    """What one supervisor prepares runs with: the state directory, who the caller is, which bubblewrap. layer: where the last
    copy-on-write workspace's changes went, for `foresee`."""

    __slots__ = ("bwrap", "caller", "env", "layer", "state")

    def __init__(self, env: Mapping[str, str]) -> None:
        self.env = env
        self.layer = "disk"
        self.state: State = open_state(env)
        self.caller = caller()
        self.bwrap = bwrap_host.find(self.state.fd)

    def sweep(self) -> None:
        """Clear what dead and expired runs left, if nobody did lately. For after a start, while the cell is being built."""
        try:
            if not self.state.sweep_due():
                return
            alive, _ = self.state.sweep(limit=SWEEP_RUNS)
            from saggar.isolation.limits_host import sweep

            sweep(set(alive))
        except OSError:
            return  # the next start tries again; nothing of this run depends on it

    def current(self, env: Mapping[str, str]) -> bool:
        """Whether `env` means the same state directory and the same caller."""
        return state_path(env) == self.state.path and os.geteuid() == self.caller.uid


def caller() -> CallerIds:
    """Who asks. Raises Unenforceable for a root that may not map owners: its cell would run as host root."""
    uid, gid = os.geteuid(), os.getegid()
    if uid != 0:
        return CallerIds(uid=uid, gid=gid, privileged=False)
    from saggar.isolation.syscalls_host import capabilities

    if not capabilities() & _CAP_SYS_ADMIN:
        raise Unenforceable(
            "a cell never runs as root, and this root cannot give it another user",
            cause="the process is uid 0 without CAP_SYS_ADMIN (a container's root)",
            remedy="run saggar as an ordinary user",
        )
    return CallerIds(uid=0, gid=0, privileged=True)


class Options:
    """How the caller wants one run. cwd: absolute. stdin_terminal etc. travel in the streams; terminal: descriptor of the caller's
    terminal or -1; foreground: whether the cell gets it at once; timeout_s: None for none; keep_bytes: of each captured stream;
    linger: the caller ends with the run, so that the launcher is to close what is slow to close; spare: a child of the launcher may
    wait for the next run (docs/decisions/0012-a-spare-child.md)."""

    __slots__ = ("cwd", "foreground", "keep_bytes", "linger", "spare", "term", "terminal", "timeout_s")

    def __init__(
        self,
        *,
        cwd: str,
        timeout_s: float | None,
        terminal: int = -1,
        foreground: bool = False,
        term: str = "",
        keep_bytes: int = 0,
        linger: bool = False,
        spare: bool = True,
    ) -> None:
        self.cwd = cwd
        self.linger = linger
        self.spare = spare and not linger
        self.timeout_s = timeout_s
        self.terminal = terminal
        self.foreground = foreground
        self.term = term
        self.keep_bytes = keep_bytes
