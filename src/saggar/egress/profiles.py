"""Rule profiles: which requests of a known service a task needs, pinned to an account, a repository or a bucket.

A profile is data: parameters (`{owner}`), rules in the shape of `[[egress.allow.rules]]`, the slot of the credential and
the format of its placeholder. New ones follow the three below; nothing in the code knows a profile's name.

I1  A parameter's value is one path segment or one header value; it can neither add a segment nor a wildcard.
I2  A profile allows only what it names. What moves data to another account of the same service has no rule.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from saggar.core.errors import ParseError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_VALUE = re.compile(r"[A-Za-z0-9_.\-]{1,128}")


@dataclass(frozen=True, slots=True)
class Profile:
    """name; parameters that the policy must give; rules; credential: kind, slot, placeholder format and the variable that
    the service's clients read; set_headers: sent with every request, whatever the client says."""

    name: str
    parameters: tuple[str, ...]
    rules: tuple[dict[str, Any], ...]
    credential: dict[str, Any]
    set_headers: tuple[tuple[str, str], ...] = ()
    optional: tuple[str, ...] = ()
    #: `foreign_keys` where the policy does not say
    foreign_keys: str = "pass"
    #: the parameter that stands in the host's name, and in no path, where `style = "host"`
    in_host: str = ""


OPENAI = Profile(
    name="openai",
    parameters=(),
    # `openai-organization` and `openai-project` of a client are never forwarded (`headers.ACCOUNT`)
    optional=("organization", "project"),
    rules=(
        {
            "id": "openai.infer",
            "methods": ["POST"],
            "paths": ["/v1/chat/completions", "/v1/responses", "/v1/completions", "/v1/embeddings", "/v1/moderations"],
            "content_types": ["application/json"],
            "max_body": 32 * 1024 * 1024,
        },
        {"id": "openai.models", "methods": ["GET"], "paths": ["/v1/models", "/v1/models/*"]},
        # uploads, fine-tunes, assistants, vector stores and keys are places to leave data in: no rule, so no
    ),
    credential={"kind": "bearer", "format": "openai", "env": "OPENAI_API_KEY"},
    set_headers=(("openai-organization", "{organization}"), ("openai-project", "{project}")),
)

GITHUB_GIT = Profile(
    name="github",
    parameters=("owner", "repo"),
    rules=(
        {
            "id": "github.refs",
            "methods": ["GET"],
            "paths": ["/{owner}/{repo}.git/info/refs", "/{owner}/{repo}/info/refs"],
            "query": {"service": "git-upload-pack"},
        },
        {
            "id": "github.refs-push",
            "methods": ["GET"],
            "paths": ["/{owner}/{repo}.git/info/refs", "/{owner}/{repo}/info/refs"],
            "query": {"service": "git-receive-pack"},
        },
        {
            "id": "github.fetch",
            "methods": ["POST"],
            "paths": ["/{owner}/{repo}.git/git-upload-pack", "/{owner}/{repo}/git-upload-pack"],
            "content_types": ["application/x-git-upload-pack-request"],
        },
        {
            "id": "github.push",
            "methods": ["POST"],
            "paths": ["/{owner}/{repo}.git/git-receive-pack", "/{owner}/{repo}/git-receive-pack"],
            "content_types": ["application/x-git-receive-pack-request"],
        },
        # the API host under the same profile: reading the pinned repository; no gists, no other repository, no GraphQL
        {
            "id": "github.api",
            "methods": ["GET", "HEAD"],
            "paths": ["/repos/{owner}/{repo}", "/repos/{owner}/{repo}/**"],
        },
        {
            "id": "github.pulls",
            "methods": ["POST", "PATCH"],
            "paths": [
                "/repos/{owner}/{repo}/pulls",
                "/repos/{owner}/{repo}/pulls/*",
                "/repos/{owner}/{repo}/issues/*/comments",
            ],
            "content_types": ["application/json"],
            "max_body": 1024 * 1024,
        },
    ),
    credential={"kind": "git", "format": "github", "env": "GITHUB_TOKEN", "user": "x-access-token"},
    # a key in a comment is a key that is published
    foreign_keys="refuse",
)


def _opening(condition: str, name: str) -> dict[str, Any]:
    """A rule against what opens a bucket or an object to others, moves it to another bucket, or gives out keys to it."""
    return {"id": f"s3.no-{name}", "effect": "deny", condition: {name: "*"}, "reason": "bucket_opening"}


S3 = Profile(
    name="s3",
    parameters=("bucket", "region"),
    optional=("style",),
    rules=(
        {"id": "s3.list", "methods": ["GET", "HEAD"], "paths": ["/{bucket}", "/{bucket}/"]},
        {"id": "s3.read", "methods": ["GET", "HEAD"], "paths": ["/{bucket}/**"]},
        # `/**` is the bucket itself as well: deleting many objects is a POST there
        {"id": "s3.write", "methods": ["PUT", "POST", "DELETE"], "paths": ["/{bucket}/**"]},
        *(
            _opening("query", name)
            for name in (
                "acl", "policy", "replication", "website", "notification", "logging", "inventory", "publicAccessBlock",
                "ownershipControls", "metadataTable", "metadataConfiguration", "torrent", "session",
            )
        ),
        *(
            _opening("headers", f"x-amz-{name}")
            for name in ("acl", "grant-full-control", "grant-read", "grant-read-acp", "grant-write", "grant-write-acp")
        ),
        # settings and the bucket itself: logs, inventories and copies for another bucket, no walls against the public
        {
            "id": "s3.no-settings",
            "effect": "deny",
            "methods": ["PUT", "DELETE"],
            "paths": ["/{bucket}", "/{bucket}/"],
            "reason": "bucket_settings",
        },
        # a browser's upload carries key, policy and signature in its form: those of whoever signed it
        {
            "id": "s3.no-form",
            "effect": "deny",
            "methods": ["POST"],
            "content_types": ["multipart/form-data"],
            "reason": "signed_form",
        },
        {"id": "s3.no-copy", "effect": "deny", "headers": {"x-amz-copy-source": "*"}, "reason": "other_bucket"},
    ),
    credential={"kind": "sigv4", "format": "aws", "env": "AWS_ACCESS_KEY_ID", "service": "s3", "region": "{region}"},
    in_host="bucket",
)  # fmt: skip

PROFILES: dict[str, Profile] = {p.name: p for p in (OPENAI, GITHUB_GIT, S3)}


def expand(name: str, values: Mapping[str, str], host: str = "") -> Profile:
    """The profile with its parameters filled in. host: of the entry. Raises ParseError for an unknown profile or parameter, or
    a bad value."""
    profile = PROFILES.get(name)
    if profile is None:
        raise ParseError(f"profile `{name[:40]}` is not one of {', '.join(sorted(PROFILES))}", reason="bad_profile")
    for key in profile.parameters:
        if key not in values:
            raise ParseError(f"profile `{name}` needs `{key}`", reason="bad_profile")
    for key, value in values.items():
        if key not in profile.parameters + profile.optional:
            raise ParseError(f"profile `{name}` has no parameter `{key[:40]}`", reason="bad_profile")
        if not _VALUE.fullmatch(value) or value in (".", ".."):
            raise ParseError(f"`{key}` of profile `{name}` must be one plain path segment", reason="bad_profile")
    rules = tuple(_fill(r, values) for r in profile.rules)
    if "style" in values:
        rules = _in_host(rules, profile, values, host)
    return Profile(
        name=name,
        parameters=(),
        rules=rules,
        credential=_fill(profile.credential, values),
        set_headers=tuple((n, v.format_map(values)) for n, v in profile.set_headers if v.strip("{}") in values),
        foreign_keys=profile.foreign_keys,
    )


def _in_host(
    rules: tuple[dict[str, Any], ...], profile: Profile, values: Mapping[str, str], host: str
) -> tuple[dict[str, Any], ...]:
    """The rules for `style`: `path`, as they are, or `host`, where the name of the host pins what else the paths do."""
    style, pinned = values["style"], values[profile.in_host]
    if style == "path":
        return rules
    if style != "host":
        raise ParseError("`style` is `path` or `host`", reason="bad_profile")
    if not host.startswith(pinned.lower() + "."):
        raise ParseError(f'with `style = "host"` the host begins with `{pinned}.`', reason="bad_profile")
    start = "/" + pinned
    return tuple(
        {**r, "paths": list(dict.fromkeys(p.removeprefix(start) or "/" for p in r["paths"]))} if "paths" in r else r
        for r in rules
    )


def _fill(data: Any, values: Mapping[str, str]) -> Any:
    if isinstance(data, str):
        for key, value in values.items():
            data = data.replace("{" + key + "}", value)
        return data
    if isinstance(data, dict):
        return {k: _fill(v, values) for k, v in data.items()}
    if isinstance(data, list):
        return [_fill(v, values) for v in data]
    return data
