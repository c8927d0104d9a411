"""Known-bad: the incident's first attempt at decoding without drafts in EAGLEWorker. Kept to reproduce its crash.

It hands the target one token per request and no spec_info, with cache slots as for a verify step. A speculating
server has captured graphs for the verify step only, num_draft_tokens rows per request.
"""

import functools
import logging

import torch

from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.mem_cache.common import alloc_token_slots

logger = logging.getLogger(__name__)


def too_many(worker, batch):
    threshold = worker.server_args.speculative_disable_batch_threshold
    if threshold is None:
        return False
    _say_in_play(threshold)
    return batch.batch_size() > threshold


@functools.cache
def _say_in_play(threshold):
    """Leave one line that only a server has in which this worker decodes: opsctl looks for it."""
    logger.info("opsctl spec-disable-v1: in play: no drafts above %d running requests", threshold)


def decode(worker, batch):
    draft = batch.spec_info
    bonus = draft.bonus_tokens if hasattr(draft, "bonus_tokens") else draft.verified_id
    rows = batch.batch_size() * worker.speculative_num_draft_tokens
    batch.input_ids = bonus.to(torch.int64)
    batch.out_cache_loc = alloc_token_slots(batch.tree_cache, rows)
    batch.spec_info = None
    out = worker.target_worker.forward_batch_generation(batch.get_model_worker_batch())
    return GenerationBatchResult(
        logits_output=out.logits_output,
        next_token_ids=out.next_token_ids,
        can_run_cuda_graph=out.can_run_cuda_graph,
    )
