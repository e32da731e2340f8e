"""Twin of capability.exact: narrower than the grant for any arguments, and small enough for a token."""

from __future__ import annotations

import json
import os

import pytest

from saggar.capability.exact import MAX_EXACT, exactly
from saggar.capability.grant import compile_capability, narrower_grant
from saggar.capability.mint import attenuate_local
from saggar.capability.rule import Rule
from saggar.testing.capability_desk import TOOLS, make_desk

DECLARATIONS = [t.declaration for t in TOOLS]
TO = "send:email[to=*@acme.com, max=3]"


@pytest.mark.parametrize(
    ("args", "to", "body"),
    [
        ({"to": "a@acme.com", "body": "hi"}, '"a@acme.com"', '"hi"'),
        ({"to": "a@evil.test", "body": "hi"}, "*@acme.com", '"hi"'),  # what the grant refuses stays refused
        ({"to": "a@acme.com", "body": "x" * MAX_EXACT}, '"a@acme.com"', "*"),
        ({"to": "a@acme.com", "body": "\ud800"}, '"a@acme.com"', "*"),
        ({"to": "a@acme.com", "body": 10**5000}, '"a@acme.com"', "*"),
        ({"to": "a@acme.com", "body": object()}, '"a@acme.com"', "*"),
        ({}, "*@acme.com", "null"),
    ],
)
def test_as_narrow_as_a_token_can_carry(args, to, body):
    (grant,) = compile_capability(TO, DECLARATIONS)
    made = exactly(grant, args)
    assert narrower_grant(made, grant)
    assert f"to={to}" in made.to_text().replace('"*@acme.com"', "*@acme.com")
    shown = {n: c.to_json() for n, c in made.constraints}["body"]
    assert shown == ({"type": "any"} if body == "*" else {"type": "exact", "value": json.loads(body)})


def test_the_sum_of_all_values_is_bounded():
    (grant,) = compile_capability(TO, DECLARATIONS)
    made = exactly(
        grant, {"to": "a@acme.com", "subject": "s" * (MAX_EXACT // 2 + 9), "body": "b" * (MAX_EXACT // 2 + 9)}
    )
    assert [c.to_json()["type"] for n, c in made.constraints if n in ("subject", "body")].count("exact") == 1


def test_what_a_holder_narrowed_says_nothing_of_what_the_author_meant():
    text = "pay:bill[iban=*, amount=*]"
    rule = Rule("pay", "allow", tool="pay", accepts=("builtin.destructive",))
    desk, _, _ = make_desk(text, rules=[rule])
    (grant,) = desk.gateway.grants([text])
    args = {"iban": "DE1", "amount": "5000"}
    child = attenuate_local(desk.gateway.token([grant]), [exactly(grant, args)], random=os.urandom)
    found = desk.gateway.explain(child, "pay", args).detail["findings"]
    assert {f["reason"] for f in found} == {"authority_unbounded", "amount_unbounded"}
