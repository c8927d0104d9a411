"""A server that runs already becomes an entry of the site file, and is found again as the same process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.fixture import Lab
from tests.lab.stopping import alive, serve, start, wait_for
from tests.schemas import read_document

pytestmark = [pytest.mark.lab, pytest.mark.timeout(240)]
SECRET = "hf_thisIsNoRealSecret0123"
SITE = """\
# the team's site
hosts:
  node: {{ssh: root@10.77.1.1, config_file: {config}}}   # the Proxmox node
servers: {{}}
# the end
"""


@pytest.fixture
def site(clean_lab: Lab, tmp_path: Path) -> Iterator[Path]:
    """A site file with the node and no server; what a test starts in container 129 is ended."""
    path = tmp_path / "opsctl.yaml"
    path.write_text(SITE.format(config=clean_lab.ssh_config))
    yield path
    for host in ("ct129", "gpu1"):
        clean_lab.on(host, ["/usr/bin/pkill", "-KILL", "-f", "^/opt/sglang/bin/python -m sglang"])


def opsctl(lab: Lab, site: Path, *words: str) -> tuple[int, dict[str, Any], str]:
    done = lab.opsctl(
        [*words, "--json", "--site", str(site), "--state", str(site.parent / "state")]
    )
    assert "Traceback" not in done.stderr
    try:
        return done.exit_code, read_document(done.stdout), done.stdout + done.stderr
    except ValueError:
        raise AssertionError((done.exit_code, done.stdout, done.stderr)) from None


def outer_pid(lab: Lab, inner: int) -> int:
    """Return the node's number of a process of container 129."""
    script = "import glob,sys\nfor f in glob.glob('/proc/[0-9]*/status'):\n"
    script += "  t=open(f).read(); n=t.split('NSpid:')[1].split('\\n')[0].split()\n"
    script += "  c=open(f.replace('status','cgroup')).read()\n"
    script += f"  if n[-1]=='{inner}' and len(n)>1 and 'lxc/129' in c: print(n[0])"
    return int(lab.on("pve1", ["/usr/bin/python3", "-c", script]).stdout.split()[-1])


def test_a_server_in_a_container_is_adopted_by_the_pid_that_its_node_shows(
    clean_lab: Lab, site: Path
) -> None:
    """The entry names the container, its GPUs by UUID and what it was started with; the server is not
    touched; secrets are references; status and stop then mean the same process."""
    command = f"env HF_TOKEN={SECRET} SGLANG_ENABLE_SPEC_V2=1 UNRELATED=x"
    inner = start(
        clean_lab, "ct129",
        f"{command} /opt/sglang/bin/python -m sglang.launch_server --model-path=/models/GLM-5-NVFP4 "
        f"--port 30000 --tp 8 --mem-fraction-static 0.90 --host 0.0.0.0 --lab-startup-s 0 --api-key {SECRET}",
    )  # fmt: skip
    wait_for(lambda: _listens(clean_lab, 30000), "the port")
    pid = outer_pid(clean_lab, inner)
    before = site.read_text()

    planned = opsctl(clean_lab, site, "adopt", str(pid), "--host", "node", "--dry-run")
    assert (planned[0], site.read_text()) == (0, before)
    adopted = opsctl(
        clean_lab, site, "adopt", str(pid), "--host", "node", "--name", "glm5", "--yes"
    )
    again = opsctl(clean_lab, site, "adopt", str(pid), "--host", "node", "--yes")

    assert adopted[0] == 0, adopted[2]
    entry = adopted[1]["data"]["entry"]
    assert SECRET not in adopted[2] + planned[2] + site.read_text()
    assert entry["env"] == {"SGLANG_ENABLE_SPEC_V2": "1", "HF_TOKEN": {"env": "HF_TOKEN"}}
    assert entry["args"] == {
        "tp": 8, "mem-fraction-static": "0.90", "host": "0.0.0.0", "lab-startup-s": 0,
    }  # fmt: skip
    assert (entry["host"], entry["python"], entry["port"]) == (
        "ct129",
        "/opt/sglang/bin/python",
        30000,
    )
    assert entry["gpus"]["expect"] == 8
    assert all(uuid.startswith("GPU-") for uuid in entry["gpus"]["select"])
    assert site.read_text().startswith("# the team's site\n")
    assert site.read_text().endswith("# the end\n")
    assert "# the Proxmox node" in site.read_text()
    assert (again[0], again[1]["outcome"], again[1]["data"]["name"]) == (
        0,
        "already-adopted",
        "glm5",
    )
    environ = {"HF_TOKEN": "x", "GLM5_API_KEY": "x"}
    check = clean_lab.opsctl(["config", "check", "--site", str(site)], **environ)
    assert check.exit_code == 0, check.stderr

    _, seen, _ = opsctl(clean_lab, site, "status", "glm5")
    (shown,) = seen["data"]["servers"]
    assert shown["state"] == "listening"
    assert (shown["processes"][0]["pid"], shown["processes"][0]["ns_pid"]) == (pid, inner)
    code, plan, text = opsctl(clean_lab, site, "stop", "glm5", "--dry-run")
    assert code == 0, text
    members = [one["pid"] for one in plan["data"]["processes"] if one["class"] == "member"]
    assert pid in members
    assert len(members) >= 10
    assert alive(clean_lab, "ct129", inner)


def test_what_is_no_server_is_refused_and_says_what_it_is(clean_lab: Lab, site: Path) -> None:
    """A program that only mentions sglang is none, whatever its arguments say; the file stays."""
    fake = start(clean_lab, "gpu1", "sh -c 'sleep 300; : python -m sglang.launch_server'")
    script = "rm -f /tmp/wait; mkfifo /tmp/wait; exec 3<>/tmp/wait; read -t 120 -u 3"
    clean_lab.on("gpu1", ["/bin/sh", "-c", f"echo '{script}' >/tmp/sglang.launch_server"])
    named = start(
        clean_lab, "gpu1",
        "python3 -c \"import os; os.chdir('/tmp'); "
        "os.execv('/bin/bash', ['python3', '-m', 'sglang.launch_server'])\"",
    )  # fmt: skip
    before = site.read_text()
    try:
        results = [
            opsctl(clean_lab, site, "adopt", str(pid), "--host", "root@10.77.1.2", "--yes")
            for pid in (fake, named, 1, 4194303)
        ]
    finally:
        clean_lab.on("gpu1", ["/bin/kill", "-9", str(fake), str(named)])

    codes = [(code, document["findings"][0]["code"]) for code, document, _ in results]
    assert codes == [(50, "not-a-server")] * 3 + [(50, "no-process")]
    assert site.read_text() == before


def test_the_only_server_of_a_new_ssh_host_is_adopted_without_a_pid(
    clean_lab: Lab, site: Path
) -> None:
    """A host that the site does not know gets an entry; a worker's pid means its server."""
    pid = serve(clean_lab, "gpu1", 30001)
    wait_for(lambda: _listens(clean_lab, 30001, "gpu1"), "the port")

    code, document, text = opsctl(clean_lab, site, "adopt", "--host", "root@10.77.1.2", "--yes")

    assert code == 0, text
    assert document["data"]["pid"] == pid
    assert document["data"]["hosts"] == {"gpu1": {"ssh": "root@10.77.1.2"}}
    name = document["data"]["name"]
    _, seen, _ = opsctl(clean_lab, site, "status", name)
    assert seen["data"]["servers"][0]["processes"][0]["pid"] == pid
    assert clean_lab.opsctl(["config", "check", "--site", str(site)]).exit_code == 0


def _listens(lab: Lab, port: int, host: str = "ct129") -> bool:
    done = lab.on(host, ["/usr/bin/ss", "-Hltn", f"sport = :{port}"])
    return str(port) in done.stdout


def test_init_makes_a_checked_site_file_from_a_running_server_in_seconds(
    clean_lab: Lab, tmp_path: Path
) -> None:
    """The node's container and its server are found; the file passes, and is not overwritten."""
    inner = serve(clean_lab, "ct129", 30000, tp=8)
    wait_for(lambda: _listens(clean_lab, 30000), "the port")
    path = tmp_path / "opsctl.yaml"
    try:
        planned = opsctl(clean_lab, path, "init", "--host", "root@10.77.1.1", "--dry-run")
        assert (planned[0], path.exists()) == (0, False)
        unasked = opsctl(clean_lab, path, "init", "--host", "root@10.77.1.1")
        code, document, text = opsctl(clean_lab, path, "init", "--host", "root@10.77.1.1", "--yes")
        assert code == 0, text
        (server,) = document["data"]["servers"]
        _, seen, _ = opsctl(clean_lab, path, "status", server["name"])
        again = opsctl(clean_lab, path, "init", "--host", "root@10.77.1.1", "--yes")
        check = clean_lab.opsctl(["config", "check", "--site", str(path)])
    finally:
        clean_lab.on(
            "ct129", ["/usr/bin/pkill", "-KILL", "-f", "^/opt/sglang/bin/python -m sglang"]
        )

    assert unasked[0] == 50  # nobody to ask
    assert (server["host"], server["ns_pid"]) == ("ct129", inner)
    assert seen["data"]["servers"][0]["processes"][0]["ns_pid"] == inner
    assert (again[0], again[1]["findings"][0]["code"]) == (50, "exists")
    assert check.exit_code == 0, check.stderr
    written = path.read_text()
    assert "# ct130: {pct: 130, via: pve1}" in written
    assert "8 x NVIDIA" in written
