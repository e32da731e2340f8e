"""docs/EGRESS.md names every reason that the wall gives."""

import os
import re

from saggar.bench.egress.attempts import ATTEMPTS, RESOLUTIONS
from saggar.bench.egress.terminated import ATTACKS

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

#: of connections under a credential or an L7 rule, which have pages of their own
ELSEWHERE = {"terminated_unavailable", "broker_fault", "repeated", "removed", "listed"}


def read(*parts):
    with open(os.path.join(ROOT, *parts), encoding="utf-8") as f:
        return f.read()


def test_every_reason_is_explained():
    text = read("docs", "EGRESS.md")
    told = set(re.findall(r"`([a-z_0-9]+)`", text))
    given = set()
    for name in (
        "authorize",
        "match",
        "connection_host",
        "cell_host",
        "dns_host",
        "dial_host",
        "http_host",
        "packet_host",
    ):
        source = read("src", "saggar", "egress", f"{name}.py")
        given |= set(re.findall(r'refuse\(\s*"([a-z_0-9]+)"', source))
        given |= set(re.findall(r'(?:DialError\(|reason=|reason = |return )"([a-z]+_[a-z_0-9]+)"', source))
    assert given - told - ELSEWHERE == set()
    assert {a.reason for a in ATTEMPTS} | {r.reason for r in RESOLUTIONS} <= told | {""}


def test_the_number_of_attempts_is_the_one_that_is_told():
    count = len(ATTEMPTS) + len(RESOLUTIONS) + len(ATTACKS)
    assert f"makes {count} named attempts" in read("docs", "EGRESS.md")
