"""The task's own certificate authority: made in memory, dies with the task, signs leaves for that task's hosts alone.

I1  The CA's key never leaves the process that made it, and is never written.
I2  A leaf names exactly one host, serves only as a TLS server, and is valid as long as its CA: a clock that is moved while the
    task runs changes neither.

P-256 throughout: a leaf costs 154 us. Extensions are those that strict verifiers ask for (RFC 5280 section 4.2;
`VERIFY_X509_STRICT` of Python 3.13 wants key identifiers and a key usage).
"""

from __future__ import annotations

import datetime as dt

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

#: for how far a clock is set back or forward while the task runs: what ends a task's certificates is the end of its key
_SKEW = dt.timedelta(days=30)
LIFE = dt.timedelta(days=300)


def common_name(task: str) -> str:
    """Of the task's CA."""
    return f"saggar task {task}"[:64]


def _name(text: str) -> x509.Name:
    # a common name holds at most 64 characters; clients look at the subject alternative name
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


class TaskCa:
    """One task's CA. wall: seconds since the epoch at the start of the task."""

    __slots__ = ("_certificate", "_key", "pem")

    def __init__(self, task: str, wall: float) -> None:
        now = dt.datetime.fromtimestamp(wall, dt.UTC)
        self._key = ec.generate_private_key(ec.SECP256R1())
        public = self._key.public_key()
        name = _name(common_name(task))
        self._certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _SKEW)
            .not_valid_after(now + LIFE)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(sign_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(public), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self.pem = self._certificate.public_bytes(Encoding.PEM).decode()

    def leaf(self, host: str) -> tuple[str, str]:
        """(certificate, private key) as PEM for one canonical host name; the caller has checked that it may have one."""
        key = ec.generate_private_key(ec.SECP256R1())
        issuer = self._key.public_key()
        certificate = (
            x509.CertificateBuilder()
            .subject_name(_name(host))
            .issuer_name(self._certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._certificate.not_valid_before_utc)
            .not_valid_after(self._certificate.not_valid_after_utc)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(sign_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return certificate.public_bytes(Encoding.PEM).decode(), secret.decode()


def _usage(*, sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not sign_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def java_store(ca_pem: str, roots_pem: str) -> bytes:
    """A PKCS#12 trust store for Java with the roots and the task's CA; password `changeit`, as everywhere (45 ms)."""
    import warnings

    from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12

    with warnings.catch_warnings():
        # some public roots have serial numbers that the parser frowns at
        warnings.simplefilter("ignore")
        found = x509.load_pem_x509_certificates((roots_pem + "\n" + ca_pem).encode())
        entries = [pkcs12.PKCS12Certificate(c, f"root-{i}".encode()) for i, c in enumerate(found)]
        return pkcs12.serialize_java_truststore(entries, BestAvailableEncryption(b"changeit"))
