"""Real SGLang on the CPU for the lab: see ``python -m tests.lab.sglang --help``."""
