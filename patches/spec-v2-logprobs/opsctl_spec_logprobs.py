"""opsctl's spec-v2-logprobs: log probabilities of output tokens under the overlap worker of speculative decoding.

0.5.9 computes none there, and a request that asks for them kills the scheduler. Later versions do the same as this.
"""

from __future__ import annotations

import torch

from sglang.srt.environ import envs
from sglang.srt.layers.utils.logprob import get_token_ids_logprobs, get_top_logprobs


def attach(batch, logits_output, predict, accept_index):
    """Add the log probabilities of accepted tokens: a row per request, a column per accepted place."""
    if not batch.return_logprob or batch.forward_mode.is_idle():
        return
    count, width = accept_index.shape
    places = accept_index.long().clamp(min=0).flatten()  # -1: not accepted, and not read later
    logits = logits_output.next_token_logits[places]
    info = batch.sampling_info
    if not info.is_all_greedy and not envs.SGLANG_RETURN_ORIGINAL_LOGPROB.get():
        logits = logits / torch.repeat_interleave(info.temperatures, width, dim=0)
    logprobs = torch.log_softmax(logits, dim=-1)
    logprobs.clamp_(min=torch.finfo(logprobs.dtype).min)
    tokens = predict[places].long()
    rows = torch.arange(count * width, device=tokens.device)
    logits_output.next_token_logprobs = logprobs[rows, tokens].view(count, width)
    if any(number > 0 for number in batch.top_logprobs_nums or ()):
        numbers = [number for number in batch.top_logprobs_nums for _ in range(width)]
        found = get_top_logprobs(logprobs, numbers)
        logits_output.next_token_top_logprobs_val, logits_output.next_token_top_logprobs_idx = found
    if any(ids is not None for ids in batch.token_ids_logprobs or ()):
        asked = [ids for ids in batch.token_ids_logprobs for _ in range(width)]
        found = get_token_ids_logprobs(logprobs, asked)
        logits_output.next_token_token_ids_logprobs_val = found[0]
        logits_output.next_token_token_ids_logprobs_idx = found[1]


def append(req, row, tokens, logits_output):
    """Hand one request the log probabilities of the tokens that it has just got."""
    values = logits_output.next_token_logprobs[row].tolist()
    first = row * len(values)
    for place, (token, value) in enumerate(zip(tokens, values), start=first):
        req.output_token_logprobs_val.append(value)
        req.output_token_logprobs_idx.append(token)
        if req.top_logprobs_num > 0:
            req.output_top_logprobs_val.append(logits_output.next_token_top_logprobs_val[place])
            req.output_top_logprobs_idx.append(logits_output.next_token_top_logprobs_idx[place])
        if req.token_ids_logprob is not None:
            values_of_ids = logits_output.next_token_token_ids_logprobs_val[place]
            req.output_token_ids_logprobs_val.append(values_of_ids)
            ids = logits_output.next_token_token_ids_logprobs_idx[place]
            req.output_token_ids_logprobs_idx.append(ids)
