import pytest

from saggar.core.decision import ALLOW
from saggar.core.errors import InvariantBroken
from saggar.egress.authorize import AuthorizedRequest, authorize, public_text
from saggar.egress.destination import Destination
from saggar.egress.match import RuleSet
from saggar.policy.model import EgressRule

RULES = RuleSet(
    [
        EgressRule(id="api", host="api.allowed.test"),
        EgressRule(id="db", host="db.allowed.test", ports=(5432,)),
        EgressRule(id="wild", host="*.wild.test"),
        EgressRule(id="exact", host="x.wild.test", ports=(443, 80)),
        EgressRule(id="meta", host="metadata.google.internal", ports=(80,)),
        EgressRule(id="meta-on", host="metadata", ports=(80,), allow_metadata=True),
    ]
)

CASES = [
    ("api.allowed.test", 443, "api", ""),
    ("api.allowed.test", 80, "", "port_not_listed"),
    ("evilapi.allowed.test", 443, "", "host_not_listed"),
    ("api.allowed.test.evil.test", 443, "", "host_not_listed"),
    ("allowed.test", 443, "", "host_not_listed"),
    ("db.allowed.test", 5432, "db", ""),
    ("db.allowed.test", 443, "", "port_not_listed"),
    ("a.wild.test", 443, "wild", ""),
    ("a.wild.test", 80, "", "port_not_listed"),
    ("wild.test", 443, "", "host_not_listed"),
    ("a.b.wild.test", 443, "", "host_not_listed"),
    ("evilwild.test", 443, "", "host_not_listed"),
    ("x.wild.test", 80, "exact", ""),
    ("x.wild.test", 443, "exact", ""),
    ("metadata.google.internal", 80, "", "metadata_name"),
    ("metadata.goog", 80, "", "metadata_name"),
    ("metadata", 80, "meta-on", ""),
    ("metadata", 443, "", "port_not_listed"),
]


@pytest.mark.parametrize(("host", "port", "rule", "reason"), CASES)
def test_find(host, port, rule, reason):
    found, why = RULES.find(host, port)
    assert (found.id if found else "", why) == (rule, reason)


@pytest.mark.parametrize(("host", "port", "rule", "reason"), CASES)
def test_every_protocol_gets_the_same_reason(host, port, rule, reason):
    results = [authorize(RULES, Destination(host, port, scheme)) for scheme in ("https", "http", "tcp")]
    if rule:
        assert all(isinstance(r, AuthorizedRequest) and r.decision.effect == ALLOW for r in results)
    else:
        assert {r.reason for r in results} == {reason}
        assert RULES.name_reason(host) in ("", reason)


def test_an_empty_allowlist_allows_nothing():
    assert RuleSet([]).find("api.allowed.test", 443) == (None, "host_not_listed")


def test_only_authorize_makes_an_authorized_request():
    request = authorize(RULES, Destination("api.allowed.test", 443, "https"))
    with pytest.raises(InvariantBroken):
        AuthorizedRequest(request.destination, request.rule, request.decision, seal=object())


def test_the_public_text_names_host_rule_and_remedy():
    denied = authorize(RULES, Destination("evil.test", 443, "https"))
    assert denied.public == (
        "evil.test:443 is not in this task's allowlist; the operator can run `saggar allow evil.test:443`"
    )
    assert "{" not in "".join(public_text(r) for r in ("host_not_listed", "address_refused", "anything"))


def test_what_is_not_enabled_is_not_listed_by_itself_nor_by_a_wildcard():
    wild = EgressRule(id="w", host="*.wild.test", ports=(443, 80))
    shut = EgressRule(id="s", host="a.wild.test", ports=(443,), enabled=False)
    rules = RuleSet([shut, wild, EgressRule(id="d", host="db.test", ports=(5432,), enabled=False)])
    assert rules.find("a.wild.test", 443) == (None, "port_not_listed")
    assert rules.find("a.wild.test", 80) == (wild, "")
    assert rules.find("b.wild.test", 443) == (wild, "")
    assert rules.find("db.test", 5432) == (None, "host_not_listed")
    assert [r.id for r in rules.rules] == ["w"]
    opened = shut.replace(enabled=True)
    assert RuleSet([opened, wild]).find("a.wild.test", 443) == (opened, "")
    assert (
        RuleSet([EgressRule(id="e", host="a.wild.test"), shut.replace(ports=(80,)), wild]).find("a.wild.test", 80)[0]
        is None
    )
