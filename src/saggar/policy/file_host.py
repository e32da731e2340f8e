"""Reading policy files, and which names a workspace has a hand in: the only part of the policy that touches the file system."""

from __future__ import annotations

import os
import stat

from saggar.core.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_FILE = 1024 * 1024


def read(path: str) -> str:
    """The text of a policy file. Raises `UsageError` where it cannot be read, is no regular file, or is no UTF-8."""
    try:
        # O_NONBLOCK: a fifo in the place of the file must not hang the command
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as e:
        cause = getattr(e, "strerror", None) or str(e)
        raise UsageError(f"cannot read the policy: {cause.lower()}", file=path) from None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise UsageError("cannot read the policy: not a regular file", file=path)
        data = b""
        while len(data) <= MAX_FILE and (part := os.read(fd, MAX_FILE)):
            data += part
    except OSError as e:
        raise UsageError(f"cannot read the policy: {(e.strerror or '').lower()}", file=path) from None
    finally:
        os.close(fd)
    if len(data) > MAX_FILE:
        raise UsageError("the policy is longer than 1 MiB", file=path)
    try:
        return data.decode()
    except UnicodeDecodeError as e:
        raise UsageError("not UTF-8", file=path, line=data.count(b"\n", 0, e.start) + 1) from None


def absolute(path: str) -> str:
    return os.path.abspath(path)


def exists(path: str) -> bool:
    return os.path.lexists(path)


def is_below(path: str, directory: str) -> bool:
    """Whether `path`, or any symlink on the way to it, lies in `directory`: who writes there could make it another file."""
    top = os.path.realpath(directory).rstrip("/") + "/"
    return any(f"{place}/".startswith(top) for place in _places(path))


def link_below(path: str, directory: str) -> bool:
    """Whether a symlink on the way to `path` lies in `directory`, the file itself aside."""
    top = os.path.realpath(directory).rstrip("/") + "/"
    return any(f"{place}/".startswith(top) for place in list(_places(path))[:-1])


def search_path(path: str, directory: str) -> str:
    """The entries of a `PATH` that whoever writes in `directory` ("" for none) has no hand in.

    Relative and empty ones count from the current directory, which is the workspace as often as not: they go as well.
    "" where nothing is left, which as a `PATH` would mean the current directory.
    """
    return ":".join(e for e in path.split(":") if e.startswith("/") and not (directory and is_below(e, directory)))


def open_for_writing(path: str, workspace: str) -> int:
    """A descriptor of a file that the command line named for output, made where there is none; not truncated.

    A link in the workspace may be an earlier cell's and lead anywhere the caller may write: none is followed, and what is
    no regular file there is refused (a fifo would hang the command). Outside, `/dev/stdout` and fifos are what they are.
    Raises `UsageError`, OSError.
    """
    if link_below(path, workspace):
        raise UsageError(
            "a symbolic link in the workspace leads to this file",
            file=path,
            hint="name the file itself, or remove the link",
        )
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY
    whole = os.path.join(os.getcwd(), path)
    # by the name's own directory: `/dev/stdout` is not inside, whatever it is redirected to
    inside = is_below(os.path.dirname(whole), workspace)
    fd = os.open(path, flags | (os.O_NOFOLLOW | os.O_NONBLOCK if inside else 0), 0o666)
    if inside and not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise UsageError("no regular file, in the workspace", file=path, hint="remove it first")
    return fd


def _places(path: str) -> Iterator[str]:
    """The real places of every symlink that resolving `path` meets, then of the file itself."""
    whole = path if path.startswith("/") else f"{os.getcwd()}/{path}"
    todo = whole.split("/")[::-1]
    place, hops = "", 0
    while todo:
        name = todo.pop()
        if name in {"", "."}:
            continue
        if name == "..":
            place = place.rpartition("/")[0]
            continue
        candidate = f"{place}/{name}"
        try:
            target = os.readlink(candidate)
        except OSError:
            place = candidate
            continue
        yield candidate
        hops += 1
        if hops > 40:  # as the kernel does (ELOOP)
            return
        place = "" if target.startswith("/") else place
        todo += target.split("/")[::-1]
    yield place or "/"
