import pytest

from saggar.core.errors import ParseError
from saggar.egress.approved import Approval, standing
from saggar.egress.destination import Destination

EXACT = {"id": "held[0]", "host": "a.test", "port": 443, "method": "DELETE", "path": "/v1/j*bs"}
WIDE = {"id": "held[1]", "host": "a.test", "port": 443, "method": "DELETE", "paths": ["/x", "/v2/**"]}
HERE = Destination("a.test", 443, "https")

CASES = [
    (HERE, "DELETE", "/v1/j*bs", "held[0]"),
    (HERE, "DELETE", "/v1/jobs", ""),  # a star in a path is a star
    (HERE, "POST", "/v1/j*bs", ""),
    (HERE, "DELETE", "/v1/j*bs/", ""),
    (HERE, "DELETE", "/V1/j*bs", ""),
    (Destination("b.test", 443, "https"), "DELETE", "/v1/j*bs", ""),
    (Destination("a.test", 80, "http"), "DELETE", "/v1/j*bs", ""),
    (HERE, "DELETE", "/v2/a/b", "held[1]"),
    (HERE, "DELETE", "/x", "held[1]"),
    (HERE, "DELETE", "/xy", ""),
]


@pytest.mark.parametrize(("destination", "method", "path", "found"), CASES)
def test_what_stands(destination, method, path, found):
    approvals = [Approval.parse(EXACT), Approval.parse(WIDE)]
    assert standing(approvals, destination, method, path) == found


def test_what_is_no_approval():
    with pytest.raises(ParseError):
        Approval.parse({**WIDE, "paths": ["no-slash"]})
    with pytest.raises(KeyError):
        Approval.parse({"id": "x"})
