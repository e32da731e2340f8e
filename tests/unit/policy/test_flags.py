"""Flags over a policy."""

from __future__ import annotations

import pytest

from saggar.core.errors import UsageError
from saggar.policy.load import default_policy, parse, with_flags
from saggar.policy.model import EgressRule, Origin, Policy

FLAG = Origin("flag")


def test_nothing_given_changes_nothing():
    policy = default_policy()
    assert with_flags(policy) is policy


def test_flags_beat_the_file():
    file = parse('[isolation]\ntier="process"\n[limits]\ntimeout="5m"\n[environment.set]\nA="1"\nB="2"\n', "f")
    p = with_flags(file, tier="gvisor", workspace="/w:read-only", env=["A=x=y", "C="], timeout="none")
    assert p.isolation.tier == "gvisor"
    assert (p.workspace.path, p.workspace.mode) == ("/w", "read-only")
    assert p.environment.set == (("A", "x=y"), ("B", "2"), ("C", ""))
    assert p.limits.timeout_s is None
    assert p.origins["isolation.tier"] == FLAG
    assert p.origins["environment.set.A"] == FLAG
    assert p.origins["environment.set.B"].kind == "file"
    assert p.origins["limits.timeout"] == FLAG


@pytest.mark.parametrize(
    ("given", "path", "mode"),
    [
        ("/w", "/w", "copy-on-write"),
        ("/w:none", "/w", "none"),
        (":read-write", "", "read-write"),
        ("read-write", None, None),
        ("/w/", "/w", "copy-on-write"),
        ("/a:b/c", "/a:b/c", "copy-on-write"),
        ("/a:b:read-only", "/a:b", "read-only"),
    ],
)
def test_workspace(given, path, mode):
    if path is None:
        with pytest.raises(UsageError, match="not an absolute path"):
            with_flags(default_policy(), workspace=given)
        return
    p = with_flags(default_policy(), workspace=given)
    assert (p.workspace.path, p.workspace.mode) == (path, mode)


def test_allow_joins_the_file():
    file = parse('[[egress.allow]]\nhost="a.test"\nconnect_to="127.0.0.1:1"\n', "f")
    p = with_flags(file, allow=["A.test", "a.test:80", "b.test:8443", "b.test:8443", "*.wild.test"])
    assert p.egress.allow == (
        EgressRule(host="a.test", connect_to=("127.0.0.1", 1), id="egress.allow[0]"),
        EgressRule(host="a.test", ports=(80,), id="egress.allow[1]"),
        EgressRule(host="b.test", ports=(8443,), id="egress.allow[2]"),
        EgressRule(host="*.wild.test", id="egress.allow[3]"),
    )
    assert p.origins["egress.allow[0]"].kind == "file"
    assert p.origins["egress.allow[2]"] == FLAG


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"tier": "vm"}, "`--tier`: `vm` is not a tier"),
        ({"workspace": "/w:rw"}, "`--workspace`: `rw` is not a mode"),
        ({"workspace": "w"}, "`--workspace`: `w` is not an absolute path"),
        ({"env": ["A"]}, "`--env`: `A` is not `NAME=VALUE`"),
        ({"env": ["=A"]}, "`--env`: `` is not the name of a variable"),
        ({"env": ["A=\0"]}, "NUL"),
        ({"timeout": "soon"}, "`--timeout`: `soon` is not a duration"),
        ({"allow": ["*"]}, "`--allow`: `*` is not a host name"),
        ({"allow": [""]}, "`--allow`"),
        ({"allow": ["a.test:"]}, "`--allow`: `` is not a port"),
        ({"allow": ["a.test:http"]}, "`--allow`: `http` is not a port"),
        ({"allow": ["a.test:70000"]}, "not between"),
        ({"allow": ["[::1]:443"]}, "IP literal"),
        ({"allow": ["::1"]}, "IP literal"),
        ({"allow": ["192.0.2.1:443"]}, "IP literal"),
        (
            {"allow": ["https://a.test/b"]},
            "`--allow`: `https://a.test/b` is a URL or a path, not a host (hint: write `--allow a.test`)",
        ),
        ({"allow": ["a.test:443/b"]}, "is a URL or a path, not a host (hint: write `--allow a.test:443`)"),
        ({"allow": ["*.amazonaws.com"]}, "unrelated owners"),
        ({"allow": ["*.wild.test:22"]}, "ports 80 and 443 only"),
        ({"allow": ["metadata.google.internal"]}, "metadata service"),
        ({"allow": ["localhost:80"]}, "inside of the sandbox"),
    ],
)
def test_refused(flags, message):
    with pytest.raises(UsageError) as e:
        with_flags(default_policy(), **flags)
    assert message in str(e.value)


@pytest.mark.parametrize(("given", "seconds"), [("90", 90.0), ("2", 2.0), ("1.5s", 1.5), ("none", None), (3, 3.0)])
def test_a_number_alone_is_seconds_on_the_command_line(given, seconds):
    assert with_flags(Policy(), timeout=given).limits.timeout_s == seconds


@pytest.mark.parametrize("given", ["0", "-1", "", "１0", "9" * 12])
def test_what_is_no_number_of_seconds_is_refused(given):
    with pytest.raises(UsageError, match="--timeout"):
        with_flags(Policy(), timeout=given)


def test_allow_enables_what_the_file_has_ready():
    file = parse('[[egress.allow]]\nhost = "db.test"\nports = [5432]\nenabled = false\n', "f")
    (ready,) = file.egress.allow
    assert not ready.enabled
    for given in ("db.test", "db.test:5432"):
        made = with_flags(file, allow=[given])
        assert made.egress.allow == (ready.replace(enabled=True),)
        assert made.origins["egress.allow[0].enabled"] == FLAG
    assert [r.ports for r in with_flags(file, allow=["db.test:80"]).egress.allow] == [(5432,), (80,)]


def test_allow_of_one_port_enables_no_other_port_of_the_rule():
    file = parse('[[egress.allow]]\nhost = "db.test"\nid = "db"\nports = [443, 5432, 5433]\nenabled = false\n', "f")
    (ready,) = file.egress.allow
    made = with_flags(file, allow=["db.test:5432"])
    assert [(r.ports, r.enabled, r.id) for r in made.egress.allow] == [
        ((5432,), True, "db"),
        ((443, 5433), False, "db"),
    ]
    made = with_flags(file, allow=["db.test:5432", "db.test:5433"])
    assert [(r.ports, r.enabled) for r in made.egress.allow] == [((5432,), True), ((5433,), True), ((443,), False)]
    assert with_flags(file, allow=["db.test"]).egress.allow == (ready.replace(enabled=True),)
