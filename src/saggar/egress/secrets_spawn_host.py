"""Start the secrets process beside a broker. On the supervisor's side; imports nothing that costs.

The child gets two descriptors, an empty environment but what `start` sends it, and dies when either peer is gone.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from fcntl import F_DUPFD_CLOEXEC, fcntl
from signal import SIGKILL

from saggar.core.errors import Unenforceable, UsageError
from saggar.core.room_host import with_room

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# `-I` keeps PYTHONPATH and the current directory out; the package's own root is put back by name
_CODE = "import sys; sys.path.insert(0, sys.argv.pop(1)); from saggar.egress.secrets_host import main; sys.exit(main())"
_VAULT = ("VAULT_ADDR", "BAO_ADDR", "VAULT_TOKEN", "BAO_TOKEN", "VAULT_TOKEN_FILE", "VAULT_NAMESPACE", "VAULT_CACERT")
_VALUE_BYTES = 16 * 1024
_COMMAND = ("PATH", "HOME", "GNUPGHOME", "DBUS_SESSION_BUS_ADDRESS", "XDG_RUNTIME_DIR")


class SecretsProcess:
    """pid; control: the supervisor's socket; broker: the end to hand to the broker (close it here afterwards)."""

    __slots__ = ("broker", "control", "lockdown", "pid")

    def __init__(self, pid: int, control: socket.socket, broker: socket.socket) -> None:
        self.pid = pid
        self.control = control
        self.broker = broker
        self.lockdown: dict[str, str] = {}

    def add(
        self, cell: str, task: str, hosts: Iterable[str], specs: Iterable[Mapping[str, Any]], *, java_roots: str = ""
    ) -> tuple[str, bytes]:
        """Bind a task's credentials. Its CA certificate as PEM, to be trusted inside the cell; and Java's trust store where
        `java_roots` gives the roots (PEM) that belong into it."""
        message = {"op": "add", "cell": cell, "task": task, "hosts": list(hosts), "secrets": list(specs)}
        fds = []
        if java_roots:
            fds.append(os.memfd_create("roots", os.MFD_CLOEXEC))
            os.write(fds[0], java_roots.encode())
        data = json.dumps(message).encode()
        with_room(lambda: socket.send_fds(self.control, [data], fds))
        for fd in fds:
            os.close(fd)
        answer, fds = self._hear()
        store = b""
        for fd in fds:
            store = os.pread(fd, os.fstat(fd).st_size, 0)
            os.close(fd)
        return str(answer["ca"]), store

    def remove(self, cell: str) -> None:
        self._tell({"op": "remove", "cell": cell})

    def rotate(self, cell: str) -> None:
        """Forget what was fetched: the next request reads its source again."""
        self._tell({"op": "rotate", "cell": cell})

    def stop(self) -> None:
        """End the process, and with it every secret and the CA's key, and collect it."""
        self.control.close()
        self.broker.close()
        if self.pid > 0:
            os.kill(self.pid, SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = 0

    def _tell(self, message: Mapping[str, Any]) -> None:
        self.control.send(json.dumps(message).encode())

    def _hear(self) -> tuple[dict[str, Any], list[int]]:
        data, fds, _, _ = socket.recv_fds(self.control, 64 * 1024, 4)
        if not data:
            raise Unenforceable(
                "the secrets process ended", cause="see its last words on stderr", remedy="run `saggar doctor`"
            )
        answer: dict[str, Any] = json.loads(data)
        return answer, fds


def _sources(specs: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    parts = [str(text).partition(":") for spec in specs for text in spec["sources"].values()]
    return [(kind, argument) for kind, _, argument in parts]


def secret_files(specs: Iterable[Mapping[str, Any]], env: Mapping[str, str]) -> list[str]:
    """The files that hold a secret: each `file:` source, and the token file of a vault."""
    sources = _sources(specs)
    files = [argument for kind, argument in sources if kind == "file"]
    if any(kind == "vault" for kind, _ in sources) and env.get("VAULT_TOKEN_FILE"):
        files.append(env["VAULT_TOKEN_FILE"])
    return files


def trusted_files(specs: Iterable[Mapping[str, Any]], env: Mapping[str, str]) -> list[str]:
    """What decides over a secret without holding it: the paths that a `command:` source executes or names, and CA files."""
    from shlex import split

    words = [word for kind, argument in _sources(specs) if kind == "command" for word in split(argument)]
    # a word that is no path of the host, an option say, lies nowhere
    files = [word for i, word in enumerate(words) if not i or word.startswith("/") or os.path.lexists(word)]
    return files + [env[name] for name in ("VAULT_CACERT", "SSL_CERT_FILE") if env.get(name)]


def start_secrets(specs: Iterable[Mapping[str, Any]], env: Mapping[str, str]) -> SecretsProcess:
    """Start and lock down the process for credentials of these kinds. Raises OSError, Unenforceable.

    specs: `SecretSpec.to_json()` of all hosts; decides which variables it is told, whether it may run programs, and
    whether it may connect. env: the supervisor's environment.
    """
    specs = list(specs)
    sources = _sources(specs)
    oauth = any(spec["kind"] == "oauth2" for spec in specs)
    kinds = {kind for kind, _ in sources}
    names = {argument for kind, argument in sources if kind == "env"}
    if "vault" in kinds:
        names |= set(_VAULT)
    if "command" in kinds:
        names |= set(_COMMAND)
    if oauth or "vault" in kinds:
        names.add("SSL_CERT_FILE")
    files = secret_files(specs, env)
    if "vault" in kinds and env.get("VAULT_CACERT"):
        files.append(env["VAULT_CACERT"])
    if oauth and env.get("SSL_CERT_FILE"):
        files.append(env["SSL_CERT_FILE"])
    told = {n: env[n] for n in names if n in env}
    for name, value in told.items():
        # in `PATH` and the like there is no secret, but it goes in the same message
        if len(value) > _VALUE_BYTES:
            raise UsageError(
                f"the variable `{name}` is longer than {_VALUE_BYTES} bytes", hint="no secret is that long"
            )
    process = _spawn()
    process._tell(
        {
            "op": "start",
            "env": told,
            "files": files,
            # keyrings talk to services over D-Bus, which the same walls would stop
            "commands": bool(kinds & {"command", "keyring"}),
            "network": oauth or bool(kinds & {"vault", "keyring", "command"}),
        }
    )
    process.lockdown = process._hear()[0]["lockdown"]
    return process


def _spawn() -> SecretsProcess:
    control, control_child = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    broker, broker_child = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        # free numbers beyond the child's 3 and 4: a fixed one may be another's descriptor in a caller that has many
        high = [fcntl(s.fileno(), F_DUPFD_CLOEXEC, 5) for s in (control_child, broker_child)]
        actions = [(os.POSIX_SPAWN_DUP2, high[0], 3), (os.POSIX_SPAWN_DUP2, high[1], 4)]
        pid = os.posix_spawn(
            sys.executable, [sys.executable, "-I", "-c", _CODE, _ROOT, "3", "4"], {}, file_actions=actions
        )
        for fd in high:
            os.close(fd)
    finally:
        control_child.close()
        broker_child.close()
    return SecretsProcess(pid, control, broker)
