"""What the host holds for the attempts to reach: files, sockets, memory and processes with a token in them.

Everything is made by the bench, in one temporary directory and in its own kernel objects, and is taken away at the end. The token
is random per run, so an attempt that prints it has really been there.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from secrets import token_hex

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

_IPC_RMID = 0


class StandIns:
    """Context manager. `root` is the directory, `token` the canary, the rest are addresses inside it."""

    def __init__(self) -> None:
        self.token = f"saggar-canary-{token_hex(8)}"
        self.root = ""
        self.port = self.port6 = self.udp_port = 0
        self.abstract = f"saggar-escape-{token_hex(6)}"
        self.shm_key = int(token_hex(3), 16) | 0x5A000000
        self.process: subprocess.Popen[bytes] | None = None
        self.inherited_fd = -1
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._segment = -1
        self._shm_file = ""

    def path(self, *parts: str) -> str:
        return os.path.join(self.root, *parts)

    @property
    def pid(self) -> int:
        return self.process.pid if self.process else 0

    def __enter__(self) -> Self:
        self.root = tempfile.mkdtemp(prefix="saggar-escapes-")
        os.chmod(self.root, 0o755)  # readable on purpose: only the cell stands between
        for name in (
            "home/.ssh/id_canary",
            "tmp/other",
            "run/secret",
            "standin/file",
            "var/data",
            "etc/shadow",
            "standin/exe",
        ):
            self.write(name, self.token)
        os.makedirs(self.path("mountpoint"))
        self._files_of_the_host()
        self._serve()
        self._share_memory()
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", "import time; time.sleep(3600)", self.token], stdin=subprocess.DEVNULL
        )
        self.inherited_fd = os.open(self.path("home/.ssh/id_canary"), os.O_RDONLY)
        os.set_inheritable(self.inherited_fd, True)
        return self

    def write(self, name: str, text: str) -> str:
        path = self.path(name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as f:
            f.write(text)
        return path

    def workspace(self, name: str) -> str:
        """A fresh workspace with a file, a git directory with a hook, and a link that points outside."""
        base = self.path("workspaces", name)
        os.makedirs(os.path.join(base, ".git", "hooks"))
        for file, text in (("file.txt", "original\n" * 8), (".git/config", "[core]\n"), ("dir/inner.txt", "inner\n")):
            os.makedirs(os.path.dirname(os.path.join(base, file)), exist_ok=True)
            with open(os.path.join(base, file), "w") as f:
                f.write(text)
        os.symlink(self.path("home/.ssh/id_canary"), os.path.join(base, "existing-link"))
        return base

    def _files_of_the_host(self) -> None:
        self._shm_file = f"/dev/shm/saggar-escape-{token_hex(6)}"  # the place that is under test
        with open(self._shm_file, "w") as f:
            f.write(self.token)

    @property
    def shm_file(self) -> str:
        return self._shm_file

    def _serve(self) -> None:
        for family, address in (
            (socket.AF_UNIX, self.path("run/docker.sock")),
            (socket.AF_UNIX, "\0" + self.abstract),
            (socket.AF_INET, ("127.0.0.1", 0)),
            (socket.AF_INET6, ("::1", 0)),
        ):
            listener = socket.socket(family, socket.SOCK_STREAM)
            listener.bind(address)
            listener.listen(16)
            if family == socket.AF_INET:
                self.port = listener.getsockname()[1]
            elif family == socket.AF_INET6:
                self.port6 = listener.getsockname()[1]
            elif isinstance(address, str) and not address.startswith("\0"):
                os.chmod(address, 0o666)  # open to everyone: only the cell stands between
            self._sockets.append(listener)
            self._start(self._greet, listener)
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        udp.bind(("127.0.0.1", 0))
        self.udp_port = udp.getsockname()[1]
        self._sockets.append(udp)
        self._start(self._echo, udp)
        datagram = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        datagram.bind(self.path("run/log"))
        os.chmod(self.path("run/log"), 0o666)
        self._sockets.append(datagram)

    def _start(self, target: object, s: socket.socket) -> None:
        thread = threading.Thread(target=target, args=(s,), daemon=True)  # type: ignore[arg-type]
        thread.start()
        self._threads.append(thread)

    def _greet(self, listener: socket.socket) -> None:
        while True:
            try:
                peer, _ = listener.accept()
                peer.sendall(self.token.encode())
                peer.close()
            except OSError:
                return

    def _echo(self, udp: socket.socket) -> None:
        while True:
            try:
                _, peer = udp.recvfrom(64)
                if peer is None:  # shut down
                    return
                udp.sendto(self.token.encode(), peer)
            except OSError:
                return

    def _share_memory(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._segment = libc.shmget(self.shm_key, 4096, 0o1666)
        libc.shmat.restype = ctypes.c_void_p
        address = libc.shmat(self._segment, None, 0)
        ctypes.memmove(address, self.token.encode(), len(self.token))
        libc.shmdt(ctypes.c_void_p(address))

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        for s in self._sockets:
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            s.close()
        for thread in self._threads:
            thread.join(2)
        if self.inherited_fd >= 0:
            os.close(self.inherited_fd)
        ctypes.CDLL(None).shmctl(self._segment, _IPC_RMID, None)
        if self._shm_file:
            os.unlink(self._shm_file)
        shutil.rmtree(self.root, ignore_errors=True)
