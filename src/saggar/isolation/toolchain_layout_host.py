"""Known layouts of installations: what marks one, what of it may be shown, and what is too broad to show at all."""

from __future__ import annotations

import os

from saggar.core.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

#: Names that may hold a credential or a registry's address with one, wherever in a prefix they stand (two levels).
SECRETS = frozenset(
    {
        ".condarc",
        ".env",
        ".git-credentials",
        ".gitconfig",
        ".m2",
        ".netrc",
        ".npmrc",
        ".pypirc",
        ".yarnrc.yml",
        "auth.json",
        "config",
        "config.toml",
        "condarc",
        "credentials",
        "credentials.json",
        "credentials.toml",
        "npmrc",
        "pip.conf",
        "pip.ini",
        "settings.xml",
    }
)

#: Areas where a program may lie, but whose directories are data, state or the kernel's.
_STATE = ("/boot", "/dev", "/etc", "/lost+found", "/proc", "/run", "/sys", "/var")
_BIN = ("bin", "sbin", "libexec")


class Broad:
    """What is too broad to show. home: the caller's HOME."""

    __slots__ = ("_homes",)

    def __init__(self, home: str) -> None:
        homes = {"/root"}
        if home.startswith("/") and os.path.realpath(home) != "/":
            homes |= {os.path.normpath(home), os.path.realpath(home)}
        self._homes = homes

    def home_of(self, path: str) -> str:
        """The home directory that the path lies in, or ""."""
        for home in self._homes:
            if path == home or path.startswith(home + "/"):
                return home
        parts = path.split("/")
        return f"/home/{parts[2]}" if len(parts) > 2 and parts[1] == "home" and parts[2] else ""

    def inside_home(self, path: str) -> bool:
        return bool(self.home_of(path))

    def refuse(self, prefix: str) -> str:
        """Why this directory may not be shown, or ""."""
        if prefix.count("/") < 2:
            return "it is a top directory"
        if prefix == self.home_of(prefix):
            return "it is a home directory"
        if any(home.startswith(prefix + "/") for home in self._homes):
            return "a home directory lies beneath it"
        if prefix.startswith(tuple(s + "/" for s in _STATE)):
            return "it lies among the system's state"
        return ""

    def area(self, program: str) -> str:
        """For a program outside every home: the directory that holds its parts (`/opt/x` of `/opt/x/bin/y`), or ""."""
        directory = os.path.dirname(program)
        parts = program.split("/")
        if parts[1] == "opt" and len(parts) > 3:
            prefix = f"/opt/{parts[2]}"
        elif os.path.basename(directory) in _BIN:
            prefix = os.path.dirname(directory)
        else:
            return ""
        return "" if self.refuse(prefix) else prefix


class Prefix:
    """One recognised installation. parts: what to show. base: for a virtual environment, the interpreter behind it.
    environment: it is one that a user made (its content is the user's, not an installer's)."""

    __slots__ = ("base", "env", "environment", "kind", "parts", "path")

    def __init__(self, path: str, kind: str, parts: tuple[str, ...]) -> None:
        self.path = path
        self.kind = kind
        self.parts = parts
        self.base = ""
        self.environment = False
        self.env: dict[str, str] = {}


def prefix_of(program: str, broad: Broad) -> Prefix | None:
    """The installation that a program belongs to. Raises `UsageError` when it is one, and too broad to show."""
    if program.startswith("/nix/store/"):
        return Prefix("/nix/store", "the Nix store", ("/nix/store",))
    here = os.path.dirname(program)
    for _ in range(6):  # node's scripts lie deepest: lib/node_modules/npm/bin/npm-cli.js
        here = os.path.dirname(here)
        if here.count("/") < 1 or here == "/":
            return None
        # below something else (`tools/x/bin`) the program is not the installation's
        inside = program[len(here) + 1 :].partition("/")[0] in _INSIDE
        for kind, marks in _LAYOUTS if inside else ():
            if marks(here):
                return _recognised(here, kind, broad)
    return None


def _recognised(path: str, kind: str, broad: Broad) -> Prefix:
    reason = broad.refuse(path)
    if reason:
        raise UsageError(
            f"the tool chain at `{path}` is not shown to the cell: {reason}",
            hint="install it into a directory of its own, or name what it needs in `isolation.read`",
        )
    only = _ONLY.get(kind)
    parts = shown_parts(path) if only is None else tuple(p for n in only if os.path.exists(p := f"{path}/{n}"))
    prefix = Prefix(path, kind, parts)
    if kind == _VENV:
        prefix.environment = True
        prefix.base = _venv_base(path)
    if kind == _JAVA:
        prefix.env["JAVA_HOME"] = path
    return prefix


def shown_parts(prefix: str) -> tuple[str, ...]:
    """The prefix itself, or, where something in it may hold a credential, everything in it but that (two levels)."""
    return tuple(_parts(prefix, 2))


def _parts(directory: str, levels: int) -> list[str]:
    try:
        entries = sorted(os.scandir(directory), key=lambda e: e.name)
    except OSError:
        return [directory]
    whole = True
    parts: list[str] = []
    for entry in entries:
        if entry.name in SECRETS:
            whole = False
        elif levels > 1 and entry.name in ("etc", "conf", "lib") and entry.is_dir(follow_symlinks=False):
            below = _parts(entry.path, levels - 1)
            whole = whole and below == [entry.path]
            parts += below
        elif entry.is_symlink() and not os.path.exists(entry.path):
            continue  # nothing to show
        else:
            parts.append(entry.path)
    return [directory] if whole else parts


def _venv_base(path: str) -> str:
    """The interpreter that `pyvenv.cfg` names (`home`, PEP 405), or ""."""
    try:
        with open(f"{path}/pyvenv.cfg", encoding="utf-8", errors="replace") as file:
            text = file.read(65536)
    except OSError:
        return ""
    for line in text.splitlines():
        key, _, value = line.partition("=")
        if key.strip() == "home":
            for name in ("python3", "python"):
                base = os.path.realpath(f"{value.strip()}/{name}")
                if os.path.isfile(base):
                    return base
    return ""


def _has(*names: str) -> Callable[[str], bool]:
    return lambda prefix: all(os.path.exists(f"{prefix}/{name}") for name in names)


def _is_python(prefix: str) -> bool:
    try:
        names = os.listdir(f"{prefix}/lib")
    except OSError:
        return False
    pythons = [n for n in names if n.startswith(("python2.", "python3.", "pypy"))]
    return any(os.path.isfile(f"{prefix}/lib/{n}/os.py") for n in pythons) and any(
        os.path.exists(f"{prefix}/bin/{n}") for n in ("python", "python3", "python2", "pypy3")
    )


_VENV = "a Python environment"
_JAVA = "a Java runtime"
_BREW = "a Homebrew prefix"

#: Of these only what is named: an environment may have been made in a project's own directory, Homebrew keeps data in `var`.
_ONLY = {
    _VENV: ("bin", "include", "lib", "lib64", "pyvenv.cfg", "share"),
    _BREW: ("Cellar", "bin", "include", "lib", "libexec", "opt", "sbin", "share"),
}
#: First component of a program's path below its prefix.
_INSIDE = (*_BIN, "lib", "jre", "Cellar", "opt")

#: In this order: an environment also looks like an interpreter to some tests.
_LAYOUTS: tuple[tuple[str, Callable[[str], bool]], ...] = (
    (_BREW, _has("Cellar", "opt", "bin/brew")),
    (_VENV, _has("pyvenv.cfg", "bin")),
    ("a Python installation", _is_python),
    ("a Node installation", _has("bin/node", "lib/node_modules")),
    ("a Go installation", _has("bin/go", "pkg/tool")),
    (_JAVA, _has("bin/java", "lib/modules")),
    (_JAVA, _has("bin/java", "jre/lib/rt.jar")),
    ("a Rust tool chain", _has("lib/rustlib", "bin/rustc")),
    ("a Ruby installation", _has("bin/ruby", "lib/ruby")),
    ("a Maven installation", _has("bin/mvn", "boot", "lib")),
    ("a Gradle installation", _has("bin/gradle", "lib/plugins")),
)
