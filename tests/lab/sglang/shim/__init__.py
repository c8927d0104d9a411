"""Lets SGLang's own code run where there is no GPU; installed into the lab's environments only.

A ``.pth`` file imports this at every start of the environment's Python. It changes no file of
SGLang: it answers imports that need CUDA libraries with stubs, and once certain modules are
imported it puts torch code in the place of kernels that exist only for GPUs. Everything else, from
the scheduler to the log lines, is SGLang's own.
"""

from opsctl_lab_cpu import imports

imports.install()
