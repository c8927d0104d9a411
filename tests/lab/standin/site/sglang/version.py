"""The version that this stand-in plays; ``tests.lab.standin.install`` writes another one."""

__version__ = "0.5.12.post1"
