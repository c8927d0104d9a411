"""Real SGLang on a real GPU, driven by opsctl itself; see README.md."""
