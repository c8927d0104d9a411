"""Bring a lab up and take it down."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.lab import access, api, cgroups, gpus, hosts, nvml, packages, processes, rootfs, site
from tests.lab.enter import run_inside
from tests.lab.errors import LabError
from tests.lab.fixture import Lab
from tests.lab.instance import CHECKOUT, Instance, Record, hash_sources, read_boot_id

BUILD_S = 200


def up(instance: Instance, *, fleet: int = 0) -> Record:
    """Bring the lab up, or return the one that is up already.

    Raises:
        LabError: not root, another `up` or `down` runs, or something did not come up.
    """
    if instance.is_inside():
        raise LabError("this already runs inside the lab")
    if os.geteuid() != 0:
        raise LabError(
            "the lab's containers need root; without it: python -m tests.lab up --no-root"
        )
    if fleet:
        from tests.lab.fleet import addresses

        addresses(fleet)  # refuses a number that cannot be
    with instance.locked("up"):
        wanted = ("fleet" if fleet else "hosts", fleet, hash_sources())
        record = instance.ready_record()
        if record and (record.mode, record.fleet, record.sources) == wanted:
            if not fleet:
                _write_sites(instance)  # SGLang may have been installed since
                Lab(instance, record).restore()
            return record
        if record and (record.mode, record.fleet) != wanted[:2]:
            raise LabError(
                f"the lab {instance.name} is up in mode {record.mode}; take it down first, "
                "or choose another OPSCTL_LAB"
            )
        if record:
            print("lab: the lab's own code changed: building the hosts anew", file=sys.stderr)
        tear_down(instance)
        started = time.monotonic()
        rootfs.check_machine()
        packages.install(packages.NEEDED)
        try:
            return _build(instance, fleet, started)
        except BaseException:
            tear_down(instance, keep_logs=True)
            raise


def _build(instance: Instance, fleet: int, started: float) -> Record:
    record = Record("building", "fleet" if fleet else "hosts", read_boot_id(), fleet=fleet)
    record.sources = hash_sources()
    instance.write_record(record)
    instance.log_dir.mkdir(exist_ok=True)
    instance.cache.mkdir(parents=True, exist_ok=True)
    access.make_client_key(instance)
    nvml.compiled_library(instance)
    if fleet:
        from tests.lab import fleet as fleets

        fleets.prepare(instance, fleet)
        access.write_client_files(instance, fleets.ssh_hosts(fleet))
        instance.site_file.write_text(site.fleet_site(instance, fleets.addresses(fleet)))
    else:
        for host in hosts.HOSTS:
            gpus.create(instance.gpu_dirs / host.name, host.name)
        access.write_client_files(instance, hosts.ssh_hosts())
        api.make(instance, ("pve1",), hosts.PVE1.addresses)
        _write_sites(instance)
    with _keeper(instance, record) as commit:
        _build_inside(instance, record)
        record.phase, record.seconds = "ready", round(time.monotonic() - started, 1)
        instance.write_record(record)
        os.write(commit, b"y")
    return record


def _write_sites(instance: Instance) -> None:
    instance.site_file.write_text(site.tidy_site(instance))
    instance.corners_file.write_text(site.corners_site(instance))
    instance.api_file.write_text(site.api_site(instance))


@contextmanager
def _keeper(instance: Instance, record: Record) -> Iterator[int]:
    """Start the keeper; it stays only if "y" is written to the yielded descriptor."""
    read_end, commit = os.pipe()
    try:
        identity = _start_keeper(instance, read_end)
        record.keeper_pid, record.keeper_ticks = identity["pid"], identity["ticks"]
        instance.write_record(record)
        yield commit
    finally:
        os.close(commit)


def _start_keeper(instance: Instance, commit: int) -> dict[str, int]:
    try:
        with subprocess.Popen(
            [sys.executable, "-m", "tests.lab.keeper", str(instance.dir), str(commit)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[commit],
            cwd=CHECKOUT,
            env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            ready, _, _ = select.select([process.stdout], [], [], 30)
            line = process.stdout.readline() if ready else b""
            if line:
                return dict(json.loads(line))
            process.kill()
            words = process.stderr.read(4000).decode(errors="replace").strip().splitlines()[-1:]
    finally:
        os.close(commit)
    raise LabError(f"the lab's first process did not start: {' '.join(words) or 'time out'}")


def _build_inside(instance: Instance, record: Record) -> None:
    mode = ["fleet", str(record.fleet)] if record.fleet else ["hosts"]
    argv = [sys.executable, "-m", "tests.lab.build", *mode]
    try:
        done = run_inside(instance, record, argv, timeout_s=BUILD_S, cwd=CHECKOUT)
    except subprocess.TimeoutExpired:
        raise LabError(
            f"the hosts were not up within {BUILD_S} s; logs: {instance.log_dir}"
        ) from None
    if done.returncode != 0:
        words = done.stderr.decode(errors="replace").strip().splitlines()
        (instance.log_dir / "build.log").write_bytes(done.stderr)
        last = words[-1].removeprefix("lab: ") if words else f"exit {done.returncode}"
        raise LabError(f"{last}; logs: {instance.log_dir}")


def down(instance: Instance, *, keep_logs: bool = False) -> bool:
    """Take the lab down; return whether there was anything. ``keep_logs``: but for the logs of its hosts."""
    if instance.is_inside():
        raise LabError("this runs inside the lab; leave it first")
    with instance.locked("down"):
        there = instance.dir.exists()
        tear_down(instance, keep_logs=keep_logs and any_logs(instance))
        return there


def any_logs(instance: Instance) -> bool:
    """Return whether a lab, or what is left of one, has logs."""
    return instance.log_dir.is_dir() and any(instance.log_dir.iterdir())


def tear_down(instance: Instance, *, keep_logs: bool = False) -> None:
    """Remove whatever there is of the lab, whole or cut.

    Raises:
        LabError: something would not go.
    """
    record = instance.read_record()
    if record and record.boot_id == read_boot_id():
        cgroups.thaw(instance.cgroup)
        if record.mode == "no-root":
            from tests.lab import rootless

            rootless.stop(record)
        elif record.keeper_pid is not None:
            processes.kill_namespace(record.keeper_pid, record.keeper_ticks)
    left = cgroups.remove(instance.cgroup, 0.5)
    if left and cgroups.kill(instance.cgroup):  # a lab whose record was lost
        left = cgroups.remove(instance.cgroup)
    if left:
        raise LabError(f"cgroups of the lab are still in use: {', '.join(map(str, left[:3]))}")
    if not instance.dir.exists():
        return
    for entry in instance.dir.iterdir():
        if keep_logs and entry == instance.log_dir:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    if not keep_logs:
        instance.dir.rmdir()
