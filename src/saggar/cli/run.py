"""`saggar run`: one command, contained."""

from __future__ import annotations

import os
import sys
from stat import S_ISREG

from saggar.core.errors import UsageError
from saggar.runtime.run_host import early_launcher, run_foreground

TYPE_CHECKING = False
if TYPE_CHECKING:
    from saggar.policy.model import Policy
    from saggar.runtime.result import Result

USAGE = """usage: saggar run [OPTIONS] [--] COMMAND [ARGUMENT...]

  --policy FILE             the policy (default: $SAGGAR_POLICY, then ~/.config/saggar/saggar.toml, then deny all)
  --allow HOST[:PORT]       let the command reach this host; repeatable; `registry:pip` and `registry:npm` stand for this
                            machine's own package index
  --tier TIER               auto, process, gvisor, microvm or container: a floor
  --workspace DIR[:MODE]    copy-on-write (default), read-only, read-write or none
  --env NAME=VALUE          set a variable of the command; repeatable
  --timeout T               90, 90s, 5m or none
  --ask HOW                 where a rule asks: prompt (at this terminal; the default where there is one), hold (for
                            `saggar egress approve`) or refuse (the default without a terminal)
  --json FILE               write the result there
  -q, --quiet               no summary line
"""


class Flags:
    """What the command line said."""

    __slots__ = ("allow", "argv", "ask", "env", "json", "policy", "quiet", "tier", "timeout", "workspace")

    def __init__(self) -> None:
        self.policy: str | None = None
        self.allow: list[str] = []
        self.tier: str | None = None
        self.workspace: str | None = None
        self.env: list[str] = []
        self.timeout: str | None = None
        self.ask: str | None = None
        self.json: str | None = None
        self.quiet = False
        self.argv: list[str] = []


_SINGLE = ("policy", "tier", "workspace", "timeout", "ask", "json")
_ASK = ("prompt", "hold", "refuse")
_REPEATED = ("allow", "env")


def parse(args: list[str]) -> Flags:
    """Flags up to `--` or the first word that is none. Raises UsageError."""
    flags = Flags()
    i = 0
    while i < len(args):
        word = args[i]
        i += 1
        if word == "--":
            break
        if not word.startswith("-") or word == "-":
            i -= 1
            break
        if word in ("-q", "--quiet"):
            flags.quiet = True
            continue
        name, equals, value = word[2:].partition("=")
        if not word.startswith("--") or name not in (*_SINGLE, *_REPEATED):
            raise UsageError(f"unknown option `{word}`", hint="options stand before `--`; see `saggar run --help`")
        if not equals:
            if i >= len(args):
                raise UsageError(f"`{word}` needs a value")
            value = args[i]
            i += 1
        if name in _REPEATED:
            getattr(flags, name).append(value)
        elif getattr(flags, name) is not None:
            raise UsageError(f"`--{name}` was given twice")
        else:
            setattr(flags, name, value)
    if flags.ask not in (None, *_ASK):
        raise UsageError(f"`--ask` is one of {', '.join(_ASK)}, not `{flags.ask}`")
    flags.argv = args[i:]
    if not flags.argv:
        raise UsageError("no command was given", hint="saggar run [OPTIONS] -- COMMAND [ARGUMENT...]")
    return flags


def effective_policy(flags: Flags, cwd: str) -> Policy:
    """Defaults, file, flags. Raises UsageError."""
    if any(a.startswith("registry:") for a in flags.allow):
        # asked once the policy has said which directory the cell may write
        asked = flags.allow
        flags.allow = [a for a in asked if not a.startswith("registry:")]
        workspace = workspace_of(_effective(flags, cwd), cwd)
        flags.allow = asked
        _ask_registries(flags, workspace)
    return _effective(flags, cwd)


def workspace_of(policy: Policy, cwd: str) -> str:
    """The directory that a cell of this policy may have written, now or in an earlier run: `cwd` even where none is shown."""
    return os.path.join(cwd, policy.workspace.path or "")


def _effective(flags: Flags, cwd: str) -> Policy:
    from saggar.policy.load import effective

    return effective(
        flags.policy,
        os.environ,
        cwd,
        allow=flags.allow,
        tier=flags.tier,
        workspace=flags.workspace,
        env=flags.env,
        timeout=flags.timeout,
    )


def _ask_registries(flags: Flags, workspace: str) -> None:
    """Put hosts and variables in the place of `registry:NAME`; the user's own `--env` stands over them."""
    from saggar.isolation.registry_host import project
    from saggar.isolation.state_host import open_state

    state = open_state(os.environ).path
    allow: list[str] = []
    env: list[str] = []
    for given in flags.allow:
        if not given.startswith("registry:"):
            allow.append(given)
            continue
        found = project(given, env=os.environ, workspace=workspace, state=state)
        allow += found.allow
        env += [f"{name}={value}" for name, value in found.env]
        if not flags.quiet:
            for note in found.notes:
                _notice(note)
    flags.allow = allow
    flags.env = [*env, *flags.env]


def main(argv: list[str]) -> int:
    args = argv[1:]
    if args[:1] in (["--help"], ["-h"]):
        sys.stdout.write(USAGE)
        return 0
    flags = parse(args)
    control = early_launcher()
    cwd = _cwd()
    policy = effective_policy(flags, cwd)
    notice = None if flags.quiet else _notice
    json_fd = _open_json(flags.json, workspace_of(policy, cwd)) if flags.json is not None else -1
    result, _ = run_foreground(control, policy, flags.argv, env=os.environ, cwd=cwd, notice=notice, asking=flags.ask)
    if flags.json is not None:
        _write_json(json_fd, flags.json, result)
    _say(result, quiet=flags.quiet)
    return result.status


def _cwd() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise UsageError("the current directory does not exist any more") from None


def _notice(text: str) -> None:
    sys.stderr.write(f"saggar: {text}\n")


def _say(result: Result, *, quiet: bool) -> None:
    if result.cause not in ("exit", "signal"):
        limit = result.limits.get(result.cause, {})
        note = result.message or _cause_text(result.cause, limit)
        sys.stderr.write(f"saggar: {note}\n")
    suspected = result.detail.get("suspected")
    if suspected and not quiet:
        sys.stderr.write(
            f"saggar: the command failed by itself, perhaps at the {suspected['limit']} limit: {suspected['note']}\n"
        )
    left_out = result.enforcement.get("left_out")
    # these two codes alone say that something was not there; any other failure has causes of its own
    if left_out and result.status in (126, 127) and not quiet:
        more = f" (and {len(left_out) - 1} more, in the result)" if len(left_out) > 1 else ""
        sys.stderr.write(f"saggar: not shown in the cell: {left_out[0]}{more}\n")
    if result.refused and not quiet:
        first = ", ".join(
            dict.fromkeys((f"{h}:{p}" if p else h) if h else f"port {p}" for _, h, p in result.refusals[:5])
        )
        more = f" and {result.refused - 5} more" if result.refused > 5 else ""
        sys.stderr.write(f"saggar: refused {first}{more} (saggar log {result.run_id})\n")


def _cause_text(cause: str, limit: dict[str, object]) -> str:
    allowed = limit.get("allowed")
    if cause == "memory" and limit.get("held") == "watchdog" and isinstance(allowed, int):
        return (
            f"the cell was ended: the memory limit of {allowed} was reached (on this host Java and Node size their heaps by the machine:"
            f" `--env JDK_JAVA_OPTIONS=-XX:MaxRAM={allowed}`, `--env NODE_OPTIONS=--max-old-space-size={allowed >> 21}`)"
        )
    if cause in ("memory", "tasks", "disk", "cpu", "output"):
        return f"the cell was ended: the {cause} limit" + (f" of {allowed}" if allowed else "") + " was reached"
    if cause == "timeout":
        return "the cell was ended: its time was over"
    return f"the cell was ended: {cause}"


def _open_json(path: str, workspace: str) -> int:
    """The result's file, before anything runs: a wrong path costs no run, and a command that may write there (a read-write
    workspace) cannot put a link in its place for this side to follow. Nor is one followed that an earlier run left there."""
    from saggar.policy.file_host import open_for_writing

    try:
        return open_for_writing(path, workspace)
    except OSError as error:
        raise UsageError(f"the result cannot be written to `{path}`: {error.strerror}") from None


def _write_json(fd: int, path: str, result: Result) -> None:
    from json import dumps

    text = dumps(result.to_json(), indent=2, ensure_ascii=True, default=str) + "\n"
    try:
        with open(fd, "w", encoding="utf-8") as file:
            # a device can be seekable, and cannot be cut
            if S_ISREG(os.fstat(fd).st_mode):
                file.truncate(0)
            file.write(text)
    except OSError as error:
        sys.stderr.write(f"saggar: the result could not be written to `{path}`: {error.strerror}\n")
