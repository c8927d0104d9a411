"""The lab: real sshd, LXC, pct and NVML library; see `python -m tests.lab --help`."""
