"""torch versions of the small Triton kernels that EAGLE launches at every step.

Triton's interpreter runs all others. These took nine tenths of the time, almost all of it spent in
the interpreter's own bookkeeping. A kernel is known by its function's name; its replacement gets
the launch's grid and then the kernel's arguments in their order (their names differ by version).
"""

import torch


def interpreter(module):
    """Patch triton.runtime.interpreter."""
    executor = module.GridExecutor
    own = executor.__call__

    def launch(self, *args, **named):
        replacement = REPLACEMENTS.get(self.fn.__name__)
        if replacement is None or callable(self.grid):
            return own(self, *args, **named)
        rest = [named[name] for name in self.arg_names[len(args) :] if name in named]
        return replacement(self.grid, *args, *rest)

    executor.__call__ = launch
    executor.interpreted_call = own  # a test compares the two


def generate_draft_decode_kv_indices(
    grid,
    req_pool_indices,
    req_to_token,
    paged_kernel_lens,
    kv_indices,
    kv_indptr,
    positions,
    pool_len,
    kv_indices_stride,
    kv_indptr_stride,
    *rest,
):
    """For each draft step: where each request's cached and drafted tokens lie, and their bounds."""
    steps, batch, topk = grid
    _only_chains(topk)
    rows = req_pool_indices[:batch].tolist()
    lengths = paged_kernel_lens[:batch].tolist()
    bounds = positions[:batch].cumsum(0)
    counts = torch.arange(1, batch + 1)
    indices, indptr = kv_indices.view(-1), kv_indptr.view(-1)
    for step in range(steps):
        drafted = step + 1
        start = step * kv_indices_stride
        for row, length in zip(rows, lengths, strict=True):
            end = start + length + drafted
            indices[start:end] = req_to_token[row, : length + drafted]
            start = end
        first = step * kv_indptr_stride + 1
        indptr[first : first + batch] = bounds + counts * drafted


def create_flashinfer_kv_indices_triton(
    grid,
    req_to_token,
    req_pool_indices,
    page_kernel_lens,
    kv_indptr,
    kv_start_idx,
    kv_indices,
    *rest,
):
    """Where each request's tokens lie in the KV cache, one request after the other."""
    batch = grid[0]
    starts = [0] * batch if kv_start_idx is None else kv_start_idx[:batch].tolist()
    rows, lengths = req_pool_indices[:batch].tolist(), page_kernel_lens[:batch].tolist()
    places = kv_indptr[:batch].tolist()
    for row, length, start, to in zip(rows, lengths, starts, places, strict=True):
        kv_indices[to : to + length] = req_to_token[row, start : start + length]


def assign_draft_cache_locs_page_size_1(
    grid, req_pool_indices, req_to_token, seq_lens, out_cache_loc, pool_len, topk, steps
):
    """v2: read from each request's row where its drafted tokens go."""
    _only_chains(topk)
    rows, lengths = req_pool_indices[: grid[0]].tolist(), seq_lens[: grid[0]].tolist()
    for number, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        out_cache_loc[number * steps : (number + 1) * steps] = req_to_token[
            row, length : length + steps
        ]


def assign_draft_cache_locs(
    grid,
    req_pool_indices,
    req_to_token,
    seq_lens,
    extend_lens,
    num_new_pages_per_topk,
    out_cache_loc,
    source_cache_loc,
    target_cache_loc,
    last_page_lens_cumsum,
    duplicate_cache_len,
    pool_len,
    topk,
    steps,
    *rest,
):
    """v1: note in each request's row where its drafted tokens go."""
    _only_chains(topk)
    rows, lengths = req_pool_indices[: grid[0]].tolist(), seq_lens[: grid[0]].tolist()
    for number, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        req_to_token[row, length : length + steps] = out_cache_loc[
            number * steps : (number + 1) * steps
        ].to(req_to_token.dtype)


def assign_req_to_token_pool(
    grid, req_pool_indices, req_to_token, start_offset, end_offset, out_cache_loc, *rest
):
    """Note in each request's row where its new tokens went."""
    taken = 0
    rows = req_pool_indices[: grid[0]].tolist()
    starts, ends = start_offset[: grid[0]].tolist(), end_offset[: grid[0]].tolist()
    for row, start, end in zip(rows, starts, ends, strict=True):
        count = end - start
        req_to_token[row, start:end] = out_cache_loc[taken : taken + count].to(req_to_token.dtype)
        taken += count


def compute_position_kernel(
    grid, positions, extend_start_loc, extend_prefix_lens, extend_seq_lens, has_prefix
):
    """Number the new tokens of each request from the end of its prefix on."""
    start = 0
    lengths = extend_seq_lens[: grid[0]].tolist()
    prefixes = extend_prefix_lens[: grid[0]].tolist() if has_prefix else [0] * grid[0]
    for number, (prefix, length) in enumerate(zip(prefixes, lengths, strict=True)):
        positions[start : start + length] = torch.arange(prefix, prefix + length)
        extend_start_loc[number] = start
        start += length


def last_accepted_of_each(grid, accept_tokens, accept_lens, last_tokens, num_draft_tokens):
    """v2: take the last accepted token of each request; each has num_draft_tokens places."""
    places = torch.arange(grid[0]) * num_draft_tokens + accept_lens[: grid[0]].to(torch.int64) - 1
    last_tokens[: grid[0]] = accept_tokens.view(-1)[places].to(last_tokens.dtype)


def create_extend_after_decode_spec_info(
    grid, accept_tokens, seq_lens, accept_lens, positions, last_tokens, *rest
):
    """v1: number the accepted tokens of each request, and take the last of each."""
    start = 0
    pairs = zip(seq_lens[: grid[0]].tolist(), accept_lens[: grid[0]].tolist(), strict=True)
    for number, (length, count) in enumerate(pairs):
        positions[start : start + count] = torch.arange(length - count, length)
        start += count
        last_tokens[number] = accept_tokens[start - 1]


def _only_chains(topk):
    if topk != 1:
        raise RuntimeError("the lab's CPU kernels know chains only (--speculative-eagle-topk 1)")


REPLACEMENTS = {
    "fill_bonus_tokens": last_accepted_of_each,
    "fill_new_verified_id": last_accepted_of_each,  # its name in 0.5.9
    **{
        kernel.__name__: kernel
        for kernel in (
            generate_draft_decode_kv_indices,
            create_flashinfer_kv_indices_triton,
            assign_draft_cache_locs_page_size_1,
            assign_draft_cache_locs,
            assign_req_to_token_pool,
            compute_position_kernel,
            create_extend_after_decode_spec_info,
        )
    },
}
