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

SMALL_SCRIPT = """
import sys, torch
from triton.runtime.interpreter import GridExecutor
from opsctl_lab_cpu import small_kernels
from sglang.srt.speculative import spec_utils, eagle_info_v2
from sglang.srt.layers.attention import utils as attention_utils
from sglang.srt.model_executor import forward_batch_info
torch.manual_seed(5)
POOL, STEPS, BATCH = 40, 3, 3
lengths, rows = torch.tensor([7, 1, 12]), torch.tensor([2, 0, 3])
table = torch.arange(5 * POOL, dtype=torch.int32).view(5, POOL)
indptr = torch.tensor([0, 7, 8, 20], dtype=torch.int32)
accepts = torch.tensor([2, 1, 4], dtype=torch.int32)
tokens = torch.randint(0, 99, (BATCH * 4,), dtype=torch.int32)
last = getattr(eagle_info_v2, "fill_bonus_tokens", None) or eagle_info_v2.fill_new_verified_id

def zeros(*shape, dtype=torch.int64):
    return torch.zeros(shape, dtype=dtype)

def cases():
    out = zeros(STEPS, 64), zeros(STEPS, 8, dtype=torch.int32)
    yield spec_utils.generate_draft_decode_kv_indices, (STEPS, BATCH, 1), (
        rows, table, lengths, *out, lengths, POOL, 64, 8, 4, 4, 4, 1), out
    for first in (None, torch.tensor([1, 0, 2])):
        out = (zeros(32),)
        yield attention_utils.create_flashinfer_kv_indices_triton, (BATCH,), (
            table, rows, lengths, indptr, first, *out, POOL), out
    out = (zeros(BATCH * STEPS),)
    yield eagle_info_v2.assign_draft_cache_locs_page_size_1, (BATCH,), (
        rows, table, lengths, *out, POOL, 1, STEPS), out
    out = (table.clone(),)
    yield spec_utils.assign_draft_cache_locs, (BATCH,), (
        rows, *out, lengths, None, None, torch.arange(500, 500 + BATCH * STEPS), None, None, None,
        0, POOL, 1, STEPS, 1, 4, 4), out
    out = (table.clone(),)
    yield spec_utils.assign_req_to_token_pool, (BATCH,), (
        rows, *out, lengths, lengths + torch.tensor([4, 0, 2]), torch.arange(700, 706), POOL, 4), out
    for has_prefix in (True, False):
        out = zeros(20), zeros(BATCH)
        yield forward_batch_info.compute_position_kernel, (BATCH,), (
            *out, torch.tensor([3, 0, 9]), lengths, has_prefix), out
    out = (zeros(BATCH, dtype=torch.int32),)
    yield last, (BATCH,), (tokens, accepts, *out, 4), out
    out = zeros(8), zeros(BATCH, dtype=torch.int32)
    yield spec_utils.create_extend_after_decode_spec_info, (BATCH,), (
        tokens, lengths + 4, accepts, *out, 4), out

ours, seen = GridExecutor.__call__, set()
for (kernel, grid, arguments, out), (_, _, again, theirs) in zip(cases(), cases(), strict=True):
    name = kernel.fn.__name__
    assert name in small_kernels.REPLACEMENTS, name
    kernel[grid](*arguments)
    GridExecutor.__call__ = GridExecutor.interpreted_call
    kernel[grid](*again)
    GridExecutor.__call__ = ours
    for one, other in zip(out, theirs, strict=True):
        assert one.any(), name
        torch.testing.assert_close(one, other, rtol=0, atol=0, msg=name)
    seen.add(name)
known = {"fill_bonus_tokens", "fill_new_verified_id"}
assert seen | known == set(small_kernels.REPLACEMENTS), set(small_kernels.REPLACEMENTS) - seen
print("all agree")
"""

VERSIONS = [environment.VERSIONS[0], pytest.param("0.5.9", marks=pytest.mark.slow)]


def run_in(version: str, script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a script with the environment of a version, as its server would run."""
    python = environment.build(environment.default_prefix(), version, print)
    path = folder / "compare.py"
    path.write_text(script)
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [str(python), str(path), version],
        env={**clean, **launch(version, 1, eagle=True).env},
        capture_output=True,
        text=True,
        timeout=150,
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_small_kernels_agree_with_the_originals(version: str, tmp_path: Path) -> None:
    """Each replaced kernel writes exactly what Triton's interpreter writes; none is left out."""
    done = run_in(version, SMALL_SCRIPT, tmp_path)
    assert done.stdout == "all agree\n", done.stderr[-3000:]


@pytest.mark.parametrize("version", VERSIONS)
def test_attention_agrees_with_the_kernels_that_it_replaces(version: str, tmp_path: Path) -> None:
    """Decode and extend, causal and with a tree mask, an empty request among them."""
    done = run_in(version, SCRIPT, tmp_path)
    wanted = ["decode agrees", "extend agrees False", "extend agrees True"]
    assert done.stdout.splitlines() == wanted, done.stderr[-3000:]
