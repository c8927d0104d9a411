"""What a scheduler writes when it hits an exception: the incident's shape error."""

import os
import signal
import time

from sglang.standin import log

FRAMES = (
    (
        "sglang/srt/managers/scheduler.py",
        4041,
        "run_scheduler_process",
        "scheduler.run_event_loop()",
    ),
    ("sglang/srt/managers/scheduler.py", 1534, "run_event_loop", "dispatch_event_loop(self)"),
    (
        "sglang/srt/managers/scheduler.py",
        3912,
        "dispatch_event_loop",
        "scheduler.event_loop_normal()",
    ),
    ("torch/utils/_contextlib.py", 124, "decorate_context", "return func(*args, **kwargs)"),
    (
        "sglang/srt/managers/scheduler.py",
        1552,
        "event_loop_normal",
        "result = self.run_batch(batch)",
    ),
    (
        "sglang/srt/managers/scheduler.py",
        3076,
        "run_batch",
        "batch_result = self.model_worker.forward_batch_generation(",
    ),
    (
        "sglang/srt/speculative/eagle_worker.py",
        491,
        "forward_batch_generation",
        "out = self.target_worker.forward_batch_generation(",
    ),
)
GRAPH_FRAMES = (
    (
        "sglang/srt/model_executor/cuda_graph_runner.py",
        1326,
        "replay",
        "self.replay_prepare(forward_batch, pp_proxy_tensors)",
    ),
    (
        "sglang/srt/model_executor/cuda_graph_runner.py",
        117,
        "foreach_copy",
        "torch._foreach_copy_(dsts, srcs)",
    ),
)
PLAIN_FRAMES = (
    (
        "sglang/srt/layers/attention/triton_backend.py",
        1090,
        "forward_decode",
        "q = q.reshape(-1, layer.tp_q_head_num * layer.qk_head_dim)",
    ),
)


def traceback(kind, requests, draft_tokens):
    """Return the exception's text for a batch of so many requests."""
    frames = FRAMES + (PLAIN_FRAMES if kind == "plain" else GRAPH_FRAMES)
    if kind == "plain":
        last = "RuntimeError: shape '[%d, -1, 32]' is invalid for input of size %d" % (
            requests,
            requests * 96 + 32,
        )
    elif kind == "none":
        last = "AttributeError: 'NoneType' object has no attribute 'dtype'"
    else:
        last = (
            "RuntimeError: The size of tensor a (%d) must match the size of tensor b (%d) "
            "at non-singleton dimension 0" % (requests * draft_tokens, requests)
        )
    lines = ["Traceback (most recent call last):"]
    for path, number, function, source in frames:
        lines += ['  File "%s", line %d, in %s' % (path, number, function), "    " + source]
    return "\n".join([*lines, last, ""])


LEAK = """Traceback (most recent call last):
  File "sglang/srt/managers/scheduler.py", line 1552, in event_loop_normal
    self.self_check_during_idle()
  File "sglang/srt/managers/scheduler_runtime_checker_mixin.py", line 384, in self_check_during_idle
    self.check_memory()
ValueError: pool memory leak detected! [full] total=180000, available=644, evictable=178632, protected=0
"""
ASSERT = (
    "IndexKernel.cu:111: operator(): block: [0,0,0], thread: [0,0,0] Assertion "
    '`-sizes[i] <= index && index < sizes[i] && "index out of bounds"` failed.'
)


def fail(text, main_pid):
    """Log the exception and ask the main process to end everything, then end."""
    log.info("Scheduler hit an exception: " + text)
    try:
        os.kill(main_pid, signal.SIGQUIT)
    except OSError:
        pass
    time.sleep(0.05)  # SGLang's schedulers unwind for a moment before they end
    os._exit(1)
