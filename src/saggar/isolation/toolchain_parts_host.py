"""What of an installation is shown: only what its installer puts there, by name.

I1  A prefix that holds nothing else is shown as it is. Of one that has other entries as well only those named here are shown;
    of `share` and `etc` then only the parts named here.
I2  Of a prefix that keeps a user's data (`~/.local`) only the layout's own files: never `share`, never `state`, and of `bin`
    only the programs that the layout brings.
I3  Nothing named like a credential (two levels), and no link that leads out of the prefix.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

VENV = "a Python environment"
BREW = "a Homebrew prefix"
PYTHON = "a Python installation"
NODE = "a Node installation"
GO = "a Go installation"
JAVA = "a Java runtime"
RUST = "a Rust tool chain"
RUBY = "a Ruby installation"
MAVEN = "a Maven installation"
GRADLE = "a Gradle installation"

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

_COMMON = frozenset({"bin", "include", "lib", "lib64", "libexec"})
_PAPERS = frozenset(
    {
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "COPYING",
        "COPYRIGHT",
        "LICENSE",
        "NOTICE",
        "README",
        "README.md",
        "README.txt",
    }
)
#: Beside `_COMMON`, `_PAPERS`, `etc` and `share`: what an installer of this kind writes at the top of its prefix.
_TOP = {
    VENV: frozenset({"pyvenv.cfg"}),
    BREW: frozenset({"Cellar", "opt", "sbin"}),
    PYTHON: frozenset({"BUILD", "sbin"}),
    NODE: frozenset(),
    GO: frozenset(
        {"PATENTS", "SECURITY.md", "VERSION", "api", "codereview.cfg", "doc", "go.env", "misc", "pkg", "src", "test"}
    ),
    JAVA: frozenset({"conf", "demo", "jmods", "jre", "legal", "man", "release", "sample", "src.zip"}),
    RUST: frozenset(),
    RUBY: frozenset({"sbin"}),
    MAVEN: frozenset({"boot", "conf"}),
    GRADLE: frozenset({"docs", "init.d", "media", "src"}),
}
#: Parts of `share` that are an installer's. `jupyter` itself is not: its `runtime` holds keys.
_SHARE = frozenset(
    {
        "aclocal",
        "bash-completion",
        "cmake",
        "doc",
        "fish",
        "gir-1.0",
        "i18n",
        "icu",
        "info",
        "locale",
        "man",
        "pkgconfig",
        "ri",
        "systemtap",
        "tabset",
        "terminfo",
        "xml",
        "zoneinfo",
        "zsh",
    }
)
_JUPYTER = ("kernels", "lab", "labextensions", "nbextensions")
#: Of a prefix with other things in it, beside `_SHARE`.
_NAMED = ("etc/fonts", "ssl/cacert.pem", "ssl/cert.pem", "ssl/openssl.cnf")


def parts(prefix: str, kinds: list[str], *, local: bool = False) -> tuple[str, ...]:
    """What to show of an installation, or of several in one prefix; () where it cannot be told from what else lies there.

    local: the prefix is a home's `.local`, whatever it is called.
    """
    names = _names(prefix)
    if local or os.path.basename(prefix) == ".local" or "state" in names:
        return tuple(dict.fromkeys(p for k in kinds for p in _own(prefix, k)))
    top = (_COMMON | _PAPERS).union(*(_TOP[k] for k in kinds))
    others = [n for n in names if n not in top and n not in ("etc", "share") and n not in SECRETS]
    share = _names(f"{prefix}/share")
    strange = bool(others) or VENV in kinds or BREW in kinds or not _SHARE.issuperset(share)
    if not strange:
        return shown_parts(prefix)
    found = [p for n in names if n in top and n not in SECRETS for p in _part(prefix, n)]
    found += [f"{prefix}/share/{n}" for n in share if n in _SHARE]
    found += [f"{prefix}/share/jupyter/{n}" for n in _JUPYTER]
    found += [f"{prefix}/{n}" for n in _NAMED]
    return tuple(p for p in found if _stays(p, prefix))


def _part(prefix: str, name: str) -> list[str]:
    path = f"{prefix}/{name}"
    return _shown(path, 1) if name in ("conf", "lib") and not os.path.islink(path) else [path]


def shown_parts(prefix: str) -> tuple[str, ...]:
    """The prefix itself, or, where something in it may hold a credential, everything in it but that (two levels)."""
    return tuple(_shown(prefix, 2))


def public_parts(prefix: str) -> tuple[str, ...]:
    """As `shown_parts`, for a directory of unknown layout: without what others than its owner may not read (two levels), and
    without state and links that lead out."""
    return tuple(p for p in _shown(prefix, 2, public=True) if p == prefix or _stays(p, prefix))


_STATE = ("cache", "data", "log", "logs", "run", "state", "tmp", "var")


def _shown(directory: str, levels: int, *, public: bool = False) -> list[str]:
    try:
        entries = sorted(os.scandir(directory), key=lambda e: e.name)
    except OSError:
        return [directory]
    whole = True
    found: list[str] = []
    for entry in entries:
        descend = public or entry.name in ("etc", "conf", "lib")
        if entry.name in SECRETS or (public and (entry.name in _STATE or not _readable_by_all(entry))):
            whole = False
        elif levels > 1 and descend and entry.is_dir(follow_symlinks=False):
            below = _shown(entry.path, levels - 1, public=public)
            whole = whole and below == [entry.path]
            found += below
        elif entry.is_symlink() and not os.path.exists(entry.path):
            continue  # nothing to show
        else:
            found.append(entry.path)
    return [directory] if whole else found


def _readable_by_all(entry: os.DirEntry[str]) -> bool:
    try:
        return bool(entry.stat().st_mode & 0o004)
    except OSError:
        return entry.is_symlink()  # dangling: nothing to hide


def _own(prefix: str, kind: str) -> list[str]:
    """The layout's own files in a prefix that others use as well."""
    known = _OWN.get(kind)
    if known is None:
        return []
    found = [f"{prefix}/bin/{n}" for n in _names(f"{prefix}/bin") if known[0](n) and _beside(f"{prefix}/bin/{n}")]
    for directory, is_own in known[1]:
        place = f"{prefix}/{directory}".rstrip("/")
        found += [
            f"{place}/{n}" for n in _names(place) if is_own(n) and (kind != PYTHON or _is_library(f"{place}/{n}"))
        ]
    return [p for p in found if _stays(p, prefix)]


def _is_library(path: str) -> bool:
    """`lib/python3.11` of `~/.local` is also where `pip install --user` puts things for another interpreter."""
    return os.path.dirname(path).endswith("/include") or not os.path.isdir(path) or os.path.isfile(f"{path}/os.py")


def _beside(path: str) -> bool:
    """A file, or a link to one beside it: shown by itself, a script elsewhere would not find what is next to it."""
    return os.path.dirname(os.path.realpath(path)) == os.path.realpath(os.path.dirname(path))


def _stays(path: str, prefix: str) -> bool:
    return os.path.exists(path) and os.path.realpath(path).startswith(os.path.realpath(prefix) + "/")


def _names(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []


def _any_of(*names: str) -> Callable[[str], bool]:
    return lambda name: name in names


def _versioned(*stems: str) -> Callable[[str], bool]:
    """A stem, and what may follow it: a version (`python3.11`, `libpython3.11.so.1.0`)."""
    return lambda name: name.replace(".so", "").replace(".a", "").rstrip("0123456789.tmu-") in stems


def _begins(*stems: str) -> Callable[[str], bool]:
    return lambda name: name.startswith(stems)


#: kind -> (programs of its own in `bin`, [(directory, what in it is its own)]). A kind without an entry (Go's `src`, a Java
#: runtime's `conf`) cannot be told from a user's own directories of these names.
_OWN: dict[str, tuple[Callable[[str], bool], tuple[tuple[str, Callable[[str], bool]], ...]]] = {
    VENV: (_versioned("python", "pip"), (("", _any_of("pyvenv.cfg")), ("lib", _versioned("python")))),
    BREW: (_any_of("brew"), (("", _any_of("Cellar", "opt")),)),
    PYTHON: (
        _versioned("idle", "pip", "pydoc", "pypy", "python"),
        (("lib", _versioned("libpython", "libpypy-c", "python", "pypy")), ("include", _versioned("python", "pypy"))),
    ),
    NODE: (
        _any_of("node", "npm", "npx", "corepack"),
        (("lib", _any_of("node_modules")), ("include", _any_of("node"))),
    ),
    RUST: (
        _any_of("cargo", "cargo-clippy", "cargo-fmt", "clippy-driver", "rust-gdb", "rustc", "rustdoc", "rustfmt"),
        (("lib", _any_of("rustlib")), ("lib", _begins("librustc_driver-", "libLLVM", "libstd-", "libtest-"))),
    ),
    RUBY: (
        _any_of("bundle", "bundler", "erb", "gem", "irb", "rake", "rdoc", "ri", "ruby"),
        (("lib", _any_of("ruby")), ("lib", _versioned("libruby")), ("include", _versioned("ruby"))),
    ),
}
