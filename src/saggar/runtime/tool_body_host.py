"""Bodies of tools that declare `runs="sandbox"`: the function's source, run in a cell of its own for each call.

I1  The body sees the session's policy and nothing of this process: its source, its arguments and the standard library.
I2  What comes back is the sandbox's word: parsed strictly, of the declared type, within the output limit, or a
    `PeerError`. What the body prints is not part of it.
I3  A body that cannot be carried over (no source, names from elsewhere) is refused when it is called, never run here.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import json
import os
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

from saggar.audit import canonical
from saggar.capability.types import mismatch
from saggar.capability.wire import jsonable
from saggar.core.errors import LimitExceeded, ParseError, PeerError, UsageError
from saggar.core.tool import ToolDeclaration
from saggar.policy.model import Policy
from saggar.runtime.api_host import run_sync
from saggar.runtime.ask_host import Unattended
from saggar.runtime.held import OnAsk

#: in the cell: reads one JSON object, runs the body with stdout pointing at stderr, writes the mark and one JSON value
_RUNNER = """
import asyncio, inspect, json, os, sys
call = json.loads(sys.stdin.buffer.read())
out = os.dup(1)
os.dup2(2, 1)
space = {"__name__": "saggar_tool"}
exec(compile(call["source"], "<tool>", "exec"), space)
for name, module, kind in call["revive"]:
    if call["args"].get(name) is not None:
        made = getattr(__import__(module), kind)
        made = getattr(made, "fromisoformat", made)
        call["args"][name] = made(call["args"][name])
value = space[call["name"]](**call["args"])
if inspect.iscoroutine(value):
    value = asyncio.run(value)
os.write(out, call["mark"].encode() + json.dumps(value, allow_nan=False, default=str).encode())
"""
_PYTHON = ("python3", "-I", "-S", "-c", _RUNNER)


class CellBody:
    """Implements `core.tool.SandboxBody`. policy: of the cells; python: argv of an interpreter that they have; on_ask: as in
    `saggar.run`."""

    def __init__(
        self,
        policy: Policy | None = None,
        *,
        python: tuple[str, ...] = _PYTHON,
        on_ask: OnAsk | Unattended = "refuse",
    ) -> None:
        self._policy = policy or Policy()
        self._python = python
        self._on_ask = on_ask

    def run(
        self, declaration: ToolDeclaration, body: Callable[..., Any], args: Mapping[str, Any], timeout_s: float
    ) -> Any:
        """Raises `UsageError` (I3), `PeerError` (I2), `LimitExceeded`, `Unenforceable`."""
        mark = f"saggar-result-{os.urandom(16).hex()}\n"
        call = {
            "source": source_of(body),
            "name": body.__name__,
            "args": jsonable(dict(args)),
            "revive": revivals(body),
            "mark": mark,
        }
        data = json.dumps(call).encode()
        result = run_sync(self._python, self._policy, input=data, timeout_s=timeout_s, on_ask=self._on_ask)
        if result.cause != "exit":
            raise LimitExceeded(
                f"the tool `{declaration.name}` was ended in its sandbox: {result.cause}", limit=result.cause
            )
        if result.exit_code != 0:
            raise PeerError(f"the tool `{declaration.name}` failed in its sandbox with exit code {result.exit_code}")
        return value_of(declaration, result.stdout, mark)


def value_of(declaration: ToolDeclaration, stdout: bytes, mark: str) -> Any:
    """The value after the mark. Raises `PeerError` (I2)."""
    if not stdout.startswith(mark.encode()):
        raise PeerError(f"the tool `{declaration.name}` gave no result")
    try:
        value = canonical.decode(stdout[len(mark) :])
    except ParseError as e:
        raise PeerError(f"the result of `{declaration.name}` does not parse: {e}") from None
    wrong = mismatch(declaration.output, value)
    if wrong:
        raise PeerError(f"the result of `{declaration.name}` is not of its declared type: {wrong}")
    return value


def source_of(body: Callable[..., Any]) -> str:
    """The function alone, without decorators and annotations. Raises `UsageError` (I3)."""
    name = getattr(body, "__name__", "?")
    try:
        text = textwrap.dedent(inspect.getsource(body))
        (function,) = ast.parse(text).body
    except (OSError, TypeError, SyntaxError, ValueError):
        raise UsageError(f"the body of `{name}` has no source that a sandbox could run") from None
    if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
        raise UsageError(f"the body of `{name}` is not a function of its own", hint="def, not lambda")
    function.decorator_list = []
    function.returns = None
    for argument in [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]:
        argument.annotation = None
    foreign = sorted(_free_names(body))
    if foreign:
        raise UsageError(
            f"the body of `{name}` uses `{foreign[0]}`, which its sandbox does not have",
            hint="import what it needs inside the function",
        )
    return ast.unparse(function)


def _free_names(body: Callable[..., Any]) -> set[str]:
    """Global and enclosing names that the code reads, built-in ones apart."""
    code = inspect.unwrap(body).__code__
    used = set(code.co_freevars)
    queue = [code]
    while queue:
        part = queue.pop()
        names = {i.argval for i in _loads(part)}
        used |= {str(n) for n in names if not hasattr(builtins, str(n))}
        queue += [c for c in part.co_consts if inspect.iscode(c)]
    return used


def _loads(code: Any) -> list[Any]:
    import dis

    return [i for i in dis.get_instructions(code) if i.opname == "LOAD_GLOBAL"]


def revivals(body: Callable[..., Any]) -> list[tuple[str, str, str]]:
    """(argument, module, class) of what JSON carries as text: decimals and dates."""
    import datetime as dt
    import typing
    from decimal import Decimal

    out = []
    for name, hint in typing.get_type_hints(body).items():
        for option in typing.get_args(hint) or (hint,):
            if option is Decimal:
                out.append((name, "decimal", "Decimal"))
            elif option is dt.date:
                out.append((name, "datetime", "date"))
    return [x for x in out if x[0] != "return"]
