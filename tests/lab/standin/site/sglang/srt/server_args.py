"""The command line of the version that is played: every real flag, and nothing else."""

import argparse
import json
import os

from sglang.version import __version__

TYPES = {"int": int, "float": float, "loads": json.loads}
SHORT_NAMES = {
    "tp_size": "tensor_parallel_size",
    "pp_size": "pipeline_parallel_size",
    "dp_size": "data_parallel_size",
    "ep_size": "expert_parallel_size",
}


class ServerArgs:
    """The parsed flags, as attributes."""

    @staticmethod
    def add_cli_args(parser):
        """Add the flags that the real version's parser knows."""
        for flag in _known_flags():
            parser.add_argument(*flag["flags"], **_options(flag))

    @classmethod
    def from_cli_args(cls, namespace):
        """Return the flags with the defaults that SGLang works out later."""
        self = cls()
        self.__dict__.update(vars(namespace))
        for short, long in SHORT_NAMES.items():
            setattr(self, short, getattr(namespace, long))
        self.served_model_name = self.served_model_name or self.model_path
        self.tokenizer_path = self.tokenizer_path or self.model_path
        self.context_length = self.context_length or 4096
        self.mem_fraction_static = self.mem_fraction_static or 0.9
        self.chunked_prefill_size = self.chunked_prefill_size or 8192
        if self.speculative_algorithm:
            self.speculative_num_draft_tokens = self.speculative_num_draft_tokens or 16
        limit = 48 if self.speculative_algorithm else 2048
        self.max_running_requests = self.max_running_requests or limit
        largest = min(self.cuda_graph_max_bs or 160, self.max_running_requests)
        graphs = [1, 2, 4, *range(8, 161, 8)]
        self.cuda_graph_bs = self.cuda_graph_bs or [size for size in graphs if size <= largest]
        return self


def prepare_server_args(argv):
    """Parse the command line as SGLang does; an unknown flag ends the program with exit 2."""
    parser = argparse.ArgumentParser(prog="launch_server.py")
    ServerArgs.add_cli_args(parser)
    return ServerArgs.from_cli_args(parser.parse_args(argv))


def _known_flags():
    folder = os.path.dirname(os.path.abspath(__file__))
    path = os.path.join(folder, "flags-%s.json" % __version__)
    if not os.path.exists(path):
        path = os.path.join(folder, "flags-0.5.12.post1.json")
    with open(path) as handle:
        return json.load(handle)


def _options(flag):
    options = {"dest": flag["dest"], "default": flag.get("default")}
    if flag.get("switch") or flag.get("nargs") == 0:
        return {"dest": flag["dest"], "action": "store_true"}
    if "nargs" in flag:
        options["nargs"] = flag["nargs"]
    if flag.get("type") in TYPES:
        options["type"] = TYPES[flag["type"]]
    if "choices" in flag:
        options["choices"] = flag["choices"]
    if flag.get("required"):
        options["required"] = True
    return options
