from __future__ import annotations

import pytest

from saggar.core.errors import PeerError
from saggar.core.label import DIRECTORY, NEUTRAL, SYSTEM, UNTRUSTED, Label
from saggar.core.tool import FieldLabel
from saggar.plan.node import whole
from saggar.plan.output import Owner, label_output
from saggar.testing.plan import tool

ME = Owner(frozenset({"me@x.test"}))
MAIL = tool(
    "mails",
    labels={
        "#": FieldLabel(SYSTEM, readers="*"),
        "[]#": FieldLabel(SYSTEM, readers="*"),
        "[].id": FieldLabel(SYSTEM),
        "[].body": FieldLabel(readers="[].from,[].to", author="[].from", vouched=True),
        "[].to": FieldLabel(DIRECTORY, readers="[].to"),
        "[].to#": FieldLabel(DIRECTORY, readers="*"),
        "[].subject": FieldLabel(names=True),
    },
)
ROWS = [
    {"id": 1, "from": "ann@x.test", "to": ["me@x.test", "bob@x.test"], "body": "hi", "subject": "s", "odd": {"a": [1]}},
    {"id": 2, "from": "me@x.test", "to": ["bob@x.test"], "body": "mine", "subject": "t", "odd": None},
]


def made(value=ROWS, base=NEUTRAL):
    return label_output(MAIL, value, "c1", ME, base=base)


def at(node, *keys):
    for key in keys:
        node = node.get(key)
    return node


def test_labels_are_per_field_and_per_element():
    node = made()
    assert at(node, 0, "body").label.integrity == UNTRUSTED
    assert at(node, 1, "body").label.integrity == DIRECTORY  # what the user wrote himself
    assert at(node, 0, "id").label.integrity == SYSTEM
    assert at(node, 0, "body").label.readers == {"ann@x.test", "me@x.test", "bob@x.test"}
    assert at(node, 1, "body").label.readers == {"me@x.test", "bob@x.test"}
    assert at(node, 0, "to", 1).label.readers == {"me@x.test", "bob@x.test"}
    source = next(iter(at(node, 0, "body").label.sources))
    fields = {(s.field, s.principal) for s in at(node, 0, "body").label.sources}
    assert ("[].body", "ann@x.test") in fields
    assert source.name == "mails"


def test_what_is_not_declared_is_untrusted_and_the_owner_s_alone():
    odd = at(made(), 0, "odd", "a", 0)
    assert odd.label.integrity == UNTRUSTED
    assert odd.label.readers == ME.names


def test_names_and_writers_are_marked():
    node = made()
    assert at(node, 0, "subject").names
    assert not at(node, 0, "body").names
    assert at(node, 0, "body").writer == "ann@x.test"
    assert at(node, 0, "subject").writer == ""
    assert at(node, 0, "id").writer is None


def test_what_was_asked_is_in_all_of_it():
    asked = Label(integrity=UNTRUSTED, readers=["me@x.test"])
    node = made(base=asked)
    assert whole(at(node, 0, "id")).integrity == UNTRUSTED
    assert at(node, 0, "id").label.readers == {"me@x.test"}
    assert not at(node, 0, "subject").names  # an object that untrusted data asked for is not the user's choice


def deep(n):
    value = 1
    for _ in range(n):
        value = [value]
    return value


@pytest.mark.parametrize("value", [object(), {1: 2}, [b"x"], deep(40), [0] * 200_001])
def test_what_is_no_data_is_a_fault_of_the_peer(value):
    with pytest.raises(PeerError):
        made(value)


OWNED = tool(
    "record", labels={"meta.owner": FieldLabel(DIRECTORY), "rows[].id": FieldLabel(SYSTEM), "": FieldLabel(SYSTEM)}
)


def own(node, *keys):
    """The leaf as it was labelled, without what its containers add."""
    for key in keys:
        node = node.data[key]
    return node


@pytest.mark.parametrize(
    ("value", "keys"),
    [
        ({"meta.owner": "eve"}, ("meta.owner",)),
        ({"rows[].id": "eve"}, ("rows[].id",)),
        ({"rows[]": {"id": "eve"}}, ("rows[]", "id")),
        ({"": "eve"}, ("",)),
        ({"": {"meta": {"owner": "eve"}}}, ("", "meta", "owner")),
        ({"*": "eve"}, ("*",)),
        ({"#": "eve"}, ("#",)),
        ({"x": {"meta.owner": "eve"}}, ("x", "meta.owner")),
    ],
)
def test_a_key_cannot_pass_for_a_path(value, keys):
    node = label_output(OWNED, value, "c1", ME, base=NEUTRAL)
    assert own(node, *keys).label.integrity == UNTRUSTED


def test_what_is_declared_is_still_found():
    node = label_output(OWNED, {"meta": {"owner": "ann"}, "rows": [{"id": 1}]}, "c1", ME, base=NEUTRAL)
    assert own(node, "meta", "owner").label.integrity == DIRECTORY
    assert own(node, "rows", 0, "id").label.integrity == SYSTEM


def test_a_key_within_a_declared_object_has_that_object_s_label():
    node = label_output(
        tool("r", labels={"meta": FieldLabel(DIRECTORY)}), {"meta": {"a.b": "x"}}, "c1", ME, base=NEUTRAL
    )
    assert own(node, "meta", "a.b").label.integrity == DIRECTORY


@pytest.mark.parametrize(
    ("sender", "vouched", "integrity", "writer"),
    [
        (FieldLabel(), False, UNTRUSTED, ""),  # a `From` that anybody may write
        (FieldLabel(), True, DIRECTORY, "me@x.test"),
        (FieldLabel(DIRECTORY), False, DIRECTORY, "me@x.test"),  # the service's own record
        (FieldLabel(SYSTEM), False, DIRECTORY, "me@x.test"),
    ],
)
def test_an_author_counts_where_the_tool_answers_for_it(sender, vouched, integrity, writer):
    body = FieldLabel(author="from", vouched=vouched)
    mail = tool("mail", labels={"from": sender, "body": body})
    node = own(label_output(mail, {"from": "me@x.test", "body": "x"}, "c1", ME, base=NEUTRAL), "body")
    assert (node.label.integrity, node.writer) == (integrity, writer)
    # said all the same of where it comes from
    assert {s.principal for s in node.label.sources} == {"me@x.test"}
    # part of what a declaration is pinned by
    assert ("vouched" in body.to_json()) == vouched
