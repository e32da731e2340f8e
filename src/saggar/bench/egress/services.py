"""Rows 54, 56 and 60 on hosts that are services, and WebSockets."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from saggar.bench.egress.attack import BUDGET, BUDGET_UP, GIT, S3, SECRET, SOCKET, Attack, bare, head_of
from saggar.egress.websocket import accept_value

if TYPE_CHECKING:
    from collections.abc import Callable


def services() -> list[Attack]:
    """Rows 54, 56: other repositories, buckets and scopes of a service that is allowed; 60: budgets."""
    receive = b"Content-Type: application/x-git-receive-pack-request"
    found = [
        Attack(
            f"git {target.decode()}",
            "54",
            GIT,
            bare(target, *fields, method=method, host=GIT, body=body),
            400 if reason.startswith("path_") else 403,
            reason,
        )
        for method, target, fields, body, reason in (
            (b"GET", b"/acme/other.git/info/refs?service=git-upload-pack", (), b"", "no_rule_matches"),
            (b"GET", b"/evil/widget.git/info/refs?service=git-upload-pack", (), b"", "no_rule_matches"),
            (b"POST", b"/acme/other.git/git-receive-pack", (receive,), b"x", "no_rule_matches"),
            (b"POST", b"/evil/widget.git/git-receive-pack", (receive,), b"x", "no_rule_matches"),
            (b"GET", b"/acme/widget.git/info/refs?service=git-upload-pack&service=other", (), b"", "no_rule_matches"),
            (b"POST", b"/gists", (b"Content-Type: application/json",), b"{}", "no_rule_matches"),
            (b"POST", b"/graphql", (b"Content-Type: application/json",), b"{}", "no_rule_matches"),
            (b"POST", b"/user/repos", (b"Content-Type: application/json",), b"{}", "no_rule_matches"),
            (b"GET", b"/repos/acme/other/contents/x", (), b"", "no_rule_matches"),
            (
                b"POST",
                b"/acme/widget.git/info/lfs/objects/batch",
                (b"Content-Type: application/vnd.git-lfs+json",),
                b"{}",
                "no_rule_matches",
            ),
            (
                b"POST",
                b"/evil/other.git/info/lfs/objects/batch",
                (b"Content-Type: application/vnd.git-lfs+json",),
                b"{}",
                "no_rule_matches",
            ),
            (b"GET", b"/acme/other/archive/refs/heads/main.zip", (), b"", "no_rule_matches"),
            (b"GET", b"/repos/acme/other/zipball/main", (), b"", "no_rule_matches"),
            (b"GET", b"/acme/widget.git/info/refs?service=git-upload-pack;service=x", (), b"", "no_rule_matches"),
            (b"GET", b"/acme/widget.git/../other.git/info/refs?service=git-upload-pack", (), b"", "path_dot_segment"),
            (
                b"GET",
                b"/acme/widget%2Egit%2F..%2Fother.git/info/refs?service=git-upload-pack",
                (),
                b"",
                "path_dot_segment",
            ),
            (b"GET", b"/repos/acme/widget/../other/contents/x", (), b"", "path_dot_segment"),
            (b"POST", b"/repos/acme/widget/forks", (b"Content-Type: application/json",), b"{}", "no_rule_matches"),
        )
    ]
    found.append(
        Attack("git with the attacker's token", "48", GIT, bare(b"/acme/widget.git/info/refs?service=git-upload-pack",
               b"Authorization: Basic " + base64.b64encode(b"x:ghp_ATTACKER"), host=GIT), 403, "foreign_credential")
    )  # fmt: skip

    def aws(
        target: bytes,
        *,
        key: str = "",
        region: str = "eu-west-1",
        service: str = "s3",
        method: bytes = b"GET",
        fields: tuple[bytes, ...] = (),
    ) -> Callable[[dict[str, str]], list[bytes]]:
        def make(names: dict[str, str]) -> list[bytes]:
            claim = f"AWS4-HMAC-SHA256 Credential={key or names['AWS_ACCESS_KEY_ID']}/20261130/{region}/{service}/aws4_request, SignedHeaders=host, Signature={'a' * 64}"
            return [head_of(S3, target, b"Authorization: " + claim.encode(), *fields, method=method)]

        return make

    found += [
        Attack("S3 other bucket", "54", S3, aws(b"/other/key"), 403, "no_rule_matches"),
        Attack("S3 list of buckets", "54", S3, aws(b"/"), 403, "no_rule_matches"),
        Attack("S3 acl", "54", S3, aws(b"/mine/key?acl"), 403, "bucket_opening"),
        Attack("S3 policy", "54", S3, aws(b"/mine?policy"), 403, "bucket_opening"),
        Attack("S3 copy from elsewhere", "54", S3, aws(b"/mine/k", method=b"PUT", fields=(b"x-amz-copy-source: /other/k",)), 403, "other_bucket"),
        Attack("S3 attacker's key", "48", S3, aws(b"/mine/key", key="AKIAATTACKERATTACKER"), 403, "foreign_credential"),
        Attack("S3 other region", "56", S3, aws(b"/mine/key", region="us-east-1"), 403, "sigv4_scope"),
        Attack("S3 other service", "56", S3, aws(b"/mine/key", service="sts"), 403, "sigv4_scope"),
        Attack("S3 presigned", "56", S3, aws(b"/mine/key?X-Amz-Signature=a&X-Amz-Credential=b"), 403, "foreign_credential"),
        *(
            Attack(f"S3 presigned alone: {name}", "56", S3, bare(b"/mine/key?" + query, host=S3), 403, "foreign_credential")
            for name, query in (
                ("attacker's, version 4", b"X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIAATTACKERATTACKER%2F20261130%2Feu-west-1%2Fs3%2Faws4_request&X-Amz-Date=20261130T000000Z&X-Amz-Expires=600&X-Amz-SignedHeaders=host&X-Amz-Signature=" + b"a" * 64),
                ("attacker's, version 2", b"AWSAccessKeyId=AKIAATTACKERATTACKER&Expires=1796000000&Signature=aaaaaaaaaaaaaaaaaaaaaaaaaaa%3D"),
                ("name escaped", b"X-Amz-Credential=a&X-Amz-Signatur%65=" + b"a" * 64),
                ("name in other case", b"x-amz-SIGNATURE=" + b"a" * 64),
                ("behind a semicolon", b"prefix=a;X-Amz-Signature=" + b"a" * 64),
            )
        ),
        Attack("S3 presigned with the cell's own key", "56", S3, lambda n: [head_of(S3, b"/mine/key?X-Amz-Credential=" + n["AWS_ACCESS_KEY_ID"].encode() + b"%2F20261130%2Feu-west-1%2Fs3%2Faws4_request&X-Amz-Signature=" + b"a" * 64)], 403, "canary"),
        Attack("S3 grant by a field", "54", S3, aws(b"/mine/key", method=b"PUT", fields=(b"x-amz-grant-read: uri=http://acs.amazonaws.com/groups/global/AllUsers",)), 403, "bucket_opening"),
        Attack("S3 log to another bucket", "54", S3, aws(b"/mine/?logging", method=b"PUT"), 403, "bucket_opening"),
        Attack("S3 keys of a session", "54", S3, aws(b"/mine?session"), 403, "bucket_opening"),
        Attack("S3 wall against the public", "54", S3, aws(b"/mine?publicAccessBlock", method=b"DELETE"), 403, "bucket_opening"),
        Attack("S3 settings", "54", S3, aws(b"/mine?lifecycle", method=b"PUT"), 403, "bucket_settings"),
        Attack("S3 the bucket itself", "54", S3, aws(b"/mine", method=b"DELETE"), 403, "bucket_settings"),
        Attack("S3 bucket in Host", "36", S3, lambda _: [head_of("other." + S3, b"/key")], 421, "name_mismatch"),
        Attack("S3 attacker's session token", "56", S3, aws(b"/mine/key", fields=(b"x-amz-security-token: t",)), 403, "foreign_credential"),
        Attack("S3 streaming signature", "56", S3, aws(b"/mine/key", method=b"PUT", fields=(b"x-amz-content-sha256: STREAMING-AWS4-HMAC-SHA256-PAYLOAD",)), 403, "sigv4_streaming"),
        Attack("a form signed by somebody else", "56", S3, aws(b"/mine/", method=b"POST", fields=(b"Content-Type: multipart/form-data; boundary=b",)), 403, "signed_form"),
        Attack("more requests than the budget", "60", BUDGET, bare(b"/x", host=BUDGET), 429, "budget_requests"),
        Attack("a larger upload than the budget", "60", BUDGET_UP, bare(b"/x", method=b"POST", host=BUDGET_UP, body=b"z" * 3000), 413, "budget_bytes_up", forwarded=True),
    ]  # fmt: skip
    return found


def sockets() -> list[Attack]:
    key = base64.b64encode(b"0123456789abcdef")

    def upgrade(names: dict[str, str], *frames: bytes) -> list[bytes]:
        placeholder = names["BENCH_WS_PLACEHOLDER"].encode()
        fields = [b"Upgrade: websocket", b"Sec-WebSocket-Version: 13", b"Sec-WebSocket-Key: " + key]
        head = head_of(SOCKET, b"/ws", b"Authorization: Bearer " + placeholder, *fields).replace(
            b"Connection: close", b"Connection: Upgrade"
        )
        return [head, *frames]

    def masked(data: bytes) -> bytes:
        return b"\x81" + bytes((0x80 | len(data),)) + b"\0\0\0\0" + data

    agreed = (
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: "
        + accept_value(key)
        + b"\r\n"
    )
    secret = SECRET.encode()
    return [
        Attack("frame with a placeholder", "44", SOCKET, lambda n: upgrade(n, masked(n["BENCH_WS_PLACEHOLDER"].encode())), 101, "canary", True, agreed + b"\r\n"),
        Attack("frame with the attacker's key", "48", SOCKET, lambda n: upgrade(n, masked(b"sk-ATTACKERATTACKERATTACKER0000")), 101, "foreign_credential", True, agreed + b"\r\n"),
        Attack("frame without a mask", "44", SOCKET, lambda n: upgrade(n, b"\x81\x01a"), 101, "bad_frame", True, agreed + b"\r\n"),
        Attack("frame of an unknown kind", "44", SOCKET, lambda n: upgrade(n, b"\x83\x80abcd"), 101, "bad_frame", True, agreed + b"\r\n"),
        Attack("frame with the secret", "51", SOCKET, upgrade, 101, "secret_in_answer", True, agreed + b"\r\n\x81" + bytes((len(secret),)) + secret, (secret,)),
        Attack("secret in two pieces of a message", "51", SOCKET, upgrade, 101, "secret_in_answer", True,
               agreed + b"\r\n\x01" + bytes((len(secret) - 1,)) + secret[:-1] + b"\x80\x01" + secret[-1:], (secret[: len(secret) // 2 + 1],)),
        Attack("most of the secret in a message", "51", SOCKET, upgrade, 101, "secret_in_answer", True,
               agreed + b"\r\n\x81" + bytes((len(secret) - 1,)) + secret[:-1], (secret[: len(secret) // 2 + 1],)),
        Attack("secret as the protocol", "51", SOCKET, upgrade, 502, "unsolicited_upgrade", True,
               agreed + b"Sec-WebSocket-Protocol: " + secret + b"\r\n\r\n", (secret,)),
        Attack("wrong accept", "44", SOCKET, upgrade, 502, "unsolicited_upgrade", True,
               agreed.replace(accept_value(key), b"AAAA") + b"\r\n"),
        Attack("an extension nobody asked for", "44", SOCKET, upgrade, 502, "unsolicited_upgrade", True,
               agreed + b"Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n"),
    ]  # fmt: skip
