"""Reading policy files: the only part of the policy that touches the file system."""

from __future__ import annotations

import os
import stat

from saggar.core.errors import UsageError

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
    """Whether `path`, as written or with every symlink resolved, is `directory` or lies below it."""
    top = os.path.realpath(directory).rstrip("/") + "/"
    return any(f"{p}/".startswith(top) for p in (os.path.realpath(path), os.path.abspath(path), _of_parent(path)))


def _of_parent(path: str) -> str:
    """The place of the directory entry itself, whatever it links to."""
    parent, name = os.path.split(os.path.abspath(path))
    return os.path.join(os.path.realpath(parent), name)
