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

S3 = Profile(
    name="s3",
    parameters=("bucket", "region"),
    rules=(
        # path style; with a bucket in the host name the host rule itself pins it and `{bucket}` stands in the host
        {"id": "s3.list", "methods": ["GET", "HEAD"], "paths": ["/{bucket}", "/{bucket}/"]},
        {"id": "s3.read", "methods": ["GET", "HEAD"], "paths": ["/{bucket}/**"]},
        {"id": "s3.write", "methods": ["PUT", "POST", "DELETE"], "paths": ["/{bucket}/**"]},
        # policies, ACLs, replication and website settings open a bucket to others; copying reads from another one
        {"id": "s3.no-acl", "effect": "deny", "query": {"acl": "*"}, "reason": "bucket_opening"},
        {"id": "s3.no-policy", "effect": "deny", "query": {"policy": "*"}, "reason": "bucket_opening"},
        {"id": "s3.no-replication", "effect": "deny", "query": {"replication": "*"}, "reason": "bucket_opening"},
        {"id": "s3.no-website", "effect": "deny", "query": {"website": "*"}, "reason": "bucket_opening"},
        {"id": "s3.no-notification", "effect": "deny", "query": {"notification": "*"}, "reason": "bucket_opening"},
        {"id": "s3.no-public", "effect": "deny", "headers": {"x-amz-acl": "*"}, "reason": "bucket_opening"},
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
)

PROFILES: dict[str, Profile] = {p.name: p for p in (OPENAI, GITHUB_GIT, S3)}


def expand(name: str, values: Mapping[str, str]) -> Profile:
    """The profile with its parameters filled in. Raises ParseError for an unknown profile or parameter, or a bad value."""
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
    return Profile(
        name=name,
        parameters=(),
        rules=tuple(_fill(r, values) for r in profile.rules),
        credential=_fill(profile.credential, values),
        set_headers=tuple((n, v.format_map(values)) for n, v in profile.set_headers if v.strip("{}") in values),
        foreign_keys=profile.foreign_keys,
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
