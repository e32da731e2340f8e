from __future__ import annotations

import itertools

import pytest

from saggar.core.errors import ParseError
from saggar.egress.rules import OPEN, HttpRules, Request, parse_rule

GET_V1 = {"id": "get", "methods": ["GET"], "paths": ["/v1/**"]}
JSON_POST = {
    "id": "post",
    "methods": ["POST"],
    "paths": ["/v1/chat"],
    "content_types": ["application/json"],
    "max_body": 100,
}
NO_ADMIN = {"id": "no-admin", "effect": "deny", "paths": ["/v1/admin/**"], "reason": "admin_closed"}
ASK_DELETE = {"id": "ask-delete", "effect": "ask", "methods": ["DELETE"], "paths": ["/v1/**"]}


def rules(*data):
    return HttpRules.of(parse_rule(d, f"r{i}") for i, d in enumerate(data))


ALL = rules(GET_V1, JSON_POST, NO_ADMIN, ASK_DELETE)
JSON = [(b"content-type", b"application/json; charset=utf-8")]

CASES = [
    (Request("GET", "/v1/x"), "allow", "rule_allows", "get"),
    (Request("GET", "/v2/x"), "deny", "no_rule_matches", ""),
    (Request("PUT", "/v1/x"), "deny", "method_not_allowed", ""),
    (Request("TRACE", "/v1/x"), "deny", "method_unknown", ""),
    (Request("CONNECT", "/v1/x"), "deny", "method_unknown", ""),
    (Request("BREW", "/v1/x"), "deny", "method_unknown", ""),
    (Request("get", "/v1/x"), "deny", "method_unknown", ""),
    (Request("GET", "/v1/admin/x"), "deny", "admin_closed", "no-admin"),
    (Request("GET", "/v1/Admin/x"), "deny", "admin_closed", "no-admin"),
    (Request("GET", "/v1/ADMIN"), "deny", "admin_closed", "no-admin"),
    (Request("GET", "/v1/administrator"), "allow", "rule_allows", "get"),
    (Request("DELETE", "/v1/x"), "ask", "rule_asks", "ask-delete"),
    (Request("DELETE", "/v1/admin/x"), "deny", "admin_closed", "no-admin"),
    (Request("POST", "/v1/chat", headers=JSON, body_bytes=100), "allow", "rule_allows", "post"),
    (Request("POST", "/v1/chat", headers=JSON, body_bytes=None), "allow", "rule_allows", "post"),
    (Request("POST", "/v1/chat", headers=JSON, body_bytes=101), "deny", "no_rule_matches", ""),
    (Request("POST", "/v1/chat", headers=JSON * 2, body_bytes=10), "deny", "no_rule_matches", ""),
    (Request("POST", "/v1/chat", body_bytes=10), "deny", "no_rule_matches", ""),
    (
        Request("POST", "/v1/chat", headers=[(b"content-type", b"text/html")], body_bytes=10),
        "deny",
        "no_rule_matches",
        "",
    ),
    (
        Request("POST", "/v1/chat", headers=[(b"content-type", b"application/jsonx")], body_bytes=10),
        "deny",
        "no_rule_matches",
        "",
    ),
]


@pytest.mark.parametrize(("request_", "effect", "reason", "rule"), CASES)
def test_verdict_with_reason(request_, effect, reason, rule):
    decision = ALL.decide(request_).decision
    assert (decision.effect, decision.reason, decision.rule) == (effect, reason, rule)


def test_order_in_the_file_never_matters():
    verdicts = {
        tuple(rules(*order).decide(r).decision.reason for r, *_ in CASES)
        for order in itertools.permutations([GET_V1, JSON_POST, NO_ADMIN, ASK_DELETE])
    }
    assert len(verdicts) == 1


def test_unknown_size_comes_back_as_a_limit():
    assert ALL.decide(Request("POST", "/v1/chat", headers=JSON, body_bytes=None)).body_limit == 100


def test_no_rule_is_a_deny():
    assert rules().decide(Request("GET", "/")).decision.effect == "deny"


def test_open_host_takes_known_methods_alone():
    assert OPEN.decide(Request("PATCH", "/x")).decision.allowed
    assert not OPEN.decide(Request("TRACE", "/x")).decision.allowed
    assert not OPEN.decide(Request("PROPFIND", "/x")).decision.allowed


def test_query_allow_needs_every_occurrence_and_deny_any():
    allow = rules({"methods": ["GET"], "query": {"service": "git-upload-pack"}})
    assert allow.decide(Request("GET", "/x", query=[("service", "git-upload-pack")])).decision.allowed
    assert not allow.decide(
        Request("GET", "/x", query=[("service", "git-upload-pack"), ("service", "git-receive-pack")])
    ).decision.allowed
    assert not allow.decide(Request("GET", "/x")).decision.allowed
    deny = rules({"methods": ["GET"]}, {"effect": "deny", "query": {"acl": "*"}})
    assert not deny.decide(Request("GET", "/x", query=[("a", ""), ("ACL", "")])).decision.allowed
    assert deny.decide(Request("GET", "/x", query=[("aclx", "")])).decision.allowed


def test_header_conditions():
    allow = rules({"headers": {"x-team": "red*"}})
    assert allow.decide(Request("GET", "/", headers=[(b"x-team", b"red1")])).decision.allowed
    assert not allow.decide(Request("GET", "/", headers=[(b"x-team", b"red1"), (b"x-team", b"blue")])).decision.allowed
    assert not allow.decide(Request("GET", "/")).decision.allowed


def test_deny_by_size_takes_unknown_as_larger():
    both = rules({"methods": ["PUT"]}, {"effect": "deny", "max_body": 10})
    assert both.decide(Request("PUT", "/", body_bytes=10)).decision.allowed
    assert not both.decide(Request("PUT", "/", body_bytes=11)).decision.allowed
    assert not both.decide(Request("PUT", "/", body_bytes=None)).decision.allowed


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({"effect": "maybe"}, "bad_rule"),
        ({"effect": "deny", "reason": "no\r\nX-Injected: 1"}, "bad_rule"),
        ({"effect": "deny", "reason": "Not Like This"}, "bad_rule"),
        ({"id": "a\nb"}, "bad_rule"),
        ({"methods": []}, "bad_rule"),
        ({"methods": "GET"}, "bad_rule"),
        ({"methods": ["get"]}, "bad_rule"),
        ({"methods": ["TRACE"]}, "bad_rule"),
        ({"methods": ["CONNECT"]}, "bad_rule"),
        ({"paths": ["v1"]}, "bad_pattern"),
        ({"paths": []}, "bad_rule"),
        ({"pathz": ["/"]}, "bad_rule"),
        ({"max_body": -1}, "bad_rule"),
        ({"max_body": True}, "bad_rule"),
        ({"content_types": ["json"]}, "bad_rule"),
        ({"headers": {"X-Team": "a"}}, "bad_rule"),
        ({"query": {"a": 1}}, "bad_rule"),
        ({"query": {"a": "*" * 40}}, "bad_pattern"),
    ],
)
def test_bad_rule_fails_at_load(data, reason):
    with pytest.raises(ParseError) as e:
        parse_rule(data, "r")
    assert e.value.reason == reason


def test_named_method_beyond_the_known_ones():
    dav = rules({"methods": ["PROPFIND"]})
    assert dav.decide(Request("PROPFIND", "/")).decision.allowed
    assert dav.decide(Request("MKCOL", "/")).decision.reason == "method_unknown"


def test_approve_answers_an_ask_and_no_deny():
    rules = HttpRules.of(
        [
            parse_rule({"effect": "ask", "methods": ["DELETE"]}, "ask"),
            parse_rule({"effect": "approve", "methods": ["DELETE"], "paths": ["/v1/7", "/v1/8"]}, "approve"),
            parse_rule({"effect": "deny", "paths": ["/v1/8"]}, "deny"),
        ]
    )
    said = [rules.decide(Request("DELETE", path)).decision for path in ("/v1/7", "/v1/8", "/v1/9")]
    assert [(d.effect, d.reason, d.rule) for d in said] == [
        ("allow", "rule_approves", "approve"),
        ("deny", "rule_denies", "deny"),
        ("ask", "rule_asks", "ask"),
    ]
