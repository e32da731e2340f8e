"""What goes to a webhook and what comes back: bytes and their signatures, pure.

I1  Both directions are signed with HMAC-SHA-256 over a domain word, the time and the body; a reply also names the
    question and its argument hash, so no reply serves another question.
I2  A webhook is automatic: it cannot approve what is for people.
I3  A reply that is not signed, late, or for another call is as none; its reason is kept for the log.
"""

from __future__ import annotations

import hmac
from typing import Any

from saggar.audit import canonical
from saggar.core.approval import Answer, Question
from saggar.core.errors import ParseError

ASK_DOMAIN = b"saggar-approval-ask-v1\0"
REPLY_DOMAIN = b"saggar-approval-reply-v1\0"
HEADER = "X-Saggar-Signature"
FRESH_S = 300
MAX_REPLY = 64 * 1024


def signature(secret: bytes, domain: bytes, time_s: int, body: bytes) -> str:
    """`t=SECONDS,v1=HEX`."""
    digest = hmac.digest(secret, domain + str(time_s).encode() + b"\0" + body, "sha256").hex()
    return f"t={time_s},v1={digest}"


def check_signature(secret: bytes, domain: bytes, header: str, body: bytes, now: float) -> None:
    """Raises `ParseError`."""
    stamp, _, mac = header.partition(",v1=")
    digits = stamp.removeprefix("t=")
    if not stamp.startswith("t=") or not (digits.isascii() and digits.isdigit()) or len(digits) > 12:
        raise ParseError("not a signature", reason="signature_form")
    expected = signature(secret, domain, int(digits), body)
    if not hmac.compare_digest(expected.encode(), f"t={digits},v1={mac}".encode()):
        raise ParseError("the signature does not match", reason="signature")
    if abs(now - int(digits)) > FRESH_S:
        raise ParseError("the signature is too old", reason="signature_stale")


def request_body(question: Question) -> bytes:
    return canonical.encode({"question": question.to_json()})


def reply_body(
    question: Question, kind: str, *, scope: str = "once", uses: int = 1, reviewer: str = "webhook"
) -> bytes:
    """What the other side sends; here for tests and for those who write one in Python."""
    return canonical.encode(
        {
            "question": question.id,
            "args_hash": question.args_hash,
            "kind": kind,
            "scope": scope,
            "uses": uses,
            "reviewer": reviewer,
        }
    )


def parse_reply(secret: bytes, header: str, body: bytes, question: Question, now: float) -> Answer:
    """The answer in a signed reply. Raises `ParseError` (I3)."""
    if len(body) > MAX_REPLY:
        raise ParseError("a reply that is too long", reason="reply_form")
    check_signature(secret, REPLY_DOMAIN, header, body, now)
    data: Any = canonical.decode(body)
    fields = {"question", "args_hash", "kind", "scope", "uses", "reviewer"}
    if type(data) is not dict or data.keys() != fields:
        raise ParseError("not a reply", reason="reply_form")
    if data["question"] != question.id or data["args_hash"] != question.args_hash:
        raise ParseError("a reply to another question", reason="reply_other_call")
    if data["kind"] not in ("approved", "denied") or data["scope"] not in ("once", "times"):
        raise ParseError("not a reply", reason="reply_form")
    if type(data["uses"]) is not int or type(data["reviewer"]) is not str or len(data["reviewer"]) > 128:
        raise ParseError("not a reply", reason="reply_form")
    return Answer(
        "approved" if data["kind"] == "approved" else "denied",
        question.args_hash,
        "times" if data["scope"] == "times" else "once",
        data["uses"],
        data["reviewer"],
        "automatic",
    )
