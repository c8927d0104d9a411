"""What `opsctl smoke` of a server says where nothing listens on its port."""

from __future__ import annotations

import pytest

from opsctl.cli.smoke_flow import _launch_is_next
from opsctl.errors import TransportError


@pytest.mark.parametrize(
    ("watched", "words", "step"),
    [
        (False, "standin does not run: nothing listens", "opsctl launch standin"),
        (True, "standin runs and does not listen: nothing", "opsctl status standin"),
    ],
)
def test_a_server_that_does_not_listen_names_its_own_next_command(
    watched: bool, words: str, step: str
) -> None:
    """It can be pasted; "start the server" could not."""
    with pytest.raises(TransportError) as caught, _launch_is_next("standin", watched=watched):
        raise TransportError("nothing listens on 127.0.0.1:30001", code="no-server")

    assert caught.value.message.startswith(words)
    assert caught.value.next_step == step


def test_another_trouble_keeps_its_own_next_step() -> None:
    """A wrong certificate is not mended by a launch."""
    with pytest.raises(TransportError) as caught, _launch_is_next("standin", watched=False):
        raise TransportError("not trusted", next_step="give --ca-file", code="tls")

    assert caught.value.next_step == "give --ca-file"
