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

from saggar.core.errors import ParseError, UsageError
from saggar.isolation.registry import index_of, linked_hosts, npm_projection, pip_default, pip_projection, pip_settings

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


def project(name: str, *, env: Mapping[str, str], workspace: str) -> Projection:
    """The host rules and variables for `registry:NAME`.

    env: the caller's. workspace: its host directory, "" for none. Takes as long as the tool takes to start (0.3 to 1 s),
    for pip also one request to the index.

    Raises: `UsageError` when there is no such tool, it cannot be asked, or its index's address may not enter a cell.
    """
    tool = name.removeprefix(PREFIX)
    if tool not in TOOLS:
        raise UsageError(f"`{name}` is not known", hint=f"one of {', '.join(PREFIX + t for t in TOOLS)}")
    program = _find(tool, env, workspace)
    try:
        if tool == "npm":
            return npm_projection(_ask([program, "config", "list", "--json"], env))
        settings = pip_settings(_ask([program, "config", "list"], env))
        default = "" if "index-url" in settings else pip_default(_ask([program, "install", "--help"], env))
    except ParseError as error:
        raise UsageError(f"`{tool}` gave an answer that was not understood: {error}") from None
    urls = [settings.get("index-url", default), *settings.get("extra-index-url", "").split()]
    hosts = {index.url: _file_hosts(index.url, settings, env) for index in [index_of(u, "pip") for u in urls]}
    return pip_projection(settings, default, hosts)


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


def _ask(argv: list[str], env: Mapping[str, str]) -> str:
    clean = {k: v for k, v in env.items() if k != "PWD"} | {"NO_COLOR": "1", "PIP_NO_COLOR": "1", "COLUMNS": "200"}
    try:
        done = subprocess.run(
            argv,
            env=clean,
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TOOL_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        raise UsageError(f"`{os.path.basename(argv[0])}` could not be asked which index it uses") from None
    if done.returncode:
        raise UsageError(f"`{os.path.basename(argv[0])}` did not say which index it uses (exit code {done.returncode})")
    return done.stdout.decode("utf-8", "replace")


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
