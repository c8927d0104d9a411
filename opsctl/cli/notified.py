"""Tell the site's webhooks how a command ended; what goes wrong with them is a finding of its document."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from opsctl.errors import OpsctlError, UsageError
from opsctl.output import Document, document_of_error

if TYPE_CHECKING:
    from opsctl.output import Finding
    from opsctl.site import Site

SILENT = ("not-confirmed",)  # whoever said no knows it


def tell(
    site: Site, document: Document, server: str, reason: str | None, begun_s: float
) -> list[Finding]:
    """Tell the webhooks of the site; add a finding to the document for each that could not be told."""
    if not site.notify:
        return []
    from opsctl.cli.playbook_run import who_am_i
    from opsctl.notify import ended, notify

    event = ended(
        document,
        server=server,
        host=site.server(server).host,
        who=who_am_i(),
        reason=reason,
        begun_s=begun_s,
    )
    findings = notify(site, event)
    document.findings.extend(findings)
    return findings


@contextmanager
def telling_errors(site: Site, command: str, server: str, reason: str | None) -> Iterator[None]:
    """Tell the webhooks of an error that ends the block, and let it go on its way."""
    begun_s = time.time()
    try:
        yield
    except OpsctlError as error:
        if site.notify and error.code not in SILENT and not isinstance(error, UsageError):
            import click

            from opsctl.cli.app import describe_finding

            document = document_of_error(command, error)
            for finding in tell(site, document, server, reason, begun_s):
                click.echo(describe_finding(finding), err=True)
        raise
