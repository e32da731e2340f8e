"""A value of the client's own beside the one that we set, under a name that some server takes for the same."""

import json
import ssl

import pytest

from saggar.policy.model import EgressRule
from saggar.testing.egress_cell import EgressCell
from saggar.testing.upstream import Upstream

HOST = "api.allowed.test"
SECRET = "real-secret-value-0123456789"
#: a field and a parameter whose names say nothing of a credential
SLOTS = {
    "field": {"kind": "header", "name": "x-acme-id"},
    "parameter": {"kind": "query", "name": "acme"},
}
#: (slot, target, further fields); KEY is the placeholder
ATTEMPTS = {
    "beside the field": ("field", "/x", ("X-Acme-Id: KEY", "X_Acme_Id: theirs")),
    "instead of the field": ("field", "/x", ("X-Acme_Id: theirs",)),
    "beside the parameter, in other case": ("parameter", "/x?acme=KEY&ACME=theirs", ()),
    "as a list": ("parameter", "/x?acme=KEY&acme[]=theirs", ()),
    "behind a blank": ("parameter", "/x?acme=KEY&%20acme=theirs", ()),
    "instead of the parameter": ("parameter", "/x?Acme=theirs", ()),
    "beside what is set": ("field", "/x", ("X-Acme-Id: KEY", "X_Team: theirs")),
}


@pytest.mark.parametrize("name", ATTEMPTS)
def test_what_we_set_has_no_twin(pki, name):
    slot, target, fields = ATTEMPTS[name]
    with Upstream(context=pki.server_context()) as upstream:
        http = {
            "ca": pki.ca_file,
            "credential": {"source": "env:REAL", "env": "KEY", **SLOTS[slot]},
            "set_headers": {"x-team": "ours"},
        }
        rule = EgressRule(id="api", host=HOST, connect_to=upstream.address, http=json.dumps(http))
        with EgressCell([rule], env={"REAL": SECRET}) as cell:
            lines = [f"GET {target} HTTP/1.1", f"Host: {HOST}", *fields, "", ""]
            head = "\r\n".join(lines).replace("KEY", cell.environment["KEY"])
            context = ssl.create_default_context(cadata=cell.ca_pem)
            with context.wrap_socket(cell.connect("203.0.113.9", 443), server_hostname=HOST) as sock:
                sock.sendall(head.encode())
                got = sock.recv(65536)
            assert b"theirs" not in upstream.bytes
            if "X_Team: theirs" in head:
                # what the policy sets takes the client's place, as under its own name
                assert got.startswith(b"HTTP/1.1 200 ")
                assert b"x-team: ours\r\n" in upstream.bytes
            else:
                assert got.startswith(b"HTTP/1.1 403 ")
                assert cell.wait_record(reason="foreign_credential")["effect"] == "deny"
