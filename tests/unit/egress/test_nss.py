"""The database of NSS, read by NSS itself."""

import shutil
import ssl
import subprocess
import time

import pytest

from saggar.egress.ca_host import TaskCa, common_name
from saggar.egress.nss import _parts, database
from saggar.egress.trust import certificates, trust

CA = TaskCa("r20261130T100000-abc123", time.time())
NAME = common_name("r20261130T100000-abc123")


@pytest.fixture
def place(tmp_path):
    for name, data in database(certificates(CA.pem)[0], NAME):
        (tmp_path / name).write_bytes(data)
    return f"sql:{tmp_path}"


def certutil(*words):
    return subprocess.run(["certutil", *words], capture_output=True, text=True, check=False)


@pytest.mark.requires_program("certutil")
def test_nss_lists_the_ca_and_trusts_it_for_servers_alone(place):
    done = certutil("-L", "-d", place)
    assert done.stdout.split("\n\n")[-1].split("\n")[-2].split() == [*NAME.split(), "C,,"], done.stderr
    assert "certificate is valid" in certutil("-V", "-u", "L", "-n", NAME, "-d", place).stdout
    pem = certutil("-L", "-a", "-n", NAME, "-d", place).stdout
    assert certificates(pem) == certificates(CA.pem)


@pytest.mark.requires_program("certutil", "vfychain")
def test_nss_verifies_a_leaf_by_it(place, tmp_path):
    for name, ca, ok in (("a", CA, True), ("b", TaskCa("other", time.time()), False)):
        leaf, _ = ca.leaf("a.test")
        path = tmp_path / f"{name}.der"
        path.write_bytes(ssl.PEM_cert_to_DER_cert(leaf))
        # -u 1: as a server's
        done = subprocess.run(
            ["vfychain", "-d", place, "-u", "1", "-r", str(path)], capture_output=True, text=True, check=False
        )
        assert ("Chain is good" in done.stdout + done.stderr) is ok, done.stdout + done.stderr


def test_the_parts_are_those_of_the_certificate():
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    der = certificates(CA.pem)[0]
    serial, issuer, subject, key = _parts(der)
    made = x509.load_der_x509_certificate(der)
    assert int.from_bytes(serial[2:], "big") == made.serial_number
    assert issuer == subject == made.subject.public_bytes()
    assert key == made.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)


def test_only_where_an_nss_may_look_for_it():
    assert trust(CA.pem, NAME, "", []).home == []
    names = [name for name, _ in trust(CA.pem, NAME, "", [], nss=True).home]
    assert names == [".pki/nssdb/cert9.db", ".pki/nssdb/key4.db"]


def test_it_has_no_key_and_no_password(tmp_path):
    import sqlite3

    (path, data) = database(certificates(CA.pem)[0], NAME)[1]
    (tmp_path / path).write_bytes(data)
    with sqlite3.connect(tmp_path / path) as db:
        assert db.execute("SELECT count(*) FROM nssPrivate").fetchone() == (0,)
        assert db.execute("SELECT count(*) FROM metaData").fetchone() == (0,)
    shutil.rmtree(tmp_path)
