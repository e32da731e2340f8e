"""Begin to apply a run's changes, or clean up after an apply that was killed."""

from __future__ import annotations

from saggar.core.errors import UsageError
from saggar.isolation.apply_host import Apply
from saggar.isolation.apply_journal_host import JOURNAL, REPOSITORY_JOURNAL, Journal
from saggar.isolation.layer_host import open_layer, open_repository_layer
from saggar.isolation.workspace_host import boot_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from saggar.audit.sink_host import AuditLog
    from saggar.isolation.state_host import RunDir


def clean_up(run: RunDir) -> None:
    """Remove what a killed apply of `run` left in the workspace; for before the run is discarded."""
    for name, opener in ((JOURNAL, open_layer), (REPOSITORY_JOURNAL, open_repository_layer)):
        journal = Journal(run.fd, name)
        if not journal.pending:
            continue
        try:
            layer = opener(run)
        except UsageError:
            continue  # the directory is gone or another one: nothing there is ours
        if layer is None:
            continue
        try:
            journal.clean(layer.host_fd)
        finally:
            layer.close()


def open_apply(
    run: RunDir,
    audit: AuditLog,
    *,
    allowed: tuple[bytes, ...] = (),
    overwrite: bool = False,
    other_boot: bool = False,
) -> Apply:
    """An apply for `run`. other_boot: take a layer that a crash of the machine may have torn.

    Raises UsageError: the run is alive, has no layer, is of another boot, or its workspace is gone.
    """
    if not run.acquire():
        raise UsageError(
            f"the run `{run.id}` is still alive, or another saggar works on it",
            hint="wait for its end; `saggar diff` reads it meanwhile",
        )
    meta = run.meta()
    if not meta.get("started_ns", "0").isdigit() or meta.get("started_ns", "0") == "0":
        raise UsageError(f"the run `{run.id}` ended before its command began")
    if meta.get("boot") != boot_id() and not other_boot:
        raise UsageError(
            f"the machine restarted since the run `{run.id}`: after a crash its files may be torn",
            hint="look at `saggar diff`, then give `--after-reboot`",
        )
    return Apply(run, open_layer(run), audit, allowed=allowed, overwrite=overwrite)
