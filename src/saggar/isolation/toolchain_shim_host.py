"""What a version manager's stand-in would start, by reading the files that it reads, without running it.

pyenv and its family (rbenv, nodenv, goenv), asdf, rustup. Others are named in the error, with the way round.
"""

from __future__ import annotations

import os

from saggar.core.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: program of the manager -> (variable, file in a project)
_FAMILY = {
    "pyenv": ("PYENV_VERSION", ".python-version"),
    "rbenv": ("RBENV_VERSION", ".ruby-version"),
    "nodenv": ("NODENV_VERSION", ".node-version"),
    "goenv": ("GOENV_VERSION", ".go-version"),
}
_FILE_BYTES = 4096

#: `(path, note, file, store)`. path: the real program; "" when this is no stand-in; None when the manager leaves it to the
#: system. file: what chose the version, "" for the caller's environment. store: the manager's directory of versions.
Found = tuple["str | None", str, str, str]
_NONE: Found = ("", "", "", "")


def behind(directory: str, base: str, name: str, *, cwd: str, env: Mapping[str, str]) -> Found:
    """What a stand-in stands for.

    Raises: `UsageError` when it is a stand-in that leads nowhere.
    """
    found = f"{directory}/{base}"
    target = os.path.basename(os.path.realpath(found))
    root = os.path.dirname(directory)
    if target == "rustup" and base not in ("rustup", "rustup-init"):
        return _rustup(base, cwd, env)
    if target in ("mise", "volta-shim", "snap") and base != target:
        raise UsageError(
            f"`{name}` is a stand-in of `{target}`, which only `{target}` itself can resolve",
            hint=f"give the program's own path, as `{target} which {base}` prints it",
        )
    if os.path.basename(directory) != "shims":
        return _NONE
    for manager, (variable, file) in _FAMILY.items():
        if os.path.isdir(f"{root}/versions") and _is_manager(root, manager):
            return _family(root, manager, variable, file, base, cwd, env)
    if os.path.isdir(f"{root}/installs"):
        return _asdf(root, found, base, cwd, env)
    return _NONE


def _is_manager(root: str, manager: str) -> bool:
    if os.path.exists(f"{root}/libexec/{manager}") or os.path.exists(f"{root}/bin/{manager}"):
        return True
    return os.path.basename(root) in (manager, f".{manager}")


def _family(  # noqa: PLR0917  # one caller, above
    root: str, manager: str, variable: str, file: str, base: str, cwd: str, env: Mapping[str, str]
) -> Found:
    wanted, source, chosen = _wanted(root, variable, file, cwd, env)
    for version in wanted:
        if version == "system":
            return None, f"`{base}`: {manager} says `system` ({source})", chosen, ""
        directory = _installed(root, version)
        if directory and os.access(f"{directory}/bin/{base}", os.X_OK):
            note = f"`{base}`: {manager} {os.path.basename(directory)} ({source})"
            return f"{directory}/bin/{base}", note, chosen, f"{root}/versions"
    having = sorted(v for v in _names(f"{root}/versions") if os.access(f"{root}/versions/{v}/bin/{base}", os.X_OK))
    raise UsageError(
        f"{manager} has no `{base}` for {', '.join(f'`{w}`' for w in wanted)} ({source})",
        hint=f"versions that have it: {', '.join(having)}; set `{variable}`"
        if having
        else f"install it with `{manager}`",
    )


def _wanted(root: str, variable: str, file: str, cwd: str, env: Mapping[str, str]) -> tuple[list[str], str, str]:
    if env.get(variable):
        return env[variable].split(":"), variable, ""
    for directory in _upwards(cwd):
        words = _words(f"{directory}/{file}")
        if words:
            return words, file, f"{directory}/{file}"
    words = _words(f"{root}/version")
    return (words, "the global version", f"{root}/version") if words else (["system"], "no version chosen", "")


def _installed(root: str, version: str) -> str:
    """The directory of a version; `3.11` stands for the newest `3.11.x`, as pyenv has it."""
    versions = f"{root}/versions"
    if not _plain(version):
        return ""
    if os.path.isdir(f"{versions}/{version}"):
        return f"{versions}/{version}"
    # `pyenv-virtualenv` and others write a prefix such as `python-3.11.4`
    stem = version.removeprefix("python-")
    matching = [v for v in _names(versions) if v == stem or v.startswith(stem + ".")]
    return f"{versions}/{max(matching, key=_order)}" if matching else ""


def _order(version: str) -> tuple[tuple[int, int, str], ...]:
    """Numbers by value and after words, so that a release comes after its candidates."""
    parts = version.replace("-", ".").split(".")
    return tuple((1, int(p), "") if p.isascii() and p.isdigit() else (0, 0, p) for p in parts)


def _asdf(root: str, found: str, base: str, cwd: str, env: Mapping[str, str]) -> Found:
    plugins = [
        line.split()[2]
        for line in _text(found).splitlines()
        if line.startswith("# asdf-plugin: ") and len(line.split()) >= 3
    ]
    for plugin in dict.fromkeys(plugins):
        versions, chosen = _asdf_versions(plugin, cwd, env)
        for version in versions:
            if version == "system":
                return None, f"`{base}`: asdf says `system`", chosen, ""
            path = f"{root}/installs/{plugin}/{version}/bin/{base}"
            if _plain(plugin) and _plain(version) and os.access(path, os.X_OK):
                return path, f"`{base}`: asdf {plugin} {version}", chosen, f"{root}/installs/{plugin}"
    raise UsageError(
        f"asdf has no version of `{base}` chosen for this directory",
        hint="name one in `.tool-versions`, or give the program's own path, as `asdf which` prints it",
    )


def _asdf_versions(plugin: str, cwd: str, env: Mapping[str, str]) -> tuple[list[str], str]:
    variable = f"ASDF_{plugin.upper().replace('-', '_')}_VERSION"
    if env.get(variable):
        return env[variable].split(), ""
    for directory in [*_upwards(cwd), env.get("HOME", "")]:
        for line in _text(f"{directory}/.tool-versions").splitlines():
            words = line.partition("#")[0].split()
            if words and words[0] == plugin:
                return words[1:], f"{directory}/.tool-versions"
    return [], ""


def _rustup(base: str, cwd: str, env: Mapping[str, str]) -> Found:
    root = env.get("RUSTUP_HOME") or f"{env.get('HOME', '')}/.rustup"
    settings = _toml(f"{root}/settings.toml")
    wanted, source, chosen = _rust_wanted(settings, cwd, env)
    machine = f"{os.uname().machine}-unknown-linux-gnu"
    triple = settings[""].get("default_host_triple", machine)
    for name in (wanted, f"{wanted}-{triple}", f"{wanted}-{machine.replace('-gnu', '-musl')}"):
        path = f"{root}/toolchains/{name}/bin/{base}"
        if wanted and _plain(name) and os.access(path, os.X_OK):
            return os.path.realpath(path), f"`{base}`: rustup {name} ({source})", chosen, f"{root}/toolchains"
    raise UsageError(
        f"rustup has no `{base}` in the tool chain `{wanted}` ({source})"
        if wanted
        else "rustup has no default tool chain",
        hint=f"installed: {', '.join(sorted(_names(f'{root}/toolchains'))) or 'none'}; set `RUSTUP_TOOLCHAIN`",
    )


def _rust_wanted(settings: dict[str, dict[str, str]], cwd: str, env: Mapping[str, str]) -> tuple[str, str, str]:
    if env.get("RUSTUP_TOOLCHAIN"):
        return env["RUSTUP_TOOLCHAIN"], "RUSTUP_TOOLCHAIN", ""
    overrides = settings.get("overrides", {})
    for directory in _upwards(cwd):
        if directory in overrides:
            return overrides[directory], "a directory override", ""
        for file in ("rust-toolchain", "rust-toolchain.toml"):
            channel = _rust_channel(f"{directory}/{file}")
            if channel:
                return channel, file, f"{directory}/{file}"
    return settings[""].get("default_toolchain", ""), "the default", ""


def _rust_channel(path: str) -> str:
    text = _text(path).strip()
    if not text:
        return ""
    if "[" not in text and "\n" not in text:
        return text
    # `path = …` would let a project name a directory of the host
    return _toml(path).get("toolchain", {}).get("channel", "")


def _toml(path: str) -> dict[str, dict[str, str]]:
    """Section to key to string, of the plain `key = "value"` lines that rustup writes and reads; what else there is is left
    out. tomllib would cost 20 ms of import."""
    found: dict[str, dict[str, str]] = {"": {}}
    section = found[""]
    for line in _text(path, 65536).splitlines():
        text = line.strip()
        if text.startswith("[") and text.endswith("]"):
            section = found.setdefault(text[1:-1].strip(), {})
            continue
        key, equals, value = text.partition("=")
        quote = value.strip()[:1]
        if equals and quote in ('"', "'"):
            section[key.strip().strip("\"'")] = value.strip()[1:].partition(quote)[0]
    return found


def _upwards(directory: str) -> Iterator[str]:
    here = os.path.normpath(directory)
    while True:
        yield here
        if here == "/":
            return
        here = os.path.dirname(here)


def _plain(name: str) -> bool:
    """A file name and nothing more: a project's version file must not lead elsewhere."""
    return bool(name) and name not in (".", "..") and "/" not in name and "\0" not in name


def _words(path: str) -> list[str]:
    words: list[str] = []
    for line in _text(path).splitlines():
        words += line.partition("#")[0].replace(":", " ").split()
    return words


def _text(path: str, limit: int = _FILE_BYTES) -> str:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError):
        return ""
    try:
        return os.read(fd, limit).decode("utf-8", "replace")
    except OSError:
        return ""
    finally:
        os.close(fd)


def _names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []
