"""From a TOML text, flags and defaults to one effective policy.

I1  `parse` gives a policy in which every key was known, well typed and agreed with the others, or a `UsageError` with
    file, line and, where there is one, the nearest valid key. Nothing is skipped with a warning.
I2  Flags beat the file, the file beats the defaults; each value's origin says which it was.
I3  A file found below the workspace is used only when the command line named it.

Light on import: the table of keys and `tomllib` load with the first file (15 ms).
"""

from __future__ import annotations

from saggar.core.errors import UsageError
from saggar.policy.flags import with_flags
from saggar.policy.model import Origin, Policy
from saggar.policy.values import key_text, show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from saggar.policy.positions import Path
    from saggar.policy.table import Table

__all__ = ["check", "default_policy", "discover", "effective", "load_file", "parse", "refuse_inside", "with_flags"]

MAX_FILE = 1024 * 1024
MAX_LINE = 16 * 1024
#: problems that are told; a file with more is not a policy
MAX_PROBLEMS = 100


def default_policy() -> Policy:
    """Deny-all egress, copy-on-write workspace, the default limits."""
    return Policy()


def load_file(path: str) -> Policy:
    """The policy of a file, its `file` absolute. Raises `UsageError`."""
    from saggar.policy.file_host import absolute, read

    return parse(read(path), path).replace(file=absolute(path))


def effective(
    named: str | None,
    environ: Mapping[str, str],
    cwd: str,
    *,
    allow: Iterable[str] = (),
    tier: str | None = None,
    workspace: str | None = None,
    env: Iterable[str] = (),
    timeout: str | float | None = None,
) -> Policy:
    """What one command line comes to: the file that counts, flags over it, and I3 for the workspace that results.

    named: the file after `--policy`. A relative `workspace` counts from `cwd`. Raises `UsageError`.
    """
    path = discover(named, environ)
    policy = with_flags(
        load_file(path) if path else default_policy(),
        allow=allow,
        tier=tier,
        workspace=_from(cwd, workspace),
        env=env,
        timeout=timeout,
    )
    if path and policy.workspace.mode != "none":
        refuse_inside(path, policy.workspace.path or cwd, named=bool(named))
    return policy


def _from(cwd: str, workspace: str | None) -> str | None:
    if workspace is None or not workspace or workspace.startswith(("/", ":")):
        return workspace
    from saggar.policy.file_host import absolute

    path, colon, mode = workspace.rpartition(":")
    if not colon:
        path, mode = workspace, ""
    return absolute(f"{cwd}/{path}") + colon + mode


def discover(named: str | None, environ: Mapping[str, str]) -> str | None:
    """Which policy file to use: the one that the command line named, `$SAGGAR_POLICY`, the user's own, or none."""
    if named:
        return named
    path = environ.get("SAGGAR_POLICY", "")
    if path:
        return path
    from saggar.policy.file_host import exists

    base = environ.get("XDG_CONFIG_HOME", "") or environ.get("HOME", "") + "/.config"
    path = f"{base}/saggar/saggar.toml"
    return path if base.startswith("/") and exists(path) else None


def refuse_inside(path: str, workspace: str, *, named: bool) -> None:
    """Raise `UsageError` for a policy file that the sandbox could have chosen (I3).

    A file that the command line named may lie in the workspace, where it is read-only; a symlink to it may not, since
    that could be made to point elsewhere before the next run.
    """
    from saggar.policy.file_host import is_below, link_below

    if not named and is_below(path, workspace):
        raise UsageError(
            "this policy lies in the workspace that it constrains",
            file=path,
            hint="name it with `--policy` if you trust what wrote it",
        )
    if named and link_below(path, workspace):
        raise UsageError(
            "a symbolic link in the workspace leads to this policy", file=path, hint="name the file itself"
        )


def parse(source: str, name: str) -> Policy:
    """The policy that `source` (TOML) describes; `name` stands in messages. Raises `UsageError`, the first by line."""
    policy, problems = _walk(source, name)
    if problems:
        raise problems[0]
    return policy


def check(source: str, name: str) -> list[UsageError]:
    """Everything wrong with `source` (at most `MAX_PROBLEMS`), in order of line."""
    return _walk(source, name)[1]


def _walk(source: str, name: str) -> tuple[Policy, list[UsageError]]:
    try:
        tree = _toml(source, name)
    except UsageError as e:
        return Policy(), [e]
    from saggar.policy.table import ROOT

    report = _Report(source, name)
    policy = ROOT.walk(tree, (), report)
    if report.problems or type(policy) is not Policy:
        return Policy(), sorted(report.problems, key=lambda p: p.line)
    return policy.replace(file=name, origins=report.origins), []


def _toml(source: str, name: str) -> dict[str, Any]:
    if len(source) > MAX_FILE:
        raise UsageError("the policy is longer than 1 MiB", file=name)
    for number, row in enumerate(source.split("\n"), 1):
        # `tomllib` takes quadratic time over the dots of one key, and a key ends with its line
        if len(row) > MAX_LINE:
            raise UsageError(f"a line is longer than {MAX_LINE} characters", file=name, line=number)
    import tomllib

    try:
        return tomllib.loads(source)
    except tomllib.TOMLDecodeError as e:
        message, line = _split_toml_error(str(e), source)
        raise UsageError(message, file=name, line=line) from None
    except (RecursionError, ValueError) as e:
        # ValueError: an integer of more than 4300 digits
        message = "nested too deeply" if isinstance(e, RecursionError) else "a number is too long"
        raise UsageError(message, file=name) from None


def _split_toml_error(message: str, source: str) -> tuple[str, int]:
    """`tomllib` says where in words only: `Expected '=' (at line 3, column 4)`."""
    text, _, where = message.rpartition(" (at ")
    if not text:
        return message, 0
    number = where.removeprefix("line ").split(",")[0]
    line = int(number) if number.isdigit() else source.count("\n") + 1
    return f"{text[:1].lower()}{text[1:]}".replace("'", "`"), line


class _Report:
    """Collects problems and origins, with lines found once they are needed."""

    __slots__ = ("_lines", "_name", "origins", "problems")

    def __init__(self, source: str, name: str) -> None:
        from saggar.policy.positions import positions

        self._name = name
        self._lines = positions(source)
        self.problems: list[UsageError] = []
        self.origins: dict[str, Origin] = {}

    def wrong(self, path: Path, message: str, hint: str = "") -> None:
        if len(self.problems) >= MAX_PROBLEMS:
            return
        where = f"`{show(dotted(path))}`: " if path else ""
        self.problems.append(UsageError(where + message, file=self._name, line=self._line(path), hint=hint))

    def unknown(self, path: Path, table: Table) -> None:
        if len(self.problems) >= MAX_PROBLEMS:
            return
        inside = f"`[{show(dotted(path[:-1]))}]`" if len(path) > 1 else "the policy"
        message = f"unknown key `{show(dotted(path[-1:]))}` in {inside}"
        hint = _nearest(str(path[-1]), table)
        self.problems.append(UsageError(message, file=self._name, line=self._line(path), hint=hint))

    def came_from_file(self, path: Path) -> None:
        self.origins[dotted(path)] = Origin("file", self._name, self._line(path))

    def where(self, path: Path) -> str:
        return f"on line {self._line(path)}"

    def _line(self, path: Path) -> int:
        while path and path not in self._lines:
            path = path[:-1]
        return self._lines.get(path, 1)


def dotted(path: Path) -> str:
    """`("egress", "allow", 2, "host")` as `egress.allow[2].host`; what is no bare key is quoted."""
    out = ""
    for part in path:
        if isinstance(part, int):
            out += f"[{part}]"
        else:
            out += f".{key_text(part)}" if out else key_text(part)
    return out


def _nearest(name: str, table: Table) -> str:
    from difflib import get_close_matches

    from saggar.policy.table import ROOT, keys_below

    close = get_close_matches(name.lower(), table.keys, n=1)
    if close:
        return f"did you mean `{close[0]}`?"
    homes = [path for path, key in keys_below(ROOT) if key.name == name]
    if homes:
        return f"`{name}` belongs to `[{homes[0]}]`" if homes[0] else f"`[{name}]` stands at the top"
    return "the keys here are " + ", ".join(f"`{key}`" for key in table.keys)
