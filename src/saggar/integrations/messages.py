"""The gateway behind an ordinary tool-calling loop, in the OpenAI and the Anthropic message formats.

No SDK is imported: messages are read as mappings or as objects with attributes, and written as plain dicts.

I1  Every tool call of a message gets exactly one result, in order, refused ones included.
I2  A refused, parked or failed call gives the model one constant line: a reason would tell it what it may not see.
I3  Arguments that are not one JSON object are refused before the gateway, as a call that does not fit.

    loop = ToolLoop(gateway, purse.token)
    reply = client.chat.completions.create(model=..., messages=messages, tools=loop.openai_tools())
    messages += [reply.choices[0].message, *loop.openai_results(reply.choices[0].message)]
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from saggar.audit import canonical
from saggar.capability.wire import jsonable
from saggar.core.errors import ParseError
from saggar.core.tool import Outcome, ToolGateway

NO_CALL = "this call does not fit the tool"


class ToolLoop:
    """Runs the tool calls of a model's message through a gateway.

    token: gives a current token, for example `Purse.token`. tools: the names to offer, by default all of the gateway's.
    on_outcome: hears every outcome, with the tool's name; for logs and for parked calls.
    """

    def __init__(
        self,
        gateway: ToolGateway,
        token: Callable[[], str],
        *,
        tools: Iterable[str] | None = None,
        on_outcome: Callable[[str, Outcome], None] | None = None,
    ) -> None:
        self._gateway = gateway
        self._token = token
        known = gateway.declarations()
        self._tools = {n: known[n] for n in (tools if tools is not None else known) if n in known}
        self._on_outcome = on_outcome

    def openai_tools(self) -> list[dict[str, Any]]:
        """The `tools` parameter of chat completions."""
        return [
            {
                "type": "function",
                "function": {"name": n, "description": d.description, "parameters": d.parameters_schema()},
            }
            for n, d in self._tools.items()
        ]

    def anthropic_tools(self) -> list[dict[str, Any]]:
        """The `tools` parameter of messages."""
        return [
            {"name": n, "description": d.description, "input_schema": d.parameters_schema()}
            for n, d in self._tools.items()
        ]

    def openai_results(self, message: Any) -> list[dict[str, Any]]:
        """One `tool` message for each tool call of an assistant message; empty where it has none."""
        return [_openai(ident, self._run(name, arguments)) for ident, name, arguments in _openai_calls(message)]

    async def aopenai_results(self, message: Any) -> list[dict[str, Any]]:
        """`openai_results` for an event loop, one call after the other."""
        return [_openai(ident, await self._arun(name, args)) for ident, name, args in _openai_calls(message)]

    def anthropic_results(self, message: Any) -> dict[str, Any] | None:
        """One `user` message with a `tool_result` for each `tool_use` block; None where there is none."""
        return _anthropic([(ident, self._run(name, args)) for ident, name, args in _anthropic_calls(message)])

    async def aanthropic_results(self, message: Any) -> dict[str, Any] | None:
        """`anthropic_results` for an event loop, one call after the other."""
        return _anthropic([(ident, await self._arun(name, args)) for ident, name, args in _anthropic_calls(message)])

    def _run(self, name: Any, arguments: Any) -> tuple[str, bool]:
        args = self._fitting(name, arguments)
        return self._told(name, self._gateway.call(self._token(), name, args)) if args is not None else (NO_CALL, False)

    async def _arun(self, name: Any, arguments: Any) -> tuple[str, bool]:
        args = self._fitting(name, arguments)
        if args is None:
            return NO_CALL, False
        acall = getattr(self._gateway, "acall", None)
        if acall is None:
            return self._told(name, await asyncio.to_thread(self._gateway.call, self._token(), name, args))
        return self._told(name, await acall(self._token(), name, args))

    def _fitting(self, name: Any, arguments: Any) -> Mapping[str, Any] | None:
        if isinstance(arguments, str):
            try:
                arguments = canonical.decode((arguments or "{}").encode())
            except (ParseError, UnicodeEncodeError):
                return None
        fits = isinstance(name, str) and name in self._tools and isinstance(arguments, Mapping)
        return arguments if fits else None

    def _told(self, name: str, outcome: Outcome) -> tuple[str, bool]:
        if self._on_outcome is not None:
            self._on_outcome(name, outcome)
        return shown(outcome), outcome.done


def _openai_calls(message: Any) -> Iterator[tuple[Any, Any, Any]]:
    for call in _get(message, "tool_calls") or ():
        function = _get(call, "function")
        yield _get(call, "id"), _get(function, "name"), _get(function, "arguments")


def _openai(ident: Any, told: tuple[str, bool]) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": ident, "content": told[0]}


def _anthropic_calls(message: Any) -> Iterator[tuple[Any, Any, Any]]:
    content = _get(message, "content")
    for block in content if isinstance(content, list | tuple) else ():
        if _get(block, "type") == "tool_use":
            yield _get(block, "id"), _get(block, "name"), _get(block, "input")


def _anthropic(told: list[tuple[Any, tuple[str, bool]]]) -> dict[str, Any] | None:
    if not told:
        return None
    results = []
    for ident, (text, good) in told:
        result = {"type": "tool_result", "tool_use_id": ident, "content": text}
        results.append(result if good else result | {"is_error": True})
    return {"role": "user", "content": results}


def shown(outcome: Outcome) -> str:
    """What a model reads of an outcome: the result as JSON (a text as it is), or the one constant line."""
    if not outcome.done:
        return outcome.public
    try:
        value = jsonable(outcome.value)
    except ParseError:
        return "the tool failed"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _get(thing: Any, name: str) -> Any:
    return thing.get(name) if isinstance(thing, Mapping) else getattr(thing, name, None)
