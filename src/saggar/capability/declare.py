"""Declaring a tool: `@tool(...)` on a typed function, or the same words beside a JSON Schema.

I1  A declared tool cannot be called but through a gateway; the function's body is reachable only by the loud name
    `unguarded`.
I2  An argument without a role is a load error; so is a role for an argument that does not exist.
I3  What `describe` says is shown to humans beside the exact value, never instead of it, and never decides anything.
"""

from __future__ import annotations

import datetime as dt
import enum
import hashlib
import inspect
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, Literal, NoReturn

from saggar.audit import canonical
from saggar.capability.types import from_annotation, from_schema
from saggar.capability.values import parse_decimal
from saggar.core.errors import ParseError, UsageError
from saggar.core.tool import (
    AUTHORITY_ROLES,
    INTEGRITY,
    ROLES,
    TOOL_EFFECTS,
    ArgumentDeclaration,
    Budget,
    FieldLabel,
    Role,
    ToolDeclaration,
    ToolEffect,
    TypeSpec,
)

_WORD = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_-")
#: roles that make no sense on a type: an amount is a number, an authority value is text or a number
_AMOUNT_KINDS = frozenset({"integer", "number", "decimal"})

Describe = Mapping[str, Callable[[Any], str]]


@dataclass(frozen=True, slots=True)
class Tool:
    """A declaration with a body. Pass it to a gateway; calling it is an error (I1)."""

    declaration: ToolDeclaration
    unguarded: Callable[..., Any]
    describe: Describe
    is_async: bool
    #: argument to what turns its JSON form into the annotated type (text to Decimal, date, Enum)
    revive: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.declaration.name

    def __call__(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise UsageError(
            f"the tool `{self.name}` is called through a gateway, never directly",
            hint="gateway.call(token, name, args); `.unguarded` is the bare function, for its own unit tests",
        )


def tool(
    grant: str,
    *,
    effect: ToolEffect,
    roles: Mapping[str, Role] | None = None,
    labels: Mapping[str, FieldLabel] | None = None,
    name: str = "",
    description: str = "",
    primary: str | None = None,
    describe: Describe | None = None,
    formats: Mapping[str, str] | None = None,
    idempotent: bool = False,
    reversible: bool = False,
    budget: Budget | None = None,
    runs: Literal["host", "sandbox"] = "host",
) -> Callable[[Callable[..., Any]], Tool]:
    """Declare a typed function, sync or async, as a tool.

    grant: `operation:resource`, the two words under which capabilities name it (`send:email`). roles: one for every
    argument; `Annotated[str, "recipient"]` says the same in place. labels: output path to `FieldLabel`; without them
    the output is untrusted, private and for its owner. describe: argument to function giving the human name of a value.
    formats: argument to `url`, `path`, `email`, `ip` or `date`. primary: the argument of a positional selector.

    Raises `UsageError` at once when the declaration is not whole.
    """

    def declare(function: Callable[..., Any]) -> Tool:
        where = name or function.__name__
        declaration = complete(
            name=where,
            grant=grant,
            effect=effect,
            arguments=_arguments(function, where, dict(roles or {}), dict(formats or {})),
            output=_output(function, where),
            labels=labels or {},
            description=description or inspect.getdoc(function) or "",
            primary=primary,
            idempotent=idempotent,
            reversible=reversible,
            budget=budget or Budget(),
            runs=runs,
        )
        return replace(_tool(declaration, function, describe or {}), revive=_revivers(function))

    return declare


def from_json_schema(
    name: str,
    grant: str,
    schema: Mapping[str, Any],
    body: Callable[..., Any],
    *,
    effect: ToolEffect,
    roles: Mapping[str, Role],
    output: Mapping[str, Any] | None = None,
    labels: Mapping[str, FieldLabel] | None = None,
    description: str = "",
    primary: str | None = None,
    describe: Describe | None = None,
    idempotent: bool = False,
    reversible: bool = False,
    budget: Budget | None = None,
    runs: Literal["host", "sandbox"] = "host",
) -> Tool:
    """Declare a tool that comes from elsewhere, by the JSON Schema of its arguments. As `tool` otherwise."""
    properties = schema.get("properties", {})
    if schema.get("type", "object") != "object" or not isinstance(properties, Mapping):
        raise UsageError(f"tool `{name}`: the arguments' schema is not of an object")
    required = set(schema.get("required", ()))
    if not required <= set(properties):
        raise UsageError(f"tool `{name}`: `required` names an argument that is not there")
    _roles_fit(name, roles, properties)
    arguments = tuple(
        ArgumentDeclaration(
            name=argument,
            type=from_schema(part, f"tool `{name}`, argument `{argument}`"),
            role=_role(name, argument, roles.get(argument)),
            required=argument in required,
            default=part.get("default") if isinstance(part, Mapping) else None,
            description=str(part.get("description", "")) if isinstance(part, Mapping) else "",
        )
        for argument, part in properties.items()
    )
    declaration = complete(
        name=name,
        grant=grant,
        effect=effect,
        arguments=arguments,
        output=from_schema(output, f"tool `{name}`, output") if output else TypeSpec("json", nullable=True),
        labels=labels or {},
        description=description,
        primary=primary,
        idempotent=idempotent,
        reversible=reversible,
        budget=budget or Budget(),
        runs=runs,
    )
    return _tool(declaration, body, describe or {})


def complete(
    *,
    name: str,
    grant: str,
    effect: ToolEffect,
    arguments: tuple[ArgumentDeclaration, ...],
    output: TypeSpec,
    labels: Mapping[str, FieldLabel],
    description: str,
    primary: str | None,
    idempotent: bool,
    reversible: bool,
    budget: Budget,
    runs: Literal["host", "sandbox"],
) -> ToolDeclaration:
    """Check a declaration and pin it by hash. Raises `UsageError`."""
    operation, colon, resource = grant.partition(":")
    if not colon or not _is_word(operation, "") or not _is_word(resource, "."):
        raise UsageError(f"tool `{name}`: `{grant}` is not `operation:resource`", hint="for example `send:email`")
    if effect not in TOOL_EFFECTS:
        raise UsageError(f"tool `{name}`: the effect `{effect}` is none of {', '.join(TOOL_EFFECTS)}")
    if not name or len(name) > 128 or not _is_word(name.lower(), "."):
        raise UsageError(f"`{name}` is not a tool's name")
    if runs not in ("host", "sandbox"):
        raise UsageError(f"tool `{name}`: `runs` is `host` or `sandbox`")
    for a in arguments:
        _check_argument(name, a)
    for path, label in labels.items():
        if label.integrity not in INTEGRITY or label.readers == "":
            raise UsageError(f"tool `{name}`: the label of `{path}` is not whole")
    if budget.amount is not None:
        _check_amount(name, budget.amount)
    declared = dict(labels)
    declared.setdefault("*", FieldLabel())
    draft = ToolDeclaration(
        name=name,
        operation=operation,
        resource=resource,
        effect=effect,
        arguments=arguments,
        output=output,
        labels=tuple(sorted(declared.items())),
        description=description,
        primary=_primary(name, arguments) if primary is None else _named(name, arguments, primary),
        idempotent=idempotent,
        reversible=reversible,
        runs=runs,
        budget=budget,
    )
    return replace(draft, digest=digest_of(draft))


def digest_of(declaration: ToolDeclaration) -> str:
    """SHA-256 (hex) of the declaration's canonical JSON; what a capability and an approval name (I1 of `core.tool`)."""
    try:
        return hashlib.sha256(canonical.encode(declaration.to_json())).hexdigest()
    except ParseError as e:
        raise UsageError(f"tool `{declaration.name}`: the declaration has no canonical form: {e}") from None


def _tool(declaration: ToolDeclaration, body: Callable[..., Any], describe: Describe) -> Tool:
    for argument in describe:
        if declaration.argument(argument) is None:
            raise UsageError(f"tool `{declaration.name}`: `describe` names `{argument}`, which is no argument of it")
    return Tool(declaration, body, dict(describe), inspect.iscoroutinefunction(body))


def _arguments(
    function: Callable[..., Any], name: str, roles: dict[str, Role], formats: dict[str, str]
) -> tuple[ArgumentDeclaration, ...]:
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as e:
        raise UsageError(f"tool `{name}`: an annotation cannot be read: {e}") from None
    parameters = inspect.signature(function).parameters
    _roles_fit(name, roles, parameters)
    _roles_fit(name, formats, parameters)
    out = []
    for parameter in parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise UsageError(f"tool `{name}`: `{parameter}` takes arguments that no declaration can name")
        if parameter.name not in hints:
            raise UsageError(f"tool `{name}`: the argument `{parameter.name}` has no annotation")
        hint = hints[parameter.name]
        spec = from_annotation(hint, f"tool `{name}`, argument `{parameter.name}`")
        noted = [m for m in getattr(hint, "__metadata__", ()) if isinstance(m, str) and m in ROLES]
        if form := formats.get(parameter.name, ""):
            spec = replace(spec, format=form)
        required = parameter.default is parameter.empty
        role = roles.get(parameter.name) or (noted[0] if noted else None)
        out.append(
            ArgumentDeclaration(
                name=parameter.name,
                type=spec,
                role=_role(name, parameter.name, role),
                required=required,
                default=None if required else parameter.default,
            )
        )
    return tuple(out)


def _revivers(function: Callable[..., Any]) -> dict[str, Callable[[Any], Any]]:
    out: dict[str, Callable[[Any], Any]] = {}
    for argument, hint in typing.get_type_hints(function).items():
        options = [o for o in (typing.get_args(hint) or (hint,)) if isinstance(o, type)]
        for option in options:
            if option is Decimal:
                out[argument] = Decimal
            elif option is dt.date:
                out[argument] = dt.date.fromisoformat
            elif issubclass(option, enum.Enum) and typing.get_origin(hint) is not list:
                out[argument] = option
    out.pop("return", None)
    return out


def _output(function: Callable[..., Any], name: str) -> TypeSpec:
    hints = typing.get_type_hints(function, include_extras=True)
    if "return" not in hints:
        raise UsageError(f"tool `{name}`: the result has no annotation")
    return from_annotation(hints["return"], f"tool `{name}`, result")


def _roles_fit(name: str, given: Iterable[str], known: Iterable[str]) -> None:
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise UsageError(f"tool `{name}` has no argument `{unknown[0]}`", hint=f"it has {', '.join(known) or 'none'}")


def _role(name: str, argument: str, role: Any) -> Role:
    if role is None:
        raise UsageError(
            f"tool `{name}`: the argument `{argument}` has no role",
            hint=f"roles={{{argument!r}: ...}}: {', '.join(ROLES)}",
        )
    for known in ROLES:
        if role == known:
            return known
    raise UsageError(f"tool `{name}`: `{role}` is no role", hint=", ".join(ROLES))


def _check_argument(name: str, a: ArgumentDeclaration) -> None:
    if a.name.startswith("_") or not a.name.isidentifier() or not a.name.isascii():
        raise UsageError(f"tool `{name}`: `{a.name}` is not an argument's name")
    inner = a.type.items if a.type.kind == "array" and a.type.items else a.type
    if a.role == "amount" and a.type.kind not in _AMOUNT_KINDS:
        raise UsageError(f"tool `{name}`: the amount `{a.name}` is not a number", hint="int, Decimal or float")
    if a.role in AUTHORITY_ROLES and inner.kind not in ("string", "integer"):
        raise UsageError(
            f"tool `{name}`: the {a.role} `{a.name}` is of type `{inner.kind}`, which no rule can look into",
            hint="a text, an integer, or a list of them; split objects into arguments",
        )


def _check_amount(name: str, amount: str) -> None:
    try:
        parse_decimal(amount)
    except ParseError:
        raise UsageError(f"tool `{name}`: the budget `{amount}` is not a plain decimal") from None


def _primary(name: str, arguments: tuple[ArgumentDeclaration, ...]) -> str:
    authority = [a for a in arguments if a.role in AUTHORITY_ROLES]
    required = [a for a in arguments if a.required]
    for group in ([a for a in authority if a.required], authority, required, list(arguments)):
        if len(group) == 1:
            return _named(name, arguments, group[0].name)
    return ""


def _named(name: str, arguments: tuple[ArgumentDeclaration, ...], primary: str) -> str:
    if primary and all(a.name != primary for a in arguments):
        raise UsageError(f"tool `{name}`: the primary argument `{primary}` is not there")
    return primary


def _is_word(text: str, extra: str) -> bool:
    return bool(text) and len(text) <= 128 and text[0].isalpha() and all(c in _WORD or c in extra for c in text)


tool_from_schema = from_json_schema
