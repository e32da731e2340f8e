"""The copy-on-write workspace under Debian's 6.1, whose tmpfs has no user attributes. See `test_guest`."""

from __future__ import annotations

import os
import sys

import pytest

sys.path.insert(0, os.path.dirname(__file__))
import guest
from test_guest import SETUP, machine

__all__ = ["machine"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(bool(guest.missing()), reason=guest.missing() or "a guest can run"),
]
FILES = (
    "tests/unit/isolation/test_workspace_host.py tests/unit/isolation/test_workspace_mount_host.py tests/unit/isolation/test_apply_host.py"
    " tests/attacks/isolation/test_apply_attacks.py tests/attacks/isolation/test_unmapped_owners.py"
)
RUN = "python3 -m pytest -q -p no:cacheprovider -p no:hypothesispytest -p no:timeout -c /dev/null --rootdir /saggar -rfs --tb short --color no"


@pytest.mark.parametrize(
    "who", ["", "setpriv --reuid 1000 --regid 1000 --clear-groups env HOME=/home/u "], ids=["root", "user"]
)
def test_workspace(machine, who: str) -> None:
    code, said = machine.run(
        f"{SETUP}mkdir -p /var/tmp; chmod 1777 /var/tmp; export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1; {who}{RUN} {FILES}",
        timeout_s=1000,
    )
    assert code == 0, said[-8000:]
    assert " passed" in said
