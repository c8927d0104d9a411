"""The rules as data: which words mean which category, and how much they decide.

Weights, the lower decides first; inside one weight the earlier record does:
  10  the machine: hardware, kernel
  20  a cause that names itself
  30  a wrapper or a plain Python error; what is inside it wins
  40  somebody waited for somebody else
  50  the end of a crash, whose cause is elsewhere
  60  a notice: the server works, or is not at fault
Wordings were read in SGLang 0.5.9 to 0.5.15, PyTorch 2.9 to 2.11, NCCL 2.2x, vLLM 0.6 to 0.12 and the
reports that docs/diagnosis.md names.
"""

from __future__ import annotations

import re

from opsctl.domain.crash.hints import Wording
from opsctl.records import dataclass

MACHINE, CAUSE, WRAPPER, WAITING, END, NOTICE = 10, 20, 30, 40, 50, 60


@dataclass(frozen=True, slots=True)
class Rule:
    """When ``wording`` is found in a record, it speaks for ``category``."""

    name: str
    category: str
    weight: int
    wording: Wording
    confidence: float = 0.9


def _rules(*rows: tuple[str, str, int, float, str]) -> tuple[Rule, ...]:
    return tuple(
        Rule(name, category, weight, Wording(pattern, re.IGNORECASE), confidence)
        for name, category, weight, confidence, pattern in rows
    )


_N = r"\d[\d.,]*"
_SHAPE = r"[\[(][-\d,\s]*[\])]"

# The first rule that matches a record speaks for it: specific before general.
RULES: tuple[Rule, ...] = _rules(
    # --- warnings whose words look like a crash
    ("retract", "degraded", NOTICE, 0.9,
     r"#?retracted_reqs\b|decode out of memory happened|retract(?:ing|ed)? (?:\d+ )?requests?\b"
     r"|KV cache pool is full\. Retract|retract_decode: abort"),
    ("preempt", "degraded", NOTICE, 0.85, r"preempted by PreemptionMode|\bpreempt(?:ed|ing) (?:seq|request)"),
    ("throttle", "degraded", NOTICE, 0.7, r"thermal slowdown|clocks? (?:are )?throttled|SW Power Cap.*: Active"),
    # --- kernel
    ("oom-killer", "host-oom", MACHINE, 0.95,
     r"(?:out of memory|memory cgroup out of memory|oom-kill\S*): Killed? process \d+"
     r"|Killed process \d+ \(.*(?:total-vm|anon-rss)|oom-kill:constraint=|oom_reaper: reaped process"
     r"|invoked oom-killer|killed by the OOM killer|result 'oom-kill'|\bOOMKilled\b(?!\W{1,3}false)|Memory cgroup out of memory"
     r"|^oom_kill [1-9]\d*$|oom[_-]kill events? in |node was low on resource: memory|have been OOM Killed|task \d+: Out Of Memory|SIGKILL.*\boom\b|earlyoom.*sending SIG|systemd-oomd.*[Kk]illed"),
    ("gsp-timeout", "gpu-fault", MACHINE, 0.85, r"Xid .{0,60}: (?:119|120)\b|Timeout waiting for RPC from GSP"),
    ("xid-hardware", "gpu-fault", MACHINE, 0.95,
     r"Xid .{0,60}: (?:46|48|54|56|57|58|6[1-9]|7[0-9]|8[0-9]|9[1-9]|10[0-9]|11[0-9]|12[0-9]|1[34]\d|15\d|16\d|17\d)\b"
     r"|SXid|fallen off the bus|GPU has fallen|nvidia-nvswitch.*(?:fatal|error)|NVSwitch fatal"),
    ("gpu-lost", "gpu-fault", MACHINE, 0.95,
     r"NVMLError_GpuIsLost|GPU is lost|Unable to determine the device handle for (?:gpu|GPU)\d*\b(?!.*Insufficient)"
     r"|NVML_ERROR_GPU_IS_LOST|NVMLError_ResetRequired|requires? (?:a )?(?:gpu )?reset\b.*GPU"
     r"|\[GPU requires reset\]|the GPU requires a reset|cudaErrorGpuRequiresReset|NVML_ERROR_RESET_REQUIRED"),
    ("not-ready", "gpu-fault", MACHINE, 0.9, r"Error 802: system not yet initialized|cudaErrorSystemNotReady|CUDA_ERROR_SYSTEM_NOT_READY"),
    ("ecc", "gpu-fault", MACHINE, 0.95,
     r"uncorrectable (?:NVLink error|ECC error)|(?:double|multi).bit ecc|uncorrectable.*remapped row.*failure"
     r"|cudaErrorECCUncorrectable|Contained memory error|CUDA_ERROR_ECC_UNCORRECTABLE"
     r"|NVLink.{0,40}(?:uncorrectable|fatal) error"),
    ("xid-software", "gpu-fault", WRAPPER, 0.85, r"NVRM: Xid|\bXid .{0,60}: \d+,"),
    # --- start-up: what the build, the driver and the container lack
    ("no-kernel", "unsupported-arch", CAUSE, 0.95,
     r"no kernel image is available|cudaErrorNoKernelImageForDevice|CUDA_ERROR_NO_BINARY_FOR_GPU"
     r"|is not compatible with the current PyTorch installation|only supports (?:Ampere|Hopper|Blackwell|Ada)\b"
     r"|(?:requires?|needs?) (?:a )?(?:GPUs? with )?(?:compute capability|cuda capability|sm_?\d\d|SM\d\d)"
     r"|compute capability.{0,60}(?:not supported|too low|unsupported|is below|is lower)"
     r"|(?:minimum|min\.?) (?:required |supported )?(?:cuda |compute )?capability"
     r"|invalid device function|cudaErrorInvalidDeviceFunction|CUDA_ERROR_INVALID_DEVICE_FUNCTION"
     r"|not a recognized processor|Value 'sm_\w+' is not defined for option|Unsupported gpu architecture"
     r"|(?:platform|GPU|device|hardware) does not support \S+ (?:quantization|kernels?|dtype|format)|(?:Ampere|Hopper|Blackwell) (?:and|or) (?:up|newer|above|later)"
     r"|requires? (?:an? )?(?:NVIDIA )?(?:Ampere|Ada|Hopper|Blackwell)\b|only supported (?:on|for|with) (?:NVIDIA )?(?:Ampere|Ada|Hopper|Blackwell)\b|not supported (?:on|for|with) (?:GPUs? (?:of|with) )?compute capability|Could not load any common_ops library|requires? SM ?(?:>=|<=|>|<|==) ?\d\d|only (?:is )?support(?:s|ed) (?:on )?(?:GPUs? with compute capability|SM ?_?\d\d|sm_?\d\d)|Arch conditional MMA|targeting appropriate compute capability|(?:unsupported|unknown) (?:gpu|cuda|sm) arch"
     r"|not supported on (?:this )?(?:sm|SM)_?\d\d|No supported CUDA architectures"
     r"|is not supported (?:for|on) (?:the )?current (?:GPU|device|architecture)|does not support \S+ '[^']*' with capability|No execution plans support the graph"
     r"|(?:device )?kernel image is invalid|cudaErrorInvalidKernelImage|CUDA_ERROR_INVALID_IMAGE|\bUnsupported architecture\b|(?:GPU|device|architecture)\W{1,3}sm_?\d\d|Required SM ?_?\d\d|(?:is |are )?not supported for (?:compute capability|sm_?\d|SM_?\d)"),
    ("driver", "driver-mismatch", CAUSE, 0.95,
     r"driver version is insufficient|driver on your system is too old|cudaErrorInsufficientDriver"
     r"|forward compatibility was attempted on non supported HW|unsupported display driver / cuda driver"
     r"|compiled with an unsupported toolchain|cudaErrorUnsupportedPtxVersion|CUDA_ERROR_UNSUPPORTED_PTX_VERSION"
     r"|cudaErrorSystemDriverMismatch|CUDA_ERROR_SYSTEM_DRIVER_MISMATCH|cudaErrorCompatNotSupportedOnDevice"
     r"|CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE|unsatisfied condition: cuda>="
     r"|requires? (?:a )?(?:newer |NVIDIA )?driver (?:version )?(?:>=|newer|at least)|CUDA error.{0,20}: ?(?:35|803|804)\b"),
    ("toolchain", "toolchain", CAUSE, 0.92,
     r"No such file or directory: '(?:[^']*/)?(?:ninja|nvcc|gcc|g\+\+|cc|c\+\+|cmake|ptxas|clang|ld|x86_64-linux-gnu-g?cc)'"
     r"|Ninja is required|ninja: (?:not found|command not found|build stopped)|\bnvcc(?:: | was |: command )not found"
     r"|(?:could not|cannot|can't|unable to) (?:find|locate) (?:the )?(?:nvcc|ninja|gcc|g\+\+|cuda_home|a c(?:\+\+)? compiler|ptxas)"
     r"|CUDA_HOME (?:environment variable )?is not set|Failed to find C compiler|No CUDA toolkit|\b(?:ninja|nvcc|ptxas|gcc) is not (?:installed|available)"
     r"|fatal error: (?:Python|cuda_runtime|cuda|cublas_v2|cuda_fp16|cuda_fp8|cuda_bf16|curand\w*|cutlass/\S+|nvrtc|cusparse|torch/\S+|cstdlib|stdio)\S*: No such file"
     r"|Error building extension|(?:cannot|can't) find -l\w+|ninja (?:exited|failed) with|Ninja build failed"
     r"|nvcc fatal|ptxas fatal|command '?\S*(?:nvcc|gcc|g\+\+|ninja)\S*'? (?:failed|returned non-zero)"
     r"|Command '\[\S*(?:nvcc|gcc|g\+\+|ninja)\b.*returned non-zero|CalledProcessError: Command .*(?:nvcc|/gcc|'gcc|g\+\+|ninja|/cc\b)"
     r"|(?:sh|bash|env)(?:: line \d+| ?: \d+)?: (?:/\S*/)?(?:ninja|nvcc|gcc|g\+\+|cc): (?:not found|command not found|No such file)"
     r"|NVCC compilation failed|NVRTC compilation failed|unsupported GNU version"),
    ("shm", "shm-too-small", CAUSE, 0.92,
     r"posix_fallocate failed|creating shared memory segment|/dev/shm\S* ?\(size \d+\)|insufficient shared memory \(shm\)"
     r"|out of shared memory|No space left on device.*(?:/dev/shm|shm|psm_|nccl-)|(?:/dev/shm|shm_open|nccl-\w+|psm_\w+).*No space left on device"
     r"|unable to (?:write to|allocate|resize) (?:file )?(?:shared memory|</torch_)|Error(?: while)? (?:attaching to|mapping|allocating|opening) shared memory"
     r"|unable to mmap \d+ bytes from file </torch|increase (?:the )?(?:size of )?(?:/dev/shm|shm[-_]size)|--shm-size|ftruncate.*shm.*failed"),
    ("shm-exists", "leftover-shm", CAUSE, 0.85, r"FileExistsError: .*(?:/psm_|/dev/shm|sgl_shm|sglang_loads|sem\.)"),
    ("occupied", "leftover-memory", CAUSE, 0.85, r"memory capacity is unbalanced|Some GPUs may be occupied by other processes"),
    ("config-memory", "config-memory", CAUSE, 0.95,
     r"Not enough memory\. Please try|Not enough host memory available|No available memory for the cache blocks|Memory pool size is too small"
     r"|(?:increase|decrease|adjust|reduce|lower|raise)\w* (?:--)?(?:`)?(?:mem[-_]fraction[-_]static|gpu[-_]memory[-_]utilization)(?:`)? ?(?:or|\.|when|to|and|,|$)(?!.*(?:OOM|Possible solutions))"
     r"|larger than the maximum number of tokens that can be stored in (?:the )?KV cache|KV cache is needed, which is larger than the available"
     r"|Free memory on device .* is less than desired|cache is too small to serve|max_total_num_tokens.{0,20}(?:<= ?0|is 0|negative|must be)"
     r"|(?:minimum|at least).{0,40}mem[-_]fraction[-_]static|leaves? no (?:room|memory) for (?:the )?KV"
     r"|KV cache (?:pool )?(?:size|memory).{0,30}(?:negative|<= 0|not positive|insufficient|too small)"),
    ("port", "port-in-use", CAUSE, 0.95,
     r"\[Errno 98\]|address already in use|\bEADDRINUSE\b|port \d+ is (?:already )?(?:in use|occupied|not available|unavailable|taken)"
     r"|(?:port|address) is already (?:in use|allocated|bound)|only one usage of each socket address|\[Errno 48\]"),
    # --- one rank out of its bounds
    ("device-assert", "index-out-of-bounds", CAUSE, 0.95,
     r"device-side assert|Assertion `[^`]{0,300}[`'] failed|Assertion `.{0,200}(?:index|ind|idx|bounds).{0,80}failed"
     r"|cudaErrorAssert\b|CUDA_ERROR_ASSERT|ScatterGatherKernel|srcIndex < srcSelectDimSize|index out of bounds\"?.? failed"
     r"|device assert(?:ion)? (?:triggered|failed)|assertion failed.*(?:out of bounds|tl\.device_assert)"),
    ("kv-leak", "kv-pool-leak", CAUSE, 0.95,
     r"memory leak detected|mem leak detected|pool leak(?:ed| detected)?|leak detected in .*pool|available_size.{0,80}leak|KV cache (?:pool )?leak"),
    ("req-slots", "req-slots-exhausted", CAUSE, 0.95,
     r"alloc_req_slots runs out|req_to_token_pool.{0,40}(?:exhausted|is full|out of memory|runs out)|not enough space for mamba cache|can ?not alloc (?:request )?mamba cache|(?:out of|no free|not enough|no available) req(?:uest)?(?:_pool)?[ _-](?:slots?|ind)"
     r"|req(?:uest)? slots? (?:are )?exhausted"),
    ("kv-exhausted", "kv-pool-exhausted", CAUSE, 0.95,
     r"\bpool (?:is |runs )?out of memory|(?:Prefill|Decode|Extend) (?:runs )?out of memory\. Try|^(?:\w+: )?Out of memory\. Try to lower|Try to lower your batch size"
     r"|token_to_kv_pool.{0,60}(?:out of memory|exhausted|runs out|is full)|out of (?:free )?(?:kv|KV)[ -]?(?:cache )?(?:blocks|tokens|pages|slots|space)"
     r"|Out of memory even after retracting|alloc_(?:token|extend|decode|paged_token)\w*.{0,40}(?:out of memory|failed|None)"
     r"|Cannot get (?:\d+ )?free blocks|No free blocks? (?:are )?available|KV cache (?:pool )?(?:is )?exhausted|failed to allocate (?:kv|KV)\b"),
    ("fusion", "fusion-init", CAUSE, 0.9,
     r"create_allreduce_fusion_workspace|(?:create|init|initialize|setup|set up)\w*.{0,40}allreduce[_ ]fusion.{0,40}(?:workspace|fail|error)"
     r"|allreduce[_ ]?fusion.{0,80}(?:fail|error|timed? ?out|could not|hang)|fail\w*.{0,60}all-?reduce[_ ]?fusion|flashinfer_comm_fusion|ipc_workspace_for_all_?reduce"
     r"|CUDASymmetricMemory\w*.{0,60}(?:fail|error|rendezvous)|(?:torch_)?symmetric_memory.{0,60}rendezvous|rendezvous .*_symmetric_memory|_alloc_symm_buffer"),
    ("cuda-oom", "cuda-oom", CAUSE, 0.93,
     r"CUDA(?: (?:driver |runtime )?error:)? out of memory|\[CUDA\]: out of memory|(?:HIP|XPU|NPU) out of memory|torch\.(?:cuda\.)?OutOfMemoryError|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation"
     r"|CUBLAS_STATUS_ALLOC_FAILED|CUBLAS_STATUS_NOT_INITIALIZED|cuda.{0,20}error.{0,20}: ?2\b.*memory|cudaMalloc\w* failed|Failed to CUDA calloc"
     r"|NCCL WARN Cuda failure.*out of memory|CUDNN_STATUS_ALLOC_FAILED|Tried to allocate [\d.]+ [KMGT]i?B"),
    ("illegal", "illegal-access", CAUSE, 0.93,
     r"illegal (?:memory access|instruction|address)|cudaErrorIllegal\w+|CUDA_ERROR_ILLEGAL_\w+|misaligned address|CUDA_ERROR_MISALIGNED|cudaErrorMisalignedAddress"
     r"|unspecified launch failure|cudaErrorLaunchFailure|CUDA_ERROR_LAUNCH_FAILED|invalid program counter|CUDA_ERROR_INVALID_PC|hardware stack error|Warp (?:Illegal|Out-of-range|Misaligned)"
     r"|operation not supported on (?:global/shared|shared) address|invalid address space|an invalid (?:pc|address)|CUBLAS_STATUS_EXECUTION_FAILED|Memory access fault by GPU"),
    # --- two sizes
    ("probe-mismatch", "shape-mismatch", CAUSE, 0.85, r"does not match qo_indptr"),
    ("sizes", "shape-mismatch", CAUSE, 0.95,
     rf"size of tensor a \(|Sizes of tensors must match|expected (?:size|shape) .{{0,40}}(?:but )?got|Size mismatch\b|size mismatch\b(?! for \S+\.weight)|shape mismatch"
     rf"|(?<!values to unpack \()expected {_N},? (?:but )?got {_N}\b|used \d+ ?> ?capacity \d+|doesn't match the broadcast shape|cannot be broadcast to (?:indexing result )?(?:of )?(?:shape)?"
     rf"|shape '{_SHAPE}' is invalid for input of size|mat1 and mat2 shapes cannot be multiplied|expanded size of the tensor|could not (?:be )?broadcast"
     rf"|Expected index \[\d+[^\]]*\] to be (?:smaller|no larger)|Attempted to load weight .{{0,60}}into|must match the existing size|split_with_sizes expects|shapes? {_SHAPE}.{{0,60}}(?:not (?:match|broadcast|compatible)|mismatch|cannot)|(?:not |in)compatible (?:shapes?|sizes?|dimensions?)"
     rf"|input batch_size \(\d+\) to match|shape\[0\] \(\d+\) (?:does not|must)|q\.shape\[0\].{{0,40}}(?:does not match|must|!=)|Mismatched .{{0,60}}(?:shape|size)"
     rf"|(?:shape|size|length|batch.?size|num_tokens|numel)s? (?:of .{{0,60}} )?(?:does not|doesn't|do not|don't|must|should) (?:match|be equal|equal)\b|invalid for input of size"
     rf"|exceeds dimension size|number of (?:tokens|rows|elements|sizes).{{0,60}}(?:does not match|doesn't match|must match|must be (?:equal|greater)|mismatch)"
     rf"|AssertionError: .{{0,80}}\b(?:shape|size|len|numel|num_tokens|bs|batch)\w*.{{0,60}}(?:(?:!=|==) ?\S*\d|\d ?(?:<=|>=|<|>) ?\d)|inconsistent tensor size|tensors? (?:must|should) have (?:the )?same (?:shape|size|number)"
     rf"|batch size \d+ (?:exceeds|is larger than|>) .{{0,60}}\d|torch\.Size\({_SHAPE}\) (?:vs\.?|!=|and) (?:[\w.]+ )?torch\.Size|size \d+\s+mismatch(?:es|ed)? .{{0,80}}\d|(?:does not|do not|not|cannot) broadcast(?:able)?\b|all input tensors must have the same|stack expects each tensor to be equal size"
     rf"|must have (?:the )?same reduction dim|same slice shapes|(?:CHECK_\w+\(|Check failed).{{0,160}}\d vs\.? \d|\d exceeds (?:\w+ ){{0,4}}capacity \d|expected {_SHAPE},? (?:but )?(?:got|found) {_SHAPE}|\b(?:num_)?(?:tokens|rows|batch_size|size) \d+ ?(?:!=|>|<) ?\w+ \d|requiring a storage size of \d+ are out of bounds for storage of size \d+|Expected size for first two dimensions|Number of (?:indices|rows|tokens|elements) \(\d+\) (?:should|must)|expected input{_SHAPE} to have \d+ channels|AssertionError: \w*(?:bs|batch_size|num_tokens|n_tokens|seq_len\w*) ?[=:]? ?\d+ ?(?:!=|>=?|<=?) ?\w+ ?[=:] ?\d+|(?:tokens|rows|size|length|batch|shape|len\w*|bs)\b.{{0,20}}\b\(?\d+\)? (?:does not match|doesn't match|must equal|must match|is not equal to) \D{{0,60}}\d|\w+ must have shape \(|cannot reshape (?:array|tensor)|a Tensor with \d+ elements cannot|The shape of the mask {_SHAPE}|shape of .{{0,60}}(?:does not match|must match)|expects? .{{0,40}}(?:of )?(?:shape|size) {_SHAPE}.{{0,40}}got"),
    # --- somebody waited
    ("nccl-timeout", "collective-timeout", WAITING, 0.93,
     r"Watchdog caught collective operation timeout|Timeout at NCCL work|collective operation (?:timeout|timed out)|ran for \d+ milliseconds before timing out"
     r"|Timed out waiting \d+ ?ms for (?:recv|send)|Timed out after \d+ seconds waiting for|client socket has timed out after|ProcessGroup\w*'s watchdog got stuck|wait timeout after \d+ms"
     r"|(?:NCCL|Gloo|gloo|barrier|all_?reduce|broadcast|all_?gather).{0,60}(?:timed out|timeout)(?!=|_ms|\(ms\)| is set| set to|:? ?\d+$)|HeartbeatMonitor.*(?:stuck|timed out)"
     r"|taking the entire process down|watchdog thread terminated with exception|detected by watchdog at work|DistStoreError|Some NCCL operations have failed or timed out|in store based barrier|monitoredBarrier, but|timeout for (?:\S+ )?(?:dispatch|combine)\b|CPU recv timeout|failed to pass monitoredBarrier|other ranks that didn't finish loading"),
    ("watchdog", "watchdog-timeout", WAITING, 0.93,
     r"watchdog timeout(?! (?:is|of|set|to)\b)|self\.watchdog_timeout=|Pyspy (?:dump for|failed to dump) PID|scheduler (?:made no|has made no|is stuck|stuck).{0,20}(?:progress|forward)?|self\.cur_batch\.batch_size\(\)="
     r"|Scheduler watchdog|forward pass (?:timed out|exceeded)|No (?:scheduler )?(?:step|progress) (?:for|in) \d+ ?s"
     r"|shm_broadcast.*No available (?:shared memory )?(?:broadcast )?block found|execute_model.{0,20}timed out|RPC call to (?:execute_model|sample_tokens) timed out"),
    ("health", "health-timeout", 45, 0.85,
     r"Health check failed|couldn't get a response from (?:the )?detokenizer|(?:Liveness|Readiness|Startup) probe failed|health ?(?:check|probe).{0,40}(?:timed out|timeout|failed|503)"
     r"|/health\S*.{0,60}(?:timed out|ReadTimeout|timeout after)"),
    ("never-healthy", "startup-hang", 46, 0.8,
     r"did not (?:become|get) (?:healthy|ready)|(?:server|sglang).{0,40}(?:not|never) (?:become |be |got |was )?(?:ready|healthy) (?:within|in|after)|not ready (?:after|within) \d+ ?s"
     r"|(?:timed? ?out|timeout) (?:while )?waiting for (?:the )?(?:server|sglang|model|engine|health|readiness)|(?:server|engine) (?:failed to|did not) start (?:with)?in \d+"),
    ("waiting-forever", "silent-hang", 44, 0.85,
     r"(?:connected|200 OK), 0 bytes|0 bytes (?:received|read|in)\b.*(?:timeout|timed out|\d+ ?s)|no (?:token|bytes?|answer|first byte) (?:for|in|after|within) \d+ ?s|running=0,? running_full=True"
     r"|waiting=[1-9]\d*, ?running=0|ReadTimeout.{0,80}(?:/generate|/v1/)|requests? (?:hang|hung|stuck) (?:for ?ever|for \d+|after)"
     r"|(?:then|and) (?:all|nothing|every request):? .{0,40}(?:timeout|timed out|hang)"),
    ("broken-answer", "wrong-output", 43, 0.85,
     r"token mush|NaN in (?:the )?logits|Detected errors during sampling|probability tensor contains either|logits (?:contain|are|has|have) (?:nan|inf)|(?:repeated|garbage|gibberish|garbled|nonsense) (?:tokens?|text|output|answer)"
     r"|answer: (.{1,6}?)\1{7,}|completion_tokens = max_tokens|(?:known|expected) answer.{0,60}(?:differs|wrong|mismatch|not match|but got)|wrong (?:tokens?|answers?|output)\b|(?:outputs?|answers?|tokens) (?:differ|diverge)s? from (?:the )?reference"
     r"|accept(?:ance)? len\w*.{0,20}(?:collapsed|fell|dropped)"),
    # --- wrappers
    ("capture", "graph-capture", WRAPPER, 0.9,
     r"Capture (?:\w+ )*(?:cuda|CUDA) ?graph failed|(?:cuda|CUDA) graph capture (?:failed|error)|operation (?:not permitted|failed due to a previous error) (?:when stream is|during) captur"
     r"|cudaErrorStreamCapture\w+|CUDA_ERROR_STREAM_CAPTURE|dependency created on uncaptured work|Offset increment outside graph capture|failed to capture (?:the )?(?:cuda|CUDA) ?graph|captures? underway"),
    ("warmup", "warmup-failed", 36, 0.9,
     r"warm-?up error|warm-?up (?:request )?(?:failed|timed out)|Initialization failed\. warm"),
    ("detokenizer", "detokenizer-died", WRAPPER, 0.93,
     r"Detokenizer(?:Manager)? hit an exception|[Ss]ubprocess detokenizer\S* \(pid=\d+\) crashed|Decode status not found for request|detokenizer(?: process)?\S* (?:died|exited|is dead|crashed|terminated|was killed)"),
    # --- NVML
    ("nvml-mismatch", "nvml-mismatch", CAUSE, 0.95,
     r"Driver/library version mismatch|NVMLError_LibRmVersionMismatch|NVRM: API mismatch|client has the version|NVML_ERROR_LIB_RM_VERSION_MISMATCH|this kernel module has the version"),
    ("nvml-denied", "nvml-denied", CAUSE, 0.93, r"NVMLError_NoPermission|NVML_ERROR_NO_PERMISSION|Insufficient Permissions"),
    ("nvml-bindings", "nvml-bindings", CAUSE, 0.93,
     r"NVMLError_FunctionNotFound|NVML_ERROR_FUNCTION_NOT_FOUND|undefined symbol: nvml|module 'pynvml\S*' has no attribute|cannot import name '\S+' from 'pynvml|nvml\w+_v\d.{0,20}(?:missing|not found)|Function Not Found"),
    ("nvml-unknown", "nvml-unknown", CAUSE, 0.85,
     r"NVMLError_NotSupported|NVMLError_Unknown\b|NVML_ERROR_NOT_SUPPORTED|NVML_ERROR_UNKNOWN"),
    ("device-nodes", "container-devices", CAUSE, 0.9,
     r"/dev/nvidia\S*: (?:no such file|cannot|operation not permitted|permission denied|No such device)|(?:open|stat|lstat|cannot access|missing|no) '?/dev/nvidia\S*|no CUDA-capable device is detected|cudaErrorNoDevice|CUDA_ERROR_NO_DEVICE"
     r"|Found no NVIDIA driver|Failed to initialize NVML: Unknown Error|CUDA unknown error - this may be due|NVMLError_LibraryNotFound|NVML Shared Library Not Found|NVMLError_DriverNotLoaded|libcuda\.so\.1: cannot open"
     r"|couldn't communicate with the NVIDIA driver|No CUDA GPUs are available|Error 304: OS call failed|could not select device driver|nvidia-container-cli: |libnvidia-ml\.so\S*: cannot open"),
    # --- limits and wrong requests
    ("request-too-long", "client-error", NOTICE, 0.88,
     r"maximum context length is \d+|longer than the model's context length|exceeds the (?:model's )?max\w* (?:context|allowed|model) (?:length|len)|Requested token count exceeds|\"type\": ?\"(?:BadRequest|invalid_request|NotFound|Authentication|Unauthorized)\w*\""
     r"|^HTTP/\d(?:\.\d)? (?:40[0-9]|41[0-9]|42[0-9]) |\"code\": ?4(?:0[0-9]|1[0-9]|2[0-9])\b|BadRequestError: |exceeds? the context window|prompt is too long"),
    ("files-server", "server-limit", CAUSE, 0.85,
     r"socket\.accept\(\) out of system resource|request queue is full|can't start new thread|Resource temporarily unavailable.*(?:fork|thread|clone)|(?:fork|pthread_create)\b.{0,40}Resource temporarily unavailable|OpenBLAS.*pthread_create failed|max_queued_requests|too many open files in system"),
    ("files", "files", NOTICE, 0.9, r"Too many open files|\bEMFILE\b|\bENFILE\b|\[Errno 24\]"),
    # --- a stream seen from outside
    ("stream-cut", "stream-cut", 48, 0.88,
     r"peer closed connection without sending complete|incomplete chunked read|transfer closed with outstanding|IncompleteRead\(|ChunkedEncodingError|Response payload is not completed|TransferEncodingError|ServerDisconnected|Server disconnected|RemoteProtocolError"
     r"|curl: \((?:18|52|56)\)|Premature (?:close|EOF)|unexpected EOF|stream ended (?:early|without)|connection closed before (?:the )?(?:message|response|stream) (?:was )?complete"),
    # --- the end of a crash
    ("segfault", "child-died", END, 0.85,
     r"Fatal Python error|Segmentation fault|Speicherzugriffsfehler|Erreur de segmentation|segfault at|SIGSEGV|signal 11\b|terminate called|Bus error|core dumped|\bSIGABRT\b|\bSIGBUS\b|^Aborted(?: \(core|[.!]?$)|: Aborted\b|Aborted \(core|Floating point exception|double free or corruption|free\(\): invalid|malloc\(\): |corrupted (?:size|double)|stack smashing|general protection fault|traps: .*trap|status=11/SEGV|status=6/ABRT|free\(\): double"),
    ("peer-gone", "child-died", END, 0.75,
     r"Connection closed by peer|connection reset by peer|remote process exited|Broken ?pipe|ncclRemoteError|Connection refused|NCCL error.*(?:remote|system error)|unhandled (?:system|cuda) error|EOFError|DistBackendError|ncclSystemError|ncclUnhandledCudaError|Socket closed"),
    ("sigquit", "child-died", END, 0.85,
     r"Failed: Cuda error \S+:\d+ '|EngineDeadError|EngineCore (?:encountered|died|failed)|worker died|died unexpectedly|sigquit|crashed with exit code|kill_process_tree called|child (?:process )?(?:died|failed|exited)|scheduler(?: process)?\S* (?:is dead|died|exited|crashed)|is dead\. Please check|exit(?:ed)?(?: with)?(?: code)?:? ?-?(?:9|11|6|3|4|7|8|134|137|139|131|132|135)\b"
     r"|code=(?:killed|dumped)|exitcode[:=] ?-?[1-9]|^\W?Exit ?Code\W{0,2} +(?!143\b)[1-9]\d*,?$|Worker\S* (?:died|exited|terminated)|Initialization failed\. Please see|unexpectedly (?:died|exited|terminated)|terminated by signal|killed by signal|Failed with result '(?:signal|core-dump|exit-code|watchdog)'|exited, status=[1-9]|code=exited, status=(?:[1-9]|1[013-9]\d|12\d)\b|process (?:\S+ )?(?:was |got )?killed"),
    ("killed", "child-died", END + 5, 0.6, r"^Killed$|: Killed$|: \d+ Killed\b|\bKilled {2,}\S|\bSIGKILL\b"),
)  # fmt: skip

# A line with none of these (lower case) can match no rule, no stage and no launch fact: the cheap look that
# long logs are read with. tests/unit/domain/test_crash_rules.py holds it against every sample.
NOTABLE: tuple[bytes, ...] = tuple(
    word.encode()
    for word in (
        "speicher", "attempted", "ampere", "hopper", "blackwell",
        "rror", "xcept", "raceback", "fail", "leak", "assert", "memory", "oom", "kill", "fatal", "seg", "sig", "abort", "terminat",
        "time", "watchdog", "xid", "nvrm", "nvml", "lost", "bus", "stuck", "hang", "hung", "crash", "died", "dead", "clos",
        "reset", "refuse", "connect", "broken", "pipe", "cuda", "cublas", "cudnn", "match", "shape", "expect", "capacity",
        "broadcast", "bound", "valid", "illegal", "suffi", "compat", "support", "too ", "retract", "preempt", "full",
        "throttl", "slow", "space", "such", "not ", "cannot", "can't", "couldn't", "unable", "small", "large", "longer",
        "exceed", "length", "emfile", "enfile", "file", "already", "addr", "in use", "mush", "nan", "0 bytes", "waiting",
        "answer", "/dev/", "ninja", "nvcc", "compil", "cur_batch", "spy", "rendezvous", "symm", "fusion", "defunct",
        "dumped", "code", "exit", "eof", "curl", "http/", "blocked", "slot", "ermission", "status", "captur", "graph",
        "free()", "malloc", "worker", "terrupt", "queue", "probe", "ready", "healthy", "weight", "uvicorn", "cache",
        "pool", "max_total", "server", "launch", "serve ", "distributed", "jit", "shut", "stop", "graceful", "dynspec",
        "schedul", "token", "group", "data:", "end", "begin", "complet", "finish", "progress", "driver", "gpu", "device",
        "thread", "trap", "corrupt", "zmq", "empty", "size", "block", "reap", "ecc", "nvlink", "nvswitch", "rank", "shards",
        "^c", "wrong", "differ", "diverge", "garbage", "gibberish", "repeat", "accept", "prompt", "accelerator", "free ",
        "overflow", "dim", "elements", "rows", "shm", "psm", "stack", "tensor", "fault", "warm", "cap", "image", "req", "allocat", "zero", "warp", "process", "step", "health",
        "mem_", "mem-", "errno", "kernel", "byte", "client", "inf", "nvidia", "type", "temporar", "detok",
        "find -l", "millisec", "underway", "attribute", "alloc_", "allreduce", "arch", "child", "collective", "command",
        "could not", "enginecore", "equal", "execute", "exhaust", "forward", "fraction", "ftruncate", "garble", "heartbeat",
        "check_", "increase", "leave", "logits", "misalign", "missing", "need", "no available", "no free", "nonsense", "number of",
        "operation", "out of", "out-of", "port ", "premature", "reduce", "reference", "rpc", "running=0", "sglang",
        "uncorrect", "unhandled", "unknown", "utiliz", "context", " start ", "barrier",
    )
)  # fmt: skip

# Lines that look like trouble and are none.
BENIGN = re.compile(
    r"Ignore import error|^Receive: obj=|^Finish: obj=|Received request |^(?!.*driver on your system is too old)(?:\S+ )?(?:User|Future|Deprecation|Runtime|Resource|Syntax)Warning:|Config file not found at|Performance might be sub-optimal"
    r"|leaked (?:semaphore|shared_memory|semlock)|destroy_process_group\(\) was not called|Unexpected error when get_model_info|is deprecated|deprecation|import error|Failed to import|error_code=0|errors?[=:] ?0\b|0 errors|no errors?\b"
    r"|is not available, (?:using|fall)|[Ff]all(?:ing)? ?back to|will be ignored|ignored in:|Unrecognized keys|Some weights of|Special tokens|Setting .{0,60} to avoid|SIGQUIT handler|already performed, skipping|Truncating the input|\b(?:Skipping|Disabling|Dropping|Ignoring)\b|disabled (?:globally|because)|Waiting for \d+ seconds|(?:sgl|to) (?:avoid|prevent|reduce|mitigate) (?:\S+ ){0,3}(?:SIGSEGV|segfaults?|desync|OOM|out of memory|errors?|failures?|crash\w*|hangs?|timeouts?|deadlock)"
    r"|^(?!.*(?:unexpected|\bdied\b|\bdead\b)).*\bexit(?:ed)?(?: with)?(?: (?:exit )?code)?[:=]? ?0\b(?!\.)"
    r"|NCCL INFO|\bin case of\b|[Ii]f you (?:see|get|encounter|hit)|watchdog .{0,40}initialized|torch_dtype|expandable_segments|Heartbeat|heartbeat (?:ok|received)|crash dump (?:is )?(?:enabled|folder)|crash_dump_folder|enabled? fault ?handler|retry succeeded|recovered|was retried"
    r"|[Cc]lient (?:has )?(?:disconnected|closed)|[Aa]bort(?:ed|ing)? (?:request|req)\b|Abort by client|is not an error|(?:loaded|using|registered|imported) .{0,60}(?:error|exception|fail)\w*[ _-]handl\w+|health check (?:passed|ok|succeeded)",
)

# What follows these words is a guess of the writer's, whatever it names.
GUESSES = re.compile(
    r"(?:some )?(?:potential|possible|likely|common) (?:root )?(?:causes?|reasons?)\b",
    re.IGNORECASE,
)

# What stops a server on purpose.
WANTED_STOP = Wording(
    r"SIGTERM received|[Rr]eceived (?:signal )?(?:SIGTERM|SIGINT|15|2)\b|Gracefully exiting|^Stopping (?!at\b|criteria|iteration)\S+|^(?:Shutting down|Shutdown requested|\^C)|KeyboardInterrupt"
    r"|[Ss]topp(?:ed|ing) (?:\S+\.service|SGLang|the server|inference)|Deactivated successfully|code=killed, status=15/TERM|code=exited, status=143|(?:shut ?down|stop) requested|Draining requests|graceful(?:ly)? shut"
)
