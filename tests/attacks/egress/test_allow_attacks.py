"""Requests that no rule allows, spelled so that a rule seems to: some server reads another value than the rule did."""

import json
import ssl

import pytest

from saggar.policy.model import EgressRule
from saggar.testing.egress_cell import EgressCell
from saggar.testing.upstream import Upstream

HOST = "api.allowed.test"
RULES = [
    {"paths": ["/query"], "query": {"repo": "mine"}},
    {"paths": ["/table"], "query": {"filter[name]": "mine"}},
    {"paths": ["/name"], "query": {"repo_id": "mine"}},
    {"paths": ["/field"], "headers": {"x-repo": "mine"}},
]

#: name to (target, further fields)
REFUSED = {
    "another value": ("/query?repo=other", ()),
    "a second one": ("/query?repo=mine&repo=other", ()),
    "what servers that split at `&` alone read": ("/query?repo=mine;/../other", ()),
    "the same, escaped in part": ("/query?re%70o=mine;x", ()),
    "what servers without regard to case read": ("/query?repo=mine&REPO=other", ()),
    "a list, which PHP takes last": ("/query?repo=mine&repo[]=other", ()),
    "a table": ("/query?repo=mine&repo%5Ba%5D=other", ()),
    "behind a blank": ("/query?repo=mine&+repo=other", ()),
    "a list alone": ("/query?repo[]=mine", ()),
    "another table's entry is none": ("/table?filter[state]=mine", ()),
    "the table as a whole": ("/table?filter[name]=mine&filter=other", ()),
    "deeper in the table": ("/table?filter[name]=mine&Filter[name][]=other", ()),
    "what PHP makes a variable of": ("/name?repo_id=mine&repo.id=other", ()),
    "a bracket that nothing closes": ("/name?repo_id=mine&repo[id=other", ()),
    "a second field": ("/field", ("X-Repo: mine", "X-Repo: other")),
    "a field's twin for servers that read through CGI": ("/field", ("X-Repo: mine", "X_Repo: other")),
}
ALLOWED = {
    "the value": ("/query?repo=mine", ()),
    "the value twice": ("/query?repo=mine&repo=mine", ()),
    "other parameters": ("/query?repo=mine&page=2&ids[]=1&ids[]=2&repos=x&q=a;b", ()),
    "other entries of a table": ("/table?filter[name]=mine&filter[state]=open&filter%5Bid%5D=1", ()),
    "the field": ("/field", ("X-Repo: mine", "X_Other: 1")),
}


@pytest.fixture(scope="module")
def there(pki):
    with Upstream(context=pki.server_context()) as upstream:
        http = json.dumps({"ca": pki.ca_file, "rules": RULES})
        rule = EgressRule(id="api", host=HOST, connect_to=upstream.address, http=http)
        with EgressCell([rule]) as cell:
            yield cell, upstream


def send(cell, target, fields):
    head = "\r\n".join([f"GET {target} HTTP/1.1", f"Host: {HOST}", *fields, "", ""])
    context = ssl.create_default_context(cadata=cell.ca_pem)
    with context.wrap_socket(cell.connect("203.0.113.9", 443), server_hostname=HOST) as sock:
        sock.sendall(head.encode())
        return sock.recv(65536)


@pytest.mark.parametrize("name", REFUSED)
def test_what_some_server_reads_otherwise_is_not_allowed(there, name):
    cell, upstream = there
    seen = len(upstream.bytes)
    got = send(cell, *REFUSED[name])
    assert got.startswith(b"HTTP/1.1 403 "), got
    assert len(upstream.bytes) == seen
    assert cell.records()[-1]["effect"] == "deny"
    assert cell.records()[-1]["reason"] == "no_rule_matches"


@pytest.mark.parametrize("name", ALLOWED)
def test_what_every_server_reads_alike_is(there, name):
    cell, _ = there
    assert send(cell, *ALLOWED[name]).startswith(b"HTTP/1.1 200 ")
