"""What the attempts against terminated hosts are made of: the hosts and their terms, an attempt, and ways to write a request.

`{P}` stands for the placeholder that the cell holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

SECRET = "sk-REALSECRET0123456789REALSECRET0123456789abcdef"  # of this bench alone, known to nobody
GIT_SECRET = "ghp_REALSECRET0123456789REALSECRET01"
AWS_ID = "AKIAREALREALREALREAL"
AWS_SECRET = "REALAWSSECRET0123456789REALAWSSECRET0123"

API, WILD, GIT, S3, QUERY, BUDGET, BUDGET_UP, SOCKET = (
    "api.allowed.test", "x.wild.test", "git.allowed.test", "s3.allowed.test", "q.allowed.test", "budget.allowed.test",
    "upload.allowed.test", "ws.allowed.test",
)  # fmt: skip
HOSTS = (API, WILD, GIT, S3, QUERY, BUDGET, BUDGET_UP, SOCKET)

#: id, host, `http` without the upstream's CA
TERMS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    (
        "api",
        API,
        {
            "credential": {"source": "env:BENCH_KEY", "env": "BENCH_PLACEHOLDER", "format": "openai"},
            "foreign_keys": "refuse",
            "rules": [
                {"methods": ["GET", "POST", "HEAD", "PUT"], "paths": ["/v1/**", "/"], "max_body": 65536},
                {"effect": "deny", "paths": ["/v1/files/**"], "reason": "files_closed"},
                {"effect": "deny", "query": {"admin": "*"}, "reason": "admin_closed"},
            ],
        },
    ),
    ("wild", "*.wild.test", {"methods": ["GET"]}),
    (
        "git",
        GIT,
        {
            "profile": {"name": "github", "owner": "acme", "repo": "widget"},
            "credential": {"source": "env:BENCH_GIT_KEY"},
        },
    ),
    (
        "s3",
        S3,
        {
            "profile": {"name": "s3", "bucket": "mine", "region": "eu-west-1"},
            "credential": {"source": "env:BENCH_AWS_SECRET", "key_id": "env:BENCH_AWS_ID", "env": "AWS_ACCESS_KEY_ID"},
        },
    ),
    (
        "query",
        QUERY,
        {"credential": {"source": "env:BENCH_KEY", "kind": "query", "name": "key", "env": "BENCH_QUERY_PLACEHOLDER"}},
    ),
    ("budget", BUDGET, {"methods": ["GET"], "budget": {"requests": 1}}),
    ("upload", BUDGET_UP, {"methods": ["POST"], "budget": {"bytes_up": 2000}}),
    (
        "ws",
        SOCKET,
        {
            "credential": {"source": "env:BENCH_KEY", "env": "BENCH_WS_PLACEHOLDER"},
            "websocket": True,
            "foreign_keys": "refuse",
        },
    ),
)


@dataclass(frozen=True, slots=True)
class Attack:
    """send: pieces of the client's bytes from the cell's placeholders (by variable). status: of the answer; 0: the connection is
    cut or says no more than `reply`. reason: in the audit log. forwarded: the upstream may see the request (never with a secret
    in the wrong place). respond: what the upstream says. absent: bytes that must reach neither side."""

    name: str
    row: str
    host: str
    send: Callable[[dict[str, str]], list[bytes]]
    status: int
    reason: str
    forwarded: bool = False
    respond: bytes = b""
    absent: tuple[bytes, ...] = ()


def head_of(host: str, target: bytes, *fields: bytes, method: bytes = b"GET") -> bytes:
    lines = [method + b" " + target + b" HTTP/1.1", b"Host: " + host.encode(), b"Connection: close", *fields]
    return b"\r\n".join(lines) + b"\r\n\r\n"


def auth(names: dict[str, str]) -> bytes:
    return b"Authorization: Bearer " + names["BENCH_PLACEHOLDER"].encode()


def request(
    target: bytes, *fields: bytes, method: bytes = b"GET", body: bytes = b"", host: str = API
) -> Callable[[dict[str, str]], list[bytes]]:
    """A request with the placeholder in its slot; `{P}` in fields, target and body is the placeholder."""

    def make(names: dict[str, str]) -> list[bytes]:
        placeholder = names["BENCH_PLACEHOLDER"].encode()
        more = [f.replace(b"{P}", placeholder) for f in fields]
        if body:
            content = body.replace(b"{P}", placeholder)
            more.append(b"Content-Length: %d" % len(content))
            return [head_of(host, target.replace(b"{P}", placeholder), auth(names), *more, method=method) + content]
        return [head_of(host, target.replace(b"{P}", placeholder), auth(names), *more, method=method)]

    return make


def bare(
    target: bytes, *fields: bytes, method: bytes = b"GET", host: str = API, body: bytes = b""
) -> Callable[[dict[str, str]], list[bytes]]:
    """The same without a credential in its slot."""

    def make(names: dict[str, str]) -> list[bytes]:
        placeholder = names["BENCH_PLACEHOLDER"].encode()
        more = [f.replace(b"{P}", placeholder) for f in fields]
        if body:
            more.append(b"Content-Length: %d" % len(body))
        return [head_of(host, target.replace(b"{P}", placeholder), *more, method=method) + body]

    return make


def raw(data: bytes) -> Callable[[dict[str, str]], list[bytes]]:
    """Bytes as they are, with `{A}` for the authorization line."""
    return lambda names: [data.replace(b"{A}", auth(names))]
