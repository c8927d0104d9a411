"""Fixtures of the lab tests: `lab` (session), `clean_lab` (each test starts with idle, whole GPUs)."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.lab import lifecycle
from tests.lab.fixture import Lab, in_network
from tests.lab.instance import find_instance


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """Use the lab that is up (built anew if the lab's code changed), or one that goes at the end.

    The test process joins the lab's network, so in-process clients reach 10.77.1.1 and friends.
    """
    if os.geteuid() != 0:
        pytest.skip("the lab's hosts need root (containers, network namespaces)")
    instance = find_instance()
    record = instance.ready_record()
    own = record is None
    if record is None or (record.mode == "hosts" and not instance.is_inside()):
        record = lifecycle.up(instance)
    if record.mode != "hosts":
        pytest.skip(f"the lab {instance.name} is up in mode {record.mode}, not with hosts")
    try:
        with in_network(instance, record):
            yield Lab(instance, record)
    finally:
        if own:
            lifecycle.down(instance)


@pytest.fixture
def clean_lab(lab: Lab) -> Iterator[Lab]:
    """Give a lab as `up` makes it: container 129 runs, GPUs idle and without faults; leave it so."""
    lab.clean()
    yield lab
    lab.clean_gpus()
