"""Stop, patch, restart and prove healthy the LLM inference servers that run on your GPUs."""

__version__ = "0.1.0"
