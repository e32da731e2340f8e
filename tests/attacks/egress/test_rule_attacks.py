"""Requests that a rule denies, in every spelling that some server takes for the same: against the real broker."""

import json
import ssl

import pytest

from saggar.policy.model import EgressRule
from saggar.testing.egress_cell import EgressCell

HOST = "api.allowed.test"
RULES = [
    {"paths": ["/**"]},
    {"effect": "deny", "paths": ["/v1/admin/**", "/v1/*:delete", "/v1/a!b", "/v1/star%2Aname", "/v1/keys/%C3%84", "/v1/v%2A/x"], "reason": "path_closed_here"},
    {"effect": "deny", "query": {"mode": "*delete*"}, "reason": "mode_closed"},
    {"effect": "deny", "query": {"force": "*"}, "reason": "force_closed"},
    {"effect": "deny", "query": {"delete_all": "*"}, "reason": "all_closed"},
    {"effect": "deny", "headers": {"x-danger": "*"}, "reason": "header_closed"},
    {"effect": "deny", "methods": ["POST"], "content_types": ["multipart/form-data"], "reason": "form_closed"},
]  # fmt: skip

#: name to (target, further fields, body): each is a denied request to some server
DENIED = {
    "as written": ("/v1/admin/x", (), ""),
    "other case": ("/V1/Admin/x", (), ""),
    "a slash that is escaped": ("/v1%2Fadmin/x", (), ""),
    "both slashes": ("/v1%2fadmin%2fx", (), ""),
    "a verb": ("/v1/jobs:delete", (), ""),
    "its colon escaped": ("/v1/jobs%3Adelete", (), ""),
    "its colon escaped in lower case": ("/v1/jobs%3adelete", (), ""),
    "a mark escaped": ("/v1/a%21b", (), ""),
    "a mark, other case, a slash more": ("/v1/A%21B/", (), ""),
    "a star that is one": ("/v1/star*name", (), ""),
    "a star escaped": ("/v1/STAR%2Aname", (), ""),
    "a letter that folds to one": ("/v1/%E2%84%AAEYS/%C3%84", (), ""),
    "another case beyond ASCII": ("/v1/keys/%C3%A4", (), ""),
    "in two characters": ("/v1/keys/A%CC%88", (), ""),
    "a wide letter": ("/v1/%EF%BD%81dmin/x", (), ""),
    "a wide star": ("/v1/v%EF%BC%8A/x", (), ""),
    "a dot more": ("/v1/admin./x", (), ""),
    "a blank more": ("/v1/admin%20/x", (), ""),
    "dots and a slash more": ("/v1/a!b../", (), ""),
    "value": ("/v1/x?mode=delete", (), ""),
    "value behind another": ("/v1/x?mode=a&mode=b-delete", (), ""),
    "value with a semicolon in it": ("/v1/x?mode=a;delete", (), ""),
    "name behind a semicolon": ("/v1/x?a=1;mode=delete", (), ""),
    "name in other case": ("/v1/x?MODE=delete", (), ""),
    "name escaped": ("/v1/x?%6dode=delete", (), ""),
    "name as a list": ("/v1/x?mode[]=delete", (), ""),
    "name as a table": ("/v1/x?mode%5Ba%5D=delete", (), ""),
    "name behind a blank": ("/v1/x?+mode=delete", (), ""),
    "name as a variable": ("/v1/x?delete.all=1", (), ""),
    "name with a bracket that nothing closes": ("/v1/x?delete[all=1", (), ""),
    "value escaped": ("/v1/x?mode=del%65te", (), ""),
    "no value": ("/v1/x?force", (), ""),
    "empty value": ("/v1/x?force=", (), ""),
    "field": ("/v1/x", ("X-Danger: 1",), ""),
    "field's twin": ("/v1/x", ("X_Danger: 1",), ""),
    "field twice": ("/v1/x", ("X-Danger: ", "x-danger: 1"), ""),
    "type": ("/v1/x", ("Content-Type: multipart/form-data; boundary=x",), "body"),
    "type in other case": ("/v1/x", ("Content-Type: Multipart/Form-DATA;boundary=x",), "body"),
    "no type": ("/v1/x", (), "body"),
    "two types": ("/v1/x", ("Content-Type: text/plain", "Content-Type: multipart/form-data"), "body"),
    "a list of types": ("/v1/x", ("Content-Type: text/plain, multipart/form-data",), "body"),
    "a type without its semicolon": ("/v1/x", ("Content-Type: multipart/form-data boundary=x",), "body"),
    "an empty type": ("/v1/x", ("Content-Type:",), "body"),
}
ALLOWED = {
    "another path": ("/v1/administrator", (), ""),
    "a verb of another kind": ("/v1/jobs:deleted", (), ""),
    "a star's place": ("/v1/starXname", (), ""),
    "letters of another kind": ("/v1/keys/%C3%96", (), ""),
    "no star at all": ("/v1/vx/x", (), ""),
    "dots within": ("/v1/admin.d/x", (), ""),
    "another value": ("/v1/x?mode=keep", (), ""),
    "another name": ("/v1/x?modes=delete&enforce=1", (), ""),
    "another field": ("/v1/x", ("X-Dangers: 1",), ""),
    "another type": ("/v1/x", ("Content-Type: application/json; charset=utf-8",), "{}"),
}
REASONS = {"all_closed", "path_closed_here", "mode_closed", "force_closed", "header_closed", "form_closed"}


@pytest.fixture(scope="module")
def asking(pki):
    """The same, where a person is to be asked instead."""
    from saggar.testing.upstream import Upstream

    rules = [{k: "ask" if k == "effect" else v for k, v in r.items() if k != "reason"} for r in RULES]
    with Upstream(context=pki.server_context()) as upstream:
        http = json.dumps({"ca": pki.ca_file, "rules": rules, "encoded_slash": True})
        rule = EgressRule(id="api", host=HOST, connect_to=upstream.address, http=http)
        with EgressCell([rule]) as cell:
            yield cell, upstream


@pytest.mark.parametrize("name", DENIED)
def test_nobody_is_passed_over_by_a_spelling(asking, name):
    """What a rule asks about is asked about as it is written, and refused as it is not: it does not fall to an allow."""
    cell, upstream = asking
    seen = len(upstream.bytes)
    with begin(cell, *DENIED[name]) as sock:
        sock.settimeout(0.4)
        try:
            got = sock.recv(65536)
        except TimeoutError:
            cell.wait_event("ask")
        else:
            assert got.startswith(b"HTTP/1.1 403 "), got
            assert b"X-Saggar-Reason: ask_spelling\r\n" in got
            assert cell.records()[-1]["effect"] == "deny"
    assert len(upstream.bytes) == seen


@pytest.mark.parametrize("name", ALLOWED)
def test_what_is_another_is_not_asked_about(asking, name):
    cell, _ = asking
    assert send(cell, *ALLOWED[name]).startswith(b"HTTP/1.1 200 ")


@pytest.fixture(scope="module")
def there(pki):
    from saggar.testing.upstream import Upstream

    with Upstream(context=pki.server_context()) as upstream:
        http = json.dumps({"ca": pki.ca_file, "rules": RULES, "encoded_slash": True})
        rule = EgressRule(id="api", host=HOST, connect_to=upstream.address, http=http)
        with EgressCell([rule]) as cell:
            yield cell, upstream


def send(cell, target, fields, body):
    with begin(cell, target, fields, body) as sock:
        return sock.recv(65536)


def begin(cell, target, fields, body):
    method = "POST" if body else "GET"
    length = (f"Content-Length: {len(body)}",) if body else ()
    head = "\r\n".join([f"{method} {target} HTTP/1.1", f"Host: {HOST}", *fields, *length, "", body])
    context = ssl.create_default_context(cadata=cell.ca_pem)
    sock = context.wrap_socket(cell.connect("203.0.113.9", 443), server_hostname=HOST)
    sock.sendall(head.encode())
    return sock


@pytest.mark.parametrize("name", DENIED)
def test_denied_in_every_spelling(there, name):
    cell, upstream = there
    seen = len(upstream.bytes)
    got = send(cell, *DENIED[name])
    assert got.startswith(b"HTTP/1.1 403 "), got
    reason = got.partition(b"X-Saggar-Reason: ")[2].split(b"\r\n")[0].decode()
    assert reason in REASONS
    # a reason of the policy's own, whatever it is called, is mended by the rule alone
    assert b"the operator's rule forbids it [rule `api.rules[" in got
    assert len(upstream.bytes) == seen
    assert cell.records()[-1]["reason"] == reason
    assert cell.records()[-1]["effect"] == "deny"


@pytest.mark.parametrize("name", ALLOWED)
def test_what_is_another_passes(there, name):
    cell, _ = there
    assert send(cell, *ALLOWED[name]).startswith(b"HTTP/1.1 200 ")
