import json

import pytest

from saggar.core.errors import UsageError
from saggar.runtime.held import Verdict, approval, ask_of, conditions, described, digest, parse_verdict, shown

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
        "id": "held[3]", "grant": "api", "rule": "api.rules[1]", "host": "a.test", "port": 443, "method": "DELETE",
        "path": "/j/7", "query": "",
    }  # fmt: skip
    assert approval(ask(), Verdict.policy(pattern=True), 0)["paths"] == ["/j/*"]
    with pytest.raises(UsageError):
        approval(ask(grant=""), Verdict.task(), 0)
    with pytest.raises(UsageError):
        approval(ask(grant="other"), Verdict.task(pattern=True), 0)
    assert described(approval(ask(query="a=1"), Verdict.task(), 3)) == "DELETE a.test:443/j/7?a=1  api.rules[1]"


TWO = {
    "api": json.dumps(
        {
            "rules": [
                {"id": "dry", "effect": "ask", "methods": ["POST"], "paths": ["/deploy"], "query": {"dry": "true"}},
                {"id": "big", "effect": "ask", "paths": ["/up/*"], "max_body": 9, "content_types": ["a/b"]},
                {"id": "any", "effect": "ask", "headers": {"x-a": "b"}},
            ]
        }
    )
}


def test_a_rule_for_good_has_the_conditions_of_the_one_that_asked():
    def of(pattern=False, **facts):
        return conditions(ask_of({**EVENT, "method": "POST", **facts}, "r", TWO), TWO, pattern=pattern)

    assert of(rule="dry", path="/deploy") == {"query": {"dry": "true"}}
    assert of(rule="big", path="/up/1") == {"max_body": 9, "content_types": ["a/b"]}
    assert of(rule="big", path="/up/1", pattern=True) == {"max_body": 9, "content_types": ["a/b"]}
    assert of(rule="any", path="/other") == {"headers": {"x-a": "b"}}
    assert of(rule="any", path="/deploy", method="PUT") == {"headers": {"x-a": "b"}}
    # it would answer the questions of a rule before it as well
    for facts in ({"path": "/deploy"}, {"path": "/up/1"}, {"path": "/other", "pattern": True}):
        with pytest.raises(UsageError, match="asks about some of the same"):
            of(rule="any", **facts)
    with pytest.raises(UsageError, match="not known"):
        of(rule="gone", path="/x")


def test_what_is_shown_is_harmless():
    text = str(ask(path="/\x1b[2Jy\u202e", query="q=\n1"))
    assert text == "DELETE a.test:443/\\x1b[2Jy\\u202e?q=\\n1"
    long = "/a" + "b" * 600 + "/the-end"
    assert shown(long).startswith("/abbb")
    assert shown(long).endswith(f"b/the-end (610 characters, sha256 {digest(long)})")
    assert ask(path="/a", query="b=1").sha256 == digest("/a?b=1")


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
