"""The `sglang` command."""
