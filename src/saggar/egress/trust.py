"""What a cell must find so that its clients trust the task's own CA: files, places of the system to cover, variables.

I1  Nothing here is secret: the CA's certificate, and the host's public roots.
I2  Roots are added to, never replaced: hosts that are tunnelled keep their own certificates.
I3  Only where a terminated host exists; a cell without one sees the system's own files.

Which client reads what was measured one variable at a time (docs/CLIENTS.md has the table).
"""

from __future__ import annotations

import base64
import hashlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

#: libraries that say by being there that a client may look for an NSS database
NSS_LIBRARIES = (
    "/usr/lib/x86_64-linux-gnu/libnss3.so", "/usr/lib/aarch64-linux-gnu/libnss3.so", "/usr/lib64/libnss3.so", "/usr/lib/libnss3.so",
)  # fmt: skip

PLACE = "/run/saggar/trust"
BUNDLE = f"{PLACE}/ca-certificates.crt"
TASK_CA = f"{PLACE}/task-ca.pem"
JAVA_STORE = f"{PLACE}/java.p12"

#: where systems keep their bundle; covered inside where the host has it
SYSTEM_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
    "/etc/pki/tls/cert.pem",
)
#: variables that name a whole bundle
_WHOLE = (
    "SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "npm_config_cafile", "GIT_SSL_CAINFO",
    "CARGO_HTTP_CAINFO", "AWS_CA_BUNDLE", "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE", "HTTPLIB2_CA_CERTS",
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", "NIX_SSL_CERT_FILE", "YARN_HTTPS_CA_FILE_PATH",
)  # fmt: skip
#: variables that name what is added to the client's own roots
_ADDED = ("NODE_EXTRA_CA_CERTS", "DENO_CERT")


class Trust:
    """files: (place, content) to make. covers: (place, content) to lay over what the system has. home: (place below the home directory,
    content) that the cell may write. environment: variables."""

    __slots__ = ("covers", "environment", "files", "home")

    def __init__(
        self,
        files: list[tuple[str, bytes]],
        covers: list[tuple[str, bytes]],
        environment: dict[str, str],
        home: list[tuple[str, bytes]],
    ) -> None:
        self.files = files
        self.covers = covers
        self.environment = environment
        self.home = home


def trust(
    ca_pem: str, common_name: str, roots_pem: str, bundles: Sequence[str], java_store: bytes = b"", *, nss: bool = False
) -> Trust:
    """common_name: of the CA. roots_pem: the host's bundle, "" where it has none. bundles: those of SYSTEM_BUNDLES that exist.
    java_store: a PKCS#12 trust store of the same certificates, where there is a Java. nss: whether an NSS may look for a database."""
    joint = roots_pem if not roots_pem or roots_pem.endswith("\n") else roots_pem + "\n"
    whole = (joint + ca_pem).encode()
    files = [
        (BUNDLE, whole),
        (TASK_CA, ca_pem.encode()),
        (f"{PLACE}/certs/{subject_hash(common_name)}.0", ca_pem.encode()),
    ]
    environment = dict.fromkeys(_WHOLE, BUNDLE) | dict.fromkeys(_ADDED, TASK_CA)
    environment["SSL_CERT_DIR"] = f"{PLACE}/certs:/etc/ssl/certs"
    if java_store:
        files.append((JAVA_STORE, java_store))
        environment["JAVA_TOOL_OPTIONS"] = (
            f"-Djavax.net.ssl.trustStore={JAVA_STORE} -Djavax.net.ssl.trustStoreType=PKCS12"
            " -Djavax.net.ssl.trustStorePassword=changeit"
        )
    home: list[tuple[str, bytes]] = []
    if nss:
        from saggar.egress.nss import PLACE as NSS_PLACE
        from saggar.egress.nss import database

        home = [(f"{NSS_PLACE}/{name}", data) for name, data in database(certificates(ca_pem)[0], common_name)]
    return Trust(files, [(place, whole) for place in bundles], environment, home)


def subject_hash(common_name: str) -> str:
    """The name under which OpenSSL looks up a CA in a directory: SHA-1 over the canonical form of its subject, which has a
    common name alone (X509_NAME_hash; lower case, blanks single, as UTF8String)."""
    text = " ".join(common_name.lower().split()).encode()
    value = b"\x06\x03\x55\x04\x03" + _der(0x0C, text)
    name = _der(0x31, _der(0x30, value))
    return f"{int.from_bytes(hashlib.sha1(name, usedforsecurity=False).digest()[:4], 'little'):08x}"


def _der(tag: int, content: bytes) -> bytes:
    size = len(content)
    head = bytes((tag, size)) if size < 128 else bytes((tag, 0x81, size))
    return head + content


def certificates(pem: str) -> list[bytes]:
    """DER of each certificate in a PEM text."""
    found = []
    for piece in pem.split("-----BEGIN CERTIFICATE-----")[1:]:
        body, _, _ = piece.partition("-----END CERTIFICATE-----")
        found.append(base64.b64decode("".join(body.split())))
    return found
