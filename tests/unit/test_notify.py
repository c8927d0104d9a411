"""What a webhook is told, and what stands in the way of telling it; the sending is in tests/wire."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from opsctl.errors import ConfigError
from opsctl.notify import Ended, body_of, ended, refuse_address
from opsctl.output import Document, Finding
from opsctl.site import Site
from opsctl.site_notify import Webhook

EVENT = Ended(
    "restart", "glm5", "ct129", "failed", 60, "20261129-1", "ann@desk", 'said "no" </script>', 61.2,
    state="the new server did not start", signature="shape-mismatch:c7b5",
    diagnosis="160 = 10 x 16", findings=({"code": "c", "subject": "s", "text": "t", "next": ""},),
)  # fmt: skip


def webhook(**given: Any) -> Webhook:
    return Webhook.model_validate({"url": {"env": "URL"}, **given})


def test_the_default_body_is_json_with_a_line_for_chat() -> None:
    """`text` says command, server, outcome, what it means, who, why, and where to read on."""
    body = json.loads(body_of(webhook(), EVENT, Path()))

    assert body["schema"] == "opsctl.webhook/1"
    assert body["text"] == (
        "restart glm5: failed (exit 60); the new server did not start; 160 = 10 x 16; 61 s, by ann@desk; "
        'because: said "no" </script>; opsctl show 20261129-1'
    )
    assert body["findings"][0]["code"] == "c"
    assert (body["exit_code"], body["bracket"]) == (60, None)


def test_the_event_of_a_document_holds_its_diagnosis_and_findings() -> None:
    """What the command printed, in the words of a template."""
    data = {
        "state": "it runs",
        "diagnosis": {"signature": "s:1", "explanation": "e"},
        "bracket": None,
    }
    document = Document("smoke", "crashed", 60, "r", [Finding("c", "s", "t")], data)

    event = ended(document, server="glm5", host="h", who="w", reason=None, begun_s=0.0)

    assert (event.signature, event.diagnosis, event.state) == ("s:1", "e", "it runs")
    assert event.findings[0]["text"] == "t"
    assert event.seconds > 0


def test_a_template_of_ones_own_makes_the_body(tmp_path: Path) -> None:
    """Relative to the site file; every value of the event is there."""
    (tmp_path / "page.txt").write_text(
        "{{ server }} {{ outcome }} {% for f in findings %}{{ f.text }}"
    )
    (tmp_path / "page.txt").write_text(
        "{{ server }}: {% for f in findings %}{{ f.text }}{% endfor %}"
    )

    made = webhook(template="page.txt", content_type="text/plain")

    assert body_of(made, EVENT, tmp_path) == b"glm5: t"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{{ nothing }}", "undefined"),
        ("{% if %}", "Expected"),
        ("no json", "does not give JSON"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ 'x' * 300000 }}", "KiB"),
        ("{% include '/etc/passwd' %}", "loader"),
    ],
)
def test_a_template_that_cannot_be_used_is_named(tmp_path: Path, text: str, said: str) -> None:
    """Unknown value, wrong syntax, no JSON, an attempt to leave the sandbox, a flood, another file."""
    (tmp_path / "t.j2").write_text(text)

    with pytest.raises(ConfigError) as refused:
        body_of(webhook(template="t.j2"), EVENT, tmp_path)

    assert said in refused.value.message


@pytest.mark.parametrize(
    ("url", "refused"),
    [
        ("https://hooks.example.org/T0/secret", False),
        ("http://127.0.0.1:9/x", False),
        ("http://hooks.example.org/T0/secret", True),
        ("http://127.0.0.1.example.org/", True),
        ("ftp://hooks.example.org/", True),
        ("https://[bad", True),
        ("", True),
        ("http://secret.example\\@127.0.0.1/", True),
    ],
)
def test_an_address_is_https_or_this_machine(url: str, refused: bool) -> None:
    """Everything else is refused in words that do not hold the address."""
    problem = refuse_address(url)

    assert (problem is not None) is refused
    assert "secret" not in (problem or "")


@pytest.mark.parametrize(
    "given", [{"content_type": "a\r\nX: y"}, {"timeout_s": 100}, {"when": "no"}]
)
def test_a_webhook_that_cannot_be_meant_is_refused_by_the_site(given: dict[str, Any]) -> None:
    """Headers are not made of line ends, and nobody waits for minutes."""
    with pytest.raises(ValueError, match="validation error"):
        webhook(**given)


def test_an_address_in_plain_sight_is_refused() -> None:
    """The address is a reference, as every secret is."""
    with pytest.raises(ValueError, match="url"):
        Webhook.model_validate({"url": "https://hooks.example.org/T0/secret"})


def test_ctrl_c_while_somebody_is_told_ends_the_telling_not_the_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The run has ended: whoever was not told by then is named, and the command prints its document."""
    from opsctl import notify as module

    class Interrupted(threading.Thread):
        def start(self) -> None:
            """Never begin: the answer would not come."""

        def join(self, timeout: float | None = None) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr(module.threading, "Thread", Interrupted)
    site = Site(notify={"team": webhook(), "quiet": webhook(when="failure")})

    found = module.notify(site, EVENT)

    assert [(one.code, one.subject) for one in found] == [
        ("webhook-failed", "team"),
        ("webhook-failed", "quiet"),
    ]
    assert module.notify(site, replace(EVENT, exit_code=0))[0].subject == "team"


def test_a_site_without_webhooks_costs_nothing() -> None:
    """No request library is loaded to find that nobody wants to know."""
    code = (
        "import sys; from opsctl.cli.notified import tell; from opsctl.site import Site\n"
        "from opsctl.output import Document\n"
        "tell(Site(), Document('stop', 'stopped'), 's', None, 0.0)\n"
        "print([name for name in ('requests', 'jinja2', 'opsctl.notify') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


def test_a_stranger_s_foreign_bytes_do_not_keep_a_body_from_being_sent(tmp_path: Path) -> None:
    """A finding quotes a command line that is no UTF-8; a template of one's own prints it as it is."""
    (tmp_path / "t.j2").write_text("{{ reason }}")
    made = webhook(template="t.j2", content_type="text/plain")

    body = body_of(made, replace(EVENT, reason="caf\udce9"), tmp_path)

    assert body == "caf\ufffd".encode()
