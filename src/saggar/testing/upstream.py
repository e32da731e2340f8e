"""Upstream servers on loopback that record what reaches them, for tests and benchmarks of the egress wall."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import re
import socket
import socketserver
import ssl
import threading
from typing import TYPE_CHECKING, Any, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


#: the end of a chunked body, with or without trailers
_LAST_CHUNK = re.compile(rb"(?:\A|\r\n)0\r\n(?:[^\r\n]+\r\n)*\r\n\Z")


class TestPki:
    """A CA of the test's own and one server certificate for `names`; PEM files in `directory`."""

    __test__ = False

    def __init__(self, directory: str, names: Sequence[str]) -> None:
        ca_key = ec.generate_private_key(ec.SECP256R1())
        ca = self._certificate("Test CA", ca_key, None, None, [])
        key = ec.generate_private_key(ec.SECP256R1())
        leaf = self._certificate(names[0], key, ca, ca_key, names)
        self.ca_file = os.path.join(directory, "ca.pem")
        self.chain_file = os.path.join(directory, "server.pem")
        with open(self.ca_file, "wb") as f:
            f.write(ca.public_bytes(serialization.Encoding.PEM))
        pem = serialization.PrivateFormat.PKCS8
        with open(self.chain_file, "wb") as f:
            f.write(key.private_bytes(serialization.Encoding.PEM, pem, serialization.NoEncryption()))
            f.write(leaf.public_bytes(serialization.Encoding.PEM))

    @staticmethod
    def _certificate(
        name: str,
        key: ec.EllipticCurvePrivateKey,
        issuer: x509.Certificate | None,
        issuer_key: ec.EllipticCurvePrivateKey | None,
        names: Sequence[str],
    ) -> x509.Certificate:
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        now = dt.datetime.now(dt.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer.subject if issuer else subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=30))
            .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
            # Python 3.13 asks for them (VERIFY_X509_STRICT), as RFC 5280 does, 4.2.1.1 to 4.2.1.3
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key((issuer_key or key).public_key()), critical=False
            )
            .add_extension(_usage(authority=issuer is None), critical=True)
        )
        if names:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([x509.DNSName(n) for n in names]), critical=False
            )
        return builder.sign(issuer_key or key, hashes.SHA256())

    def server_context(self, protocols: Sequence[str] = ("http/1.1",)) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.chain_file)
        context.set_alpn_protocols(list(protocols))
        return context


def _usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )


def respond_hello(request: bytes) -> bytes:
    """A small keep-alive response that names the request's first line."""
    body = b"hello from upstream: " + request.split(b"\r\n", 1)[0]
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nX-Upstream: yes\r\n\r\n%s" % (len(body), body)


class Upstream:
    """A threaded loopback server. received: every byte, one entry a connection; accepted: how many connected.

    respond takes the head of one request (its body already read when it has a Content-Length or is chunked) and gives
    the raw bytes to answer with; None closes.
    """

    def __init__(
        self, *, context: ssl.SSLContext | None = None, respond: Callable[[bytes], bytes | None] = respond_hello
    ) -> None:
        self.accepted = 0
        self.received: list[bytearray] = []
        self.respond = respond
        #: requests served on one connection before the server ends it
        self.requests_each = 1 << 30
        upstream = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                upstream.accepted += 1
                with contextlib.suppress(OSError):
                    sock = context.wrap_socket(self.request, server_side=True) if context else self.request
                    upstream._serve(sock)

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            allow_reuse_address = True
            request_queue_size = 256

            def handle_error(self, request: Any, client_address: Any) -> None:
                """What a client breaks is the test's business, not stderr's."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self.port: int = self._server.server_address[1]

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    @property
    def bytes(self) -> bytes:
        """Everything received so far, over all connections."""
        return b"".join(bytes(r) for r in self.received)

    def _serve(self, sock: socket.socket) -> None:
        record = bytearray()
        self.received.append(record)
        buffer = bytearray()
        for _ in range(self.requests_each):
            while b"\r\n\r\n" not in buffer:
                data = sock.recv(65536)
                if not data:
                    return
                record += data
                buffer += data
            end = buffer.index(b"\r\n\r\n")
            head = bytes(buffer[:end])
            del buffer[: end + 4]
            lowered = head.lower()
            need = 0
            if b"\r\ncontent-length:" in lowered:
                need = int(lowered.split(b"\r\ncontent-length:")[1].split(b"\r\n")[0])
            chunked = b"\r\ntransfer-encoding: chunked" in lowered
            while (chunked and not _LAST_CHUNK.search(buffer)) or len(buffer) < need:
                data = sock.recv(65536)
                if not data:
                    return
                record += data
                buffer += data
            del buffer[: len(buffer) if chunked else need]
            reply = self.respond(head)
            if reply is None:
                return
            sock.sendall(reply)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
