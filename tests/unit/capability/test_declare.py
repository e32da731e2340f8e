"""Twin of capability.declare and capability.types: what loads, what does not, and why."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Annotated, Any, Literal, TypedDict

import pytest

from saggar.capability.declare import from_json_schema, tool
from saggar.capability.types import mismatch
from saggar.core.errors import UsageError
from saggar.core.tool import Budget, FieldLabel, TypeSpec
from saggar.testing.capability_desk import make_desk


def declare(function, **options):
    options.setdefault("effect", "read")
    return tool(options.pop("grant", "do:it"), **options)(function)


def no_role(to: str) -> None: ...
def no_annotation(to) -> None: ...
def no_result(to: str): ...
def star(*to: str) -> None: ...
def stars(**to: str) -> None: ...
def one(to: str) -> None: ...
def thing(to: dict[str, Any]) -> None: ...
def callback(to: bytes) -> None: ...
def amount(to: str) -> None: ...


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        (no_role, {}, "has no role"),
        (no_annotation, {"roles": {"to": "recipient"}}, "no annotation"),
        (no_result, {"roles": {"to": "recipient"}}, "result has no annotation"),
        (star, {"roles": {"to": "recipient"}}, "no declaration can name"),
        (stars, {"roles": {"to": "recipient"}}, "no declaration can name"),
        (one, {"roles": {"to": "receiver"}}, "is no role"),
        (one, {"roles": {"to": "recipient", "cc": "recipient"}}, "has no argument `cc`"),
        (one, {"roles": {"to": "recipient"}, "describe": {"cc": str}}, "no argument of it"),
        (one, {"roles": {"to": "recipient"}, "primary": "cc"}, "is not there"),
        (one, {"roles": {"to": "recipient"}, "effect": "reads"}, "the effect `reads`"),
        (one, {"roles": {"to": "recipient"}, "grant": "do"}, "not `operation:resource`"),
        (one, {"roles": {"to": "recipient"}, "grant": "Do:it"}, "not `operation:resource`"),
        (one, {"roles": {"to": "recipient"}, "runs": "cloud"}, "`runs`"),
        (one, {"roles": {"to": "recipient"}, "budget": Budget(amount="1e3")}, "plain decimal"),
        (one, {"roles": {"to": "recipient"}, "labels": {"*": FieldLabel(integrity="high")}}, "not whole"),
        (one, {"roles": {"to": "recipient"}, "name": "a b"}, "not a tool's name"),
        (thing, {"roles": {"to": "recipient"}}, "no rule can look into"),
        (callback, {"roles": {"to": "content"}}, "none of the types"),
        (amount, {"roles": {"to": "amount"}}, "not a number"),
    ],
)
def test_declarations_that_do_not_load(function, options, message):
    with pytest.raises(UsageError, match=message):
        declare(function, **options)


def test_a_declared_function_cannot_be_called():
    made = declare(one, roles={"to": "recipient"})
    with pytest.raises(UsageError, match="through a gateway"):
        made("bob")


def test_roles_in_place():
    def send(to: Annotated[str, "recipient"], body: Annotated[str, "content"] = "") -> None:
        """Send."""

    d = declare(send).declaration
    assert [(a.name, a.role, a.required) for a in d.arguments] == [
        ("to", "recipient", True),
        ("body", "content", False),
    ]
    assert (d.primary, d.description) == ("to", "Send.")


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Message(TypedDict):
    sender: str
    body: str


@dataclass
class Page:
    items: list[Message]
    total: int


def test_types_and_revival():
    seen = []

    def many(
        a: Decimal,
        b: date,
        c: Colour,
        d: Literal["x", "y"],
        e: list[str] | None = None,
        f: dict[str, Any] | None = None,
    ) -> Page:
        seen.append((a, b, c, d))
        return Page([], 0)

    made = declare(many, roles=dict.fromkeys("abcdef", "option"), name="many")
    kinds = [a.type for a in made.declaration.arguments]
    assert kinds[0] == TypeSpec("decimal")
    assert kinds[2].enum == ("red", "blue")
    assert kinds[4] == TypeSpec("array", nullable=True, items=TypeSpec("string"))
    assert made.declaration.output.to_json()["properties"]["items"]["items"]["required"] == ["sender", "body"]
    grant = "do:it[a=*, b=*, c=*, d=*]"
    desk, _, _ = make_desk(grant, tools=[made])
    out = desk.gateway.call(
        desk.gateway.token([grant]), "many", {"a": "1.50", "b": "2026-05-15", "c": "blue", "d": "x"}
    )
    assert out.done
    assert seen == [(Decimal("1.50"), date(2026, 5, 15), Colour.BLUE, "x")]
    wrong = desk.gateway.call(
        desk.gateway.token([grant]), "many", {"a": "1", "b": "2026-05-15", "c": "green", "d": "x"}
    )
    assert wrong.decision.reason == "not_in_enum"


def test_the_digest_changes_with_everything_that_carries_meaning():
    base = {"roles": {"to": "recipient"}, "name": "t"}
    digests = {
        declare(one, **(base | change)).declaration.digest
        for change in (
            {},
            {"description": "x"},
            {"effect": "write"},
            {"roles": {"to": "target"}},
            {"grant": "do:that"},
            {"labels": {"*": FieldLabel(integrity="user")}},
            {"idempotent": True},
            {"reversible": True},
            {"budget": Budget(calls=1)},
            {"formats": {"to": "email"}},
            {"runs": "sandbox"},
            {"primary": ""},
        )
    }
    assert len(digests) == 12
    assert declare(one, **base).declaration.digest == declare(one, **base).declaration.digest


def test_labels_by_path():
    mail, body = FieldLabel(integrity="directory"), FieldLabel()
    d = declare(one, roles={"to": "recipient"}, labels={"[].sender": mail, "[].body": body}).declaration
    assert d.label_of("[].sender") == mail
    assert d.label_of("[].sender.name") == mail
    assert d.label_of("[].senders") == FieldLabel()
    assert d.label_of("") == FieldLabel()


SCHEMA = {
    "type": "object",
    "properties": {
        "to": {"type": "string", "format": "email", "description": "who"},
        "urgent": {"type": "boolean", "default": False},
        "tags": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]},
    },
    "required": ["to"],
}


class TestJsonSchema:
    def test_loads(self):
        roles = {"to": "recipient", "urgent": "option", "tags": "content"}
        made = from_json_schema("mail", "send:email", SCHEMA, lambda **_: "ok", effect="egress", roles=roles)
        d = made.declaration
        assert d.argument("to").type.format == "email"
        assert d.argument("urgent").default is False
        assert d.argument("tags").type.nullable
        assert d.parameters_schema()["required"] == ["to"]

    @pytest.mark.parametrize(
        ("schema", "roles", "message"),
        [
            (SCHEMA, {"to": "recipient", "urgent": "option"}, "`tags` has no role"),
            (SCHEMA, {"to": "recipient", "urgent": "option", "tags": "content", "cc": "option"}, "no argument `cc`"),
            ({"type": "array"}, {}, "not of an object"),
            ({"type": "object", "properties": {}, "required": ["x"]}, {}, "not there"),
            (
                {"type": "object", "properties": {"x": {"type": "null"}}},
                {"x": "option"},
                "is none that a tool may have",
            ),
            ({"type": "object", "properties": {"x": True}}, {"x": "option"}, "a schema is an object"),
        ],
    )
    def test_does_not_load(self, schema, roles, message):
        with pytest.raises(UsageError, match=message):
            from_json_schema("mail", "send:email", schema, print, effect="egress", roles=roles)


@pytest.mark.parametrize(
    ("spec", "value", "reason"),
    [
        (TypeSpec("integer"), 2**53, "number_form"),
        (TypeSpec("integer"), 1.0, "type_confusion"),
        (TypeSpec("integer"), True, "type_confusion"),
        (TypeSpec("number"), 1, ""),
        (TypeSpec("number"), float("inf"), "number_form"),
        (TypeSpec("number"), "1", "type_confusion"),
        (TypeSpec("boolean"), 1, "type_confusion"),
        (TypeSpec("string"), b"x", "type_confusion"),
        (TypeSpec("array", items=TypeSpec("string")), ("a",), "type_confusion"),
        (TypeSpec("array", items=TypeSpec("string")), ["a", 1], "type_confusion"),
        (TypeSpec("object", fields=(("a", TypeSpec("string")),), required=("a",)), {}, "argument_missing"),
        (TypeSpec("object", fields=(("a", TypeSpec("string")),)), {"b": 1}, "argument_unknown"),
        (TypeSpec("object"), {1: 2}, "type_confusion"),
        (TypeSpec("json"), {"a": [1, {"b": None}]}, ""),
        (TypeSpec("json"), {"a": object()}, "type_confusion"),
        (TypeSpec("string"), None, "type_confusion"),
        (TypeSpec("string", nullable=True), None, ""),
        (TypeSpec("string", enum=("a",)), "b", "not_in_enum"),
    ],
)
def test_mismatch(spec, value, reason):
    assert mismatch(spec, value) == reason


def test_mismatch_of_deep_values_ends():
    deep = []
    for _ in range(100):
        deep = [deep]
    assert mismatch(TypeSpec("json"), deep) == "depth"
