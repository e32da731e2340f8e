"""What a program inside is told about a refusal, beside the host and the rule: what is wrong, and what mends it.

Pure data; nothing in it can hold a secret, a path of the host or an address.
"""

from __future__ import annotations

#: what is told of an upstream's faults
UPSTREAM_FAULTS = {
    "upstream_certificate": "the upstream's certificate could not be verified",
    "upstream_tls": "no TLS connection to the upstream could be made",
    "upstream_closed": "the upstream closed the connection before its answer was complete",
    "bad_response": "the upstream's answer is malformed",
    "bad_framing": "the upstream's answer is malformed",
    "encoded_response": "the upstream compressed an answer that must be read here",
    "unsolicited_upgrade": "the upstream switched protocols unasked",
    "upstream_timeout": "the upstream did not answer in time",
    "unreachable": "the upstream could not be reached",
    "resolve_failed": "the name does not resolve",
    "token_answer_malformed": "the token endpoint's answer cannot be read, so its tokens cannot be taken out",
    "token_answer_too_large": "the token endpoint's answer cannot be read, so its tokens cannot be taken out",
    "address_refused": "the name resolves to an address that is never dialled",
}
