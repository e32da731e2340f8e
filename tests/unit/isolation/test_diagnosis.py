from __future__ import annotations

import pytest

from saggar.isolation.diagnosis import Facts, apparmor_profile, diagnose, explain

EPERM, ENOSPC, ENOSYS = 1, 28, 38


@pytest.mark.parametrize(
    ("facts", "errno", "cause", "remedy"),
    [
        (Facts(apparmor="1", python="/opt/s/bin/python3"), EPERM, "AppArmor", "apparmor_parser -r"),
        (Facts(clone="0", apparmor="1"), EPERM, "unprivileged_userns_clone` is 0", "sysctl -w kernel.unprivileged_userns_clone=1"),
        (Facts(user_max="0"), EPERM, "max_user_namespaces` is 0", "sysctl -w user.max_user_namespaces=15000"),
        (Facts(), ENOSPC, "user.max_user_namespaces", "sysctl -w user.max_user_namespaces=15000"),
        (Facts(net_max="0"), ENOSPC, "user.max_net_namespaces", "sysctl -w user.max_net_namespaces=15000"),
        (Facts(container="docker", filtered=True), EPERM, "docker container's filter", "systempaths=unconfined"),
        (Facts(container="podman", filtered=True), EPERM, "podman container's filter", "unmask=ALL"),
        (Facts(container="kubernetes", filtered=True), EPERM, "kubernetes", "procMount: Unmasked"),
        (Facts(container="docker", uid=0), EPERM, "without CAP_SYS_ADMIN", "ordinary user"),
        (Facts(filtered=True), EPERM, "a seccomp filter", "seccomp=unconfined"),
        (Facts(), ENOSYS, "built without namespaces", "CONFIG_USER_NS"),
        (Facts(), EPERM, "`userns`: no", "saggar doctor"),
        (Facts(container="docker", filtered=True), 5, "`userns`: no", "saggar doctor"),
    ],
)  # fmt: skip
def test_cause_and_remedy(facts: Facts, errno: int, cause: str, remedy: str) -> None:
    found = diagnose("userns", errno, "no", facts)
    assert cause in found.cause
    assert "no" in found.cause
    assert remedy in found.remedy


def test_bubblewrap_has_no_errno_of_its_own() -> None:
    found = diagnose("bubblewrap", 0, "No permissions to create new namespace", Facts(clone="0"))
    assert "unprivileged_userns_clone" in found.cause


def test_the_apparmor_profile_names_the_real_program() -> None:
    assert apparmor_profile("/opt/s/bin/python3.11") == (
        "abi <abi/4.0>,\ninclude <tunables/global>\n\n"
        'profile saggar-python "/opt/s/bin/python3.11" flags=(unconfined) {\n'
        "  userns,\n  include if exists <local/saggar-python>\n}\n"
    )


def test_a_shared_interpreter_is_warned_of() -> None:
    shared = diagnose("userns", EPERM, "no", Facts(apparmor="1", python="/usr/bin/python3.12"))
    own = diagnose("userns", EPERM, "no", Facts(apparmor="1", python="/opt/s/bin/python3.12"))
    assert "--copies" in shared.remedy
    assert "--copies" not in own.remedy


def test_explain_keeps_what_the_launcher_knows() -> None:
    known = {"step": "workspace", "errno": 0, "message": "m", "cause": "c", "remedy": "r"}
    error = explain(known, Facts())
    assert (error.message, error.cause, error.remedy, error.exit_code) == ("m", "c", "r", 4)
    error = explain({"step": "namespaces", "errno": 1, "message": "no"}, Facts(user_max="0"))
    assert error.message == "the cell could not be made (namespaces)"
    assert "sysctl" in error.remedy
