"""Weights for ``--load-format dummy``: the same at every start, and of use to a test.

OPSCTL_LAB_WEIGHTS says which:
``known`` (default): the target maps token x to (17 x + 3) mod vocabulary with a wide margin, so every
    answer can be worked out; an EAGLE-3 draft is right once per step (acceptance length 2).
``random``: seeded random weights in which attention and so the KV cache decide the answer. Run with
    ``--dtype float32``: then the tokens are the same at every batch size.
``attentive``: as known, but the draft is right only while its KV cache holds (nearly) all positions before:
    its one attention layer measures the share of positions that were ever written.
``dummy``: what SGLang itself fills in.
"""

import os
import zlib

import torch

FACTOR, OFFSET = 17, 3
EMBEDDING_SEED = 4242
RANDOM_SCALE = 0.15
DECOY = 1 / 20  # of the width, against 1 / 64 for the right token


def loader(module):
    """Patch sglang.srt.model_loader.loader."""
    own = module.initialize_dummy_weights

    def initialize(model, *args, **named):
        own(model, *args, **named)
        kind = os.environ.get("OPSCTL_LAB_WEIGHTS", "known")
        with torch.no_grad():
            if kind == "known":
                known(model)
            elif kind == "attentive":
                attentive(model)
            elif kind == "random":
                random(model)

    module.initialize_dummy_weights = initialize


def known(model):
    """Overwrite embedding, head, norms and the draft's fc so that greedy output is arithmetic."""
    parameters = dict(model.named_parameters())
    _norms_to_one(parameters)
    head, size = parameters["lm_head.weight"], _vocabulary(model)
    width = head.shape[1]
    embedding = _signs((size, width))
    following = (torch.arange(size) * FACTOR + OFFSET) % size
    whole = torch.empty(size, width, dtype=head.dtype)
    if type(model).__name__.endswith("Eagle3"):
        # The draft gets the target's hidden state of x and has to say what follows x's follower.
        whole[(following * FACTOR + OFFSET) % size] = embedding.to(head.dtype) / 64
    else:
        whole[following] = embedding.to(head.dtype) / 64
    _copy_rows(model.lm_head, whole)
    if "model.embed_tokens.weight" in parameters:
        _copy_rows(model.model.embed_tokens, embedding)
    if "model.fc.weight" in parameters:
        fc = parameters["model.fc.weight"]
        fc.zero_()
        fc[:, :width].copy_(torch.eye(width, dtype=fc.dtype))
    if "model.fc.bias" in parameters:
        parameters["model.fc.bias"].zero_()


def attentive(model):
    """Known weights, and a decoy that the draft proposes once part of its KV cache is missing.

    Dimension 0 of every embedding is 1, dimension 1 is 0. In the draft queries and keys are 0, so
    attention is the mean of the values, and a value is 1 in dimension 0 wherever a position was written:
    the mean is the share of written positions. It goes to dimension 1, which holds the decoy (token 3) down.
    """
    known(model)
    _constant_and_free(model.lm_head.weight)
    if "model.embed_tokens.weight" in dict(model.named_parameters()):
        _constant_and_free(model.model.embed_tokens.weight, constant=1.0)
    if not type(model).__name__.endswith("Eagle3"):
        return
    parameters = dict(model.named_parameters())
    qkv = next(w for name, w in parameters.items() if name.endswith("qkv_proj.weight"))
    out = next(w for name, w in parameters.items() if name.endswith("o_proj.weight"))
    heads = model.config.num_attention_heads
    size = out.shape[1] // heads  # of one head
    values = (qkv.shape[0] - out.shape[1]) // 2
    qkv.zero_()
    qkv[-values::size, 0] = 1.0  # the first dimension of each value head
    out.zero_()
    out[1, 0] = 1.0
    decoy = model.lm_head.weight[3]
    decoy.zero_()
    decoy[0], decoy[1] = DECOY * len(decoy), -DECOY * len(decoy)


def _constant_and_free(weight, constant=0.0):
    weight[:, 0] = constant
    weight[:, 1] = 0.0


def random(model):
    """Fill every weight from a generator seeded with the weight's name."""
    parameters = dict(model.named_parameters())
    for name, weight in parameters.items():
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        values = torch.randn(weight.shape, generator=generator, dtype=torch.float32)
        weight.copy_(values * RANDOM_SCALE)
    _norms_to_one(parameters)


def _vocabulary(model):
    return getattr(model.config, "draft_vocab_size", None) or model.config.vocab_size


def _copy_rows(layer, whole):
    """Copy the rows of the vocabulary that this rank holds."""
    first = layer.shard_indices.org_vocab_start_index
    rows = whole[first : first + layer.weight.shape[0]]
    layer.weight[: len(rows)].copy_(rows)


def _norms_to_one(parameters):
    for name, weight in parameters.items():
        if "norm" in name and name.endswith("weight"):
            weight.fill_(1.0)


def _signs(shape):
    generator = torch.Generator().manual_seed(EMBEDDING_SEED)
    return torch.randint(0, 2, shape, generator=generator, dtype=torch.int8) * 2 - 1
