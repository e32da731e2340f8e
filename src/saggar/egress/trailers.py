"""Fields behind a chunked body: they come when the head was long since judged, so only what changes nothing passes.

I1  No trailer frames, routes, authenticates, negotiates or says how a message is read (RFC 9110, section 6.5.1): a
    recipient may merge trailers into its head.
I2  No trailer has a name that a rule or `set_headers` of the host looks at: what was judged is what is sent.
I3  A credential behind a request's body is a foreign one, as it is in the head.

Pure.
"""

from __future__ import annotations

from functools import lru_cache

from saggar.egress.headers import PASS, as_variable, classify, looks_like_key, response_header_passes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from saggar.egress.terms import Terms

Pair = tuple[bytes, bytes]

#: fields that say how a message is read, cached, conditioned or answered: behind a body they come too late, or on purpose
_NEVER = frozenset(
    {
        b"age", b"allow", b"baggage", b"cache-control", b"cache-status", b"clear-site-data", b"content-disposition",
        b"content-encoding", b"content-language", b"content-location", b"content-range", b"content-type", b"date", b"destination",
        b"depth", b"expires", b"from", b"last-modified", b"link", b"location", b"max-forwards", b"method", b"nel", b"origin",
        b"overwrite", b"path", b"permissions-policy", b"pragma", b"prefer", b"priority", b"range", b"referer", b"referrer-policy",
        b"refresh", b"report-to", b"reporting-endpoints", b"retry-after", b"scheme", b"server", b"service-worker-allowed", b"set-cookie", b"set-cookie2",
        b"sourcemap",
        b"status", b"strict-transport-security", b"timeout", b"traceparent", b"tracestate", b"upgrade-insecure-requests", b"user-agent",
        b"vary", b"warning", b"www-authenticate", b"x-content-type-options", b"x-frame-options", b"x-requested-with", b"x-robots-tag",
    }
)  # fmt: skip
_NEVER_PREFIXES = (b"accept", b"access-control-", b"content-security-", b"cross-origin-", b"if-", b"proxy-", b"sec-", b"x-amz-", b"x-saggar-")  # fmt: skip


@lru_cache(maxsize=1024)
def is_harmless(name: bytes) -> bool:
    """Whether a field of this lower-case name may stand behind a body at all, in either direction."""
    twin = as_variable(name)
    return twin not in _NEVER and not twin.startswith(_NEVER_PREFIXES) and classify(name) == PASS


def judge(found: Iterable[Pair], terms: Terms) -> tuple[list[Pair], list[str], str]:
    """A request's trailers: (those to send, names of those taken off, name of one that carries a credential or "")."""
    watched = {as_variable(n) for n in (*(n for n, _ in terms.set_headers), *terms.rules.header_names)}
    if terms.credential is not None:
        watched.add(as_variable(terms.credential.slot.name.encode()))
    passing: list[Pair] = []
    dropped: list[str] = []
    foreign = ""
    for name, value in found:
        kind = classify(name)
        if kind == "secret" or looks_like_key(value.decode("latin-1")):
            foreign = foreign or name.decode()
        elif as_variable(name) not in watched and is_harmless(name):
            passing.append((name, value))
            continue
        dropped.append(name.decode())
    return passing, dropped, foreign


def of_answer(found: Iterable[Pair], *, bound: bool) -> list[Pair]:
    """The trailers of an upstream's answer that go to the client. bound: the host has a credential of ours."""
    return [(n, v) for n, v in found if is_harmless(n) and response_header_passes(n, bound=bound)]


def announced(values: Sequence[bytes]) -> bytes:
    """The value for a `Trailer` field of ours: the names of these that may pass."""
    names = [t.strip(b" \t").lower() for value in values for t in value.split(b",")]
    return b", ".join([n for n in dict.fromkeys(names) if n and is_harmless(n)])
