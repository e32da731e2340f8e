"""What a sandbox might make of a grant that was given for something else: another rule's budget, another rule's approval, a wildcard
behind a revoked host, a question that hides what it asks."""

import hashlib
import json
import os
import resource
import ssl

import pytest

from saggar.core.errors import UsageError
from saggar.policy.approve import proposal
from saggar.policy.model import EgressPolicy, EgressRule
from saggar.runtime.held import Verdict, approval, ask_of, conditions
from saggar.runtime.live_change import change
from saggar.testing.asked import ELSEWHERE, answer, approve, reply, send
from saggar.testing.egress_cell import EgressCell
from saggar.testing.upstream import TestPki as Pki
from saggar.testing.upstream import Upstream

HOST = "api.allowed.test"
PROCESSES = pytest.mark.parametrize("processes", [1, 2])


def entry(upstream, ports=(80,), host=HOST, name="api", **http):
    text = json.dumps(http) if http else ""
    return EgressRule(id=name, host=host, ports=ports, connect_to=upstream.address, http=text)


# budgets


@PROCESSES
def test_a_handshake_under_another_rule_of_the_host_gives_no_new_budget(tmp_path, processes):
    pki = Pki(str(tmp_path), [HOST])
    with Upstream(context=pki.server_context()) as upstream:
        rules = [
            entry(upstream, (443,), name="a", ca=pki.ca_file, budget={"requests": 3}),
            entry(upstream, (8443,), name="b", ca=pki.ca_file, rules=[{"paths": ["/health"]}]),
            entry(upstream, (80, 8080), host="*.allowed.test", name="w", methods=["GET"]),
        ]
        with EgressCell(rules, processes=processes) as cell:
            name = cell.python(f"import socket; print(socket.gethostbyname('{HOST}'))").strip()

            def tls(port):
                context = ssl.create_default_context(cadata=cell.ca_pem)
                return context.wrap_socket(cell.connect(name, port), server_hostname=HOST)

            def ask(sock, port=443):
                sock.sendall(f"GET /x HTTP/1.1\r\nHost: {HOST}:{port}\r\n\r\n".encode())
                return sock.recv(4096)[9:12]

            # both processes know the host under the other rules before the first one is used
            idle = [tls(8443) for _ in range(4)]
            open_ = [tls(443) for _ in range(8)]
            assert [ask(sock) for sock in open_[:4]] == [b"200", b"200", b"200", b"429"]
            idle += [tls(8443) for _ in range(4)]
            assert reply(send(cell, "GET /"))[1] == "budget_requests"
            assert {ask(sock) for sock in open_[4:]} == {b"429"}
            record = cell.wait_record(effect="deny", reason="budget_requests", host=HOST)
            assert (record["detail"]["limit"], record["detail"]["scope"]) == (3, "host")
            assert upstream.bytes.count(b"GET /x") == 3
            for sock in (*idle, *open_):
                sock.close()


# approvals

RULES = [
    {"id": "dry", "effect": "ask", "methods": ["POST"], "paths": ["/deploy"], "query": {"dry_run": "true"}},
    {"id": "real", "effect": "ask", "methods": ["POST"], "paths": ["/deploy"]},
    {"id": "prod", "effect": "ask", "methods": ["DELETE"], "paths": ["/db/prod"]},
    {"id": "form", "effect": "ask", "methods": ["DELETE"], "paths": ["/db/*"], "headers": {"x-mode": "soft"}},
    {"id": "any", "effect": "ask", "methods": ["DELETE"], "paths": ["/db/*"]},
]


def approved(cell, sock, *, pattern=False, number=0):
    """The request that waits, approved for the rest of the task; the approval."""
    event = cell.wait_event("ask")
    texts = {rule.id: rule.http for rule in cell.rules}
    made = approval(ask_of(event, "run", texts), Verdict.task(pattern=pattern), number)
    approve(cell, made)
    answer(cell, event["id"], "approved")
    assert reply(sock)[0] == "200"
    return made


@PROCESSES
@pytest.mark.parametrize(
    ("first", "pattern", "then", "rule"),
    [
        (("POST /deploy?dry_run=true", "Content-Length: 0"), False, ("POST /deploy?dry_run=false", "Content-Length: 0"), "real"),
        (("POST /deploy?dry_run=true", "Content-Length: 0"), False, ("POST /deploy?dry_run=true&a=1", "Content-Length: 0"), "dry"),
        (("POST /deploy?dry_run=true", "Content-Length: 0"), True, ("POST /deploy", "Content-Length: 0"), "real"),
        (("DELETE /db/scratch",), False, ("DELETE /db/scratch?cascade=1",), "any"),
        (("DELETE /db/scratch",), True, ("DELETE /db/prod",), "prod"),
        (("DELETE /db/scratch", "X-Mode: soft"), True, ("DELETE /db/scratch",), "any"),
        (("DELETE /db/scratch", "X-Mode: soft"), False, ("DELETE /db/scratch", "X-Mode: hard"), "any"),
    ],
)  # fmt: skip
def test_an_approval_answers_no_question_but_its_rules(processes, first, pattern, then, rule):
    with Upstream() as upstream, EgressCell([entry(upstream, rules=RULES)], processes=processes) as cell:
        made = approved(cell, send(cell, *first), pattern=pattern)
        assert reply(send(cell, *first))[0] == "200"
        assert cell.wait_record(reason="approved_for_task")["rule"] == made["rule"]
        sock = send(cell, *then)
        event = cell.wait_event("ask")
        assert event["rule"] == rule
        answer(cell, event["id"], "denied")
        assert reply(sock) == ("403", "approval_denied")
        record = cell.wait_record(kind="egress.decision", effect="deny", reason="approval_denied")
        assert "approval" not in record["detail"]
        assert upstream.bytes.count(b" HTTP/1.1\r\n") == 2


def test_two_hosts_with_the_same_text_are_two_rules():
    """An id that a text leaves out is the entry's own: no approval, and no record, is one of the other host's."""
    rules = [{"effect": "ask", "methods": ["DELETE"]}]
    with Upstream() as upstream:
        both = [entry(upstream, rules=rules), entry(upstream, host="b.allowed.test", name="b", rules=rules)]
        with EgressCell(both) as cell:
            approved(cell, send(cell, "DELETE /x"), pattern=True)
            sock = send(cell, "DELETE /x", host="b.allowed.test")
            event = cell.wait_event("ask")
            assert (event["rule"], event["grant"]) == ("b.rules[0]", "b")
            answer(cell, event["id"], "denied")
            assert reply(sock) == ("403", "approval_denied")
            assert cell.wait_record(kind="egress.ask", grant="b")["detail"]["rule"] == "b.rules[0]"


def test_the_id_of_a_rule_that_asks_is_its_own():
    twice = [{"id": "x", "effect": "ask", "paths": ["/a"]}, {"id": "x", "effect": "ask"}]
    with Upstream() as upstream, pytest.raises(UsageError, match="two rules are called `x`"):
        EgressCell([entry(upstream, rules=twice)]).__enter__()


def test_the_change_for_the_policy_answers_no_more_than_the_rule_asked():
    text = f"""[[egress.allow]]
id = "api"
host = "{HOST}"
[egress.allow.http]
rules = [
  {{ id = "dry", effect = "ask", methods = ["POST"], paths = ["/deploy"], query = {{ dry_run = "true" }}, max_body = 100 }},
  {{ id = "real", effect = "ask", methods = ["POST"], paths = ["/deploy"] }},
]
"""
    terms = {"api": json.dumps({"rules": [{**RULES[0], "max_body": 100}, RULES[1]]})}
    event = {"id": "1", "host": HOST, "port": 443, "method": "POST", "path": "/deploy", "grant": "api"}
    asked = ask_of({**event, "rule": "dry"}, "run", terms)
    diff = proposal(
        text, "p.toml", HOST, 443, grant="api", method="POST", paths=[asked.path], exact=True,
        conditions=conditions(asked, terms, pattern=False),
    )  # fmt: skip
    (line,) = [x for x in diff.splitlines() if x.startswith("+  ")]
    assert 'query = { dry_run = "true" }, max_body = 100' in line
    with pytest.raises(UsageError, match="would be answered too"):
        conditions(ask_of({**event, "rule": "real"}, "run", terms), terms, pattern=False)


# revocation


def test_a_revoked_port_is_not_reached_through_a_wildcard():
    def get(cell):
        return reply(send(cell, "GET /"))

    with Upstream() as one, Upstream() as two:
        rules = (entry(one, (80, 443), name="exact"), entry(two, (80, 443), host="*.allowed.test", name="wild"))
        egress = EgressPolicy(allow=rules)
        with EgressCell(list(rules)) as cell:
            assert get(cell)[0] == "200"
            for revoked in (f"{HOST}:80", HOST):
                made = change(json.dumps({"op": "revoke", "entries": [revoked]}).encode(), egress, first_id=0)
                egress = made.egress
                cell.update(list(egress.allow))
                assert get(cell) == ("403", "port_not_listed")
            assert cell.wait_record(effect="deny", reason="port_not_listed")["detail"]["host"] == HOST
            assert (one.accepted, two.accepted) == (1, 0)


# questions


def test_what_cannot_be_told_whole_is_not_asked():
    with Upstream() as upstream, EgressCell([entry(upstream, rules=[{"effect": "ask"}])]) as cell:
        for target in ("/" + "a" * 512, "/a?" + "b" * 1025):
            assert reply(send(cell, f"DELETE {target}")) == ("403", "approval_too_long")
            record = cell.wait_record(reason="approval_too_long", sha256=hashlib.sha256(target.encode()).hexdigest())
            path, _, query = target.partition("?")
            assert (record["detail"]["path_chars"], record["detail"]["query_chars"]) == (len(path), len(query))
        whole = "/" + "a" * 511
        sock = send(cell, f"DELETE {whole}?" + "b" * 1024)
        event = cell.wait_event("ask")
        assert (event["path"], len(event["query"])) == (whole, 1024)
        answer(cell, event["id"], "denied")
        assert reply(sock)[1] == "approval_denied"
        assert [r["kind"] for r in cell.records()].count("egress.ask") == 1
        assert upstream.bytes == b""


@PROCESSES
def test_a_question_that_cannot_be_recorded_is_not_put(processes):
    with Upstream() as upstream:
        with EgressCell([entry(upstream, rules=[{"effect": "ask"}])], processes=processes) as cell:
            size = os.path.getsize(cell.audit_path) if os.path.exists(cell.audit_path) else 0
            for pid in cell.pids():
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (size + 10, size + 10))
            sock = cell.connect(ELSEWHERE, 80)
            sock.sendall(f"DELETE /x HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
            assert cell.wait_event("fatal")["cause"].startswith("audit_failed: ")
            assert [e for e in cell.events if e["event"] == "ask"] == []
            assert [r for r in cell.records() if r["kind"] in ("egress.ask", "egress.decision")] == []
            assert upstream.bytes == b""
            sock.close()
