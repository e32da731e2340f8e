import json

import pytest

from saggar.core.errors import UsageError
from saggar.runtime.held import PATH_TOLD, Verdict, approval, ask_of, described, parse_verdict, shown

RULES = {
    "api": json.dumps(
        {"rules": [{"methods": ["GET"]}, {"effect": "ask", "paths": ["/j/*"]}, {"id": "own", "effect": "ask"}]}
    )
}
EVENT = {
    "id": "r.1",
    "host": "a.test",
    "port": 443,
    "method": "DELETE",
    "path": "/j/7",
    "rule": "api.rules[1]",
    "grant": "api",
}


def ask(**changes):
    return ask_of({**EVENT, **changes}, "r", RULES)


@pytest.mark.parametrize(
    ("rule", "grant", "patterns"),
    [("api.rules[1]", "api", ("/j/*",)), ("own", "api", ("/**",)), ("api.rules[9]", "api", ()), ("own", "other", ())],
)
def test_patterns_are_those_of_the_rule_that_asks(rule, grant, patterns):
    assert ask(rule=rule, grant=grant).patterns == patterns


def test_an_approval_covers_what_was_shown():
    assert approval(ask(), Verdict.task(), 3) == {
        "id": "held[3]", "host": "a.test", "port": 443, "method": "DELETE", "path": "/j/7",
    }  # fmt: skip
    assert approval(ask(), Verdict.policy(pattern=True), 0)["paths"] == ["/j/*"]
    with pytest.raises(UsageError):
        approval(ask(path="/" + "x" * (PATH_TOLD - 1)), Verdict.task(), 0)
    with pytest.raises(UsageError):
        approval(ask(grant="other"), Verdict.task(pattern=True), 0)
    assert described(approval(ask(), Verdict.task(), 3)) == "DELETE a.test:443/j/7"


def test_what_is_shown_is_harmless():
    text = str(ask(path="/\x1b[2Jy\u202e", query="q=\n1"))
    assert text == "DELETE a.test:443/\\x1b[2Jy\\u202e?q=\\n1"
    assert shown("a" * 300).endswith("a… (60 more characters)")


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"verdict": "yes"},
        {"verdict": "approved", "scope": "ever"},
        {"verdict": "approved", "scope": "task", "pattern": 1},
        {"verdict": "approved", "pattern": True},
    ],
)
def test_no_verdict(data):
    with pytest.raises(UsageError):
        parse_verdict(data)


def test_verdicts():
    assert parse_verdict({"verdict": "approved"}) == Verdict.once()
    assert parse_verdict({"verdict": "denied"}) == Verdict.deny()
    assert parse_verdict({"verdict": "approved", "scope": "task", "pattern": True}) == Verdict.task(pattern=True)
