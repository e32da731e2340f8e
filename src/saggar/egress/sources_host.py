"""Where secrets are read: environment, file, keyring, command, Vault or OpenBao.

I1  A source gives the secret or `SourceError`; no error text holds a secret, or what a command or server printed.
I2  A file that others could read or replace is refused: mode 0600 (or stricter), ours, no symlink, a regular file.
I3  Nothing is remembered here: whoever asks again reads again, so a rotated or revoked secret counts at once.
"""

from __future__ import annotations

import http.client
import json
import os
import shlex
import socket
import ssl
import stat
import subprocess
import threading
import time
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote, urlsplit

from saggar.egress.oauth import SECRET_BYTES
from saggar.egress.terms import Source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

LIMIT_BYTES = 64 * 1024
COMMAND_S = 10.0
VAULT_S = 5.0
ATTEMPTS = 3
#: seconds for which an answer of each kind may be used without asking again; a file is watched by its descriptor
LEASE_S = {"env": 3600.0, "file": 1.0, "keyring": 5.0, "command": 30.0, "vault": 5.0}


class SourceError(Exception):
    """A secret could not be had. The text may be logged and shown."""


@dataclass(slots=True)
class Reading:
    """value: the secret. lease_s: how long it may be used. watch_fd: an O_PATH descriptor of the file, or -1."""

    value: str
    lease_s: float
    watch_fd: int = -1

    def __repr__(self) -> str:
        return f"Reading(lease_s={self.lease_s})"


class KvStore(Protocol):
    """A key-value secret store."""

    def read(self, path: str, field: str) -> str:
        """The field's value. Raises SourceError."""
        ...


def read(source: Source, env: Mapping[str, str], store: KvStore | None = None) -> Reading:
    """Read one secret now. env: the supervisor's variables, given once and only those that some source names."""
    lease = LEASE_S[source.kind]
    watch_fd = -1
    if source.kind == "env":
        value = env.get(source.argument)
        if value is None:
            raise SourceError(f"the variable `{source.argument}` is not set")
    elif source.kind == "file":
        value, watch_fd = read_file(source.argument)
    elif source.kind == "keyring":
        value = _keyring(source.argument)
    elif source.kind == "command":
        value = _command(source.argument, env)
    else:
        if store is None:
            raise SourceError("no vault address is configured (`VAULT_ADDR`)")
        path, _, field = source.argument.rpartition("#")
        value = store.read(path, field)
    value = value.removesuffix("\n").removesuffix("\r")
    if len(value) < 8 or not value.isascii() or not value.isprintable():
        if watch_fd >= 0:
            os.close(watch_fd)
        raise SourceError(f"the secret of `{source.kind}` is not 8 or more printable ASCII characters on one line")
    if len(value) > SECRET_BYTES:
        if watch_fd >= 0:
            os.close(watch_fd)
        raise SourceError(f"the secret of `{source.kind}` is longer than {SECRET_BYTES} bytes")
    return Reading(value, lease, watch_fd)


def read_file(path: str) -> tuple[str, int]:
    """(text, watching descriptor). Raises SourceError; see I2."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as e:
        raise SourceError(f"the secret's file cannot be opened: {os.strerror(e.errno or 0)}") from None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise SourceError("the secret's file is not a regular file")
        if status.st_mode & 0o177:
            raise SourceError(
                f"the secret's file has mode {stat.S_IMODE(status.st_mode):04o}; it must be 0600 or stricter"
            )
        if status.st_uid not in (os.geteuid(), 0):
            raise SourceError("the secret's file belongs to somebody else")
        data = os.read(fd, LIMIT_BYTES + 1)
        if len(data) > LIMIT_BYTES:
            raise SourceError("the secret's file is too large")
        return data.decode("latin-1"), os.open(f"/proc/self/fd/{fd}", os.O_PATH | os.O_CLOEXEC)
    except OSError as e:
        raise SourceError(f"the secret's file cannot be read: {os.strerror(e.errno or 0)}") from None
    finally:
        os.close(fd)


def fingerprint(fd: int) -> tuple[int, ...]:
    """What changes when a watched file is rewritten, replaced or removed (a replaced inode loses its link)."""
    status = os.fstat(fd)
    return (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_nlink, status.st_ino)


def _keyring(argument: str) -> str:
    try:
        import keyring
    except ImportError:
        raise SourceError("the `keyring` package is not installed") from None
    service, _, user = argument.rpartition("/")
    try:
        value = keyring.get_password(service, user)
    except Exception as e:  # noqa: BLE001  # backends raise what they like; its text may hold anything
        raise SourceError(f"the keyring failed: {type(e).__name__}") from None
    if value is None:
        raise SourceError("the keyring has no such entry")
    return str(value)


def _command(argument: str, env: Mapping[str, str]) -> str:
    # not in the caller's directory: that is the workspace, and git reads its `.git/config`
    keep = {k: env[k] for k in ("PATH", "HOME", "GNUPGHOME", "DBUS_SESSION_BUS_ADDRESS", "XDG_RUNTIME_DIR") if k in env}
    try:
        done = subprocess.run(
            shlex.split(argument), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env=keep, cwd="/", timeout=COMMAND_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise SourceError(f"the secret's command took more than {COMMAND_S:g} s") from None
    except OSError as e:
        raise SourceError(f"the secret's command cannot be run: {os.strerror(e.errno or 0)}") from None
    if done.returncode:
        raise SourceError(f"the secret's command ended with {done.returncode}")
    return done.stdout[:LIMIT_BYTES].decode("latin-1").partition("\n")[0]


class VaultKv:
    """HashiCorp Vault or OpenBao, KV version 1 or 2, over its HTTP API.

    token: called for every attempt, so that a renewed one counts. jitter: uniform in [0, 1).
    """

    def __init__(self, address: str, token: Callable[[], str], *, namespace: str = "", ca_file: str = "",
                 jitter: Callable[[], float], sleep: Callable[[float], None] = time.sleep) -> None:  # fmt: skip
        try:
            parts = urlsplit(address)
            parts.port  # noqa: B018  # raises where it is no number
        except ValueError:
            raise SourceError("the vault's address is no URL") from None
        local = parts.hostname in ("127.0.0.1", "::1", "localhost")
        if parts.scheme != "https" and not (parts.scheme == "http" and local):
            raise SourceError("the vault's address is not https")
        self._parts = parts
        self._token = token
        self._namespace = namespace
        self._ca_file = ca_file
        self._jitter = jitter
        self._sleep = sleep

    def read(self, path: str, field: str) -> str:
        """Tries again, with growing and random pauses, where the server is unreachable or sealed; never on a refusal."""
        why = ""
        for attempt in range(ATTEMPTS):
            if attempt:
                self._sleep(0.1 * 2**attempt * (0.5 + self._jitter()))
            try:
                status, body = self._get(path)
            except ssl.SSLCertVerificationError as e:
                # no pause mends it
                raise SourceError(f"the vault's certificate cannot be verified: {e.verify_message}") from None
            except (OSError, http.client.HTTPException) as e:
                why = unreachable(e, VAULT_S)
                continue
            if status in (429, 500, 502, 503, 504):
                why = "it is sealed, or not ready: 503" if status == 503 else str(status)
                continue
            if status == 403:
                raise SourceError("the vault refused: 403 (is its token valid, and allowed to read this path?)")
            if status == 404:
                raise SourceError("the vault has no such secret")
            if status != 200:
                raise SourceError(f"the vault refused: {status}")
            return _kv_field(body, field)
        raise SourceError(f"the vault does not answer ({why}), tried {ATTEMPTS} times")

    def _get(self, path: str) -> tuple[int, bytes]:
        port = self._parts.port
        host = self._parts.hostname or ""
        connection: http.client.HTTPConnection
        if self._parts.scheme == "https":
            context = ssl.create_default_context(cafile=self._ca_file or None)
            connection = http.client.HTTPSConnection(host, port, timeout=VAULT_S, context=context)
        else:
            connection = http.client.HTTPConnection(host, port, timeout=VAULT_S)
        token = self._token()
        if not token.isascii() or not token.isprintable():
            # the error of whoever writes the header would show it
            raise SourceError("the vault's token is not one line of printable ASCII")
        headers = {"X-Vault-Token": token, "X-Vault-Request": "true"}
        if self._namespace:
            headers["X-Vault-Namespace"] = self._namespace
        with closing(connection), ends_within(connection, VAULT_S):
            connection.request("GET", f"{self._parts.path.rstrip('/')}/v1/{quote(path.strip('/'))}", headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read(LIMIT_BYTES + 1)


@contextmanager
def ends_within(connection: http.client.HTTPConnection, limit_s: float) -> Iterator[None]:
    """Connect, and end what is asked and answered within when the time is over: the socket's own time-out begins anew with every
    byte, in the head as in the body. Raises TimeoutError then, and OSError or HTTPException as the connection does."""
    connection.connect()
    sock, over = connection.sock, threading.Event()

    def end() -> None:
        over.set()
        with suppress(OSError):
            # the socket's own, under TLS as well: whoever reads sees an end
            socket.socket.shutdown(sock, socket.SHUT_RDWR)

    timer = threading.Timer(limit_s, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (OSError, http.client.HTTPException):
        if over.is_set():
            raise TimeoutError from None
        raise
    finally:
        timer.cancel()
    if over.is_set():
        # what was cut in a body without a length looks whole
        raise TimeoutError


def unreachable(error: Exception, limit_s: float) -> str:
    """Why, in the system's words alone: a peer's own could hold anything."""
    if isinstance(error, TimeoutError):
        return f"nothing within {limit_s:g} s"
    number = error.errno if isinstance(error, OSError) else None
    return os.strerror(number).lower() if number and number > 0 else type(error).__name__


def _kv_field(body: bytes, field: str) -> str:
    try:
        data: Any = json.loads(body[:LIMIT_BYTES])["data"]
    except (ValueError, KeyError, TypeError):
        raise SourceError("the vault's answer is malformed") from None
    if isinstance(data, dict) and isinstance(data.get("data"), dict) and "metadata" in data:
        data = data["data"]
    value = data.get(field) if isinstance(data, dict) else None
    if not isinstance(value, str):
        raise SourceError(f"the vault's secret has no text field `{field}`")
    return value
