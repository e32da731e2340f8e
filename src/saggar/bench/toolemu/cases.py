"""Case files in ToolEmu's public format, and their toolkits as declarations.

A case has `Toolkits` (names), `User Instruction`, `Potential Risky Outcomes`, `Potential Risky Actions`; a toolkit has
`toolkit` and `tools` with `name`, `summary`, `parameters`, `returns`. Roles and effects come from names, by the tables
below: the format does not say them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from saggar.core.errors import ParseError
from saggar.core.tool import ArgumentDeclaration, FieldLabel, Role, ToolDeclaration, ToolEffect, TypeKind, TypeSpec

MAX_CASES = 10_000
MAX_TOOLS = 400

#: part of an argument's name to its role; the first that fits
ROLES: tuple[tuple[str, Role], ...] = (
    *((word, "credential") for word in ("password", "passcode", "secret", "token", "api_key")),
    *((word, "recipient") for word in ("recipient", "email", "phone", "contact", "to_account", "payee", "invitee")),
    *((word, "destination") for word in ("url", "host", "address", "endpoint")),
    *((word, "amount") for word in ("amount", "price", "quantity")),
    *((word, "target") for word in ("_id", "file_path", "path", "account", "device", "username")),
)
#: beginning of a tool's name to its effect; anything else writes
EFFECTS: tuple[tuple[str, ToolEffect], ...] = (
    *(
        (word, "read")
        for word in ("get", "search", "list", "read", "find", "check", "view", "query", "retrieve", "show")
    ),
    *((word, "destructive") for word in ("delete", "remove", "cancel", "revoke", "terminate", "erase")),
    *((word, "pay") for word in ("transfer", "pay", "withdraw", "buy", "sell", "trade")),
    *((word, "egress") for word in ("send", "share", "post", "publish", "forward", "invite", "upload", "grant")),
)
_TYPES: dict[str, TypeKind] = {
    "string": "string",
    "integer": "integer",
    "number": "number",
    "boolean": "boolean",
    "array": "json",
    "object": "json",
}


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    instruction: str
    tools: Mapping[str, ToolDeclaration]
    outcomes: tuple[str, ...]
    actions: tuple[str, ...]


def own() -> list[Case]:
    """The small set that ships."""
    return read(files(__package__).joinpath("cases.json").read_text(encoding="utf-8"))


def read(text: str, toolkits: str = "") -> list[Case]:
    """Cases from a file's text; toolkits from their own file's, or from the same (`{"toolkits": …, "cases": …}`).

    Raises `ParseError`.
    """
    raw = _json(text)
    kits_raw = _json(toolkits) if toolkits else raw.get("toolkits") if isinstance(raw, dict) else None
    cases_raw = raw.get("cases") if isinstance(raw, dict) else raw
    if not isinstance(cases_raw, list) or not isinstance(kits_raw, list) or len(cases_raw) > MAX_CASES:
        raise ParseError("a list of cases and a list of toolkits", reason="toolemu_shape")
    kits = {_text(k, "toolkit"): _kit(k) for k in kits_raw}
    return [_case(n, c, kits) for n, c in enumerate(cases_raw)]


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise ParseError("not JSON", reason="toolemu_json") from None


def _text(raw: object, key: str) -> str:
    if not isinstance(raw, dict) or not isinstance(raw.get(key), str) or not raw[key]:
        raise ParseError(f"`{key}` is a text", reason="toolemu_shape")
    return str(raw[key])


def _texts(raw: Mapping[str, Any], key: str) -> tuple[str, ...]:
    found = raw.get(key, [])
    found = [found] if isinstance(found, str) else found
    if not isinstance(found, list) or not all(isinstance(x, str) for x in found):
        raise ParseError(f"`{key}` is a list of texts", reason="toolemu_shape")
    return tuple(found)


def _case(number: int, raw: object, kits: Mapping[str, dict[str, ToolDeclaration]]) -> Case:
    instruction = _text(raw, "User Instruction")
    if not isinstance(raw, dict):
        raise ParseError("a case is an object", reason="toolemu_shape")
    tools: dict[str, ToolDeclaration] = {}
    for name in _texts(raw, "Toolkits"):
        if name not in kits:
            raise ParseError(f"no toolkit `{name[:64]}`", reason="toolemu_toolkit")
        tools |= kits[name]
    label = str(raw.get("name", f"case_{number}"))[:100]
    return Case(
        label, instruction, tools, _texts(raw, "Potential Risky Outcomes"), _texts(raw, "Potential Risky Actions")
    )


def _kit(raw: object) -> dict[str, ToolDeclaration]:
    tools = raw.get("tools") if isinstance(raw, dict) else None
    if not isinstance(tools, list) or len(tools) > MAX_TOOLS:
        raise ParseError("a toolkit has a list of tools", reason="toolemu_toolkit")
    return {t.name: t for t in map(_tool, tools)}


def _tool(raw: object) -> ToolDeclaration:
    name = _text(raw, "name")
    if not name.isidentifier() or not isinstance(raw, dict):
        raise ParseError("a tool's name is an identifier", reason="toolemu_tool")
    parameters = raw.get("parameters", [])
    if not isinstance(parameters, list):
        raise ParseError("`parameters` is a list", reason="toolemu_tool")
    arguments = tuple(_argument(p) for p in parameters)
    effect = effect_of(name)
    returns = [r for r in raw.get("returns", []) if isinstance(r, dict) and isinstance(r.get("name"), str)]
    fields = tuple((r["name"], TypeSpec(_TYPES.get(str(r.get("type")), "json"))) for r in returns)
    output = TypeSpec("object", fields=fields, required=tuple(k for k, _ in fields)) if fields else TypeSpec("json")
    labels = (("*", FieldLabel()), ("#", FieldLabel("system", readers="*", private=False)))
    about = str(raw.get("summary", ""))[:1000]
    return ToolDeclaration(name, effect, name, effect, arguments, output, labels, about)


def _argument(raw: object) -> ArgumentDeclaration:
    name = _text(raw, "name")
    if not isinstance(raw, dict):
        raise ParseError("a parameter is an object", reason="toolemu_tool")
    kind = _TYPES.get(str(raw.get("type", "string")), "json")
    about = str(raw.get("description", ""))[:1000]
    return ArgumentDeclaration(name, TypeSpec(kind), role_of(name), raw.get("required") is True, None, about)


def role_of(name: str) -> Role:
    lowered = name.casefold()
    return next((role for part, role in ROLES if part in lowered), "content")


def effect_of(name: str) -> ToolEffect:
    lowered = name.casefold()
    return next((effect for word, effect in EFFECTS if lowered.startswith(word)), "write")
