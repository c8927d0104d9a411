"""torch versions of the two attention kernels behind ``--attention-backend triton``.

Each request is computed by itself and in float32, so its result does not depend on what else is
in the batch: a server gives the same greedy tokens at every concurrency.
"""

import torch


def decode(module):
    """Patch sglang.srt.layers.attention.triton_ops.decode_attention."""
    module.triton_decode_attention_fwd = module.decode_attention_fwd  # a test compares the two
    module.decode_attention_fwd = decode_attention


def extend(module):
    """Patch sglang.srt.layers.attention.triton_ops.extend_attention."""
    module.triton_extend_attention_fwd = module.extend_attention_fwd
    module.extend_attention_fwd = extend_attention


def decode_attention(
    q,
    k_buffer,
    v_buffer,
    o,
    kv_indptr,
    kv_indices,
    attn_logits,
    attn_lse,
    num_kv_splits,
    max_kv_splits,
    sm_scale,
    *scales,
    logit_cap=0.0,
    sinks=None,
    xai_temperature_len=-1,
    **named,
):
    """One new token per request against its KV cache; 0.5.12 has two scales more than 0.5.9."""
    _only_plain(logit_cap, sinks, xai_temperature_len, scales)
    bounds = kv_indptr.tolist()
    for row in range(q.shape[0]):
        places = kv_indices[bounds[row] : bounds[row + 1]]
        o[row : row + 1] = _attend(
            q[row : row + 1], k_buffer[places], v_buffer[places], sm_scale, None
        )


def extend_attention(
    q_extend,
    k_extend,
    v_extend,
    o_extend,
    k_buffer,
    v_buffer,
    qo_indptr,
    kv_indptr,
    kv_indices,
    custom_mask,
    is_causal,
    mask_indptr,
    max_len_extend,
    *scales_and_sm_scale,
    sm_scale=None,
    logit_cap=0.0,
    skip_prefix_custom_mask=True,
    sliding_window_size=-1,
    sinks=None,
    window_kv_offsets=None,
    xai_temperature_len=-1,
):
    """New tokens of each request against its prefix in the cache and against each other.

    0.5.9 passes ``sm_scale`` as the 14th argument, 0.5.12 ``k_scale, v_scale, sm_scale``.
    """
    *scales, last = scales_and_sm_scale or (None,)
    sm_scale = sm_scale or last or q_extend.shape[-1] ** -0.5
    _only_plain(logit_cap, sinks, xai_temperature_len, scales, sliding_window_size)
    queries, prefixes = qo_indptr.tolist(), kv_indptr.tolist()
    masks = mask_indptr.tolist() if custom_mask is not None else None
    for row in range(len(queries) - 1):
        first, last = queries[row], queries[row + 1]
        count = last - first
        if count == 0:
            continue
        places = kv_indices[prefixes[row] : prefixes[row + 1]]
        visible = torch.ones(count, len(places) + count, dtype=torch.bool)
        if masks is not None:
            start = masks[row]
            asked = custom_mask[start : start + visible.numel()].view(visible.shape).bool()
            visible[:, len(places) :] = asked[:, len(places) :]
            if not skip_prefix_custom_mask:
                visible = asked
        elif is_causal:
            visible[:, len(places) :] = torch.tril(torch.ones(count, count, dtype=torch.bool))
        keys = torch.cat([k_buffer[places], k_extend[first:last].to(k_buffer.dtype)])
        values = torch.cat([v_buffer[places], v_extend[first:last].to(v_buffer.dtype)])
        o_extend[first:last] = _attend(q_extend[first:last], keys, values, sm_scale, visible)


def _attend(q, k, v, scale, visible):
    """Return softmax(q k^T) v with grouped heads: q (n, heads, d), k and v (m, kv_heads, d)."""
    count, heads, dim = q.shape
    groups = heads // k.shape[1]
    queries = q.float().view(count, k.shape[1], groups, dim).permute(1, 2, 0, 3)
    keys = k.float().permute(1, 2, 0).unsqueeze(1)
    scores = torch.matmul(queries, keys) * scale
    if visible is not None:
        scores = scores.masked_fill(~visible, float("-inf"))
    values = v.float().permute(1, 0, 2).unsqueeze(1)
    result = torch.matmul(torch.softmax(scores, dim=-1), values)
    return result.permute(2, 0, 1, 3).reshape(count, heads, v.shape[-1]).to(q.dtype)


def _only_plain(logit_cap, sinks, xai_temperature_len, scales, sliding_window_size=-1):
    odd = [scale for scale in scales if scale not in (None, 1.0)]
    if logit_cap or sinks is not None or xai_temperature_len > 0 or sliding_window_size > 0 or odd:
        raise RuntimeError("the lab's CPU attention knows plain grouped-query attention only")
