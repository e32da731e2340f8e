"""One command in the foreground: what `saggar run` does between its flags and its exit code."""

from __future__ import annotations

import os
from stat import S_ISREG

from saggar.core.errors import UsageError
from saggar.isolation import launcher_host
from saggar.runtime.caller_host import Options, Session
from saggar.runtime.prepare_host import Prepared
from saggar.runtime.request_host import foresee
from saggar.runtime.stream_host import Relay, own_pipe, passes_through
from saggar.runtime.supervisor_host import Supervisor
from saggar.runtime.terminal_host import Terminal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from saggar.isolation import wire_host as wire
    from saggar.policy.model import Policy
    from saggar.runtime.prompt_host import Prompt
    from saggar.runtime.result import Result
    from saggar.runtime.supervisor_host import Cell


def early_launcher() -> wire.Socket:
    """Fork the launcher now, while this process is small."""
    # a stream that the caller closed: the next descriptor opened would take its number, and be the command's
    while True:
        fd = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        if fd > 2:
            os.close(fd)
            break
    return launcher_host.fork(os.getpid())


def run_foreground(
    control: wire.Socket,
    policy: Policy,
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str,
    notice: Callable[[str], None] | None = None,
    asking: str | None = None,
) -> tuple[Result, Prepared]:
    """Run `argv` on this process's own streams and terminal. notice: takes what will not work in this workspace as it does
    outside, a line each, before the start. asking: `prompt`, `hold` or `refuse` what a rule asks about; None: by whether there is
    a terminal. Raises SaggarError before anything was started."""
    supervisor = Supervisor(control)
    terminal = Terminal()
    prompt: Prompt | None = None
    try:
        session = Session(env)
        timeout_s = policy.limits.timeout_s
        if terminal.interactive and str(policy.origins.get("limits.timeout", "default")) == "default":
            timeout_s = None
        opts = Options(
            cwd=cwd,
            timeout_s=timeout_s,
            terminal=terminal.fd,
            foreground=terminal.interactive,
            linger=True,
            term=env.get("TERM", "") if terminal.fd >= 0 else "",
        )
        supervisor.expect(foresee(session, policy, opts))
        prepared = Prepared(session, policy, argv, opts)
        if notice is not None:
            for text in prepared.workspace.notices():
                notice(text)
        if prepared.terminating is not None and asking in (None, "prompt"):
            prompt = _prompt(asking, terminal, supervisor)
        owner = prepared.cell_uid
        inner, relays = _streams(owner)
        cell = supervisor.start(prepared, inner)
        _ask_by(cell, supervisor, prompt, hold=asking == "hold", notice=notice)
        _attach(supervisor, cell, inner, relays)
        terminal.take_over(supervisor, cell)
        return supervisor.run_to_end(cell), prepared
    finally:
        supervisor.close()
        if prompt is not None:
            prompt.close()
        terminal.give_back()


def _prompt(asking: str | None, terminal: Terminal, supervisor: Supervisor) -> Prompt | None:
    """The terminal's questions, where there is one whose foreground we are. Raises UsageError where one was asked for."""
    from saggar.runtime.prompt_host import Prompt, open_terminal

    fd = open_terminal()
    if fd >= 0:
        return Prompt(fd, terminal, supervisor)
    if asking == "prompt":
        raise UsageError(
            "`--ask prompt` needs a terminal, with this run in its foreground",
            hint="`--ask hold` lets requests wait for `saggar egress approve`",
        )
    return None


def _ask_by(
    cell: Cell, supervisor: Supervisor, prompt: Prompt | None, *, hold: bool, notice: Callable[[str], None] | None
) -> None:
    """Who hears of a request that waits for a person."""
    if prompt is not None:
        prompt.serve(cell)
        return

    def told(message: dict[str, Any]) -> None:
        from saggar.runtime.held_host import ask

        question = ask(cell, message["id"])
        if hold:
            text = f"{question} waits for your word: `saggar egress approve {question.id}` or `deny`"
        else:
            supervisor.answer(cell, question.id, "unattended")
            text = f"{question} needs your approval, and there is no terminal to ask at: it was refused (see `--ask`)"
        if notice is not None:
            notice(text)

    cell.on_held = told


def _streams(owner: int) -> tuple[tuple[int, int, int], list[tuple[int, int]]]:
    """The cell's three streams, and (our pipe end, caller's descriptor) of those that are relayed."""
    inner: list[int] = []
    relays: list[tuple[int, int]] = []
    for fd in range(3):
        if passes_through(fd):
            inner.append(fd)
            continue
        read, write = own_pipe(owner)
        inner.append(read if fd == 0 else write)
        relays.append((write if fd == 0 else read, fd))
    return (inner[0], inner[1], inner[2]), relays


def _attach(supervisor: Supervisor, cell: Cell, inner: tuple[int, int, int], relays: list[tuple[int, int]]) -> None:
    # the cell's ends are the cell's alone from here: the last writer's end is the end of file
    gauge = inner[0] if any(theirs == 0 for _, theirs in relays) and S_ISREG(os.fstat(0).st_mode) else -1
    for number, fd in enumerate(inner):
        if fd not in (number, gauge):
            os.close(fd)
    for ours, theirs in relays:
        inward = theirs == 0
        cell.streams.append(
            Relay(supervisor.loop, ours, theirs, inward=inward, on_end=cell.stream_ended, gauge=gauge if inward else -1)
        )
