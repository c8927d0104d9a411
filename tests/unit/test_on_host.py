"""A mend's command as it is typed on this machine: through the way to the host that it is for."""

from __future__ import annotations

import pytest

from opsctl.on_host import typed_here
from opsctl.site import Host


@pytest.mark.parametrize(
    ("entry", "typed"),
    [
        ({"local": True}, "systemctl reset-failed a.service"),
        ({"pct": 129, "via": "pve1"}, "opsctl ct exec ct129 -- systemctl reset-failed a.service"),
        ({"ssh": "root@192.0.2.6"}, "ssh root@192.0.2.6 'systemctl reset-failed a.service'"),
        (
            {"ssh": "op@192.0.2.6:2222", "become": "sudo", "identity_file": "/k"},
            "ssh -i /k -p 2222 op@192.0.2.6 'sudo systemctl reset-failed a.service'",
        ),
        ({"ssh": "root@2001:db8::6"}, "ssh root@2001:db8::6 'systemctl reset-failed a.service'"),
    ],
)
def test_a_command_is_typed_with_the_way_to_its_host(entry: dict[str, object], typed: str) -> None:
    """Who copies the line from the doctor does not have to know where it belongs."""
    host = Host.model_validate(entry)

    assert typed_here("ct129", host, "systemctl reset-failed a.service") == typed
