"""A real broker serving a real network namespace, and upstreams on loopback that record what reaches them."""

import shutil
import ssl
import subprocess

import pytest

from saggar.policy.model import EgressRule
from saggar.testing.egress_cell import EgressCell
from saggar.testing.upstream import TestPki, Upstream

NAMES = ("api.allowed.test", "b.allowed.test", "x.wild.test")


@pytest.fixture(scope="session", autouse=True)
def _needs_namespaces():
    for tool in ("unshare", "nsenter"):
        if shutil.which(tool) is None:
            pytest.skip(f"host feature missing: `{tool}`")
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--net", "--mount", "true"], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("host feature missing: user namespaces")


@pytest.fixture(scope="session")
def pki(tmp_path_factory):
    return TestPki(str(tmp_path_factory.mktemp("pki")), NAMES)


@pytest.fixture
def tls_upstream(pki):
    with Upstream(context=pki.server_context()) as upstream:
        yield upstream


@pytest.fixture
def http_upstream():
    with Upstream() as upstream:
        yield upstream


@pytest.fixture
def raw_upstream():
    """Speaks first, as SSH does, then echoes lines as an HTTP-less protocol."""
    with Upstream() as upstream:
        yield upstream


@pytest.fixture
def rules(tls_upstream, http_upstream):
    tls, http = tls_upstream.address, http_upstream.address
    return [
        EgressRule(id="api", host="api.allowed.test", ports=(443,), connect_to=tls),
        EgressRule(id="plain", host="api.allowed.test", ports=(80, 8080), connect_to=http),
        EgressRule(id="b", host="b.allowed.test", ports=(443,), connect_to=tls),
        EgressRule(id="b-plain", host="b.allowed.test", ports=(80,), connect_to=http),
        EgressRule(id="wild", host="*.wild.test", ports=(443,), connect_to=tls),
    ]


#: every connection to the second of two processes, also the first one, for which the worker has to start
_ALL_AWAY = "import saggar.egress.workers_host as w; w.Spread._load = lambda self, number: number == 0\n"


@pytest.fixture(params=["one process", "a worker"])
def anywhere(request, monkeypatch):
    """Runs a test twice: by the broker's first process, and by another that it hands each connection to."""
    if request.param == "a worker":
        monkeypatch.setattr(EgressCell, "default_processes", 2)
        monkeypatch.setattr(EgressCell, "default_tweak", _ALL_AWAY)


@pytest.fixture
def cell(rules):
    with EgressCell(rules) as cell:
        yield cell


@pytest.fixture
def client_context(pki):
    context = ssl.create_default_context(cafile=pki.ca_file)
    context.set_alpn_protocols(["http/1.1"])
    return context
