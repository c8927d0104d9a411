"""Known-bad: the incident's second attempt at decoding without drafts in EAGLEWorker. Kept to reproduce its crash.

It clears spec_info and passes the batch on. Its input ids and cache slots are those of the step before.
"""

import functools
import logging

from sglang.srt.managers.utils import GenerationBatchResult

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
    logger.info(
        "opsctl spec-disable-v1-clear-spec-info: in play: no drafts above %d running requests",
        threshold,
    )


def decode(worker, batch):
    batch.spec_info = None
    out = worker.target_worker.forward_batch_generation(batch.get_model_worker_batch())
    return GenerationBatchResult(
        logits_output=out.logits_output,
        next_token_ids=out.next_token_ids,
        can_run_cuda_graph=out.can_run_cuda_graph,
    )
