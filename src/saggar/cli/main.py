"""The `saggar` command: one table from subcommand to module, each loaded only when it is called.

A module here offers `main(argv) -> int`, where `argv[0]` is the subcommand. On the path of `saggar run` an argument
parser's import alone costs more than the sandbox, so parsing is by hand.
"""

from __future__ import annotations

import sys

from saggar.core.errors import SaggarError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: subcommand -> (module with `main(argv) -> int`, one line for `--help`)
COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("saggar.cli.run", "run one command, contained"),
    "allow": ("saggar.cli.allow", "let a running task reach a further host"),
    "revoke": ("saggar.cli.allow", "take a host away from a running task"),
    "egress": ("saggar.cli.egress", "what a task may reach, reached, and was refused"),
    "runs": ("saggar.cli.workspace", "list the runs whose changes and logs are kept"),
    "diff": ("saggar.cli.workspace", "show what a run changed in its workspace"),
    "apply": ("saggar.cli.workspace", "copy a run's changes back to the workspace"),
    "discard": ("saggar.cli.workspace", "throw a run's changes away"),
    "doctor": ("saggar.cli.doctor", "probe what this host can enforce, and how to mend what it cannot"),
    "chat": ("saggar.cli.chat", "requests at the terminal, planned and run behind all the walls"),
    "plan": ("saggar.cli.plan", "check a plan before it runs, and draw what a run did"),
    "policy": ("saggar.cli.policy", "show, check and explain a policy"),
    "approvals": ("saggar.cli.approvals", "review the calls that wait for a person"),
    "audit": ("saggar.cli.audit", "what a task was granted and what it used"),
    "log": ("saggar.cli.log", "read and verify audit logs"),
    "bench": ("saggar.cli.bench", "attack and measure this installation"),
}


def usage() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {about}" for name, (_, about) in COMMANDS.items()]
    return "usage: saggar [--version] [--help] COMMAND ...\n\ncommands:\n" + "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and give its exit code. Saggar's own errors become one message and their exit code."""
    args = list(sys.argv[1:] if argv is None else argv)
    if not args:
        sys.stderr.write(usage())
        return 2
    name = args[0]
    if name in ("-h", "--help", "help"):
        sys.stdout.write(usage())
        return 0
    if name in ("-V", "--version"):
        from saggar import __version__

        sys.stdout.write(f"saggar {__version__}\n")
        return 0
    entry = COMMANDS.get(name)
    if entry is None:
        sys.stderr.write(f"saggar: unknown command `{name}`{_nearest(name)}\n")
        return 2
    try:
        return _load(entry[0])(args)
    except SaggarError as error:
        sys.stderr.write(f"saggar: {error}\n")
        return error.exit_code
    except BrokenPipeError:
        # a reader such as `head` left; point stdout at nothing so that the interpreter's last flush is silent
        _silence_stdout()
        return 141
    except KeyboardInterrupt:
        return 130


def _load(module: str) -> Callable[[list[str]], int]:
    # `__import__` with a fromlist gives the submodule; importlib's own import costs about a millisecond
    try:
        entry: Callable[[list[str]], int] = __import__(module, fromlist=["main"]).main
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise SaggarError(f"this build has no `{module.rpartition('.')[2]}` command") from None
    return entry


def _nearest(name: str) -> str:
    from difflib import get_close_matches

    close = get_close_matches(name, COMMANDS, n=1)
    return f" (hint: did you mean `{close[0]}`?)" if close else " (hint: see `saggar --help`)"


def _silence_stdout() -> None:
    import os

    null = os.open("/dev/null", os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)
