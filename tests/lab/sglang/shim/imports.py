"""Import hooks: stubs for CUDA-only packages, and patches applied right after an import."""

import importlib
import importlib.abc
import importlib.machinery
import sys
import types

STUBS = ("sgl_kernel",)

# module -> (our module, function in it): called with the module once that has been executed
PATCHES = {
    "torch": ("torch_cuda", "without_cuda"),
    "sglang.srt.speculative.eagle_utils": ("speculation", "eagle_utils"),
    "sglang.srt.speculative.eagle_info_v2": ("speculation", "eagle_info_v2"),
    "sglang.srt.layers.attention.triton_ops.decode_attention": ("attention", "decode"),
    "sglang.srt.layers.attention.triton_ops.extend_attention": ("attention", "extend"),
    "triton.runtime.interpreter": ("small_kernels", "interpreter"),
    "sglang.srt.entrypoints.engine": ("start_method", "engine"),
    "sglang.srt.model_loader.loader": ("weights", "loader"),
    "sglang.srt.model_executor.model_runner": ("gpu_memory", "model_runner"),
}


class Missing:
    """A name that only the CUDA package has: importing it works, calling it says so."""

    def __init__(self, name):
        self.__name__ = name

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Missing(self.__name__ + "." + name)

    def __call__(self, *args, **kwargs):
        raise RuntimeError(f"{self.__name__} needs a GPU: the lab has no stand-in for it")


class StubModule(types.ModuleType):
    """A module in which every name is Missing."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Missing(self.__name__ + "." + name)


class StubFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the stubs, after everything that is really installed."""

    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] not in STUBS:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        module = StubModule(spec.name)
        module.__version__ = "99.0.0"
        module.__file__ = "<opsctl lab stub>"
        return module

    def exec_module(self, module):
        pass


class PatchedLoader(importlib.abc.Loader):
    """Runs a module's own loader, then our patch."""

    def __init__(self, loader, patch):
        self.loader = loader
        self.patch = patch

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        self.loader.exec_module(module)
        ours, function = self.patch
        getattr(importlib.import_module("opsctl_lab_cpu." + ours), function)(module)

    def __getattr__(self, name):
        return getattr(self.loader, name)  # get_source and the like: Triton and tracebacks ask


class PatchFinder(importlib.abc.MetaPathFinder):
    """Finds the modules that get a patch."""

    def find_spec(self, name, path, target=None):
        patch = PATCHES.get(name)
        if patch is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = PatchedLoader(spec.loader, patch)
        return spec


def install():
    """Put the finders in place, once."""
    if not any(isinstance(finder, PatchFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, PatchFinder())
        sys.meta_path.append(StubFinder())
