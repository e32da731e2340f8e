"""OAuth2 without a token in the cell: client credentials and refresh outside, answers with placeholders inside.

I1  A token is used until a margin before it expires, never after.
I2  One fetch a credential at a time; who waits gets the same result (`TokenCache`).
I3  Of a token endpoint's answer the cell sees placeholders in every token field; an answer that cannot be understood
    whole is not passed on.

RFC 6749 sections 2.3.1, 4.4, 5.1, 5.2, 6.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from urllib.parse import quote_plus, urlencode

from saggar.core.errors import ParseError, PeerError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

#: seconds before the stated end at which a token counts as over
MARGIN_S = 30.0
#: used where an answer has no `expires_in`
DEFAULT_LIFE_S = 300.0
LIMIT_BYTES = 64 * 1024
#: of one secret: what is larger fits in no head, and in no message between the processes
SECRET_BYTES = 16 * 1024
TOKEN_FIELDS = ("access_token", "refresh_token", "id_token", "token", "device_code")


class TokenRefused(PeerError):
    """The token endpoint said no. code: its error code (RFC 6749 section 5.2), `unknown` where it gave none."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(f"the token endpoint refused: {status} `{code}`")
        self.code = code


@dataclass(frozen=True, slots=True)
class Token:
    """value: secret. ends: monotonic seconds. refresh: the next refresh token, "" where the answer had none."""

    value: str
    ends: float
    refresh: str = ""

    def __repr__(self) -> str:
        return f"Token(ends={self.ends})"

    def live(self, now: float) -> bool:
        return now < self.ends - MARGIN_S


def token_request(
    *,
    client_id: str,
    client_secret: str,
    refresh_token: str = "",
    scope: str = "",
    audience: str = "",
    in_body: bool = False,
) -> tuple[list[tuple[str, str]], bytes]:
    """Headers and body for the token endpoint: a refresh where there is a refresh token, else client credentials.

    in_body: the endpoint wants the client's secret in the body and not as Basic (RFC 6749 section 2.3.1).
    """
    fields = (
        {"grant_type": "refresh_token", "refresh_token": refresh_token}
        if refresh_token
        else {"grant_type": "client_credentials"}
    )
    if scope:
        fields["scope"] = scope
    if audience:
        fields["audience"] = audience
    headers = [("Content-Type", "application/x-www-form-urlencoded"), ("Accept", "application/json")]
    if in_body:
        fields |= {"client_id": client_id, "client_secret": client_secret}
    else:
        pair = f"{quote_plus(client_id)}:{quote_plus(client_secret)}"
        headers.append(("Authorization", "Basic " + base64.b64encode(pair.encode()).decode()))
    return headers, urlencode(fields).encode()


def parse_token(status: int, body: bytes, now: float) -> Token:
    """Raises PeerError with the endpoint's error code alone, never with a part of the body."""
    try:
        data = json.loads(body[:LIMIT_BYTES])
    except ValueError:
        raise PeerError(f"the token endpoint answered {status} without JSON") from None
    if not isinstance(data, dict):
        raise PeerError("the token endpoint's answer is no object")
    if status != 200:
        code = data.get("error")
        known = (
            code
            if isinstance(code, str) and code.isascii() and code.replace("_", "").isalpha() and len(code) < 40
            else "unknown"
        )
        raise TokenRefused(status, known)
    value = data.get("access_token")
    if not isinstance(value, str) or not value.isascii() or not value.isprintable() or " " in value:
        raise PeerError("the token endpoint's answer has no usable `access_token`")
    if len(value) > SECRET_BYTES:
        raise PeerError("the token endpoint's answer has an `access_token` that is too long")
    kind = data.get("token_type", "bearer")
    if not isinstance(kind, str) or kind.lower() != "bearer":
        raise PeerError("the token endpoint gave a token of another type than bearer")
    life = data.get("expires_in", DEFAULT_LIFE_S)
    seconds = (
        float(life)
        if isinstance(life, int | float | str) and str(life).replace(".", "", 1).isdigit()
        else DEFAULT_LIFE_S
    )
    refresh = data.get("refresh_token")
    return Token(value, now + seconds, refresh if isinstance(refresh, str) else "")


class TokenCache:
    """The tokens of one credential. `lock` makes the single flight: the caller gives one of its kind (threads or tasks)."""

    __slots__ = ("_refresh", "_token")

    def __init__(self, refresh_token: str = "") -> None:
        self._token: Token | None = None
        self._refresh = refresh_token

    def get(self, now: float, fetch: Callable[[str], Token]) -> Token:
        """The live token, or what `fetch(refresh_token)` brings. Call with the lock held."""
        token = self._token
        if token is not None and token.live(now):
            return token
        self._token = None
        token = fetch(self._refresh)
        self._refresh = token.refresh or self._refresh
        self._token = token
        return token

    def drop(self) -> None:
        self._token = None


def swap_tokens(body: bytes, mint: Callable[[str], str]) -> tuple[bytes, dict[str, str]]:
    """A token endpoint's answer with placeholders for tokens, and `{placeholder: token}`.

    mint: gives a placeholder for a format name (`jwt` where the token looks like one). Raises ParseError where the body is
    no JSON object of strings and numbers, duplicates a key, or is too large: such an answer must not be passed on.
    """
    if not body:
        # a revocation is answered with nothing (RFC 7009, section 2.2), and in nothing there is no token
        return b"", {}
    if len(body) > LIMIT_BYTES:
        raise ParseError("the token endpoint's answer is too large", reason="token_answer_too_large")
    try:
        data = json.loads(body, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as e:
        raise ParseError("the token endpoint's answer is no JSON object", reason="token_answer_malformed") from e
    if not isinstance(data, dict):
        raise ParseError("the token endpoint's answer is no JSON object", reason="token_answer_malformed")
    swapped: dict[str, str] = {}
    clean = _swap(data, mint, swapped)
    return json.dumps(clean, separators=(",", ":")).encode(), swapped


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        raise ValueError("a key twice")
    return out


def _swap(data: Mapping[str, Any], mint: Callable[[str], str], swapped: dict[str, str]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in data.items():
        if key in TOKEN_FIELDS and isinstance(value, str) and value:
            placeholder = mint("jwt" if value.startswith("eyJ") else "generic")
            swapped[placeholder] = value
            out[key] = placeholder
        elif isinstance(value, dict):
            out[key] = _swap(value, mint, swapped)
        elif isinstance(value, list):
            out[key] = [_swap(v, mint, swapped) if isinstance(v, dict) else v for v in value]
        else:
            out[key] = value
    return out
