"""`--allow registry:pip` and `registry:npm`: asks the host's own tool which index it uses.

I1  Nothing that lies in the workspace runs: neither the tool, nor what its first line (`#!/usr/bin/env node`) finds on
    `PATH`, nor what a variable would have its interpreter load. Its environment is made from a list of names.
I2  What the tool prints is parsed strictly; its standard error is not shown, it may hold a credential.
I3  Nothing in the workspace chooses the index: a configuration file that lies there, or is reached by a link there, is
    refused, for a remembered answer as well, and the tool does not run there.

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
from saggar.policy.file_host import exists, is_below, search_path

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
#: programs that the first line of a tool, or of the shim in its place, has looked up on `PATH`
_INTERPRETERS = ("node", "python", "python3", "bash", "sh", "env", "pyenv")
_PLAIN = ("LANG", "LC_ALL", "LC_CTYPE")
#: where the tool, or the version manager behind it, looks for itself and its settings: only outside the workspace
_PLACES = ("HOME", "XDG_CONFIG_HOME", "XDG_CONFIG_DIRS", "PYENV_ROOT", "ASDF_DIR", "ASDF_DATA_DIR", "VOLTA_HOME")
_PROXIES = ("http_proxy", "https_proxy", "no_proxy")
_PIP = ("config_file", "index_url", "extra_index_url", "trusted_host", "cert", "client_cert", "proxy", "find_links")
_NPM = ("registry", "userconfig", "globalconfig", "prefix", "cafile", "proxy", "https_proxy", "noproxy", "strict_ssl")


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
    env = _environment(env, workspace)
    known, files = recall(state, tool, program, env, now) if state else (None, [])
    if known is not None:
        _check_files(tool, files, workspace)
        return known
    try:
        found, files = _npm(program, env, workspace) if tool == "npm" else _pip(program, env, workspace)
    except ParseError as error:
        raise UsageError(f"`{tool}` gave an answer that was not understood: {error}") from None
    if state:
        remember(state, tool, program, env, files, found, now)
    return found


def _environment(env: Mapping[str, str], workspace: str) -> dict[str, str]:
    """What the tool is told of the caller's variables (I1). Raises `UsageError` for a home in the workspace."""
    if workspace and is_below(env.get("HOME", "/"), workspace):
        raise UsageError(
            "the home directory lies in the workspace: programs and settings of a package tool there may be the sandbox's",
            hint="name the index's host with `--allow HOST`",
        )
    kept = {"PATH": search_path(env.get("PATH", ""), workspace)}
    for name, value in env.items():
        plain = name.lower().replace("-", "_")
        if name in _PLACES:
            keep = all(v.startswith("/") and not (workspace and is_below(v, workspace)) for v in value.split(":"))
        elif name == "PYENV_VERSION":
            keep = "/" not in value
        else:
            of_npm = plain.removeprefix("npm_config_") if plain.startswith("npm_config_") else ""
            of_pip = name.removeprefix("PIP_").lower() if name.startswith("PIP_") else ""
            scope = of_npm.startswith("@") and of_npm.endswith(":registry")
            keep = name in _PLAIN or plain in _PROXIES or of_npm in _NPM or of_pip in _PIP or scope
        if keep:
            kept[name] = value
    return kept


def _check_files(tool: str, files: list[str], workspace: str) -> None:
    """Raises `UsageError` for a configuration file that the sandbox could have written (I3)."""
    for file in files:
        if workspace and exists(file) and is_below(file, workspace):
            raise UsageError(
                f"a configuration file of `{tool}` lies in the workspace: `{file}`",
                hint="it would choose which hosts may be reached; name the index's host with `--allow HOST`",
            )


def _npm(program: str, env: Mapping[str, str], workspace: str) -> tuple[Projection, list[str]]:
    """The projection, and the configuration files that it rests on."""
    (listing,) = _ask(program, [["config", "list", "--json"]], env)
    found, files = npm_projection(listing), npm_files(listing)
    _check_files("npm", files, workspace)
    return found, files


def _pip(program: str, env: Mapping[str, str], workspace: str) -> tuple[Projection, list[str]]:
    listing, help_text, debug = _ask(program, [["config", "list"], ["install", "--help"], ["config", "debug"]], env)
    files = pip_files(debug)
    _check_files("pip", files, workspace)  # before the index that they name is asked
    settings = pip_settings(listing)
    default = "" if "index-url" in settings else pip_default(help_text)
    urls = [settings.get("index-url", default), *settings.get("extra-index-url", "").split()]
    hosts = {index.url: _file_hosts(index.url, settings, env) for index in [index_of(u, "pip") for u in urls]}
    return pip_projection(settings, default, hosts), files


def _find(tool: str, env: Mapping[str, str], workspace: str) -> str:
    names = (tool, "pip3") if tool == "pip" else (tool,)
    path = search_path(env.get("PATH", ""), workspace)
    for name in names:
        found = shutil.which(name, path=path) if path else None
        if found and not (workspace and is_below(found, workspace)):
            _check_interpreters(path, workspace)
            return found
    raise UsageError(
        f"`{PREFIX}{tool}` needs the host's own `{tool}`, and there is none outside the workspace",
        hint="name the index's host with `--allow HOST`",
    )


def _check_interpreters(path: str, workspace: str) -> None:
    """Raises `UsageError` where an entry outside the workspace is a link to a program in it (I1)."""
    for name in _INTERPRETERS:
        found = shutil.which(name, path=path)
        if found and workspace and is_below(found, workspace):
            raise UsageError(
                f"`{found}` leads into the workspace, and a package tool may run it",
                hint="name the index's host with `--allow HOST`",
            )


def _ask(program: str, questions: list[list[str]], env: Mapping[str, str]) -> list[str]:
    """The answers, asked all at once: starting the tool is what takes long."""
    name = os.path.basename(program)
    clean = {**env, "NO_COLOR": "1", "PIP_NO_COLOR": "1", "COLUMNS": "200"}
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
