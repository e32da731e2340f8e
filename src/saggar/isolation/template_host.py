"""A process that has what is the same for every cell of a kind, and forks their first processes
(docs/decisions/0018-a-template-for-every-birth.md).

It sits in a user namespace in which a cell's user is mapped, and in a mount namespace with the generic part of the root
(`rootfs_mount_host.furnish`). A birth is one clone3 of it into new namespaces.

I1  It runs nothing of any run, holds nothing of any run, and what it hands on takes no write.
I2  What it forks is the launcher's child, not its own: its end is no cell's, and a cell's is none of its business.
I3  It ends with the launcher, by end of file and by the parent's death.
"""

from __future__ import annotations

import _signal
import gc
import os
from select import POLLIN, poll

from saggar.isolation import child_host, child_ids_host
from saggar.isolation import syscalls_host as sys_
from saggar.isolation import wire_host as wire
from saggar.isolation.child_host import Birth
from saggar.isolation.rootfs_mount_host import furnish

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from saggar.isolation.child_ids_host import Ids
    from saggar.isolation.rootfs_host import System
    from saggar.isolation.rootfs_mount_host import Furnishing

#: Of a first process; its network comes later, and a user namespace of its own where the kernel counts tasks by that.
_NAMESPACES = sys_.CLONE_NEWNS | sys_.CLONE_NEWPID | sys_.CLONE_NEWIPC | sys_.CLONE_NEWUTS
#: How long one clone3 may take: 1 ms, unless somebody has stopped the process.
_ANSWER_MS = 1000


class Template:
    """The launcher's end."""

    __slots__ = ("_asked", "_channel", "_kind", "ended", "lost", "pid", "system")

    def __init__(  # noqa: PLR0917  # one caller
        self,
        birth: Birth,
        launcher: int,
        ids: Ids | None,
        shown: list[tuple[str, str]],
        system: System,
        furnishing: Furnishing,
    ) -> None:
        """launcher: this process. shown: see `furnish`. Raises OSError."""
        self._kind = _kind(birth)
        self.system = system
        self._asked = False
        #: whether it has been waited for: the number may be another's
        self.ended = False
        #: whether it may have forked a child that it did not name
        self.lost = False
        self._channel, theirs = wire.pair()
        self.pid = os.fork()
        if self.pid == 0:
            _serve(theirs, launcher, birth, ids, shown, furnishing)
        theirs.close()

    def fits(self, birth: Birth) -> bool:
        return self._kind == _kind(birth)

    def check(self) -> None:
        """Raises OSError where it is furnished with what the host has no more."""
        if not self.system.current():
            raise OSError(116, "the host's files are others now")  # ESTALE

    def ask(self, birth: Birth, channel: wire.Socket) -> None:
        """Have a child of this kind born, which is to speak on `channel`. Raises OSError."""
        wire.send(self._channel, {"listeners": birth.listeners, "scratch": birth.scratch}, [channel.fileno()])
        self._asked = True

    def answer(self) -> int:
        """Its process id, a child of this process. Raises OSError; then there is no use for the template any more."""
        waiting = poll()
        waiting.register(self._channel.fileno(), POLLIN)
        message = wire.receive(self._channel)[0] if waiting.poll(_ANSWER_MS) else None
        if message is None:
            raise OSError(110, "the template does not answer")
        self._asked = False
        if not message["pid"]:
            raise OSError(message["errno"], message["message"])
        return int(message["pid"])

    def drop(self) -> None:
        """End of file is its end. One that was asked and did not answer may have left a child: `lost`."""
        self._channel.close()
        self.lost = self._asked
        if self._asked and not self.ended:
            os.kill(self.pid, 9)


def _kind(birth: Birth) -> tuple[Any, ...]:
    return birth.ids, birth.uid, birth.gid, birth.place, birth.wheel


class _Maker:
    """What the process keeps. launcher: pidfd. home: its own network namespace."""

    __slots__ = ("channel", "home", "launcher")

    def __init__(self, channel: wire.Socket, launcher: int, home: int) -> None:
        self.channel = channel
        self.launcher = launcher
        self.home = home


def _serve(  # noqa: PLR0917  # one caller, above
    channel: wire.Socket,
    launcher_pid: int,
    birth: Birth,
    ids: Ids | None,
    shown: list[tuple[str, str]],
    furnishing: Furnishing,
) -> NoReturn:
    try:
        _signal.set_wakeup_fd(-1)
        child_host.close_but(channel.fileno(), -1 if ids is None else ids.own)
        sys_.die_with_parent(launcher_pid)
        launcher = os.pidfd_open(launcher_pid)
        if ids is not None:
            child_ids_host.become_stranger(ids, birth.uid, birth.gid)
        else:
            host = os.getuid(), os.getgid()
            sys_.unshare(sys_.CLONE_NEWUSER)
            child_ids_host.map_user(host, birth.uid, birth.gid)
        # a change of credentials: the kernel has forgotten the wish
        sys_.die_with_parent(launcher_pid)
        child_host.own_mounts()
        # one of its own, to come back to from those that it makes (`_bear`)
        sys_.unshare(sys_.CLONE_NEWNET)
        home = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        furnish(birth.place, furnishing, (birth.uid, birth.gid), shown, console=False)
        gc.freeze()
        while True:
            message, fds = wire.receive(channel)
            if message is None:
                break
            birth.listeners, birth.scratch = message["listeners"], message["scratch"]
            _bear(_Maker(channel, launcher, home), fds[0], birth, furnishing)
    finally:
        os._exit(0)


def _bear(maker: _Maker, fd: int, birth: Birth, furnishing: Furnishing) -> None:
    """Fork the first process, and make its network while it makes its root: with it in the fork, a birth takes 0.7 ms longer."""
    theirs, network = wire.pair()
    try:
        pid = sys_.fork_sibling(_NAMESPACES)
    except OSError as error:
        os.close(fd)
        wire.send(maker.channel, {"pid": 0, "errno": error.errno, "message": str(error)})
        return
    if pid == 0:
        maker.channel.close()
        os.close(maker.home)
        network.close()
        child_host.born(wire.adopt(fd), maker.launcher, birth, furnishing, theirs)
    theirs.close()
    wire.send(maker.channel, {"pid": pid})
    child = wire.adopt(fd)
    step = child_host.Step(child)
    step.name = "network"
    try:
        sys_.unshare(sys_.CLONE_NEWNET)
        left_out = child_host.open_network(0, child, birth, step)
        made = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        child_host.tell_failure(step, "", error)
    else:
        try:
            wire.send(network, {"left_out": left_out}, [made])
        except OSError:
            # it was ended meanwhile
            pass
        os.close(made)
    finally:
        # at once: nothing may keep a cell's network when the cell is gone
        sys_.setns(maker.home, sys_.CLONE_NEWNET)
        network.close()
        child.close()
