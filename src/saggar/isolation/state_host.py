"""Saggar's state directory: where a run's lock, record, log and changes live, and nothing else of Saggar's does.

I1  The directory and all above a run's own files are mode 0700 and the caller's; a symbolic link or another owner is refused.
I2  A run is alive exactly while somebody holds `flock` on its `lock`; the kernel lets go when the holder dies.
I3  A run appears under its id complete (directory, lock held), and leaves it in one rename.
I4  Removal goes by descriptor, follows no link, leaves the file system of the run's directory alone above it, and needs
    neither permissions nor short paths of what the cell left.

On the `saggar run` path: no json, no pathlib; `meta.jsonl` is written with the audit log's canonical encoder.
"""

from __future__ import annotations

import errno
import fcntl
import os
from stat import S_ISDIR
from time import gmtime, time

from saggar.audit.canonical import encode
from saggar.core.errors import UsageError
from saggar.isolation.discard_host import remove_tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

KEEP_S = 7 * 86400
#: a run costs a sweep about 40 us, and starts can be frequent
SWEEP_EVERY_S = 60
SWEEP_RUNS = 256
#: a directory that lost its maker before it got its name is left alone for this long
_UNFINISHED_S = 60
_BASE32 = "abcdefghijklmnopqrstuvwxyz234567"
_ORDERED = "234567abcdefghijklmnopqrstuvwxyz"
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
META = "meta.jsonl"
_NEW, _GONE = ".new-", ".gone-"
_ID_LENGTH = len("r20261130T100000-abc123")

LIVE, ENDED = b"live\n", b"ended\n"


def valid_id(text: str) -> bool:
    """Whether `text` is a whole run id: `r`, UTC yyyymmddThhmmss, `-`, six base32 characters."""
    return len(text) == _ID_LENGTH and valid_prefix(text)


def valid_prefix(text: str) -> bool:
    """Whether `text` could begin a run id. Nothing else ever reaches a file name."""
    if not text or len(text) > _ID_LENGTH or not text.isascii():
        return False
    for i, c in enumerate(text):
        good = (
            c == "r"
            if i == 0
            else c == "T"
            if i == 9
            else c == "-"
            if i == 16
            else c in _BASE32
            if i > 16
            else c.isdigit()
        )
        if not good:
            return False
    return True


def new_id(now: float, noise: bytes) -> str:
    """A run id for the moment `now`: the second, three characters for the 32,768th of it, three of noise.

    Ids sort by time, so that the latest run is the last one even of a second.
    """
    second = int(now)
    t = gmtime(second)
    stamp = f"{t[0]:04d}{t[1]:02d}{t[2]:02d}T{t[3]:02d}{t[4]:02d}{t[5]:02d}"
    part = int((now - second) * 32768)
    fraction = "".join(_ORDERED[part >> shift & 31] for shift in (10, 5, 0))
    return f"r{stamp}-{fraction}" + "".join(_BASE32[b & 31] for b in noise[:3])


def state_path(env: Mapping[str, str]) -> str:
    """Where the state directory is for this environment: absolute, not yet made. Raises UsageError."""
    path = env.get("SAGGAR_STATE_DIR", "")
    if path:
        if not path.startswith("/"):
            raise UsageError(f"`SAGGAR_STATE_DIR` is not an absolute path: `{path}`")
        return path
    base = env.get("XDG_STATE_HOME", "")
    if base.startswith("/"):
        return base.rstrip("/") + "/saggar"
    home = env.get("HOME", "")
    if not home.startswith("/"):
        raise UsageError("no place for saggar's state", hint="set `SAGGAR_STATE_DIR` or `HOME` to an absolute path")
    return home.rstrip("/") + "/.local/state/saggar"


def open_state(env: Mapping[str, str]) -> State:
    """The state directory, made when it is missing. Raises UsageError where it cannot be trusted or made (I1)."""
    path = state_path(env)
    try:
        return State(path)
    except OSError as e:
        if e.errno in (errno.ELOOP, errno.ENOTDIR) and os.path.islink(path):
            raise UsageError(
                f"the state directory `{path}` is a symbolic link", hint="set `SAGGAR_STATE_DIR`"
            ) from None
        raise UsageError(
            f"the state directory `{path}` cannot be used: {e.strerror}", hint="set `SAGGAR_STATE_DIR`"
        ) from e


class State:
    """An open state directory. Every name below it is resolved from its descriptor."""

    __slots__ = ("_runs_fd", "fd", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self.fd = os.open(path, _DIRECTORY)
        except FileNotFoundError:
            # parents with the caller's umask, the directory itself private from its first moment
            os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
            try:
                os.mkdir(path, 0o700)
            except FileExistsError:
                # another run was first; whether it can be trusted is checked below
                pass
            self.fd = os.open(path, _DIRECTORY)
        self._check()
        self._runs_fd = self._open_runs()

    def _check(self) -> None:
        status = os.fstat(self.fd)
        if status.st_uid != os.geteuid():
            os.close(self.fd)
            raise UsageError(
                f"the state directory `{self.path}` belongs to user {status.st_uid}", hint="set `SAGGAR_STATE_DIR`"
            )
        if status.st_mode & 0o077:
            os.fchmod(self.fd, 0o700)

    def _open_runs(self) -> int:
        try:
            return os.open("runs", _DIRECTORY, dir_fd=self.fd)
        except FileNotFoundError:
            _mkdir("runs", self.fd)
            return os.open("runs", _DIRECTORY, dir_fd=self.fd)

    def identity(self) -> tuple[int, int]:
        """(device, inode), for comparison with the workspace and the directories above it."""
        status = os.fstat(self.fd)
        return status.st_dev, status.st_ino

    def new_run(self, *, now: float | None = None) -> RunDir:
        """A new run directory with its lock held (I3). Raises OSError (ENOSPC, EDQUOT, EROFS)."""
        moment = time() if now is None else now
        while True:
            run_id = new_id(moment, os.urandom(3))
            unfinished = _NEW + run_id
            try:
                os.mkdir(unfinished, 0o700, dir_fd=self._runs_fd)
            except FileExistsError:
                continue
            fd = lock = -1
            try:
                fd = os.open(unfinished, _DIRECTORY, dir_fd=self._runs_fd)
                lock = os.open("lock", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=fd)
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.write(lock, LIVE)
                if _exists(run_id, self._runs_fd):
                    raise FileExistsError(errno.EEXIST, "the run id is taken", run_id)
                os.rename(unfinished, run_id, src_dir_fd=self._runs_fd, dst_dir_fd=self._runs_fd)
            except OSError:
                _close(fd, lock)
                remove_tree(unfinished, self._runs_fd)
                raise
            return RunDir(run_id, fd, lock, f"{self.path}/runs/{run_id}")

    def names(self) -> list[str]:
        """The ids of all runs, oldest first."""
        return sorted(n for n in os.listdir(self._runs_fd) if valid_id(n))

    def runs(self, *, latest_first: bool = False) -> Iterator[RunDir]:
        """All runs by age, opened one by one without their lock, each closed when the next is asked for. A run that goes
        away meanwhile is left out."""
        for name in sorted(self.names(), reverse=latest_first):
            try:
                run = self._open(name)
            except FileNotFoundError:
                continue
            try:
                yield run
            finally:
                run.close()

    def open_run(self, text: str) -> RunDir:
        """The run whose id is, or uniquely begins with, `text`. Raises UsageError."""
        if not valid_prefix(text):
            raise UsageError(f"`{text}` is not a run id", hint="`saggar runs` lists them")
        found = [n for n in self.names() if n.startswith(text)]
        if len(found) > 1 and text not in found:
            raise UsageError(f"`{text}` begins {len(found)} run ids", hint=f"the latest is `{found[-1]}`")
        if not found:
            raise UsageError(f"no run `{text}`", hint="`saggar runs` lists them; runs are kept for 7 days")
        try:
            return self._open(text if text in found else found[0])
        except OSError:
            raise UsageError(f"no run `{text}`", hint="it was discarded just now") from None

    def _open(self, name: str) -> RunDir:
        fd = os.open(name, _DIRECTORY, dir_fd=self._runs_fd)
        return RunDir(name, fd, -1, f"{self.path}/runs/{name}")

    def discard(self, run: RunDir) -> bool:
        """Remove a dead run and all of it; False when it is alive. Raises OSError where something cannot be removed."""
        if not run.acquire():
            return False
        gone = _GONE + run.id
        try:
            os.rename(run.id, gone, src_dir_fd=self._runs_fd, dst_dir_fd=self._runs_fd)
        except FileNotFoundError:
            return True
        remove_tree(gone, self._runs_fd)
        return True

    def sweep(self, *, now: float | None = None, limit: int = 1 << 30) -> tuple[list[str], list[str]]:
        """Mark runs whose holder died, discard the expired, clear what was left half made or half removed.

        Gives (ids that may be alive, ids newly marked dead): what the cgroups of all others left is the limits' side to
        remove. limit: how many runs to look at, from a random one on; the others count as alive. Errors of one run do
        not stop the sweep of the others.
        """
        moment = time() if now is None else now
        names = os.listdir(self._runs_fd)
        first = int.from_bytes(os.urandom(4), "little") % len(names) if len(names) > limit else 0
        names = names[first:] + names[:first]
        alive: list[str] = [n for n in names[limit:] if valid_id(n)]
        died: list[str] = []
        for name in names[:limit]:
            try:
                if name.startswith((_NEW, _GONE)):
                    self._sweep_unnamed(name, moment)
                elif valid_id(name):
                    self._sweep_run(name, moment, alive, died)
            except OSError:
                continue
        return alive, died

    def sweep_due(self, *, now: float | None = None) -> bool:
        """Whether a start should sweep: not when another did within SWEEP_EVERY_S. Notes that this one does."""
        moment = time() if now is None else now
        try:
            if moment - os.stat("swept", dir_fd=self.fd, follow_symlinks=False).st_mtime < SWEEP_EVERY_S:
                return False
        except FileNotFoundError:
            pass
        fd = os.open("swept", os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=self.fd)
        os.utime(fd, (moment, moment))
        os.close(fd)
        return True

    def _sweep_run(self, name: str, now: float, alive: list[str], died: list[str]) -> None:
        run = self._open(name)
        try:
            if not run.acquire():
                alive.append(name)
            elif run.state() != ENDED:
                run.end("supervisor_died", now=now)
                died.append(name)
            elif run.ended() + KEEP_S < now:
                self.discard(run)
        finally:
            run.close()

    def _sweep_unnamed(self, name: str, now: float) -> None:
        status = os.stat(name, dir_fd=self._runs_fd, follow_symlinks=False)
        if name.startswith(_NEW) and now - status.st_ctime < _UNFINISHED_S:
            return
        remove_tree(name, self._runs_fd)

    def close(self) -> None:
        """Give the descriptors back."""
        _close(self.fd, self._runs_fd)
        self.fd = self._runs_fd = -1


class RunDir:
    """One run's directory, by descriptor. `path` is for messages and for the audit log's file name only."""

    __slots__ = ("_meta", "fd", "id", "lock_fd", "path")

    def __init__(self, run_id: str, fd: int, lock_fd: int, path: str) -> None:
        self.id = run_id
        self.fd = fd
        self.lock_fd = lock_fd
        self.path = path
        self._meta: dict[str, Any] | None = {} if lock_fd >= 0 else None

    def acquire(self) -> bool:
        """Take the run's lock if nobody lives behind it; True when it is ours. A directory without a lock file is dead."""
        if self.lock_fd >= 0:
            return True
        fd = os.open("lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=self.fd)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return False
        self.lock_fd = fd
        return True

    def state(self) -> bytes:
        """What the holder of the lock last wrote: LIVE or ENDED. Reads the file, does not ask for the lock."""
        fd = os.open("lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.fd)
        try:
            return os.read(fd, 16)
        finally:
            os.close(fd)

    def ended(self) -> float:
        """When the run ended (seconds since the epoch): the lock file's last write."""
        return os.stat("lock", dir_fd=self.fd, follow_symlinks=False).st_mtime

    def meta(self) -> dict[str, Any]:
        """What is known of the run; {} when it died before anything was written."""
        if self._meta is None:
            self._meta = _read_lines(META, self.fd)
        return dict(self._meta)

    def update(self, **fields: Any) -> None:
        """Add `fields` to what is known, or change them, in one write.

        Lines are appended: to replace the file would cost 2 ms on a busy ext4, which flushes what a rename replaces.
        """
        new = {k: _printable(v) for k, v in fields.items()}
        fd = os.open(META, _APPEND, 0o600, dir_fd=self.fd)
        try:
            # the newline comes first: a line that a full disk cut short spoils nothing but itself
            line = b"\n" + encode(new)
            if os.write(fd, line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), META)
        finally:
            os.close(fd)
        self._meta = {**self.meta(), **new}

    def end(self, cause: str, *, head: str = "", now: float | None = None) -> None:
        """Record how the run ended. The lock stays held until `close`, so that nobody discards it half written.

        head: of the audit log then, which `saggar log verify` looks for later: a log cut after this shows it.
        """
        known = {"audit_head": head} if head else {}
        self.update(cause=cause, ended=round(time() if now is None else now, 3), **known)
        # over the shorter word, and no truncation: that waits for the first word's way to the disk, 2 ms
        os.pwrite(self.lock_fd, ENDED, 0)

    def close(self) -> None:
        """Give the descriptors back, and with the lock's the lock."""
        _close(self.fd, self.lock_fd)
        self.fd = self.lock_fd = -1


def _read_lines(name: str, dir_fd: int) -> dict[str, Any]:
    """The fields of all lines, later ones over earlier ones; {} where there is no file. Damaged lines say nothing."""
    from saggar.audit.canonical import decode
    from saggar.core.errors import ParseError

    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)
    except FileNotFoundError:
        return {}
    with open(fd, "rb") as file:
        data = file.read()
    fields: dict[str, Any] = {}
    for line in data.split(b"\n"):
        try:
            value = decode(line) if line else {}
        except ParseError:
            continue
        if isinstance(value, dict):
            fields.update(value)
    return fields


def write_file(name: str, data: bytes, dir_fd: int) -> None:
    """Replace a file of ours in one rename. Raises OSError and leaves the old one where the disk is full."""
    part = name + ".part"
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=dir_fd)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
    finally:
        os.close(fd)
    os.rename(part, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)


def _printable(value: Any) -> Any:
    """`value` with bytes that are not UTF-8 (lone surrogates, as in argv and paths) shown as escapes."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    return [_printable(v) for v in value] if isinstance(value, (list, tuple)) else value


def _mkdir(name: str, dir_fd: int) -> None:
    try:
        os.mkdir(name, 0o700, dir_fd=dir_fd)
    except FileExistsError:
        if not S_ISDIR(os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode):
            raise


def _exists(name: str, dir_fd: int) -> bool:
    try:
        os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _close(*fds: int) -> None:
    for fd in fds:
        if fd >= 0:
            os.close(fd)
