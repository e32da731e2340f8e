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

import json
from collections.abc import Callable, Iterable, Mapping
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
        out = []
        for call in _get(message, "tool_calls") or ():
            function = _get(call, "function")
            text, _ = self._run(_get(function, "name"), _get(function, "arguments"))
            out.append({"role": "tool", "tool_call_id": _get(call, "id"), "content": text})
        return out

    def anthropic_results(self, message: Any) -> dict[str, Any] | None:
        """One `user` message with a `tool_result` for each `tool_use` block; None where there is none."""
        content = _get(message, "content")
        blocks = [b for b in content if _get(b, "type") == "tool_use"] if not isinstance(content, str) else []
        if not blocks:
            return None
        results = []
        for block in blocks:
            text, good = self._run(_get(block, "name"), _get(block, "input"))
            result = {"type": "tool_result", "tool_use_id": _get(block, "id"), "content": text}
            results.append(result if good else result | {"is_error": True})
        return {"role": "user", "content": results}

    def _run(self, name: Any, arguments: Any) -> tuple[str, bool]:
        if isinstance(arguments, str):
            try:
                arguments = canonical.decode((arguments or "{}").encode())
            except (ParseError, UnicodeEncodeError):
                return NO_CALL, False
        if not isinstance(name, str) or not isinstance(arguments, Mapping) or name not in self._tools:
            return NO_CALL, False
        outcome = self._gateway.call(self._token(), name, arguments)
        if self._on_outcome is not None:
            self._on_outcome(name, outcome)
        return shown(outcome), outcome.done


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
