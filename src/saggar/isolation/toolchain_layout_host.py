"""Known layouts of installations: what marks one, what of it may be shown, and what is too broad to show at all."""

from __future__ import annotations

import os

from saggar.core.errors import UsageError
from saggar.isolation import toolchain_parts_host as kinds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

#: Areas where a program may lie, but whose directories are data, state or the kernel's.
_STATE = ("/boot", "/dev", "/etc", "/lost+found", "/proc", "/run", "/sys", "/var")
_BIN = ("bin", "sbin", "libexec")
#: Directories of `/opt` that no single package owns.
_SHARED = (*_BIN, "etc", "include", "lib", "lib64", "local", "share", "src", "var")


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

    def is_local(self, prefix: str) -> bool:
        """Whether it is a home's `.local`, also where that is a link to another disk."""
        return any(os.path.realpath(f"{home}/.local") == prefix for home in self._homes)

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
        """For a program in `/opt`: the directory that holds its parts (`/opt/x` of `/opt/x/bin/y`), or "". Anywhere else what
        lies beside a program is not known to be its own."""
        parts = program.split("/")
        if parts[1] != "opt" or len(parts) < 4 or parts[2] in _SHARED:
            return ""
        prefix = f"/opt/{parts[2]}"
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
        # one prefix may hold several: Python and Node, both unpacked into `~/.local`
        found = [kind for kind, marks in _LAYOUTS if marks(here)] if inside else []
        if found:
            return _recognised(here, found, os.path.basename(program), broad)
    return None


def _recognised(path: str, found: list[str], program: str, broad: Broad) -> Prefix | None:
    reason = broad.refuse(path)
    if reason:
        raise UsageError(
            f"the tool chain at `{path}` is not shown to the cell: {reason}",
            hint="install it into a directory of its own, or name what it needs in `isolation.read`",
        )
    parts = kinds.parts(path, found, local=broad.is_local(path))
    if not parts and program not in _MAIN:
        return None  # it only lies beside one
    if not parts:
        raise UsageError(
            f"the tool chain at `{path}` is not shown to the cell: its parts cannot be told from what else lies there",
            hint="install it into a directory of its own, or name what it needs in `isolation.read`",
        )
    prefix = Prefix(path, found[0], parts)
    if kinds.VENV in found:
        prefix.environment = True
        prefix.base = _venv_base(path)
    if kinds.JAVA in found:
        prefix.env["JAVA_HOME"] = path
    return prefix


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


#: Programs of the layouts that cannot be shown out of a prefix which others use.
_MAIN = ("go", "gofmt", "gradle", "java", "javac", "mvn")

#: First component of a program's path below its prefix.
_INSIDE = (*_BIN, "lib", "jre", "Cellar", "opt")

#: In this order: an environment also looks like an interpreter to some tests.
_LAYOUTS: tuple[tuple[str, Callable[[str], bool]], ...] = (
    (kinds.BREW, _has("Cellar", "opt", "bin/brew")),
    (kinds.VENV, _has("pyvenv.cfg", "bin")),
    (kinds.VENV, _has("bin/activate_this.py")),  # virtualenv before 20 has no pyvenv.cfg
    (kinds.PYTHON, _is_python),
    (kinds.NODE, _has("bin/node", "lib/node_modules")),
    (kinds.GO, _has("bin/go", "pkg/tool")),
    (kinds.JAVA, _has("bin/java", "lib/modules")),
    (kinds.JAVA, _has("bin/java", "jre/lib/rt.jar")),
    (kinds.RUST, _has("lib/rustlib", "bin/rustc")),
    (kinds.RUBY, _has("bin/ruby", "lib/ruby")),
    (kinds.MAVEN, _has("bin/mvn", "boot", "lib")),
    (kinds.GRADLE, _has("bin/gradle", "lib/plugins")),
)
