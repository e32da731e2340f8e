"""What a sandbox might try with a person's approval: stretch it, reuse it, answer for the person, or flood them with questions."""

import json

import pytest

from saggar.egress.terminated_path_host import MAX_QUESTIONS
from saggar.policy.model import EgressRule
from saggar.testing.asked import ELSEWHERE, answer, approve, reply, send
from saggar.testing.egress_cell import EgressCell

HTTP = {
    "rules": [
        {"effect": "ask", "methods": ["DELETE"], "paths": ["/v1/jobs/*"]},
        {"effect": "deny", "paths": ["/v1/jobs/kept"]},
        {"methods": ["GET"]},
    ]
}
SEVEN = {
    "id": "held[0]",
    "grant": "api",
    "rule": "api.rules[0]",
    "host": "api.allowed.test",
    "port": 80,
    "method": "DELETE",
    "path": "/v1/jobs/7",
    "query": "force=1",
}


@pytest.fixture
def rules(http_upstream):
    http = json.dumps(HTTP)
    return [
        EgressRule(id="api", host="api.allowed.test", ports=(80,), connect_to=http_upstream.address, http=http),
        EgressRule(id="b", host="b.allowed.test", ports=(80,), connect_to=http_upstream.address, http=http),
    ]


@pytest.fixture
def asked(rules):
    with EgressCell(rules) as cell:
        yield cell


REFUSED = [
    # an approval of DELETE /v1/jobs/7 is no word on these; the reason is on record
    ("DELETE /v1/jobs/7/", (), "no_rule_matches"),
    ("DELETE /v1/JOBS/7", (), "no_rule_matches"),
    ("DELETE /v1/jobs/kept", (), "rule_denies"),
    ("DELETE /v1/jobs//7", (), "path_empty_segment"),
    ("DELETE /v1/jobs/x/../7", (), "path_dot_segment"),
    ("DELETE /v1/jobs/7;v=1", (), "path_parameters"),
    ("DELETE /v1/jobs/7%2f..%2f8", (), "path_encoded_slash"),
    ("DELETE /v1/jobs/7%00", (), "path_control"),
    ("PUT /v1/jobs/7", (), "method_not_allowed"),
    ("POST /v1/jobs/7", ("X-HTTP-Method-Override: DELETE", "Content-Length: 0"), "method_not_allowed"),
]


@pytest.mark.parametrize(("line", "fields", "reason"), REFUSED, ids=[r[0] for r in REFUSED])
def test_an_approval_covers_nothing_beside_it(asked, http_upstream, line, fields, reason):
    approve(asked, SEVEN)
    status, said = reply(send(asked, line, *fields))
    assert status[0] == "4"
    assert said == reason
    record = asked.wait_record(effect="deny", reason=said)
    assert record["kind"] == "egress.decision"
    assert http_upstream.bytes == b""


ASKED = [
    ("DELETE /v1/jobs/8", "api.allowed.test"),
    ("DELETE /v1/jobs/77", "api.allowed.test"),
    ("DELETE /v1/jobs/7?force=2", "api.allowed.test"),
    ("DELETE /v1/jobs/7", "b.allowed.test"),
]


@pytest.mark.parametrize(("line", "host"), ASKED)
def test_what_is_only_like_it_is_asked_about(asked, http_upstream, line, host):
    approve(asked, SEVEN)
    sock = send(asked, line, host=host)
    event = asked.wait_event("ask")
    path, _, query = line.split()[1].partition("?")
    assert (event["host"], event["path"], event.get("query", "")) == (host, path, query)
    # an answer to another question, and a word that is none, let nothing through
    answer(asked, "c.999", "approved")
    answer(asked, event["id"], "Approved")
    assert reply(sock) == ("403", "approval_denied")
    assert asked.wait_record(effect="deny", reason="approval_denied")["detail"]["path"] == path
    assert http_upstream.bytes == b""


def test_the_same_path_in_other_words_is_the_same(asked, http_upstream):
    approve(asked, SEVEN)
    assert reply(send(asked, "DELETE /v1/jobs/%37?force=1"))[0] == "200"
    record = asked.wait_record(effect="allow", reason="approved_for_task")
    assert (record["detail"]["approval"], record["detail"]["path"], record["rule"]) == (
        "held[0]",
        "/v1/jobs/7",
        "api.rules[0]",
    )
    assert b"DELETE /v1/jobs/7?force=1 HTTP/1.1" in http_upstream.bytes


def test_once_is_not_twice(asked, http_upstream):
    for verdict, said in (("approved", "200"), ("denied", "403")):
        sock = send(asked, "DELETE /v1/jobs/7")
        answer(asked, asked.wait_event("ask")["id"], verdict)
        assert reply(sock)[0] == said
    assert http_upstream.bytes.count(b"DELETE") == 1
    reasons = [r["reason"] for r in asked.records() if r["kind"] in ("egress.ask", "egress.decision")]
    assert reasons == ["rule_asks", "approved", "rule_asks", "approval_denied"]


def test_pipelined_behind_an_approved_one(asked, http_upstream):
    """The second request of a connection is a request of its own."""
    sock = asked.connect(ELSEWHERE, 80)
    one = b"DELETE /v1/jobs/%d HTTP/1.1\r\nHost: api.allowed.test\r\n\r\n"
    sock.sendall(one % 7 + one % 8)
    first = asked.wait_event("ask")
    answer(asked, first["id"], "approved")
    second = asked.wait_event("ask")
    assert (first["path"], second["path"]) == ("/v1/jobs/7", "/v1/jobs/8")
    answer(asked, second["id"], "denied")
    assert asked.wait_record(effect="deny", reason="approval_denied")["detail"]["path"] == "/v1/jobs/8"
    sock.close()
    assert http_upstream.bytes.count(b"DELETE") == 1


def test_a_flood_of_questions_is_bounded(asked, http_upstream):
    socks = [send(asked, f"DELETE /v1/jobs/{n}") for n in range(MAX_QUESTIONS)]
    for _ in socks:
        asked.wait_event("ask")
    assert reply(send(asked, "DELETE /v1/jobs/more")) == ("403", "approval_crowded")
    assert asked.wait_record(effect="deny", reason="approval_crowded")["detail"]["path"] == "/v1/jobs/more"
    # whoever leaves makes room
    socks.pop().close()
    asked.wait_event("unheld")
    assert asked.wait_record(kind="egress.ask", reason="withdrawn")
    socks.append(send(asked, "DELETE /v1/jobs/more"))
    assert asked.wait_event("ask")["path"] == "/v1/jobs/more"
    for sock in socks:
        sock.close()
    assert http_upstream.bytes == b""
