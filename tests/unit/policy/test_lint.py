"""Warnings for rules that are wider than they look."""

from __future__ import annotations

import pytest

from saggar.policy.lint import lint, writable_by_anyone
from saggar.policy.load import parse


@pytest.mark.parametrize(
    ("host", "writable"),
    [
        ("github.com", True),
        ("api.github.com", True),
        ("*.github.com", True),
        ("notgithub.com", False),
        ("github.com.evil.test", False),
        ("bucket.s3.amazonaws.com", True),
        ("*.sub.googleapis.com", True),
        ("*.microsoft.com", True),
        ("api.allowed.test", False),
        ("*.wild.test", False),
    ],
)
def test_hosts_that_anyone_can_write_to(host, writable):
    assert writable_by_anyone(host) == writable


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ("", []),
        ('[[egress.allow]]\nhost = "a.test"', []),
        ('[[egress.allow]]\nhost = "github.com"', ["egress.allow[0].host"]),
        ('[[egress.allow]]\nhost = "a.test"\nports = [80]', ["egress.allow[0].ports"]),
        ('[[egress.allow]]\nhost = "metadata"\nallow_metadata = true', ["egress.allow[0].allow_metadata"]),
        ('[environment]\npass = ["AWS_SECRET_ACCESS_KEY", "LANG", "MONKEY"]', ["environment.pass"]),
        ('[environment.set]\nMY_TOKEN = "x"', ["environment.set.MY_TOKEN"]),
        ('[workspace]\nmode = "read-write"\nunsafe_broad = true', ["workspace.mode", "workspace.unsafe_broad"]),
    ],
)
def test_warnings(text, paths):
    assert [f.path for f in lint(parse(text, "f"))] == paths
