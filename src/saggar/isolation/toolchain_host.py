"""Which directories of the host a command's own tool chain needs, so that they can be shown read-only and nothing more.

I1  What is shown is a single program, or the prefix of an installation whose layout is known; never a home directory, never
    anything above one, never a file that may hold a credential.
I2  The workspace may choose among installed tool chains; it cannot name a file or directory of the host to be shown. A link
    (of a file or of a directory), a first line (`#!`, `env` too) or a version file that lies in it leads to a known installation
    of an interpreter, never to an environment that someone else made, or nowhere.
I3  No program is run to find out. Version managers' stand-ins ("shims") are followed by reading the files that they would read.

A program is followed through links, stand-ins and first lines until each step is visible inside.
"""

from __future__ import annotations

import os
from stat import S_ISREG

from saggar.core.errors import UsageError
from saggar.isolation import rootfs
from saggar.isolation.toolchain_layout_host import Broad, prefix_of
from saggar.isolation.toolchain_parts_host import public_parts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_SHEBANG_BYTES = 256  # BINPRM_BUF_SIZE, linux/binfmts.h
_LINKS = 40  # MAXSYMLINKS, linux/namei.h
_SCRIPTS = 5  # the kernel gives up after as many interpreters of interpreters


class Toolchain:
    """argv0: what to execute, "" where there is no such program. binds: host paths to show read-only at the same place.
    path_entries: to go before the cell's PATH. env: to set unless the policy does. notes: what was shown and why, for
    the result, one line each. left_out: what the caller's PATH leads to and the cell does not show, likewise."""

    __slots__ = ("argv0", "binds", "env", "left_out", "notes", "path_entries")

    def __init__(
        self,
        argv0: str,
        *,
        binds: tuple[str, ...] = (),
        path_entries: tuple[str, ...] = (),
        env: dict[str, str] | None = None,
        notes: tuple[str, ...] = (),
        left_out: tuple[str, ...] = (),
    ) -> None:
        self.argv0 = argv0
        self.binds = binds
        self.path_entries = path_entries
        self.env = env or {}
        self.notes = notes
        self.left_out = left_out


def resolve(
    program: str,
    *,
    path: str,
    cwd: str,
    workspace: str,
    env: Mapping[str, str] | None = None,
    shown: Iterable[str] = (),
) -> Toolchain:
    """Follow a program as the caller would start it.

    program: a name, or a path when it holds a slash. path: the caller's PATH. workspace: the host directory that the cell
    shows by itself, "" for none. env: the caller's environment, for version managers' own variables and HOME. shown: what
    else of the host the cell shows.

    Raises: `UsageError` when the tool chain is there but cannot be shown: too broad, or a stand-in that names no installation.
    """
    return _Walk(path, cwd, workspace, env or {}, tuple(shown)).start(program)


class _Walk:
    """One resolution. `reach(path)` makes one file of the host executable inside."""

    __slots__ = (
        "_binds",
        "_broad",
        "_cwd",
        "_entries",
        "_env",
        "_environ",
        "_installed",
        "_left_out",
        "_notes",
        "_path",
        "_shown",
        "_workspace",
    )

    def __init__(self, path: str, cwd: str, workspace: str, environ: Mapping[str, str], shown: tuple[str, ...]) -> None:
        self._path = [os.path.join(cwd, p) for p in path.split(":") if p]
        self._cwd = cwd
        self._workspace = os.path.realpath(workspace) if workspace else ""
        self._environ = environ
        self._shown = shown
        self._broad = Broad(environ.get("HOME", ""))
        self._binds: list[str] = []
        self._entries: list[str] = []
        self._env: dict[str, str] = {}
        self._notes: list[str] = []
        self._left_out: list[str] = []
        self._installed: list[str] = []  # by a version manager, for the very name that was asked for

    def start(self, program: str) -> Toolchain:
        named = "/" not in program
        found = self._search(program) if named else os.path.join(self._cwd, program)
        if not found or not _executable(found):
            return Toolchain("")
        try:
            argv0 = self._reach(found, program, trusted=True, depth=0, named=named)
        except UsageError:
            raise
        except OSError as error:
            raise UsageError(f"the program `{program}` cannot be followed: {error.strerror}") from None
        if os.path.basename(found) in _LEADERS:
            self._companions()
        if not argv0:
            raise UsageError(
                f"the program `{program}` leads to a place of the host that the cell does not show",
                hint="name its directory in `isolation.read`",
            )
        if not self._binds and not self._entries:
            return Toolchain(program if named else argv0, left_out=tuple(self._left_out))
        return Toolchain(
            argv0,
            binds=tuple(self._binds),
            path_entries=tuple(dict.fromkeys(self._entries)),
            env=self._env,
            notes=tuple(self._notes),
            left_out=tuple(self._left_out),
        )

    def _companions(self) -> None:
        """A shell or `make` is run for the sake of what it starts: the installations that the caller's PATH leads to.

        Only known layouts, never a single program: `_show` is told that this is not what the caller asked for.
        """
        for name in _INTERPRETERS:
            found = self._search(name)
            if not found:
                continue
            if self._system(found):  # /usr/local/go/bin
                directory = os.path.dirname(found)
                self._entries += [] if self._on_cell_path(directory) else [directory]
                continue
            try:
                self._reach(found, name, trusted=False, depth=0, named=True)
            except (UsageError, OSError) as error:
                self._left_out.append(f"`{found}`: {error}")

    def _search(self, name: str, skip: str = "") -> str:
        for directory in self._path:
            candidate = f"{directory}/{name}"
            if directory != skip and _executable(candidate):
                return candidate
        return ""

    def _reach(self, found: str, name: str, *, trusted: bool, depth: int, named: bool) -> str:
        """Show what `found` needs; gives the path to execute. trusted: nothing in the workspace led here."""
        if depth > _SCRIPTS:
            raise UsageError(f"the program `{name}` is a script of a script of a script without end")
        trusted = trusted and not self._leads(found)
        real, chosen = self._stand_in(found, name, trusted=trusted)
        if real is None:  # the version manager says: the system's
            found = self._search(os.path.basename(found), skip=os.path.dirname(found))
            if not found:
                return ""
        elif real:
            found = real
        if chosen and self._leads(chosen):  # the workspace has chosen, among what is installed
            trusted = False
            self._refuse_environment(found, chosen)
        hops: list[str] = []
        for hop, links in _hops(found):
            trusted = trusted and not any(self._in_workspace(link) for link in links)
            self._show(hop, name, last=not os.path.islink(hop), trusted=trusted)
            trusted = trusted and not self._in_workspace(hop)
            hops.append(hop)
        # a link is of use only when what it leads to is there as well
        visible = ""
        for hop in reversed(hops):
            if not self._visible(hop):
                break
            visible = hop
        if not visible:
            return ""
        directory = os.path.dirname(visible)
        if named and not self._on_cell_path(directory):
            self._entries.append(directory)
        self._interpreter(hops[-1], name, trusted=trusted, depth=depth)
        return visible

    def _leads(self, path: str) -> bool:
        """Whether a link on the way to the file, or the file, lies in the workspace: then the workspace decides what it is."""
        return any(self._in_workspace(place) for hop, links in _hops(path) for place in (*links, hop))

    def _refuse_environment(self, found: str, chosen: str) -> None:
        for hop, _ in _hops(found):
            prefix = None if self._visible(hop) else prefix_of(hop, self._broad)
            if prefix is not None and (prefix.environment or os.path.basename(os.path.dirname(prefix.path)) == "envs"):
                raise UsageError(
                    f"`{os.path.basename(chosen)}` in the workspace chooses the environment `{os.path.basename(prefix.path)}`, "
                    "which may be another project's",
                    hint="choose it yourself, by the version manager's variable (`PYENV_VERSION`) or by its own path",
                )

    def _stand_in(self, found: str, name: str, *, trusted: bool) -> tuple[str | None, str]:
        directory, base = os.path.split(found)
        looks = os.path.basename(directory) == "shims" or os.path.basename(os.path.realpath(found)) in _PROXIES
        if not looks:
            return "", ""
        from saggar.isolation.toolchain_shim_host import behind

        real, note, chosen, store = behind(directory, base, name, cwd=self._cwd, env=self._environ)
        if note:
            self._notes.append(note)
        if trusted and real and store and not self._leads(store):
            place = os.path.realpath(real)
            if _beneath(place, os.path.realpath(store)):
                self._installed.append(place)
        return real, chosen

    def _show(self, hop: str, name: str, *, last: bool, trusted: bool) -> None:
        if self._visible(hop):
            return
        prefix = prefix_of(hop, self._broad)
        if prefix is not None and prefix.environment and not trusted:
            self._leave_out(prefix.path)
        elif prefix is not None:
            self._bind(prefix.parts, f"`{name}`: {prefix.kind} at `{prefix.path}`")
            for key, value in prefix.env.items():
                self._env.setdefault(key, value)
            if prefix.base:  # a virtual environment: the interpreter behind it has the standard library
                self._show(prefix.base, name, last=True, trusted=False)
        if not last or self._visible(hop):
            return
        # its directory may hold anything; of `/opt/x`, only x's
        area = "" if prefix is not None or not trusted or self._broad.inside_home(hop) else self._broad.area(hop)
        if area:
            self._bind(public_parts(area), f"`{name}`: the directory `{area}`")
        if not self._visible(hop) and (trusted or (prefix is None and hop in self._installed)):
            self._bind((hop,), f"`{name}`: the program `{hop}`")

    def _leave_out(self, environment: str) -> None:
        """An environment that the command did not name itself, but that PATH or the workspace leads to."""
        said = f"the environment `{environment}`: call its own programs by name, or name it in `isolation.read`"
        if said not in self._left_out:
            self._left_out.append(said)

    def _bind(self, parts: tuple[str, ...], note: str) -> None:
        self._binds += [p for p in parts if p not in self._binds]
        self._notes.append(f"{note}, shown read-only")

    def _interpreter(self, path: str, name: str, *, trusted: bool, depth: int) -> None:
        words = _first_line(path)
        if not words:
            return
        if os.path.basename(words[0]) != "env":
            interpreter = os.path.join(self._cwd, words[0])
            if _executable(interpreter):
                self._reach(interpreter, name, trusted=trusted, depth=depth + 1, named=False)
            return
        # `env` looks along PATH, and PATH is the caller's; but the name is the script's, and with it the choice of a program
        inner = _env_program(words[1:])
        found = self._search(inner) if inner else ""
        if found:
            self._reach(found, inner, trusted=trusted, depth=depth + 1, named=True)

    def _in_workspace(self, path: str) -> bool:
        return bool(self._workspace) and _beneath(path, self._workspace)

    def _visible(self, path: str) -> bool:
        if self._in_workspace(path) or any(_beneath(path, b) for b in (*self._shown, *self._binds)):
            return True
        return self._system(path) or _beneath(path, "/etc/alternatives")

    @staticmethod
    def _system(path: str) -> bool:
        return any(_beneath(path, top) for top in rootfs.SYSTEM)

    @staticmethod
    def _on_cell_path(directory: str) -> bool:
        return directory in rootfs.PATH.split(":") or os.path.realpath(directory) in rootfs.PATH.split(":")


#: Commands that stand for others, and what they are likely to start.
_LEADERS = ("ash", "bash", "dash", "env", "fish", "make", "nice", "sh", "time", "timeout", "xargs", "zsh")
_INTERPRETERS = ("python3", "python", "node", "java", "cargo", "go", "ruby")

_PROXIES = ("rustup", "mise", "asdf", "volta-shim", "snap", "corepack-shim")


def _beneath(path: str, top: str) -> bool:
    return path == top or path.startswith(top.rstrip("/") + "/")


def _executable(path: str) -> bool:
    try:
        return S_ISREG(os.stat(path).st_mode) and os.access(path, os.X_OK)
    except (OSError, ValueError):
        return False


def _hops(path: str) -> list[tuple[str, list[str]]]:
    """The path and what its last component links to, one by one: each with its directory made canonical, and the places of the
    links that were met on the way to that directory."""
    hops: list[tuple[str, list[str]]] = []
    path = path if path.startswith("/") else os.path.join(os.getcwd(), path)
    for _ in range(_LINKS):
        directory, base = os.path.split(path)
        real, links = _canonical(directory, path)
        path = f"{real}/{base}"
        hops.append((path, links))
        try:
            target = os.readlink(path)
        except OSError:
            return hops
        path = os.path.join(real or "/", target)
    raise UsageError(f"the program `{hops[0][0]}` is a link that leads round in circles")


def _canonical(directory: str, path: str) -> tuple[str, list[str]]:
    """The directory without links ("" for the root), component by component as the kernel goes, and where each link lay."""
    todo = directory.split("/")[::-1]
    place = ""
    links: list[str] = []
    while todo:
        name = todo.pop()
        if name in ("", "."):
            continue
        if name == "..":
            place = place.rpartition("/")[0]
            continue
        try:
            target = os.readlink(f"{place}/{name}")
        except OSError:
            place = f"{place}/{name}"
            continue
        links.append(f"{place}/{name}")
        if len(links) > _LINKS:
            raise UsageError(f"the program `{path}` is a link that leads round in circles")
        place = "" if target.startswith("/") else place
        todo += target.split("/")[::-1]
    return place, links


def _first_line(path: str) -> list[str]:
    """The interpreter and its argument of a script, as execve(2) reads them; also behind the two-line form that installers
    write where the interpreter's path is too long or holds a space."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        head = os.read(fd, 4 * _SHEBANG_BYTES)
    finally:
        os.close(fd)
    if not head.startswith(b"#!"):
        return []
    lines = head.split(b"\n", 2)
    words = os.fsdecode(lines[0][2:_SHEBANG_BYTES].strip()).split(None, 1)
    if words and words[0] == "/bin/sh" and len(lines) > 1 and lines[1].startswith(b"'''exec' "):
        rest = os.fsdecode(lines[1][len(b"'''exec' ") :])
        return [rest[1:].partition('"')[0] if rest.startswith('"') else rest.partition(" ")[0]]
    return words


def _env_program(arguments: list[str]) -> str:
    """The program in `env`'s arguments: options and assignments come first."""
    words = " ".join(arguments).split()
    for word in words:
        if not word.startswith("-") and "=" not in word:
            return word
    return ""
