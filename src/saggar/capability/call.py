"""One call made ready to be judged: complete, typed, without look-alikes, and hashed.

I1  What is hashed is what the tool gets: nothing is normalised, coerced or filled in between.
I2  Each way to be wrong has its own reason; the first in declaration order is given.
I3  Two calls have one hash only if task, tool, declaration and every argument are equal as JSON.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from saggar.audit import canonical
from saggar.audit.canonical import encode_text
from saggar.capability.types import mismatch
from saggar.capability.values import check_authority_text, check_path, parse_ip, parse_url
from saggar.core.errors import ParseError
from saggar.core.tool import AUTHORITY_ROLES, ArgumentDeclaration, ToolDeclaration, TypeSpec

MAX_ARGUMENT_BYTES = 8 * 1024 * 1024
_CONTAINERS = frozenset({list, dict})


class BadCall(Exception):
    """The arguments do not fit the declaration. Becomes a denial; never leaves the package."""

    def __init__(self, reason: str, argument: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.argument = argument


@dataclass(frozen=True, slots=True)
class Call:
    """args: complete, in declaration order. args_hash: SHA-256 hex (I3). size: bytes of the canonical arguments."""

    declaration: ToolDeclaration
    args: dict[str, Any]
    args_hash: str
    size: int


def prepare(declaration: ToolDeclaration, args: Mapping[str, Any], task: str) -> Call:
    """Raises `BadCall`."""
    known = declaration.arguments
    complete: dict[str, Any] = {}
    found = 0
    for argument in known:
        name = argument.name
        if name in args:
            found += 1
            value = args[name]
            if wrong := mismatch(argument.type, value):
                raise BadCall(wrong, name)
            if value is not None and (argument.role in AUTHORITY_ROLES or _has_texts(argument.type)):
                _check_texts(argument, argument.type, value)
            elif argument.role == "amount" and value is not None and str(value).startswith("-"):
                # a negative amount would give budget back
                raise BadCall("amount_negative", name)
            # a copy: a list that its owner changes later must not change what was hashed (I1)
            complete[name] = value if type(value) not in _CONTAINERS else copied(value)
        elif argument.required:
            raise BadCall("argument_missing", name)
        else:
            complete[name] = copied(argument.default)
    if found != len(args):
        names = {a.name for a in known}
        raise BadCall("argument_unknown", next((str(k) for k in args if k not in names), ""))
    try:
        body = encode_text(complete).encode()
    except ParseError as e:
        raise BadCall(e.reason) from None
    except UnicodeEncodeError:
        raise BadCall("surrogate") from None
    if len(body) > MAX_ARGUMENT_BYTES:
        raise BadCall("too_long")
    head = encode_text([task, declaration.name, declaration.digest]).encode()
    return Call(declaration, complete, hashlib.sha256(b"saggar-args-v1\0" + head + b"\0" + body).hexdigest(), len(body))


def copied(value: Any) -> Any:
    """A JSON value without what it shares with its owner."""
    if type(value) is list:
        return [copied(v) for v in value]
    if type(value) is dict:
        return {k: copied(v) for k, v in value.items()}
    return value


_JSON = TypeSpec("json")


def _has_texts(spec: TypeSpec) -> bool:
    """Is a form declared for a text of this type, or for one within it?"""
    if spec.format:
        return True
    return (spec.items is not None and _has_texts(spec.items)) or any(_has_texts(inner) for _, inner in spec.fields)


def _check_texts(argument: ArgumentDeclaration, spec: TypeSpec, value: Any) -> None:
    if type(value) is list:
        for item in value:
            _check_texts(argument, spec.items or _JSON, item)
    elif type(value) is dict:
        fields = dict(spec.fields)
        for key, item in value.items():
            _check_text(argument, "", key)
            _check_texts(argument, fields.get(key, _JSON), item)
    elif type(value) is str:
        _check_text(argument, spec.format, value)


def _check_text(argument: ArgumentDeclaration, form: str, text: str) -> None:
    try:
        if argument.role in AUTHORITY_ROLES:
            check_authority_text(text)
        if form == "url":
            parse_url(text)
        elif form == "path":
            check_path(text)
        elif form == "ip":
            parse_ip(text)
        elif form == "email":
            _check_email(text)
    except ParseError as e:
        raise BadCall(e.reason, argument.name) from None


def _check_email(text: str) -> None:
    """One bare address: no display name, no list, no comment, no quoted part, no encoded word."""
    name, at, domain = text.partition("@")
    if not at or not name or not domain or "." not in domain:
        raise ParseError("not an e-mail address", reason="email_form")
    if any(ch in text for ch in " \t,;:<>()[]\"'\\|%!`") or "@" in domain or "=?" in text:
        raise ParseError("not one bare e-mail address", reason="email_form")
    if domain != domain.lower() or domain.startswith((".", "-")) or domain.endswith("."):
        raise ParseError("a domain that is not in its canonical form", reason="email_form")


def hash_call(task: str, declaration: ToolDeclaration, args: Mapping[str, Any]) -> str:
    """The argument hash of a complete call, for holders that sign it. Raises `BadCall`."""
    return prepare(declaration, args, task).args_hash


def canonical_args(args: Mapping[str, Any]) -> bytes:
    """Raises `ParseError`."""
    return canonical.encode(dict(args))
