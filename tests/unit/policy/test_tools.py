"""`[tools]`: what loads, what does not, and that it shows as it was written."""

from __future__ import annotations

import pytest

from saggar.policy.load import check, parse
from saggar.policy.show import to_toml
from saggar.policy.tools import ToolExample

GOOD = """
[tools]
capabilities = ["send:email[to=*@acme.com, max=3]", "read:notes[2026-05-15]"]

[[tools.rule]]
id = "inside"
effect = "allow"
tool = "send_email"
when = { to = "*@acme.com", cc = "*@acme.com" }
accepts = ["builtin.trifecta"]
reason = "colleagues"

[[tools.rule.example]]
args = { to = "bob@acme.com", subject = "s", body = "b", cc = ["eve@acme.com"] }
fits = true

[[tools.rule]]
id = "paying"
effect = "ask"
capability = "pay:bill"
roles = { amount = "100.." }
human_only = true
"""


def test_loads_and_shows_as_written():
    policy = parse(GOOD, "saggar.toml")
    inside, paying = policy.tools.rule
    assert inside.when == (("cc", "*@acme.com"), ("to", "*@acme.com"))
    assert inside.example == (
        ToolExample(args='{"body": "b", "cc": ["eve@acme.com"], "subject": "s", "to": "bob@acme.com"}', fits=True),
    )
    assert (paying.effect, paying.capability, paying.human_only) == ("ask", "pay:bill", True)
    assert parse(to_toml(policy), "again").tools == policy.tools
    assert hash(policy) == hash(parse(GOOD, "saggar.toml"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[tools.rule]]\nid = "a"\neffect = "allow"', "`tool` or by `capability`"),
        ('[[tools.rule]]\nid = "a"\neffect = "permit"\ntool = "x"', "is not one of"),
        ('[[tools.rule]]\neffect = "allow"\ntool = "x"', "`id` is missing"),
        ('[[tools.rule]]\nid = "a"\neffect = "allow"\ntool = "x"\nwhen = "to"', "expected a table"),
        ('[[tools.rule]]\nid = "a"\neffect = "allow"\ntool = "x"\nwhen = { to = 1 }', "expected a string"),
        ('[[tools.rule]]\nid = "a"\neffect = "allow"\ntool = "x"\nwen = {}', "unknown key `wen`"),
        (
            '[[tools.rule]]\nid = "a"\neffect = "allow"\ntool = "x"\n[[tools.rule.example]]\nfits = true',
            "`args` is missing",
        ),
        (
            (
                '[[tools.rule]]\nid = "a"\neffect = "allow"\ntool = "x"\n'
                "[[tools.rule.example]]\nfits = true\nargs = { day = 2026-05-15 }"
            ),
            "JSON does not have",
        ),
        (
            '[[tools.rule]]\nid = "a"\neffect = "ask"\ntool = "x"\n[[tools.rule]]\nid = "a"\neffect = "ask"\ntool = "y"',
            "taken",
        ),
        ('[tools]\ncapabilities = "send:email"', "expected an array"),
    ],
)
def test_does_not_load(text, message):
    problems = check(text, "saggar.toml")
    assert problems
    assert message in str(problems[0])
