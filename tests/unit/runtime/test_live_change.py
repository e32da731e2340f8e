import json

import pytest

from saggar.core.errors import UsageError
from saggar.egress.match import RuleSet
from saggar.policy.model import EgressPolicy, EgressRule
from saggar.runtime.live_change import change

BEFORE = EgressPolicy(
    allow=(
        EgressRule(id="a", host="a.test", ports=(443, 80)),
        EgressRule(id="w", host="*.w.test"),
    ),
    budget='{"requests": 5}',
)


def ask(op, *entries, first_id=0):
    return change(json.dumps({"op": op, "entries": list(entries)}).encode(), BEFORE, first_id=first_id)


def test_allow_adds_and_touches_nothing_else():
    made = ask("allow", "NEW.test", "b.test:8443", "a.test", first_id=3)
    assert made.egress.allow == (
        *BEFORE.allow,
        EgressRule(id="live[3]", host="new.test"),
        EgressRule(id="live[4]", host="b.test", ports=(8443,)),
    )
    assert made.egress.budget == BEFORE.budget
    assert made.changed == ["new.test:443", "b.test:8443"]
    assert [n.partition(" ")[0] for n in made.notes] == ["b.test:8443"]
    assert made.added == 2
    assert made.records[0].kind == "policy.allow"
    assert made.records[0].fields(7)["detail"] == {"host": "new.test", "ports": [443], "uid": 7}


@pytest.mark.parametrize("entry", ["*.com", "*", "a..test", "127.0.0.1", "[::1]:443", "x.test:0", "*.wild.test:22", ""])
def test_allow_refuses_what_a_policy_file_may_not_have(entry):
    with pytest.raises(UsageError):
        ask("allow", entry)


def test_revoke_a_host_and_a_port():
    off = tuple(rule.replace(enabled=False) for rule in BEFORE.allow)
    assert ask("revoke", "a.test").egress.allow == (off[0], BEFORE.allow[1])
    made = ask("revoke", "a.test:80")
    assert made.egress.allow == (
        BEFORE.allow[0].replace(ports=(443,)),
        BEFORE.allow[0].replace(ports=(80,), enabled=False),
        BEFORE.allow[1],
    )
    assert made.changed == ["a.test:80"]
    assert made.records[0].fields(0)["effect"] == "deny"
    assert ask("revoke", "*.w.test").egress.allow == (BEFORE.allow[0], off[1])


@pytest.mark.parametrize("entry", ["b.test", "a.test:22", "x.w.test"])
def test_revoke_of_what_no_rule_names(entry):
    with pytest.raises(UsageError) as caught:
        ask("revoke", entry)
    assert ("*.w.test" in caught.value.hint) is (entry == "x.w.test")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[]",
        b'{"op":"allow"}',
        b'{"op":"x","entries":["a"]}',
        b'{"op":"allow","entries":[]}',
        b'{"op":"allow","entries":"a"}',
        b"\xff",
    ],
)
def test_garbage_is_an_error_and_no_change(data):
    with pytest.raises((UsageError, ValueError, KeyError, TypeError)):
        change(data, BEFORE, first_id=0)


def test_revoke_takes_an_approval_by_its_id_and_those_of_a_host_along():
    approvals = [
        {
            "id": "held[0]",
            "grant": "a",
            "rule": "a.rules[0]",
            "host": "a.test",
            "port": 443,
            "method": "DELETE",
            "path": "/x",
        },
        {
            "id": "held[1]",
            "grant": "w",
            "rule": "w.rules[0]",
            "host": "b.w.test",
            "port": 443,
            "method": "PUT",
            "paths": ["/y/*"],
        },
    ]

    def revoke(*entries):
        return change(json.dumps({"op": "revoke", "entries": list(entries)}).encode(), BEFORE, approvals, first_id=0)

    made = revoke("held[1]")
    assert (made.egress, made.approvals, made.changed) == (BEFORE, approvals[:1], ["held[1]"])
    assert made.records[0].fields(7) == {
        "layer": "policy",
        "effect": "deny",
        "reason": "operator",
        "rule": "held[1]",
        "detail": {"host": "b.w.test", "ports": [443], "method": "PUT", "paths": ["/y/*"], "uid": 7},
    }
    assert revoke("a.test:80").approvals == approvals
    assert revoke("a.test").approvals == approvals[1:]
    assert revoke("*.w.test").changed == ["*.w.test:443", "held[1]"]
    with pytest.raises(UsageError):
        revoke("held[2]")


def test_what_the_policy_has_ready_is_enabled_by_id_or_host():
    ready = EgressRule(id="db", host="db.test", ports=(5432,), enabled=False)
    before = EgressPolicy(allow=(ready, EgressRule(id="x", host="x.test", ports=(443, 8443), http="{}", enabled=False)))

    def allow(*entries):
        return change(json.dumps({"op": "allow", "entries": list(entries)}).encode(), before, first_id=0)

    for entry in ("db", "db.test", "db.test:5432"):
        made = allow(entry)
        assert made.egress.allow == (ready.replace(enabled=True), before.allow[1])
        assert (made.changed, made.notes, made.added) == (["db.test:5432"], [], 0)
        assert made.records[0].fields(0)["rule"] == "db"
    assert allow("x.test").changed == ["x.test:443", "x.test:8443"]
    # a port that it does not have is one more rule
    assert allow("db.test:80").egress.allow == (*before.allow, EgressRule(id="live[0]", host="db.test", ports=(80,)))
    with pytest.raises(UsageError):
        change(b'{"op":"revoke","entries":["db.test"]}', before, first_id=0)


EXACT = EgressRule(id="exact", host="x.w.test", ports=(443, 80), http='{"rules":[{"effect":"ask"}]}')
WILD = EgressRule(id="wild", host="*.w.test", ports=(443, 80, 8443))
HELD = {
    "id": "held[0]",
    "grant": "exact",
    "rule": "r",
    "host": "x.w.test",
    "port": 443,
    "method": "GET",
    "paths": ["/**"],
}


def steps(*requests, rules=(EXACT, WILD), approvals=(HELD,)):
    """The last change of several, each made to what the one before gave."""
    egress, added = EgressPolicy(allow=rules), 0
    for op, entry in requests:
        made = change(json.dumps({"op": op, "entries": [entry]}).encode(), egress, approvals, first_id=added)
        egress, approvals, added = made.egress, made.approvals, added + made.added
    return made


def reached(made, host="x.w.test"):
    rules = RuleSet(made.egress.allow)
    return {port: rule.id for port in (80, 443, 8443) if (rule := rules.find(host, port)[0])}


def test_what_is_revoked_stays_shut_under_a_wildcard():
    made = steps(("revoke", "x.w.test:80"))
    assert reached(made) == {443: "exact", 8443: "wild"}
    assert reached(made, "y.w.test") == {80: "wild", 443: "wild", 8443: "wild"}
    assert made.approvals == [HELD]
    made = steps(("revoke", "x.w.test:80"), ("revoke", "x.w.test:443"))
    assert reached(made) == {8443: "wild"}
    assert (made.approvals, made.changed) == ([], ["x.w.test:443", "held[0]"])
    made = steps(("revoke", "x.w.test"))
    assert reached(made) == {8443: "wild"}
    assert made.notes == ["x.w.test:8443 is still reached under `*.w.test`, which can be revoked as a whole"]


def test_a_revoked_port_comes_back_alone_and_the_rule_is_whole_again():
    off = ("revoke", "x.w.test")
    assert reached(steps(off, ("allow", "x.w.test:80"))) == {80: "exact", 8443: "wild"}
    made = steps(off, ("allow", "x.w.test:80"), ("allow", "x.w.test:443"))
    assert reached(made) == {80: "exact", 443: "exact", 8443: "wild"}
    assert len(made.egress.allow) == 2
    # what a person had approved under it is not back with it
    assert made.approvals == []


def test_a_rule_of_this_run_is_shut_like_one_of_the_policy():
    live = steps(("allow", "z.w.test:80"), ("revoke", "z.w.test:80"), rules=(WILD,))
    assert reached(live, "z.w.test") == {443: "wild", 8443: "wild"}
    again = steps(("allow", "z.w.test:80"), ("revoke", "z.w.test:80"), ("allow", "z.w.test:80"), rules=(WILD,))
    assert reached(again, "z.w.test")[80] == "live[0]"


def test_an_approval_goes_when_another_rule_covers_its_host():
    wild = {**HELD, "grant": "wild", "host": "q.w.test"}
    assert steps(("allow", "q.w.test:80"), rules=(WILD,), approvals=(wild,)).approvals == [wild]
    made = steps(("allow", "q.w.test"), rules=(WILD,), approvals=(wild,))
    assert (made.approvals, made.records[-1].kind) == ([], "policy.revoke")
