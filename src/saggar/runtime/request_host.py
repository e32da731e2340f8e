"""What the launcher is asked for one run, and what the audit log says was asked.

I1  A request opens nothing: its descriptors are the streams, the terminal and what `Prepared` holds.
I2  `expect` may guess and be wrong: a child is used only for the request that it was born for.
"""

from __future__ import annotations

import os

from saggar.egress.listeners import hosts_lines, plan
from saggar.isolation.bwrap_argv import GID, UID, options
from saggar.isolation.rootfs import HOSTS
from saggar.isolation.rootfs_mount_host import PROGRAM
from saggar.isolation.workspace_host import HOST_IDS, HOST_IDS_COUNT, ids_of
from saggar.runtime.grant_host import binds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from saggar.policy.model import Policy
    from saggar.runtime.caller_host import Options, Session
    from saggar.runtime.prepare_host import Prepared

#: Names that act on a dynamically linked program itself: bubblewrap must not meet them, the command may.
_LOADER = ("LD_", "GLIBC_TUNABLES", "GCONV_PATH", "LOCPATH", "MALLOC_", "NLSPATH", "TMPDIR")
_ENV_PROGRAM = "/usr/bin/env"
_MANY_ARGUMENTS = 4000
_ARGV_FILE = "/run/argv"


def request(prepared: Prepared, streams: tuple[int, int, int]) -> tuple[dict[str, Any], list[int]]:
    """The launcher's `run` message and its descriptors."""
    fds = list(streams)
    workspace_fds = prepared.workspace.fds
    at = len(fds)
    fds += workspace_fds
    grants = []
    for grant in prepared.grants:
        grants.append(grant.to_json(len(fds)))
        fds.append(grant.fd)
    bwrap = prepared.session.bwrap
    terminal = -1
    if prepared.options.terminal >= 0:
        terminal = len(fds)
        fds.append(prepared.options.terminal)
    plain = {n: v for n, v in prepared.environment.items() if not n.startswith(_LOADER)}
    late = {n: v for n, v in prepared.environment.items() if n.startswith(_LOADER)}
    shield = terminal >= 0 and os.access(_ENV_PROGRAM, os.X_OK)
    files = [] if prepared.terminating is None else list(prepared.terminating.trust.files)
    command = prepared.argv if len(prepared.argv) <= _MANY_ARGUMENTS else _from_file(prepared.argv, files)
    if shield:
        command = [_ENV_PROGRAM, "--default-signal=INT,QUIT", "--", *command]
    on_disk = prepared.workspace.layer == "disk" or prepared.workspace.mode == "read-write"
    birth = _birth(prepared.session, prepared.policy, prepared.workspace.ids, terminal, disk_on_host=on_disk)
    wheel = birth["wheel"]
    return {
        **birth,
        "op": "run",
        "id": prepared.run.id,
        "bwrap": f"{PROGRAM}{bwrap.path[len(wheel) :]}" if wheel else bwrap.path,
        "options": options(_inner_user(prepared.workspace.ids), prepared.cwd),
        "binds": binds(prepared),
        "files": files,
        "covers": [] if prepared.terminating is None else list(prepared.terminating.trust.covers),
        "hosts": f"{HOSTS}{hosts_lines(prepared.policy.egress.allow)}".encode(),
        "home": [] if prepared.terminating is None else list(prepared.terminating.trust.home),
        "command": command,
        "env": plain,
        "late_env": late,
        "workspace": dict(prepared.workspace.plan),
        "workspace_fds": list(range(at, at + len(workspace_fds))),
        "grants": grants,
        "linger": prepared.options.linger,
        "spare": prepared.options.spare,
        "foreground": prepared.options.foreground,
        "shield": shield,
        "timeout_s": prepared.options.timeout_s,
        "umask": _umask(),
    }, fds


def _birth(
    session: Session, policy: Policy, ids: tuple[int, int], terminal: int, *, disk_on_host: bool
) -> dict[str, Any]:
    """What the launcher's child is born with (`saggar.isolation.child_host.Birth`), but for the workspace's place."""
    limits, bwrap, user = policy.limits, session.bwrap, _inner_user(ids)
    return {
        "ids": (HOST_IDS, HOST_IDS_COUNT, *ids, *user) if session.caller.privileged else None,
        "user": user,
        "terminal": terminal,
        "listeners": plan(policy.egress.allow),
        "scratch": (limits.disk_bytes, max(limits.disk_bytes // 4096, 64)),
        "limits": {s: getattr(limits, s) for s in limits.__slots__},
        "disk_on_host": disk_on_host,
        # the wheel may lie where a stranger cannot go (/root), or below /tmp; and /proc/1/exe inside would show its place
        "wheel": os.path.dirname(os.path.dirname(os.path.dirname(bwrap.path))) if bwrap.bundled else "",
    }


def foresee(session: Session, policy: Policy, opts: Options) -> dict[str, Any] | None:
    """The launcher's `expect` message: a child can be born while the run is still being prepared. A guess where preparing would
    decide (who owns the workspace, where its changes go); what was guessed wrong is born again. None where nothing can be said."""
    mode = policy.workspace.mode
    path = os.path.realpath(os.path.join(opts.cwd, policy.workspace.path or "")) if mode != "none" else ""
    try:
        status = os.stat(path or "/")
    except OSError:
        return None
    caller = session.caller
    nobody = (0, 0) if caller.privileged else (caller.uid, caller.gid)
    ids = ids_of(status, caller) if mode != "none" else nobody
    on_disk = mode == "read-write" or (mode == "copy-on-write" and session.layer == "disk")
    workspace = {"path": path, "layer": {"path": session.state.path}}
    birth = _birth(session, policy, ids, opts.terminal, disk_on_host=on_disk)
    return {**birth, "op": "expect", "workspace": workspace}


def describe(prepared: Prepared) -> dict[str, Any]:
    """For the audit log's `run.start`."""
    return {
        "argv": [_text(a) for a in prepared.argv],
        "workspace": _text(prepared.workspace.path),
        "mode": prepared.workspace.mode,
        "policy": _text(prepared.policy.file),
        "environment": sorted(_text(n) for n in prepared.environment),
        "egress": prepared.policy.egress.to_json()["allow"],
        "read": [_text(p) for p in prepared.policy.isolation.read],
        "toolchain": [_text(p) for p in prepared.toolchain],
    }


def _inner_user(ids: tuple[int, int]) -> tuple[int, int]:
    """(uid, gid) inside: the workspace's owner's, since git takes every file with another owner than in its index for
    changed and reads it (a first `git status` of 7.9 times native in place of 3.2). Never root's: programs that find
    themselves root try what no cell may do (tar then changes owners)."""
    return ids if ids[0] else (UID, GID)


def _from_file(argv: list[str], files: list[tuple[str, bytes]]) -> list[str]:
    """A command with more words than bubblewrap reads (9000 with its options): a shell reads them from a file and executes them."""
    quoted = " ".join("'" + word.replace("'", "'\\''") + "'" for word in argv)
    files.append((_ARGV_FILE, os.fsencode(f"exec {quoted}\n")))
    return ["/bin/sh", _ARGV_FILE]


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def _text(value: str) -> str:
    return value.encode("utf-8", "backslashreplace").decode()
