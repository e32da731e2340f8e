from __future__ import annotations

import pytest

from saggar.core.errors import ParseError
from saggar.egress.profiles import expand
from saggar.egress.rules import HttpRules, Request, parse_rule

JSON = [(b"content-type", b"application/json")]


def ruleset(name, **values):
    profile = expand(name, values)
    return HttpRules.of(parse_rule(r, f"{name}[{i}]") for i, r in enumerate(profile.rules))


S3 = {"bucket": "mine", "region": "eu-west-1"}
GRANTS = [b"x-amz-acl", *(b"x-amz-grant-" + n for n in (b"full-control", b"read", b"read-acp", b"write", b"write-acp"))]
#: settings of a bucket that open it, or send what is in it elsewhere; a bucket in the path with a slash behind is one too
SETTINGS = dict.fromkeys(
    ["acl", "policy", "replication", "website", "notification", "logging", "inventory", "publicAccessBlock", "ownershipControls",
     "metadataTable"], "bucket_opening",
) | dict.fromkeys(["lifecycle", "cors", "versioning", "analytics", "tagging", "encryption", ""], "bucket_settings")  # fmt: skip

CASES = [
    ("openai", {}, Request("POST", "/v1/chat/completions", headers=JSON, body_bytes=10), "rule_allows"),
    ("openai", {}, Request("GET", "/v1/models"), "rule_allows"),
    ("openai", {}, Request("POST", "/v1/files", headers=JSON, body_bytes=10), "no_rule_matches"),
    ("openai", {}, Request("GET", "/v1/files"), "no_rule_matches"),
    ("openai", {}, Request("DELETE", "/v1/models/x"), "method_not_allowed"),
    ("github", {"owner": "acme", "repo": "w"}, Request("GET", "/acme/w.git/info/refs", query=[("service", "git-upload-pack")]), "rule_allows"),
    ("github", {"owner": "acme", "repo": "w"}, Request("GET", "/acme/other.git/info/refs", query=[("service", "git-upload-pack")]), "no_rule_matches"),
    ("github", {"owner": "acme", "repo": "w"}, Request("POST", "/evil/w.git/git-receive-pack", headers=[(b"content-type", b"application/x-git-receive-pack-request")], body_bytes=None), "no_rule_matches"),
    ("github", {"owner": "acme", "repo": "w"}, Request("POST", "/acme/w/git-receive-pack", headers=[(b"content-type", b"application/x-git-receive-pack-request")], body_bytes=None), "rule_allows"),
    ("github", {"owner": "acme", "repo": "w"}, Request("POST", "/gists", headers=JSON, body_bytes=5), "no_rule_matches"),
    ("github", {"owner": "acme", "repo": "w"}, Request("POST", "/graphql", headers=JSON, body_bytes=5), "no_rule_matches"),
    ("github", {"owner": "acme", "repo": "w"}, Request("GET", "/repos/acme/w/contents/a/b"), "rule_allows"),
    ("github", {"owner": "acme", "repo": "w"}, Request("GET", "/repos/acme/other"), "no_rule_matches"),
    ("s3", {"bucket": "mine", "region": "eu-west-1"}, Request("PUT", "/mine/a/b", body_bytes=5), "rule_allows"),
    ("s3", {"bucket": "mine", "region": "eu-west-1"}, Request("PUT", "/other/a", body_bytes=5), "no_rule_matches"),
    ("s3", {"bucket": "mine", "region": "eu-west-1"}, Request("GET", "/"), "no_rule_matches"),
    ("s3", {"bucket": "mine", "region": "eu-west-1"}, Request("PUT", "/mine/a", query=[("acl", "")], body_bytes=5), "bucket_opening"),
    ("s3", {"bucket": "mine", "region": "eu-west-1"}, Request("PUT", "/mine/a", headers=[(b"x-amz-copy-source", b"/other/x")], body_bytes=0), "other_bucket"),
    *(("s3", S3, Request("PUT", "/mine/a", headers=[(name, b"id=1")], body_bytes=5), "bucket_opening") for name in GRANTS),
    *(("s3", S3, Request("PUT", "/mine/", query=[(name, "")], body_bytes=5), reason) for name, reason in SETTINGS.items()),
    *(("s3", S3, Request("PUT", "/mine", query=[(name, "")], body_bytes=5), reason) for name, reason in SETTINGS.items()),
    ("s3", S3, Request("GET", "/mine", query=[("session", "")]), "bucket_opening"),
    ("s3", S3, Request("DELETE", "/mine"), "bucket_settings"),
    ("s3", S3, Request("DELETE", "/mine/"), "bucket_settings"),
    ("s3", S3, Request("DELETE", "/mine/a"), "rule_allows"),
    ("s3", S3, Request("POST", "/mine", query=[("delete", "")], headers=[(b"content-type", b"application/xml")], body_bytes=5), "rule_allows"),
    ("s3", {"bucket": "mine", "region": "eu-west-1"}, Request("PUT", "/mine/a", headers=[(b"x-amz-acl", b"public-read")], body_bytes=5), "bucket_opening"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "values", "request_", "reason"), CASES)
def test_profile_pins(name, values, request_, reason):
    assert ruleset(name, **values).decide(request_).decision.reason == reason


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("nope", {}),
        ("github", {"owner": "a"}),
        ("github", {"owner": "a", "repo": "b/c"}),
        ("github", {"owner": "a", "repo": "*"}),
        ("github", {"owner": "..", "repo": "b"}),
        ("github", {"owner": "a", "repo": "b", "x": "y"}),
    ],
)
def test_bad_parameters(name, values):
    with pytest.raises(ParseError) as e:
        expand(name, values)
    assert e.value.reason == "bad_profile"


def test_pinned_account_headers_only_where_given():
    assert expand("openai", {}).set_headers == ()
    assert expand("openai", {"project": "proj_1"}).set_headers == (("openai-project", "proj_1"),)


HOSTED = {**S3, "style": "host"}


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (Request("GET", "/"), "rule_allows"),
        (Request("GET", "/a/b"), "rule_allows"),
        (Request("PUT", "/a", body_bytes=5), "rule_allows"),
        (Request("PUT", "/", query=[("logging", "")], body_bytes=5), "bucket_opening"),
        (Request("PUT", "/", query=[("lifecycle", "")], body_bytes=5), "bucket_settings"),
        (Request("DELETE", "/"), "bucket_settings"),
        (Request("POST", "/", query=[("delete", "")], headers=JSON, body_bytes=5), "rule_allows"),
        (Request("PUT", "/a", headers=[(b"x-amz-grant-read", b"x")], body_bytes=5), "bucket_opening"),
    ],
)
def test_a_bucket_in_the_hosts_name(request_, reason):
    profile = expand("s3", HOSTED, "mine.s3.eu-west-1.amazonaws.com")
    rules = HttpRules.of(parse_rule(r, f"s3[{i}]") for i, r in enumerate(profile.rules))
    assert rules.decide(request_).decision.reason == reason


@pytest.mark.parametrize("host", ["s3.eu-west-1.amazonaws.com", "notmine.s3.eu-west-1.amazonaws.com", "mine", ""])
def test_a_bucket_that_the_host_does_not_pin(host):
    """Without the bucket in its name such a host has every bucket behind it."""
    with pytest.raises(ParseError, match=r"begins with `mine\.`"):
        expand("s3", HOSTED, host)
    with pytest.raises(ParseError, match="`path` or `host`"):
        expand("s3", {**S3, "style": "any"}, "mine.test")
