"""Twin of capability.call: the form of a text is looked at wherever in an argument it is."""

from __future__ import annotations

import pytest

from saggar.capability.call import BadCall, prepare
from saggar.capability.declare import from_json_schema

URL = {"type": "string", "format": "uri"}
MAIL = {"type": "string", "format": "email"}


def declaration(schema, role="content"):
    whole = {"type": "object", "properties": {"x": schema}, "required": ["x"]}
    return from_json_schema("t", "put:t", whole, lambda x: None, effect="write", roles={"x": role}).declaration


def items(schema):
    return {"type": "array", "items": schema}


def fields(**schemas):
    return {"type": "object", "properties": schemas}


@pytest.mark.parametrize(
    ("schema", "good", "bad", "reason"),
    [
        (MAIL, "a@b.c", "A <a@b.c>", "email_form"),
        (items(MAIL), ["a@b.c"], ["a@b.c", "a@b.c,d@e.f"], "email_form"),
        (items(items(MAIL)), [["a@b.c"], []], [["a@b.c"], ["a"]], "email_form"),
        (fields(to=MAIL, n={"type": "integer"}), {"to": "a@b.c", "n": 1}, {"to": "a"}, "email_form"),
        (items(fields(to=items(MAIL))), [{"to": ["a@b.c"]}, {}], [{"to": ["a"]}], "email_form"),
        (fields(at=URL), {"at": "https://a.test/"}, {"at": "https://a.test:x/"}, ""),
    ],
)
def test_the_declared_form_holds_at_any_depth(schema, good, bad, reason):
    assert prepare(declaration(schema), {"x": good}, "t").args == {"x": good}
    with pytest.raises(BadCall) as caught:
        prepare(declaration(schema), {"x": bad}, "t")
    assert caught.value.argument == "x"
    assert caught.value.reason == (reason or caught.value.reason)


def test_a_list_of_targets_holds_no_look_alike():
    with pytest.raises(BadCall, match="unicode_lookalike"):
        prepare(declaration(items({"type": "string"}), "recipient"), {"x": ["bob", "b\u043eb"]}, "t")


def test_content_without_a_declared_form_is_free_text():
    assert prepare(declaration(items({"type": "string"})), {"x": ["b\u043eb"]}, "t").args == {"x": ["b\u043eb"]}
