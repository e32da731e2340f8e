from __future__ import annotations

import json

import pytest

from saggar.core.errors import ParseError
from saggar.plan import parse
from saggar.plan.schema import plan_schema

LIT = {"lit": 1}


def plan(*steps, **more):
    return json.dumps({"request": "", "steps": list(steps)} | more)


def reply(i="s1", **more):
    return {"step": "reply", "id": i, "text": LIT} | more


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "plan_json"),
        ("[]", "plan_shape"),
        ('{"request": "", "request": "", "steps": []}', "plan_json"),
        ('{"request": "", "steps": NaN}', "plan_json"),
        ("[" * 100_000, "plan_json"),
        (" " * (parse.MAX_BYTES + 1), "plan_size"),
        (plan(extra=1), "plan_shape"),
        (plan({"step": "exec", "id": "s1"}), "plan_step"),
        (plan(reply(), reply()), "plan_id"),
        (plan(reply("1x")), "plan_name"),
        (plan(reply(extra=1)), "plan_shape"),
        (plan({"step": "call", "id": "a", "tool": "t", "args": {"x": {"ref": "gone"}}}), "plan_name"),
        (plan({"step": "call", "id": "a", "tool": "", "args": {}}), "plan_text"),
        (plan({"step": "reply", "id": "a", "text": {"op": "exec", "args": []}}), "plan_operation"),
        (plan({"step": "reply", "id": "a", "text": {"op": "len", "args": [LIT, LIT]}}), "plan_operation"),
        (plan({"step": "reply", "id": "a", "text": {"lit": 10**30}}), "plan_literal"),
        (plan({"step": "reply", "id": "a", "text": {"lit": "x" * 9000}}), "plan_literal"),
        (plan({"step": "reply", "id": "a", "text": {"lit": "x", "span": [0, 1]}}), "plan_span"),
        (plan({"step": "for_each", "id": "a", "var": "x", "in": {"list": []}, "body": [], "bound": 0}), "plan_number"),
        (plan({"step": "for_each", "id": "a", "var": "x", "in": {"list": []}, "body": [], "collect": LIT}), "plan_shape"),
        (plan({"step": "extract", "id": "a", "data": LIT, "schema": {"type": "any"}, "instruction": "i", "out": "x"}), "plan_schema"),
        (plan({"step": "ask_user", "id": "a", "question": "q", "fragments": ["gone"]}), "plan_fragment"),
        (
            plan(fragments=[{"name": "f", "when": "w", "steps": [{"step": "ask_user", "id": "a", "question": "q", "fragments": ["f"]}]}]),
            "plan_cycle",
        ),
        (plan(*[reply(f"s{i}") for i in range(201)]), "plan_size"),
    ],
)  # fmt: skip
def test_refused(text, reason):
    with pytest.raises(ParseError) as err:
        parse.parse(text)
    assert err.value.reason == reason


def test_deep_nesting_is_refused():
    step = reply("deep")
    for i in range(12):
        step = {"step": "if", "id": f"i{i}", "test": {"lit": True}, "then": [step]}
    with pytest.raises(ParseError) as err:
        parse.parse(plan(step))
    assert err.value.reason == "plan_depth"
    e = LIT
    for _ in range(40):
        e = {"op": "neg", "args": [e]}
    with pytest.raises(ParseError):
        parse.parse(plan({"step": "reply", "id": "a", "text": e}))


def test_schema_file_is_what_the_code_says_and_accepts_what_the_compiler_makes():
    import os

    import jsonschema

    from saggar.plan.compile import compile_source

    here = os.path.join(os.path.dirname(__file__), "..", "..", "..", "docs", "plan.schema.json")
    with open(here, encoding="utf-8") as f:
        assert json.load(f) == plan_schema()
    source = 'x = extract(read(path="a"), {"a": "url", "b": [{"c": one_of("d")}]}, "i")\nfor y in x.b:\n    reply(y.c)\nz = [read(path=y.c) for y in x.b]\n'
    made = parse.dump(compile_source(source, "", {"read"}))
    jsonschema.Draft202012Validator(plan_schema()).validate(made)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(plan_schema()).validate(made | {"extra": 1})
