"""What a package tool of the host says about its index, as host rules and variables for the cell; no I/O.

I1  A URL with credentials in it is refused, and no message repeats them.
I2  Nothing here names an index: every address comes from the host's own tool, or from the index that it named.
"""

from __future__ import annotations

from ast import literal_eval
from html.parser import HTMLParser
from json import JSONDecodeError, loads
from urllib.parse import urljoin, urlsplit

from saggar.core.decision import Frozen
from saggar.core.errors import ParseError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: A page that links to more hosts than this is not an index's.
MAX_FILE_HOSTS = 8

_PORTS = {"https": 443, "http": 80}
#: What a cell shows of certificates (rootfs.ETC).
_SHOWN = ("/etc/ssl/certs/", "/etc/pki/", "/usr/")


class Index(Frozen):
    """One index. url: without credentials. host, port: where it is."""

    __slots__ = ("host", "port", "url")
    url: str
    host: str
    port: int

    def __init__(self, url: str, host: str, port: int) -> None:
        self._set(url=url, host=host, port=port)


class Projection(Frozen):
    """What a run gets. allow: `host:port` for `--allow`. env: variables. notes: what was left behind."""

    __slots__ = ("allow", "env", "notes")
    allow: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]

    def __init__(self, allow: Iterable[str], env: Mapping[str, str], notes: Iterable[str]) -> None:
        self._set(allow=tuple(dict.fromkeys(allow)), env=tuple(sorted(env.items())), notes=tuple(notes))


def index_of(url: str, tool: str) -> Index:
    """Read one address. Raises `UsageError` for credentials in it, another scheme, or a place that a cell cannot reach."""
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError:
        raise UsageError(f"the index that `{tool}` uses has an address that does not parse") from None
    host = parts.hostname or ""
    if parts.username is not None or parts.password is not None:
        raise UsageError(
            f"the address of the index that `{tool}` uses has credentials in it (host `{host}`)",
            hint="they would be readable inside: move them to a credential of the policy, or to a proxy that adds them",
        )
    if parts.scheme not in _PORTS or not host:
        raise UsageError(f"the index that `{tool}` uses is not reached over HTTP (`{parts.scheme or 'no scheme'}`)")
    if host == "localhost" or host.endswith(".localhost") or host.startswith("127.") or host == "::1":
        raise UsageError(
            f"the index that `{tool}` uses is on this machine's loopback (`{host}`), which a cell has its own of",
            hint="give it a name in `[[egress.allow]]` with `connect_to`, and name that in the tool's configuration",
        )
    if "?" in url or "#" in url:
        raise UsageError(
            f"the address of the index that `{tool}` uses has a query or fragment (host `{host}`)",
            hint="a token may hide there; use an address without",
        )
    return Index(url.strip(), host, port or _PORTS[parts.scheme])


def pip_settings(listing: str) -> dict[str, str]:
    """`pip config list` → option to value, as `pip install` weighs them: environment, `[install]`, `[global]`.

    Raises: `ParseError` for a line of another shape.
    """
    found: dict[str, tuple[int, str]] = {}
    rank = {"global": 0, "install": 1, ":env:": 2}
    for line in listing.splitlines():
        key, equals, literal = line.partition("=")
        section, dot, option = key.partition(".") if not key.startswith(":env:") else (":env:", ".", key[6:])
        if not line.strip() or section not in rank:
            continue
        if not equals or not dot:
            raise ParseError("`pip config list` printed a line that is not `section.option='value'`")
        try:
            value = literal_eval(literal)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            raise ParseError(f"`pip config list` printed a value of `{option}` that is no string") from None
        if rank[section] >= found.get(option, (-1, ""))[0]:
            found[option] = (rank[section], str(value))
    return {option: value for option, (_, value) in found.items()}


def pip_default(help_text: str) -> str:
    """The default index, from `pip install --help`. Raises `ParseError` when it is not there."""
    words = help_text.split()
    for i, word in enumerate(words):
        if word == "--index-url":
            for at in range(i, min(i + 20, len(words) - 1)):
                if words[at].lstrip("(") == "default":
                    return words[at + 1].rstrip(".").rstrip(")")
    raise ParseError("`pip install --help` does not say which index is the default")


def pip_projection(settings: Mapping[str, str], default: str, file_hosts: Mapping[str, Iterable[str]]) -> Projection:
    """file_hosts: for each index URL the `host:port` that its pages link to for files."""
    notes: list[str] = []
    main = index_of(settings.get("index-url", default), "pip")
    extra = [index_of(u, "pip") for u in settings.get("extra-index-url", "").split()]
    allow = [f"{i.host}:{i.port}" for i in (main, *extra)]
    for index in (main, *extra):
        allow += file_hosts.get(index.url, ())
    env = {"PIP_INDEX_URL": main.url}
    if extra:
        env["PIP_EXTRA_INDEX_URL"] = " ".join(i.url for i in extra)
    known = {h for i in (main, *extra) for h in (i.host, f"{i.host}:{i.port}")}
    trusted = [t for t in settings.get("trusted-host", "").split() if t in known]
    if trusted:
        env["PIP_TRUSTED_HOST"] = " ".join(trusted)
    _certificate(settings.get("cert", ""), "PIP_CERT", env, notes)
    for option, what in (
        ("find-links", "a directory of the host is not shown"),
        ("proxy", "the broker dials the index itself"),
        ("client-cert", "a key of the host is not shown"),
    ):
        if settings.get(option):
            notes.append(f"pip's `{option}` is not carried into the cell: {what}")
    return Projection(allow, env, notes)


def npm_projection(listing: str) -> Projection:
    """`npm config list --json`. Raises `ParseError` when it is something else."""
    try:
        settings = loads(listing)
    except (JSONDecodeError, RecursionError):
        raise ParseError("`npm config list --json` did not print JSON") from None
    if not isinstance(settings, dict) or not isinstance(settings.get("registry"), str):
        raise ParseError("`npm config list --json` does not say which registry is used")
    notes: list[str] = []
    env: dict[str, str] = {}
    allow: list[str] = []
    for key, value in settings.items():
        scoped = key.startswith("@") and key.endswith(":registry")
        if (key == "registry" or scoped) and isinstance(value, str):
            index = index_of(value, "npm")
            allow.append(f"{index.host}:{index.port}")
            env[f"npm_config_{key}"] = index.url
    cafile = settings.get("cafile")
    _certificate(cafile if isinstance(cafile, str) else "", "npm_config_cafile", env, notes)
    notes += [
        f"npm's `{k}` is not carried into the cell: the broker dials the registry itself"
        for k in ("proxy", "https-proxy")
        if isinstance(settings.get(k), str)
    ]
    return Projection(allow, env, notes)


def pip_files(debug: str) -> list[str]:
    """The configuration files that `pip config debug` names, whether they exist or not."""
    return [line.rpartition(", exists: ")[0].strip() for line in debug.splitlines() if ", exists: " in line]


def npm_files(listing: str) -> list[str]:
    """The configuration files that `npm config list --json` names."""
    settings = loads(listing)
    return [v for k in ("userconfig", "globalconfig") if isinstance(v := settings.get(k), str) and v.startswith("/")]


def _certificate(path: str, variable: str, env: dict[str, str], notes: list[str]) -> None:
    if path.startswith(_SHOWN) and ".." not in path.split("/"):
        env[variable] = path
    elif path:
        notes.append(f"the certificates that `{variable}` would name are not shown in the cell")


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [v for k, v in attrs if tag == "a" and k == "href" and v]


def linked_hosts(page: bytes, url: str) -> tuple[str, ...]:
    """Where an index page (PEP 503) says that files are, as `host:port`, the page's own host left out.

    url: the page's own, against which links count. Only names reached over HTTPS, or HTTP where the index is.
    Raises: `ParseError` for a page that links to more than MAX_FILE_HOSTS hosts.
    """
    parser = _Links()
    parser.feed(page.decode("utf-8", "replace"))
    own = urlsplit(url)
    hosts: dict[str, None] = {}
    for link in parser.found:
        try:
            parts = urlsplit(urljoin(url, link))
            port = parts.port
        except ValueError:
            continue
        host = parts.hostname or ""
        if (
            host
            and parts.scheme in _PORTS
            and parts.scheme in ("https", own.scheme)
            and not host.replace(".", "").isdigit()
            and ":" not in host
        ):
            hosts[f"{host}:{port or _PORTS[parts.scheme]}"] = None
    hosts.pop(f"{own.hostname}:{own.port or _PORTS.get(own.scheme, 0)}", None)
    if len(hosts) > MAX_FILE_HOSTS:
        raise ParseError(f"the index links to {len(hosts)} hosts for its files")
    return tuple(hosts)
