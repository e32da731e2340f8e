"""Which headers go on: classified by name, rebuilt, never taken over.

I1  No hop-by-hop header of one side reaches the other; the client's `Connection` list is never obeyed, so it cannot
    name our injected header for removal.
I2  No header that asks an upstream for another method, host or path than the one decided on is forwarded.
I3  On a host with our credential no other credential is forwarded: refused, or stripped where that was chosen.
I4  What is injected is what the classification would have taken from a client: the injection surface is inside the
    enforcement surface.

RFC 9110 section 7.6.1. Names are lower-case bytes.
"""

from __future__ import annotations

import re
from functools import lru_cache

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

#: rebuilt by us on each side
HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-authentication-info",
        b"http2-settings",
        b"content-length",
        b"host",
        b"expect",
        b"alt-svc",
        b"alt-used",
    }
)

#: ask for another method, host, path or client than the decided one
OVERRIDE = frozenset(
    {
        b"x-http-method-override",
        b"x-http-host-override",
        b"x-http-method",
        b"x-method-override",
        b"x-original-method",
        b"x-original-url",
        b"x-original-uri",
        b"x-original-host",
        b"x-rewrite-url",
        b"x-forwarded",
        b"x-forwarded-for",
        b"x-forwarded-host",
        b"x-forwarded-port",
        b"x-forwarded-proto",
        b"x-forwarded-scheme",
        b"x-forwarded-server",
        b"x-forwarded-prefix",
        b"x-forwarded-path",
        b"x-forwarded-uri",
        b"x-host",
        b"x-real-ip",
        b"x-real-host",
        b"x-client-ip",
        b"x-cluster-client-ip",
        b"x-originating-ip",
        b"x-remote-ip",
        b"x-remote-addr",
        b"x-remote-user",
        b"x-proxy-host",
        b"x-proxy-url",
        b"x-http-destinationurl",
        b"x-arbitrary",
        b"x-backend-host",
        b"x-envoy-original-path",
        b"x-envoy-original-host",
        b"x-middleware-subrequest",
        b"x-accel-redirect",
        b"x-sendfile",
        b"true-client-ip",
        b"cf-connecting-ip",
        b"fastly-client-ip",
        b"forwarded",
        b"via",
        b"base-url",
        b"destination-url",
        b"request-uri",
        b"proxy-host",
        b"proxy",
        b"x-wap-profile",
        b"x-custom-ip-authorization",
    }
)

#: carry a credential, whatever the value
CREDENTIAL = frozenset(
    {
        b"authorization",
        b"cookie",
        b"cookie2",
        b"x-api-key",
        b"x-apikey",
        b"api-key",
        b"apikey",
        b"x-auth-token",
        b"x-auth-key",
        b"x-auth-email",
        b"x-access-token",
        b"x-goog-api-key",
        b"x-goog-authenticated-user-email",
        b"x-goog-iam-authorization-token",
        b"x-amz-security-token",
        b"x-amz-s3session-token",
        b"private-token",
        b"job-token",
        b"deploy-token",
        b"x-gitlab-token",
        b"x-vault-token",
        b"x-consul-token",
        b"x-nomad-token",
        b"x-figma-token",
        b"x-shopify-access-token",
        b"x-algolia-api-key",
        b"x-atlassian-token-auth",
        b"x-functions-key",
        b"x-ms-authorization-auxiliary",
        b"x-ms-token-aad-access-token",
        b"ocp-apim-subscription-key",
        b"dd-api-key",
        b"dd-application-key",
        b"x-honeycomb-team",
        b"x-rapidapi-key",
        b"x-registry-auth",
        b"x-jfrog-art-api",
        b"circle-token",
        b"fastly-key",
        b"x-postmark-server-token",
        b"x-client-secret",
        b"x-client-cert",
        b"x-ssl-client-cert",
        b"x-forwarded-client-cert",
        b"x-forwarded-access-token",
        b"x-forwarded-user",
        b"x-session-token",
        b"x-session-id",
        b"x-user-token",
        b"x-secret",
        b"x-token",
        b"token",
        b"auth",
        b"auth-token",
        b"access-token",
        b"npm-auth-token",
        b"x-nuget-apikey",
        b"x-uipath-auth",
    }
)

# choose another account under the same credential; profiles pin them, a bound host never lets the client set them
ACCOUNT = frozenset({b"openai-organization", b"openai-project", b"x-goog-user-project", b"anthropic-organization-id"})

# names that only sound like a credential
_HARMLESS = frozenset(
    {
        b"sec-websocket-key",
        b"idempotency-key",
        b"x-idempotency-key",
        b"x-amz-content-sha256",
        b"x-amz-server-side-encryption-aws-kms-key-id",
        b"x-ratelimit-limit-tokens",
        b"accept-signature",
        b"anthropic-beta",
    }
)
_WORDS = frozenset({b"token", b"apikey", b"secret", b"auth", b"authorization", b"password", b"passwd", b"credential",
                    b"credentials", b"jwt", b"bearer", b"session", b"signature", b"cert"})  # fmt: skip

DROP, SECRET, SUSPECT, PASS = "drop", "secret", "suspect", "pass"


def as_variable(name: bytes) -> bytes:
    """The same for all names that are one to servers that read fields through CGI's variables: to these `_` and `-` are one sign."""
    return name.replace(b"_", b"-")


@lru_cache(maxsize=4096)
def classify(name: bytes) -> str:
    """`drop` (rebuilt or never forwarded), `secret` (a credential by name), `suspect` (sounds like one), `pass`."""
    if name in HOP or name in OVERRIDE:
        return DROP
    if name in CREDENTIAL or name in ACCOUNT:
        return SECRET
    if name in _HARMLESS:
        return PASS
    twin = as_variable(name)
    if twin != name:
        return classify(twin)
    if _WORDS.intersection(name.split(b"-")) or b"api-key" in name or b"access-key" in name:
        return SUSPECT
    return PASS


#: query names that carry a credential (compared without case, `-` and `_`)
_QUERY = frozenset(
    {
        "key", "apikey", "accesskey", "accesskeyid", "awsaccesskeyid", "token", "accesstoken", "authtoken", "auth",
        "authorization", "idtoken", "refreshtoken", "privatetoken", "jobtoken", "sessiontoken", "securitytoken",
        "signature", "sig", "xamzsignature", "xamzcredential", "xamzsecuritytoken", "xgoogsignature", "xgoogcredential",
        "xossSignature".lower(), "xosscredential", "googleaccessid", "ossaccesskeyid", "sharedaccesssignature",
        "secret", "clientsecret", "clientassertion", "password", "passwd", "pwd", "credential", "credentials", "jwt",
        "bearer", "bearertoken", "oauthtoken", "oauthsignature", "subscriptionkey", "code", "samlresponse", "assertion",
        "sas", "se", "sv", "hmac", "apitoken", "xapikey", "usertoken", "session", "sessionid", "upn",
    }
)  # fmt: skip
# short names that are a credential only beside their fellows (Azure SAS), or in an OAuth body
_QUERY_WEAK = frozenset({"se", "sv", "code", "auth", "session", "sas", "upn", "key"})
_FOLD = str.maketrans("", "", "-_. []")


def credential_in_query(pairs: Iterable[tuple[str, str]], *, ours: str = "") -> str:
    """Name of the first query parameter that carries a credential, or "". `ours`: the declared slot, passed over."""
    for name, value in pairs:
        if ours and name == ours:
            continue
        folded = name.translate(_FOLD).lower()
        if folded in _QUERY and value and (folded not in _QUERY_WEAK or folded == "key" or looks_like_key(value)):
            return name
        if value and looks_like_key(value):
            return name
    return ""


# Formats of issued keys, where a word begins: keys also travel inside values (`Sec-WebSocket-Protocol`, `k=sk-…`). A word has
# one beginning, no alternative crosses a word's end twice, nothing nests: linear in the value.
KEY_FORMS = (
    r"(?<![A-Za-z0-9_\-])(?:sk-[A-Za-z0-9_\-]{16}|sk_live_|rk_live_|pk_live_|gh[pousr]_[A-Za-z0-9]{16}|github_pat_|glpat-|gldt-|glrt-"
    r"|A(?:KIA|SIA)[A-Z2-7]{12}|AIza[A-Za-z0-9_\-]{20}|ya29\.|xox[abeprs]-|xapp-|npm_[A-Za-z0-9]{20}|pypi-AgE|hf_[A-Za-z0-9]{16}"
    r"|eyJ[A-Za-z0-9_\-]{8,}\.eyJ|dop_v1_|doo_v1_|SG\.[A-Za-z0-9_\-]{16}|shpat_|shpss_|dapi[0-9a-f]{16}|lin_api_|ntn_[A-Za-z0-9]{16}|secret_[A-Za-z0-9]{20}"
    r"|hvs\.|hvb\.|s\.[A-Za-z0-9]{24}|AGE-SECRET-KEY-|-----BEGIN|gsk_[A-Za-z0-9]{16}|r8_[A-Za-z0-9]{16}|pplx-[A-Za-z0-9]{16}|xai-[A-Za-z0-9]{16}|nvapi-[A-Za-z0-9_\-]{16}|ATATT3|figd_|tskey-)"
)
_KEY = re.compile(KEY_FORMS)


@lru_cache(maxsize=4096)
def looks_like_key(value: str) -> bool:
    """Whether a value is, or has inside, what a known service issues as a key, or begins with an authentication scheme."""
    head, _, rest = value.partition(" ")
    if rest and head.lower() in (
        "bearer",
        "token",
        "basic",
        "digest",
        "apikey",
        "negotiate",
        "aws4-hmac-sha256",
        "sharedkey",
    ):
        return True
    return _KEY.search(value) is not None


_RESPONSE_DROP = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"content-length",
     b"alt-svc", b"proxy-authenticate", b"proxy-authentication-info", b"http2-settings", b"x-accel-redirect", b"x-sendfile"}
)  # fmt: skip
#: A cookie of a host with our credential is a session of our account: it stays outside, so that a cookie that comes from
#: inside is always foreign.
SESSION = frozenset({b"set-cookie", b"set-cookie2"})


#: of a few dozen names is all traffic made; what an upstream invents beyond `_MOST_NAMES` is judged each time
_ANSWERS: dict[bytes, tuple[bytes, bool, bool]] = {}
_MOST_NAMES = 1024


def answer_field(name: bytes) -> tuple[bytes, bool, bool]:
    """A name in lower case, and whether the field goes to the client: from any host, from one with a credential of ours."""
    found = _ANSWERS.get(name)
    if found is None:
        lower = name.lower()
        found = lower, response_header_passes(lower, bound=False), response_header_passes(lower, bound=True)
        if len(_ANSWERS) < _MOST_NAMES:
            _ANSWERS[name] = found
    return found


def response_header_passes(name: bytes, *, bound: bool) -> bool:
    """Whether an upstream's header goes to the client. `Alt-Svc` would send it to QUIC, which is dead here.
    bound: the host has a credential of ours."""
    twin = as_variable(name)
    return twin not in _RESPONSE_DROP and not (bound and twin in SESSION)
