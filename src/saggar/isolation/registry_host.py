"""`--allow registry:pip` and `registry:npm`: asks the host's own tool which index it uses.

I1  A tool that lies in the workspace is not asked: it would run outside a cell. Nor does it run in the workspace, whose
    `.npmrc` would choose the index.
I2  What the tool prints is parsed strictly; its standard error is not shown, it may hold a credential.

pip's index may keep its files on another host; the index's own page of one package says which.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from time import time

from saggar.core.errors import ParseError, UsageError
from saggar.isolation.registry import (
    index_of,
    linked_hosts,
    npm_files,
    npm_projection,
    pip_default,
    pip_files,
    pip_projection,
    pip_settings,
)
from saggar.isolation.registry_cache_host import recall, remember

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from saggar.isolation.registry import Projection

PREFIX = "registry:"
TOOLS = ("pip", "npm")

_TOOL_TIMEOUT_S = 60
_PAGE_TIMEOUT_S = 15
_PAGE_BYTES = 16 * 1024 * 1024
# Any index has this package, and pip itself asks for it once a week (its version check).
_ASKED_PACKAGE = "pip"


def project(name: str, *, env: Mapping[str, str], workspace: str, state: str = "") -> Projection:
    """The host rules and variables for `registry:NAME`.

    env: the caller's. workspace: its host directory, "" for none. state: a directory to remember the answer in for a day,
    "" to ask anew. Takes as long as the tool takes to start (0.3 to 1 s), for pip also one request to the index.

    Raises: `UsageError` when there is no such tool, it cannot be asked, or its index's address may not enter a cell.
    """
    tool = name.removeprefix(PREFIX)
    if tool not in TOOLS:
        raise UsageError(f"`{name}` is not known", hint=f"one of {', '.join(PREFIX + t for t in TOOLS)}")
    program = _find(tool, env, workspace)
    now = time()
    known = recall(state, tool, program, env, now) if state else None
    if known is not None:
        return known
    try:
        found, files = _npm(program, env) if tool == "npm" else _pip(program, env)
    except ParseError as error:
        raise UsageError(f"`{tool}` gave an answer that was not understood: {error}") from None
    if state:
        remember(state, tool, program, env, files, found, now)
    return found


def _npm(program: str, env: Mapping[str, str]) -> tuple[Projection, list[str]]:
    """The projection, and the configuration files that it rests on."""
    (listing,) = _ask(program, [["config", "list", "--json"]], env)
    return npm_projection(listing), npm_files(listing)


def _pip(program: str, env: Mapping[str, str]) -> tuple[Projection, list[str]]:
    listing, help_text, debug = _ask(program, [["config", "list"], ["install", "--help"], ["config", "debug"]], env)
    settings = pip_settings(listing)
    default = "" if "index-url" in settings else pip_default(help_text)
    urls = [settings.get("index-url", default), *settings.get("extra-index-url", "").split()]
    hosts = {index.url: _file_hosts(index.url, settings, env) for index in [index_of(u, "pip") for u in urls]}
    return pip_projection(settings, default, hosts), pip_files(debug)


def _find(tool: str, env: Mapping[str, str], workspace: str) -> str:
    inside = os.path.realpath(workspace) + "/" if workspace else ""
    directories = []
    for directory in env.get("PATH", "").split(":"):
        # relative entries count from the workspace as often as not
        real = os.path.realpath(directory) + "/"
        if directory.startswith("/") and not (inside and real.startswith(inside)):
            directories.append(directory)
    names = (tool, "pip3") if tool == "pip" else (tool,)
    for name in names:
        found = shutil.which(name, path=":".join(directories))
        if found and not (inside and os.path.realpath(found).startswith(inside)):
            return found
    raise UsageError(
        f"`{PREFIX}{tool}` needs the host's own `{tool}`, and there is none outside the workspace",
        hint="name the index's host with `--allow HOST`",
    )


def _ask(program: str, questions: list[list[str]], env: Mapping[str, str]) -> list[str]:
    """The answers, asked all at once: starting the tool is what takes long."""
    name = os.path.basename(program)
    clean = {k: v for k, v in env.items() if k != "PWD"} | {"NO_COLOR": "1", "PIP_NO_COLOR": "1", "COLUMNS": "200"}
    asked: list[subprocess.Popen[bytes]] = []
    try:
        asked += [_start([program, *question], clean) for question in questions]
        answers = [process.communicate(timeout=_TOOL_TIMEOUT_S)[0] for process in asked]
    except (OSError, subprocess.TimeoutExpired):
        for process in asked:
            process.kill()
            process.wait()
        raise UsageError(f"`{name}` could not be asked which index it uses") from None
    for process in asked:
        if process.returncode:
            raise UsageError(f"`{name}` did not say which index it uses (exit code {process.returncode})")
    return [answer.decode("utf-8", "replace") for answer in answers]


def _start(argv: list[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    # its standard error may hold a credential (I2)
    quiet = subprocess.DEVNULL
    return subprocess.Popen(argv, env=env, cwd="/", stdin=quiet, stdout=subprocess.PIPE, stderr=quiet)


def _file_hosts(url: str, settings: Mapping[str, str], env: Mapping[str, str]) -> tuple[str, ...]:
    """Where the index keeps its files; nothing when the index does not know the package (files are then its own)."""
    import ssl
    from urllib.error import HTTPError, URLError
    from urllib.request import HTTPSHandler, ProxyHandler, Request, build_opener

    page = f"{url.rstrip('/')}/{_ASKED_PACKAGE}/"
    try:
        context = ssl.create_default_context(cafile=settings.get("cert") or None)
        proxies = {k: v for k in ("http", "https") if (v := env.get(f"{k}_proxy") or env.get(f"{k.upper()}_PROXY"))}
        opener = build_opener(ProxyHandler(proxies), HTTPSHandler(context=context))
        request = Request(page, headers={"Accept": "text/html"})  # noqa: S310  # `index_of` let only HTTP through
        with opener.open(request, timeout=_PAGE_TIMEOUT_S) as answer:
            # a redirect is one that the cell's pip will meet as well
            last = index_of(answer.url, "pip")
            return (f"{last.host}:{last.port}", *linked_hosts(answer.read(_PAGE_BYTES), answer.url))
    except HTTPError as error:
        if error.code in (403, 404, 410):
            return ()
        raise UsageError(f"the index at `{index_of(url, 'pip').host}` answered {error.code}") from None
    except ParseError as error:
        raise UsageError(f"the index at `{index_of(url, 'pip').host}` was not understood: {error}") from None
    except (URLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise UsageError(
            f"the index at `{index_of(url, 'pip').host}` did not answer: {reason}",
            hint="its pages say where the files are; name the hosts with `--allow HOST` to do without",
        ) from None
