"""`opsctl status` on the lab's real components, and how each way of not reaching a host is told."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab import gpus
from tests.lab.fixture import Lab
from tests.schemas import read_document

pytestmark = pytest.mark.lab
SERVER = [
    "/opt/sglang/bin/python", "-m", "sglang.launch_server",
    "--model-path", "/models/GLM-5-NVFP4", "--port", "30000", "--tp", "8", "--host", "0.0.0.0",
]  # fmt: skip


def status(lab: Lab, *arguments: str, **env: str) -> tuple[int, dict[str, Any], str]:
    done = lab.opsctl(["status", *arguments, "--json"], **env)
    return done.exit_code, read_document(done.stdout), done.stderr


@pytest.fixture
def server(clean_lab: Lab) -> Iterator[Lab]:
    """The stand-in runs in container 129 as a transient unit, ready."""
    unit = ["systemd-run", "--unit", "status-test", "--collect", *SERVER]
    started = clean_lab.on("ct129", unit)
    assert started.exit_code == 0, started.stderr
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        code, document, _ = status(clean_lab, "glm5")
        if document["data"]["servers"][0]["state"] == "listening":
            break
    else:
        pytest.fail(f"the stand-in did not come up: {document['data']['servers'][0]}, exit {code}")
    yield clean_lab
    clean_lab.on("ct129", ["systemctl", "kill", "-s", "KILL", "status-test"])
    clean_lab.on("ct129", ["systemctl", "stop", "status-test"])


def test_status_shows_the_server_its_pids_on_both_sides_and_its_gpu_memory(server: Lab) -> None:
    """Every scheduler is shown with its pid on the node, its pid in the container, and what it holds."""
    code, document, _ = status(server, "glm5")

    assert code == 0
    (shown,) = document["data"]["servers"]
    schedulers = [p for p in shown["processes"] if p["role"].startswith("scheduler")]
    assert len(schedulers) == 8
    assert all(p["pid"] != p["ns_pid"] and p["ns_pid"] for p in schedulers)
    assert all(p["held_bytes"] > 0 for p in schedulers)
    inside = server.on("ct129", ["/bin/ps", "-o", "pid=", "-p", str(schedulers[0]["ns_pid"])])
    assert inside.stdout.strip() == str(schedulers[0]["ns_pid"])
    holders = {h["pid"] for gpu in shown["gpus"] for h in gpu["holders"]}
    assert holders == {p["pid"] for p in schedulers}
    assert shown["machine"].startswith(
        ("one machine (both show GPU-", "one machine (both have boot id")
    )
    assert shown["one_machine"] is True


def test_two_machines_are_told_apart_by_their_boot_ids(server: Lab) -> None:
    """GPUs of another machine are shown, and are not taken for the server's."""
    code, document, _ = status(server, "glm5-elsewhere")

    assert code == 0
    (shown,) = document["data"]["servers"]
    assert "two machines (" in shown["machine"]
    assert "no GPU in common" in shown["machine"]
    assert shown["one_machine"] is False
    assert all(gpu["state"] == "free" for gpu in shown["gpus"])


def test_stopped_container_is_named_with_the_way_to_start_it(clean_lab: Lab) -> None:
    """Asked for by name, a stopped container is exit 30 and how to start it."""
    done = clean_lab.opsctl(["status", "ct130"])

    assert done.exit_code == 30
    assert "container 130 'ct130' on pve1: stopped" in done.stdout
    assert "next: start it: opsctl ct start 130" in done.stderr


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("driver-not-loaded", "not loaded"),
        ("mismatch", "mismatch"),
    ],
)
def test_nvml_trouble_is_unknown_never_free(clean_lab: Lab, fault: str, words: str) -> None:
    """A library that cannot answer is exit 21; no GPU is called free."""
    gpus.set_fault(clean_lab.gpu_dir("gpu1"), fault)

    done = clean_lab.opsctl(["status", "gpu1"])

    assert done.exit_code == 21
    assert words in done.stderr.lower()
    assert "free" not in done.stdout


def site(folder: Path, lab: Lab, hosts: str) -> str:
    path = folder / "site.yaml"
    path.write_text("hosts:\n" + hosts.replace("CONFIG", str(lab.ssh_config)))
    return str(path)


@pytest.mark.parametrize(
    ("hosts", "words", "next_words"),
    [
        ("  x: {ssh: root@10.77.1.1:2, config_file: CONFIG}\n", "nothing listens", ""),
        ("  x: {ssh: root@10.77.9.9, config_file: CONFIG, connect_timeout_s: 2}\n", "10.77.9.9", ""),
        ("  x: {ssh: nobody@10.77.1.1, config_file: CONFIG}\n", "nobody@10.77.1.1", ""),
        ("  x: {pct: 999, via: n}\n  n: {ssh: root@10.77.1.1, config_file: CONFIG}\n",
         "no container 999", "pct list"),
        ("  x: {pct: 129, via: n}\n  n: {ssh: root@10.77.1.2, config_file: CONFIG}\n", "no pct", "via"),
    ],
    ids=["closed-port", "no-such-host", "refused-key", "unknown-vmid", "no-pct"],
)  # fmt: skip
def test_each_way_of_not_reaching_a_host_is_one_sentence(
    clean_lab: Lab, tmp_path: Path, hosts: str, words: str, next_words: str
) -> None:
    """Exit 30, the reason in words, what to do next, no traceback."""
    done = clean_lab.opsctl(["status", "x", "--site", site(tmp_path, clean_lab, hosts)])

    assert done.exit_code == 30, done.stderr
    assert words in done.stderr
    assert "next:" in done.stderr
    assert next_words in done.stderr
    assert "Traceback" not in done.stderr


def test_changed_host_key_is_refused_with_its_fingerprint(clean_lab: Lab, tmp_path: Path) -> None:
    """A host that shows another key than known_hosts has is not talked to."""
    wrong = tmp_path / "known_hosts"
    key = clean_lab.ssh_config.parent / "known_hosts"
    lines = [line.split() for line in key.read_text().splitlines()]
    other = next(parts for parts in lines if parts[0] == "10.77.1.2")
    wrong.write_text(f"10.77.1.1 {other[1]} {other[2]}\n")
    text = clean_lab.ssh_config.read_text().replace(str(key), str(wrong))
    config = tmp_path / "config"
    config.write_text(text)
    path = tmp_path / "site.yaml"
    path.write_text(f"hosts:\n  x: {{ssh: root@10.77.1.1, config_file: {config}}}\n")

    done = clean_lab.opsctl(["status", "x", "--site", str(path)])

    assert done.exit_code == 30
    assert "SHA256:" in done.stderr
    assert "key" in done.stderr


def test_sudo_that_asks_is_refused_with_the_sudoers_line(clean_lab: Lab) -> None:
    """become: sudo never waits at a prompt."""
    done = clean_lab.opsctl(["status", "pve1-asks"])

    assert done.exit_code == 30
    assert "NOPASSWD" in done.stderr


def test_whole_site_is_shown_although_one_host_fails(clean_lab: Lab) -> None:
    """The others' facts are there, and the exit code says that something is missing."""
    code, document, _ = status(clean_lab)

    assert code == 30
    reached = {h["name"] for h in document["data"]["hosts"] if h["error"] is None}
    assert {"pve1", "gpu1", "ct129"} <= reached
    assert any("sudo" in finding["text"] for finding in document["findings"])
