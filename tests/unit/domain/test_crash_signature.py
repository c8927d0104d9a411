"""A signature is the name of a fault: the same everywhere, another for another fault."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from opsctl.domain.crash import Diagnosis, diagnose
from opsctl.sglang.log import open_log, read_lines, read_records, records_of

DATA = Path(__file__).parents[2] / "data"
TRACE = """\
[{day} {rank}] Decode batch, #running-req: {running}, #token: {a}, token usage: 0.01, cuda graph: True
[{day} {rank}] Scheduler hit an exception: Traceback (most recent call last):
  File "{root}/sglang/srt/managers/scheduler.py", line {line}, in run_batch
  File "{root}/sglang/srt/model_executor/cuda_graph_runner.py", line {line}, in foreach_copy
RuntimeError: The size of tensor a ({a}) must match the size of tensor b ({b}) at non-singleton dimension 0
"""
MISMATCH = "RuntimeError: The size of tensor a (8) must match the size of tensor b (9) at dimension"
OTHERS = """\
[{day} {rank}] Scheduler hit an exception: Traceback (most recent call last):
  File "{root}/sglang/srt/managers/scheduler.py", line {line}, in run_batch
{error}
"""


def read(text: str) -> Diagnosis:
    return diagnose(records_of(text))


varying = {
    "day": st.sampled_from(
        ["2026-11-29 10:00:00", "2027-01-02 23:59:59", "2026-11-29 10:00:00.123"]
    ),
    "rank": st.sampled_from(["TP0", "TP7", "DP3 TP3 EP3", "DP0 TP1"]),
    "root": st.sampled_from(
        ["/opt/venv/lib/python3.12/site-packages", "/root/sglang/python", "~/x-1.2/y"]
    ),
    "line": st.integers(1, 9999),
    "running": st.integers(1, 4096),
}


@given(a=st.integers(2, 5000), b=st.integers(2, 5000), **varying)
@settings(max_examples=60, deadline=None)
def test_load_rank_path_line_and_time_do_not_change_a_signature(**values: object) -> None:
    """What differs between two sightings of one fault takes no part."""
    first = read(
        TRACE.format(
            day="2026-11-29 10:00:00", rank="TP0", root="/a", line=1, running=3, a=160, b=10
        )
    )

    again = read(TRACE.format(**values))

    assert again.signature == first.signature


@given(
    pid=st.integers(2, 4_000_000),
    host=st.sampled_from(
        ["10.0.0.7:5000", "192.0.2.14:29500", "[::1]:1", "gpu1.example.org:29500"]
    ),
    rid=st.sampled_from(["0a1b2c3d4e5f60718293a4b5c6d7e8f9", "00000000000000000000000000000000"]),
    path=st.sampled_from(["/models/a/config.json", "/mnt/data-2/b/config.json"]),
    **varying,
)
@settings(max_examples=60, deadline=None)
def test_pids_hosts_request_ids_and_paths_do_not_change_a_signature(
    pid: int, host: str, rid: str, path: str, **values: object
) -> None:
    """Also inside the message itself."""
    error = "ValueError: request '{rid}' of pid {pid} from {host} cannot read {path} after {n} s"
    values.pop("running")

    first = read(
        OTHERS.format(
            day="2026-11-29 10:00:00", rank="TP0", root="/a", line=1,
            error=error.format(rid="f0" * 16, pid=1, host="10.1.1.1:1", path="/x/config.json", n=1),
        )
    )  # fmt: skip
    again = read(
        OTHERS.format(error=error.format(rid=rid, pid=pid, host=host, path=path, n=pid), **values)
    )

    assert again.signature == first.signature


def test_different_faults_have_different_signatures() -> None:
    """No two messages of SGLang that name different faults share a signature."""
    errors = [
        "AttributeError: 'NoneType' object has no attribute 'dtype'",
        "AttributeError: 'NoneType' object has no attribute 'abort'",
        "IndexError: list index out of range",
        "IndexError: index 5 is out of bounds for dimension 0 with size 5",
        "IndexError: index 5 is out of bounds for dimension 1 with size 5",
        "KeyError: 'meta_info'",
        "RuntimeError: CUDA error: invalid device ordinal",
        "OSError: [Errno 5] Input/output error",
        "OSError: [Errno 116] Stale file handle",
        f"{MISMATCH} 0",
        f"{MISMATCH} 1",
    ]

    signatures = {
        read(
            OTHERS.format(day="2026-11-29 10:00:00", rank="TP0", root="/a", line=1, error=error)
        ).signature
        for error in errors
    }

    assert len(signatures) == len(errors)


def test_another_place_is_another_fault() -> None:
    """The same words from another function are another fault."""
    text = TRACE.format(
        day="2026-11-29 10:00:00", rank="TP0", root="/a", line=1, running=3, a=160, b=10
    )

    assert read(text).signature != read(text.replace("foreach_copy", "replay_prepare")).signature


def test_samples_share_a_signature_only_within_a_category() -> None:
    """Over all samples and cases, one signature never stands for two categories."""
    categories: dict[str, set[str | None]] = defaultdict(set)
    files = [*(DATA / "diagnose").glob("*.log"), *(DATA / "cases").glob("*.log")]
    for path in files:
        with open_log(path) as stream:
            found = diagnose(read_records(read_lines(stream)))
        if found.signature is not None:
            categories[found.signature].add(found.category)

    assert all(len(names) == 1 for names in categories.values())
    assert len(categories) > 0.6 * len(json.loads((DATA / "diagnose" / "labels.json").read_text()))
