"""Starting the secrets process from a caller that has many descriptors open."""

from __future__ import annotations

import os

from saggar.egress.secrets_spawn_host import start_secrets


def test_the_callers_descriptors_stay_what_they_are():
    null = os.open("/dev/null", os.O_RDONLY)
    mine = [os.dup(null) for _ in range(300)]
    before = [(os.fstat(fd).st_dev, os.fstat(fd).st_ino) for fd in mine]
    process = start_secrets([], {})
    try:
        assert [(os.fstat(fd).st_dev, os.fstat(fd).st_ino) for fd in mine] == before
    finally:
        process.stop()
        for fd in [*mine, null]:
            os.close(fd)
