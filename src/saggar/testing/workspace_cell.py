"""A cell with nothing but a workspace: real user namespace, real mounts, a Python function in place of the command.

For tests of what a run leaves behind, without bubblewrap, limits or network. As root it maps as a root caller's cell
does, else as an ordinary user's.
"""

from __future__ import annotations

import os
import socket
import sys
import traceback

from saggar.isolation import syscalls_host as sc
from saggar.isolation.state_host import RunDir, State
from saggar.isolation.workspace_host import HOST_IDS, HOST_IDS_COUNT, CallerIds, Workspace, prepare
from saggar.isolation.workspace_mount_host import clone_layers, mount_workspace
from saggar.policy.model import Policy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def caller_ids() -> CallerIds:
    """This process as the caller of a run."""
    return CallerIds(uid=os.geteuid(), gid=os.getegid(), privileged=os.geteuid() == 0)


class Outcome:
    """What one contained function left: its exit status, text of its exception, the run, and the layer used."""

    __slots__ = ("error", "layer", "run", "started_ns", "status", "upper_fd", "workspace")

    def __init__(self, run: RunDir, workspace: Workspace) -> None:
        self.run = run
        self.workspace = workspace
        self.status = -1
        self.error = ""
        self.layer = "none"
        self.started_ns = 0
        self.upper_fd = -1


def run_in_workspace(state: State, policy: Policy, command: Callable[[], object], *, scratch: str) -> Outcome:
    """Run `command` with the workspace as its current directory. scratch: an existing directory of the host to mount
    over in the child's namespace, reachable for anyone. The run is ended, its lock given back."""
    run = state.new_run()
    caller = caller_ids()
    workspace = prepare(policy, run, state, caller=caller, env=os.environ, cwd="/")
    outcome = Outcome(run, workspace)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        ours.close()
        _child(workspace, command, scratch, theirs)
    theirs.close()
    try:
        _serve(outcome, caller, pid, ours)
    finally:
        ours.close()
        outcome.status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    run.update(started_ns=str(outcome.started_ns), layer=outcome.layer)
    workspace.finish()
    return outcome


def _serve(outcome: Outcome, caller: CallerIds, pid: int, ours: socket.socket) -> None:
    ours.recv(16)
    _map(pid, caller)
    clones: list[int] = []
    if caller.privileged:
        userns = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        clones = clone_layers(outcome.workspace.plan, outcome.workspace.fds, userns)
        os.close(userns)
    socket.send_fds(ours, [b"go"], clones)
    for fd in clones:
        os.close(fd)
    while message := socket.recv_fds(ours, 65536, 1):
        data, fds = message[0], message[1]
        if data.startswith(b"mounted "):
            _, layer, started = data.decode().split()
            outcome.layer, outcome.started_ns = layer, int(started)
            outcome.upper_fd = fds[0] if fds else -1
        elif data:
            outcome.error = data.decode()
        else:
            return


def _map(pid: int, caller: CallerIds) -> None:
    maps = (
        (f"0 {HOST_IDS} {HOST_IDS_COUNT}", f"0 {HOST_IDS} {HOST_IDS_COUNT}")
        if caller.privileged
        else (f"{caller.uid} {caller.uid} 1", f"{caller.gid} {caller.gid} 1")
    )
    if not caller.privileged:
        _write(f"/proc/{pid}/setgroups", "deny")
    _write(f"/proc/{pid}/uid_map", maps[0])
    _write(f"/proc/{pid}/gid_map", maps[1])


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def _child(workspace: Workspace, command: Callable[[], object], scratch: str, theirs: socket.socket) -> None:
    status = 1
    try:
        sc.unshare(sc.CLONE_NEWUSER)
        theirs.send(b"unshared")
        fds = list(socket.recv_fds(theirs, 16, 2)[1]) or [os.dup(fd) for fd in workspace.fds]
        if workspace.plan.get("privileged"):
            os.setgroups([])
            os.setresgid(0, 0, 0)
            os.setresuid(0, 0, 0)
        sc.unshare(sc.CLONE_NEWNS)
        sc.mount("none", "/", "none", sc.MS_REC | sc.MS_PRIVATE)
        sc.mount("saggar", scratch, "tmpfs", sc.MS_NOSUID | sc.MS_NODEV, "mode=755")
        mounted = mount_workspace(workspace.plan, fds, scratch)
        up = [mounted.upper_fd] if mounted.upper_fd >= 0 else []
        socket.send_fds(theirs, [f"mounted {mounted.layer} {mounted.started_ns}".encode()], up)
        if workspace.plan.get("privileged"):
            uid, gid = workspace.ids
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)
        if mounted.root:
            os.chdir(mounted.root)
        command()
        status = 0
    except BaseException:  # noqa: BLE001  # the test wants to see it, whatever it is
        theirs.send(traceback.format_exc()[-60000:].encode(errors="replace"))
    finally:
        os._exit(status)
