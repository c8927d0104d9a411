"""A scheduler's way to ready: the stages, their log lines, and the lab GPU memory they take."""

import os
import time

from sglang.standin import hold, log, process
from sglang.standin.scheduler import die

GIB = 1 << 10  # MiB
WEIGHTS_SHARE = 0.4
UNSEEN_GPU_MIB = 97887  # what the log speaks of where there is no lab GPU


class Stages:
    """Runs the stages of one rank."""

    def __init__(self, args, settings, rank):
        self.args = args
        self.settings = settings
        self.rank = rank
        self.gpu = process.visible_gpu(rank, args.base_gpu_id or 0)
        total = process.gpu_total_mib(self.gpu)
        self.has_gpu = total is not None
        self.total = total or UNSEEN_GPU_MIB
        self.wanted = settings.mem_mib
        if self.wanted < 0:
            self.wanted = int(self.total * args.mem_fraction_static)
        self.free = float(self.total)
        self.held = []

    def run(self):
        """Load, allocate, capture; end this process where the test wants that."""
        log.info("Init torch distributed begin.")
        self._take(0.0, 0.1)
        log.info("Init torch distributed ends. elapsed=0.02 s, mem usage=0.00 GB")
        self._load_weights()
        self._allocate()
        if not self.args.disable_cuda_graph:
            self._capture()
        if self.rank == 0:
            log.info(
                "max_total_num_tokens=%d, chunked_prefill_size=%d, max_prefill_tokens=16384, "
                "max_running_requests=%d, context_len=%d, available_gpu_mem=%.2f GB"
                % (
                    self.args.max_total_tokens or 8192,
                    self.args.chunked_prefill_size,
                    self.args.max_running_requests,
                    self.args.context_length,
                    self.free / GIB,
                )
            )

    def _load_weights(self):
        log.info("Load weight begin. avail mem=%.2f GB" % (self.free / GIB))
        self._fault("weights")
        seconds = self._take(WEIGHTS_SHARE, 0.4)
        used = self.wanted * WEIGHTS_SHARE / GIB
        log.info(
            "Load weight end. elapsed=%.2f s, type=LlamaForCausalLM, avail mem=%.2f GB, "
            "mem usage=%.2f GB." % (seconds, self.free / GIB, used)
        )

    def _allocate(self):
        size = self.wanted * (1 - WEIGHTS_SHARE) / GIB
        self._take(1 - WEIGHTS_SHARE, 0.2)
        log.info(
            "KV Cache is allocated. #tokens: %d, K size: %.2f GB, V size: %.2f GB"
            % (self.args.max_total_tokens or 8192, size / 2, size / 2)
        )
        log.info("Memory pool end. avail mem=%.2f GB" % (self.free / GIB))

    def _capture(self):
        available = self.free / GIB
        log.info(
            "Capture cuda graph begin. This can take up to several minutes. avail mem=%.2f GB"
            % available
        )
        if self.rank == 0:
            log.info("Capture cuda graph bs %s" % self.args.cuda_graph_bs)
        self._fault("graphs")
        seconds = self._take(0.0, 0.3)
        log.info(
            "Capture cuda graph end. Time elapsed: %.2f s. mem usage=0.00 GB. avail mem=%.2f GB."
            % (seconds, available)
        )

    def _take(self, memory_share, time_share):
        """Spend a stage's share of the start-up time and take its share of the memory."""
        seconds = self.settings.startup_s * time_share
        time.sleep(seconds)
        mib = int(self.wanted * memory_share)
        if mib and self.has_gpu:
            try:
                self.held.append(hold.Hold(self.gpu, mib))
            except hold.GpuOutOfMemory as error:
                self._out_of_memory(error)
        self.free -= mib
        return seconds

    def _out_of_memory(self, error):
        log.info(
            "Scheduler hit an exception: Traceback (most recent call last):\n"
            '  File "sglang/srt/model_executor/model_runner.py", line 1402, in load_model\n'
            "    self.model = self.loader.load_model(\n"
            "torch.OutOfMemoryError: %s\n" % error
        )
        os._exit(1)

    def _fault(self, stage):
        settings = self.settings
        if settings.never_ready == stage:
            while True:
                time.sleep(3600)
        if settings.fail_at != stage or self.rank != settings.kill_rank:
            return
        if settings.signal_at_start:
            die(settings.signal_at_start)
        if settings.exit_at_start >= 0:
            os._exit(settings.exit_at_start)
