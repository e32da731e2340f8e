"""Remembers what a package tool said about its index, since asking costs 0.5 to 5 s and the answer rarely changes.

I1  An answer stands only for the very tool, environment and configuration files that gave it, and for a day.
I2  It is kept in the state directory, private to the user; a file that is anything but ours is not read.
"""

from __future__ import annotations

import json
import os
from hashlib import sha256
from stat import S_ISREG

from saggar.core.errors import UsageError
from saggar.isolation.registry import Projection
from saggar.isolation.toolchain_host import resolve

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

KEEP_S = 86_400
_NAME = "registries.json"
_BYTES = 1 << 20
_VARIABLES = ("pip_", "npm_config_", "pyenv_", "xdg_config", "appdata")
_PLAIN = ("home", "http_proxy", "https_proxy", "all_proxy", "no_proxy", "virtual_env", "ssl_cert_file")


def fingerprint(tool: str, program: str, env: Mapping[str, str], files: Iterable[str]) -> str:
    """Of everything that decides the tool's answer."""
    relevant = sorted((k, v) for k, v in env.items() if k.lower().startswith(_VARIABLES) or k.lower() in _PLAIN)
    facts: list[Any] = [tool, relevant, _stat(program), sorted((f, _stat(f)) for f in files)]
    try:
        behind = resolve(tool, path=os.path.dirname(program), cwd="/", workspace="", env=env).argv0
    except UsageError:
        behind = ""
    facts.append((behind, _stat(behind) if behind.startswith("/") else None))
    return sha256(json.dumps(facts, default=str).encode("utf-8", "surrogateescape")).hexdigest()


def recall(
    state: str, tool: str, program: str, env: Mapping[str, str], now: float
) -> tuple[Projection | None, list[str]]:
    """The answer that still stands, or None, and the configuration files that it rests on. state: the state directory."""
    entry: Any = _load(state).get(tool)
    try:
        files = [str(f) for f in entry["files"]]
        if not 0 <= now - entry["time"] < KEEP_S or entry["of"] != fingerprint(tool, program, env, files):
            return None, []
        variables = {str(k): str(v) for k, v in entry["env"].items()}
        return Projection([str(a) for a in entry["allow"]], variables, [str(n) for n in entry["notes"]]), files
    except (TypeError, KeyError, AttributeError):
        return None, []


def remember(  # noqa: PLR0917  # one caller
    state: str, tool: str, program: str, env: Mapping[str, str], files: Iterable[str], found: Projection, now: float
) -> None:
    """Keep an answer. A state directory that cannot be written is not an error: the next run asks again."""
    files = sorted(set(files))
    entries = _load(state)
    entries[tool] = {
        "of": fingerprint(tool, program, env, files),
        "time": now,
        "files": files,
        "allow": list(found.allow),
        "env": dict(found.env),
        "notes": list(found.notes),
    }
    temporary = f"{state}/.{_NAME}.{os.getpid()}"
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError:
        return
    try:
        os.write(fd, json.dumps(entries).encode())
        os.replace(temporary, f"{state}/{_NAME}")
    except OSError:
        os.unlink(temporary)
    finally:
        os.close(fd)


def _load(state: str) -> dict[str, Any]:
    try:
        fd = os.open(f"{state}/{_NAME}", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return {}
    try:
        status = os.fstat(fd)
        if not S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
            return {}
        entries = json.loads(os.read(fd, _BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    finally:
        os.close(fd)
    return entries if isinstance(entries, dict) else {}


def _stat(path: str) -> tuple[int, ...] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
