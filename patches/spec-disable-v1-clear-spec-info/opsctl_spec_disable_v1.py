"""Known-bad: the incident's second attempt at decoding without drafts in EAGLEWorker. Kept to reproduce its crash.

It clears spec_info and passes the batch on. Its input ids and cache slots are those of the step before.
"""

from sglang.srt.managers.utils import GenerationBatchResult


def too_many(worker, batch):
    threshold = worker.server_args.speculative_disable_batch_threshold
    return threshold is not None and batch.batch_size() > threshold


def decode(worker, batch):
    batch.spec_info = None
    out = worker.target_worker.forward_batch_generation(batch.get_model_worker_batch())
    return GenerationBatchResult(
        logits_output=out.logits_output,
        next_token_ids=out.next_token_ids,
        can_run_cuda_graph=out.can_run_cuda_graph,
    )
