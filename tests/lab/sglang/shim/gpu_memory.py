"""Lab GPU memory for real schedulers: taken with the weights and with the KV cache.

OPSCTL_LAB_HOLD is ``GPU:MIB,...``: what the one CPU scheduler holds of which lab GPU. With tensor
parallelism the list is dealt out: rank r takes entries r, r + tp, r + 2 tp and so on.
"""

import os

WEIGHTS_SHARE = 0.4
_held = []


def model_runner(module):
    """Patch sglang.srt.model_executor.model_runner: the target's runner takes the memory."""
    runner = module.ModelRunner
    load_model, init_memory_pool = runner.load_model, runner.init_memory_pool

    def load(self, *args, **named):
        if not self.is_draft_worker:
            take(self.tp_rank, self.tp_size, WEIGHTS_SHARE)
        return load_model(self, *args, **named)

    def allocate(self, *args, **named):
        if not self.is_draft_worker:
            take(self.tp_rank, self.tp_size, 1 - WEIGHTS_SHARE)
        return init_memory_pool(self, *args, **named)

    runner.load_model, runner.init_memory_pool = load, allocate


def wanted(text):
    """Return [(gpu, mib), ...] of OPSCTL_LAB_HOLD."""
    pairs = [item.split(":") for item in text.split(",") if item.strip()]
    return [(int(gpu), int(mib)) for gpu, mib in pairs]


def take(rank, ranks, share):
    """Hold this rank's part; a GPU without room is torch's own out-of-memory error."""
    entries = wanted(os.environ.get("OPSCTL_LAB_HOLD", ""))[rank::ranks]
    if not entries:
        return
    import torch
    from opsctl_lab_cpu.hold import GpuOutOfMemory, Hold

    for gpu, mib in entries:
        try:
            _held.append(Hold(gpu, int(mib * share)))
        except GpuOutOfMemory as error:
            raise torch.OutOfMemoryError(str(error)) from error
