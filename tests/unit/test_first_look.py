"""The site file that `opsctl init` writes: commented, checked, honest about what was not found."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.adoption import Adopted
from opsctl.adoption_place import free_name, place_of
from opsctl.domain.adopt_entry import Entry
from opsctl.errors import UsageError
from opsctl.facts import GpuReport, Host
from opsctl.first_look import Container, Machine, describe_gpus, parse_containers, site_text
from opsctl.site import Site, parse_site
from tests.unit.domain.tables import GPU0, gpu

HOST = Host("b", "pve1", "6.8", True, None, None, 0, "3.11.2", 100, 0.0)
NONE = GpuReport("no-library", "libnvidia-ml.so.1 is not there", None, None, ())


def machine(**changes: object) -> Machine:
    values: dict[str, object] = {
        "name": "pve1", "entry": {"ssh": "root@192.0.2.6"}, "host": HOST, "report": NONE, "containers": None,
    }  # fmt: skip
    return Machine(**{**values, **changes})  # type: ignore[arg-type]


def test_a_machine_without_servers_gets_an_example_that_is_a_comment() -> None:
    """The file passes the check, and says what to do once a server runs."""
    text = site_text([machine()], "today")

    site = parse_site(text, Path("opsctl.yaml"))
    assert (list(site.hosts), list(site.servers)) == (["pve1"], [])
    assert "opsctl adopt --host" in text
    example = "\n".join(
        line[2:] for line in text.splitlines() if line.startswith(("# servers:", "#   "))
    )
    assert (
        "my-server"
        in parse_site(f"hosts:\n  pve1: {{local: true}}\n{example}\n", Path("x")).servers
    )


def test_adopted_servers_and_their_containers_are_entries_and_other_containers_are_comments() -> (
    None
):
    """Container 130 can be uncommented; 129 is the server's host."""
    entry = Entry(
        "glm5", {"host": "ct129", "port": 1, "python": "/p", "model": "/m"}, (), ("adopted",)
    )
    seen = machine(
        containers=(Container(129, "ct129", "running"), Container(130, "web", "stopped")),
        added={"ct129": {"pct": 129, "via": "pve1"}},
        adopted=[Adopted(entry, (), 5, 5)],
    )

    text = site_text([seen], "today")

    site = parse_site(text, Path("opsctl.yaml"))
    assert (list(site.hosts), list(site.servers)) == (["pve1", "ct129"], ["glm5"])
    assert "  # ct130: {pct: 130, via: pve1}   # web, stopped" in text
    uncommented = text.replace("  # ct130: ", "  ct130: ")
    assert "ct130" in parse_site(uncommented, Path("x")).hosts


def test_pct_list_is_read_with_and_without_a_lock() -> None:
    """The lock's column is empty as a rule; the name is the last word."""
    text = "VMID       Status     Lock         Name\n129        running                 ct129\n"
    text += "130        stopped    backup       web\n"

    assert parse_containers(text) == (
        Container(129, "ct129", "running"),
        Container(130, "web", "stopped"),
    )
    assert parse_containers("") == ()


def test_gpus_are_counted_by_kind_or_their_absence_is_explained() -> None:
    """What could not be read is not said to be absent without its reason."""
    report = GpuReport("ok", None, "580.1", "13.0", (gpu(GPU0), gpu("GPU-x")))

    assert describe_gpus(report).startswith("2 x ")
    assert "libnvidia-ml" in describe_gpus(NONE)


@pytest.mark.parametrize(
    ("word", "name", "entry"),
    [
        (None, "here", {"local": True}),
        ("local", "here", {"local": True}),
        ("root@gpu7.example.org:2222", "gpu7", {"ssh": "root@gpu7.example.org:2222"}),
        ("192.0.2.6", "h-192-0-2-6", {"ssh": "192.0.2.6"}),
        ("root@[2001:db8::1]", "h-2001-db8-1", {"ssh": "root@[2001:db8::1]"}),
    ],
)
def test_a_new_host_gets_a_short_name(
    word: str | None, name: str, entry: dict[str, object]
) -> None:
    """An address is renamed after the machine's own name once that was asked for."""
    place = place_of(Site(), word, become=False)

    assert (place.host, dict(place.added)) == (name, {name: entry})


def test_a_host_of_the_site_is_used_as_it_is() -> None:
    """By its name or by its target; --sudo would contradict its entry."""
    site = parse_site("hosts:\n  a: {ssh: root@x}\n  me: {local: true}\n", Path("x"))

    assert place_of(site, "a", become=False).host == "a"
    assert place_of(site, "root@x", become=False).host == "a"
    assert place_of(site, None, become=False).host == "me"
    assert free_name(site, "a") == "a-2"
    with pytest.raises(UsageError):
        place_of(site, "a", become=True)
