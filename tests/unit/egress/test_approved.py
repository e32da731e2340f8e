import pytest

from saggar.core.errors import ParseError
from saggar.egress.approved import Approval, Asked, standing

ASKED = {"grant": "api", "rule": "jobs", "host": "a.test", "port": 443, "method": "DELETE"}
EXACT = {"id": "held[0]", **ASKED, "path": "/v1/j*bs", "query": "force=1"}
WIDE = {"id": "held[1]", **ASKED, "paths": ["/x", "/v2/**"]}

CASES = [
    ({"path": "/v1/j*bs", "query": "force=1"}, "held[0]"),
    ({"path": "/v1/jobs", "query": "force=1"}, ""),  # a star in a path is a star
    ({"path": "/v1/j*bs"}, ""),  # the query is a part of what was shown
    ({"path": "/v1/j*bs", "query": "force=2"}, ""),
    ({"path": "/v1/j*bs", "query": "force=1&all=1"}, ""),
    ({"path": "/v1/j*bs", "query": "force=1", "method": "POST"}, ""),
    ({"path": "/v1/j*bs/", "query": "force=1"}, ""),
    ({"path": "/V1/j*bs", "query": "force=1"}, ""),
    ({"path": "/v1/j*bs", "query": "force=1", "host": "b.test"}, ""),
    ({"path": "/v1/j*bs", "query": "force=1", "port": 80}, ""),
    ({"path": "/v1/j*bs", "query": "force=1", "rule": "prod"}, ""),
    ({"path": "/v1/j*bs", "query": "force=1", "grant": "live[0]"}, ""),
    ({"path": "/v2/a/b"}, "held[1]"),
    ({"path": "/v2/a/b", "query": "any=1"}, "held[1]"),
    ({"path": "/v2/a/b", "rule": "prod"}, ""),
    ({"path": "/v2/a/b", "grant": "live[0]"}, ""),
    ({"path": "/x"}, "held[1]"),
    ({"path": "/xy"}, ""),
]


@pytest.mark.parametrize(("facts", "found"), CASES)
def test_what_stands(facts, found):
    approvals = [Approval.parse(EXACT), Approval.parse(WIDE)]
    assert standing(approvals, Asked(**{**ASKED, "query": "", **facts})) == found


def test_what_is_no_approval():
    with pytest.raises(ParseError):
        Approval.parse({**WIDE, "paths": ["no-slash"]})
    for key in ("grant", "rule", "query"):
        with pytest.raises(KeyError):
            Approval.parse({k: v for k, v in EXACT.items() if k != key})
    with pytest.raises(ValueError, match="without a name"):
        Approval.parse({**WIDE, "rule": ""})
    with pytest.raises(KeyError):
        Approval.parse({"id": "x"})
