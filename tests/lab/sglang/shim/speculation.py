"""torch versions of EAGLE's kernels, for chains of draft tokens (top-k 1)."""

import torch


def eagle_utils(module):
    """Patch sglang.srt.speculative.eagle_utils."""
    module.sgl_build_tree_kernel_efficient = build_tree
    module.verify_tree_greedy_func = verify_greedy


def eagle_info_v2(module):
    """Patch sglang.srt.speculative.eagle_info_v2."""
    module.assign_extend_cache_locs_func = assign_extend_cache_locs


def build_tree(
    parent_list,
    top_scores_index,
    seq_lens,
    tree_mask,
    positions,
    retrieve_index,
    retrieve_next_token,
    retrieve_next_sibling,
    topk,
    spec_steps,
    num_verify_tokens,
    tree_mask_mode,
):
    """Describe one chain per request: token i follows token i - 1, nobody has a sibling."""
    if topk != 1:
        raise RuntimeError(
            "the lab's CPU build_tree knows chains only (--speculative-eagle-topk 1)"
        )
    if int(tree_mask_mode) != 0:
        raise RuntimeError("the lab's CPU build_tree knows the full mask only")
    batch, chain = seq_lens.numel(), num_verify_tokens
    retrieve_index.copy_(torch.arange(batch * chain).view(batch, chain))
    following = torch.arange(1, chain + 1)
    following[-1] = -1
    retrieve_next_token.copy_(following.expand(batch, chain))
    retrieve_next_sibling.fill_(-1)
    depth = torch.arange(chain)
    positions[: batch * chain].copy_((seq_lens.view(-1, 1) + depth).flatten())
    causal = torch.tril(torch.ones(chain, chain, dtype=torch.bool))
    start = 0
    for length in seq_lens.tolist():
        end = start + chain * (length + chain)
        tree_mask[start:end].view(chain, length + chain)[:, length:] = causal
        start = end


def verify_greedy(
    predicts, accept_index, accept_token_num, candidates, *retrieve, target_predict, **named
):
    """Accept drafts of each chain for as long as the target predicts the same tokens."""
    batch, chain = candidates.shape
    target = target_predict.view(batch, chain)
    right = (candidates[:, 1:] == target[:, :-1]).to(torch.int64)
    accepted = right.cumprod(dim=1).sum(dim=1).tolist()
    for row, count in enumerate(accepted):
        first = row * chain
        accept_index[row, : count + 1] = torch.arange(first, first + count + 1)
        predicts[first : first + count + 1] = target[row, : count + 1].to(predicts.dtype)
        accept_token_num[row] = count
    return predicts, accept_index, accept_token_num


def assign_extend_cache_locs(
    req_pool_indices, req_to_token, start_offset, end_offset, batch_size, draft_token_num, device
):
    """Return where in the KV cache each request's new tokens go, one request after the other."""
    ranges = zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True)
    return torch.cat([req_to_token[row, start:end] for row, start, end in ranges]).to(torch.int64)
