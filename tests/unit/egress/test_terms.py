from __future__ import annotations

import json
import os

import pytest

from saggar.core.errors import ParseError, UsageError
from saggar.egress.headers import DROP, SECRET, SUSPECT, classify
from saggar.egress.terms import KEYS, Source, Terms, compile_entry, compile_policy
from saggar.policy.http import HTTP_SCHEMA, http
from saggar.policy.model import EgressPolicy, EgressRule
from saggar.policy.values import WrongValue


def made(entry):
    return compile_entry(entry, host="api.allowed.test", rule_id="r", random=os.urandom)


BEARER = {"credential": {"source": "env:REAL", "env": "KEY", "format": "openai"}}


def test_two_halves_share_nothing_but_the_id():
    compiled = made({**BEARER, "profile": "openai"})
    text = json.dumps(compiled.terms)
    assert "REAL" not in text
    assert "env:" not in text
    assert compiled.secret.to_json() == {
        "credential": "r", "host": "api.allowed.test", "kind": "bearer", "sources": {"value": "env:REAL"}, "facts": {}}  # fmt: skip
    assert compiled.environment == {"KEY": compiled.placeholders[0]}
    assert compiled.placeholders[0] in text
    assert compiled.terms["rules"][0]["id"] == "openai.infer"


def test_aws_gets_two_placeholders():
    compiled = made(
        {
            "profile": {"name": "s3", "bucket": "b", "region": "eu-west-1"},
            "credential": {"source": "env:S", "key_id": "env:I"},
        }
    )
    assert sorted(compiled.environment) == ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"]
    assert len(compiled.placeholders) == 2
    assert compiled.secret.facts == {"region": "eu-west-1", "service": "s3"}


BAD = [
    ({"credental": {}}, "bad_terms"),
    ({"credential": {"source": "env:A", "kynd": "x"}}, "bad_terms"),
    ({"credential": {"kind": "bearer"}}, "bad_source"),
    ({"credential": {"source": "A"}}, "bad_source"),
    ({"credential": {"source": "env:A B"}}, "bad_source"),
    ({"credential": {"source": "file:relative"}}, "bad_source"),
    ({"credential": {"source": "command:pass show x"}}, "bad_source"),
    ({"credential": {"source": "vault:secret/data/x"}}, "bad_source"),
    ({"credential": {"source": "keyring:x"}}, "bad_source"),
    ({"credential": {"source": "http://x"}}, "bad_source"),
    ({"credential": {"source": "env:A", "kind": "magic"}}, "bad_terms"),
    ({"credential": {"source": "env:A", "kind": "header", "name": "Host"}}, "bad_terms"),
    ({"credential": {"source": "env:A", "kind": "header", "name": "X-Forwarded-Host"}}, "bad_terms"),
    ({"credential": {"source": "env:A", "user": "a\r\nb"}}, "bad_terms"),
    ({"credential": {"source": "env:A", "format": "nope"}}, "bad_format"),
    ({"credential": {"source": "env:A", "kind": "sigv4"}}, "bad_terms"),
    ({"credential": {"source": "env:A", "kind": "oauth2", "client_id": "x", "token_url": "http://x.test/"}}, "bad_terms"),
    ({"rules": [{"paths": ["x"]}]}, "bad_pattern"),
    ({"rules": [{"effect": "perhaps"}]}, "bad_rule"),
    ({"budget": {"requests": -1}}, "bad_budget"),
    ({"profile": "nope"}, "bad_profile"),
    ({"profile": "github"}, "bad_profile"),
    ({"set_headers": {"Host": "x"}}, "bad_terms"),
    ({"set_headers": {"X-A": "a\r\nb"}}, "bad_terms"),
    ({"foreign": "allow"}, "bad_terms"),
    ({"websocket": "yes"}, "bad_terms"),
]  # fmt: skip


@pytest.mark.parametrize(("entry", "reason"), BAD)
def test_bad_entry_fails_at_load(entry, reason):
    with pytest.raises(ParseError) as e:
        made(entry)
    assert e.value.reason == reason


def test_policy_and_wall_know_the_same_keys():
    assert set(HTTP_SCHEMA["properties"]) == KEYS


def test_policy_text_is_canonical():
    assert http({"websocket": True, "methods": ["GET"]}) == http({"methods": ["GET"], "websocket": True})


@pytest.mark.parametrize(
    "value",
    [
        1,
        [],
        {"x": 1},
        {"credential": {}},
        {"credential": "env:A"},
        {"rules": {}},
        {"rules": [{"x": 1}]},
        {"websocket": 1},
        {"budget": {"requests": "1"}},
        {"methods": "GET"},
    ],
)
def test_policy_refuses_wrong_shapes(value):
    with pytest.raises(WrongValue):
        http(value)


def policy(**entry):
    return EgressPolicy(allow=(EgressRule(host="a.test", id="a", http=json.dumps(entry)),))


def test_whole_policy():
    compiled = compile_policy(policy(**BEARER), random=os.urandom, read_ca=lambda _: "")
    assert compiled.hosts == ("a.test",)
    assert list(compiled.environment) == ["KEY"]
    assert compiled.egress["placeholders"] == [compiled.environment["KEY"]]
    rule = compiled.egress["allow"][0]
    assert Terms.parse(json.loads(rule["http"]), "a").credential.id == "a"


def test_tunnel_only_policy_needs_no_secrets_process():
    compiled = compile_policy(
        EgressPolicy(allow=(EgressRule(host="a.test", id="a"),)), random=os.urandom, read_ca=lambda _: ""
    )
    assert compiled.hosts == ()


def test_credential_on_port_80_is_refused():
    rule = EgressRule(host="a.test", ports=(80, 443), id="a", http=json.dumps(BEARER))
    with pytest.raises(UsageError, match="never sent without TLS"):
        compile_policy(EgressPolicy(allow=(rule,)), random=os.urandom, read_ca=lambda _: "")


def test_two_credentials_for_one_variable():
    rules = tuple(EgressRule(host=h, id=h, http=json.dumps(BEARER)) for h in ("a.test", "b.test"))
    with pytest.raises(UsageError, match="two credentials set the variable `KEY`"):
        compile_policy(EgressPolicy(allow=rules), random=os.urandom, read_ca=lambda _: "")


@pytest.mark.parametrize("kind", ["bearer", "basic", "header", "git", "oauth2", "sigv4"])
def test_injection_surface_is_inside_the_enforcement_surface(kind):
    """Whatever we inject, we would have taken from a client (onecli#438)."""
    extra = {
        "sigv4": {"key_id": "env:I", "region": "r", "service": "s3"},
        "oauth2": {"client_id": "c", "token_url": "https://x.test/"},
    }
    terms = Terms.parse(made({"credential": {"source": "env:A", "kind": kind, **extra.get(kind, {})}}).terms, "r")
    assert classify(terms.credential.slot.name.encode()) in (SECRET, SUSPECT, DROP)


def test_header_slot_of_any_name_is_taken_from_the_client():
    from saggar.egress.admit import Admitted, Refused, admit
    from saggar.egress.destination import Destination
    from saggar.egress.http_head import parse_request

    terms = Terms.parse(
        made({"credential": {"source": "env:A", "kind": "header", "name": "X-Plain", "env": "K"}}).terms, "r"
    )
    place = Destination("api.allowed.test", 443, "https")

    def judged(value):
        head = parse_request(
            b"GET / HTTP/1.1\r\nHost: api.allowed.test\r\nX-Plain: " + value + b"\r\n\r\n", default_port=443
        )
        return admit(head, place, terms, None)

    assert isinstance(judged(terms.credential.placeholder.encode()), Admitted)
    refused = judged(b"anything")
    assert isinstance(refused, Refused)
    assert refused.decision.reason == "foreign_credential"


@pytest.mark.parametrize(
    "text", ["env:NAME", "file:/run/key", "keyring:svc/me", "command:/usr/bin/pass show x", "vault:secret/data/x#key"]
)
def test_source_round_trip(text):
    assert str(Source.parse(text)) == text


def test_policy_check_says_what_the_wall_would(tmp_path, capsys):
    from saggar.cli.policy import main

    file = tmp_path / "p.toml"
    file.write_text('[[egress.allow]]\nhost = "a.test"\nhttp = { rules = [{ paths = ["nope"] }] }\n')
    assert main(["policy", "check", str(file)]) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith(f"{file}:3: `egress.allow[0]` (a.test): path pattern `nope` must begin with `/`")
    assert "sound" not in shown.out
    two = '[[egress.allow]]\nhost = "%s.test"\nhttp = { credential = { source = "env:A", env = "K" } }\n'
    file.write_text(two % "a" + two % "b")
    assert main(["policy", "check", str(file)]) == 2
    assert "two credentials set the variable `K`" in capsys.readouterr().err


def test_the_two_parts_of_a_rule_that_is_enabled_for_some_ports_share_one_credential():
    http = json.dumps({"credential": {"source": "env:K", "env": "KEY"}, "methods": ["GET"]})
    parts = [
        EgressRule(id="a", host="api.test", ports=p, http=http, enabled=e)
        for p, e in (((443,), True), ((8443,), False))
    ]
    made = compile_policy(EgressPolicy(allow=tuple(parts)), random=os.urandom, read_ca=str)
    one, other = made.egress["allow"]
    assert one["http"] == other["http"]
    assert len(made.specs) == len(made.egress["placeholders"]) == 1
    with pytest.raises(UsageError, match="never sent without TLS"):
        compile_policy(EgressPolicy(allow=(parts[0], parts[1].replace(ports=(80,)))), random=os.urandom, read_ca=str)
