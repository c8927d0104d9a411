"""The torch stand-ins compute what SGLang's Triton kernels compute (run by Triton's interpreter)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.lab.sglang import environment
from tests.lab.sglang.launch import launch

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(180)]

SCRIPT = """
import sys, torch
from sglang.srt.layers.attention.triton_ops import decode_attention as dec, extend_attention as ext
torch.manual_seed(3)
HEADS, KV_HEADS, DIM, SLOTS = 4, 2, 32, 64
version = sys.argv[1]
scales = () if version == "0.5.9" else (1.0, 1.0)
k, v = torch.randn(2, SLOTS, KV_HEADS, DIM)
lengths = torch.tensor([5, 1, 17])
indptr = torch.tensor([0, 5, 6, 23], dtype=torch.int32)
indices = torch.randperm(SLOTS)[:23].to(torch.int64)

q = torch.randn(3, HEADS, DIM)
both = []
for function in (dec.decode_attention_fwd, dec.triton_decode_attention_fwd):
    out = torch.zeros(3, HEADS, DIM)
    splits = torch.full((3,), 2, dtype=torch.int32)
    function(q, k, v, out, indptr, indices, torch.zeros(3, HEADS, 8, DIM),
             torch.zeros(3, HEADS, 8), splits, 8, DIM**-0.5, *scales)
    both.append(out)
torch.testing.assert_close(*both, rtol=2e-3, atol=2e-3)
print("decode agrees")

counts, qo = [3, 0, 2], torch.tensor([0, 3, 3, 5], dtype=torch.int32)
qe = torch.randn(5, HEADS, DIM)
ke, ve = torch.randn(2, 5, KV_HEADS, DIM)
masks, starts = [], [0]
for count, length in zip(counts, lengths.tolist()):
    mask = torch.ones(count, length + count, dtype=torch.bool)
    mask[:, length:] = torch.eye(count, dtype=torch.bool)
    masks.append(mask.flatten()); starts.append(starts[-1] + mask.numel())
for mask in (None, torch.cat(masks)):
    both = []
    for function in (ext.extend_attention_fwd, ext.triton_extend_attention_fwd):
        out = torch.zeros(5, HEADS, DIM)
        where = None if mask is None else torch.tensor(starts)
        function(qe, ke, ve, out, k, v, qo, indptr, indices, mask, True, where, 3, *scales,
                 DIM**-0.5)
        both.append(out)
    torch.testing.assert_close(*both, rtol=2e-3, atol=2e-3)
    print("extend agrees", mask is not None)
"""


@pytest.mark.parametrize(
    "version", [environment.VERSIONS[0], pytest.param("0.5.9", marks=pytest.mark.slow)]
)
def test_attention_agrees_with_the_kernels_that_it_replaces(version: str, tmp_path: Path) -> None:
    """Decode and extend, causal and with a tree mask, an empty request among them."""
    python = environment.build(environment.default_prefix(), version, print)
    script = tmp_path / "compare.py"
    script.write_text(SCRIPT)
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(python), str(script), version],
        env={**clean, **launch(version, 1, eagle=True).env},
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.stdout.splitlines() == [
        "decode agrees",
        "extend agrees False",
        "extend agrees True",
    ], done.stderr[-3000:]
