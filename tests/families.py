"""A head that looks at its own token, planted in the weights of a small model of any family."""

import copy
import itertools

import torch
import transformers
from torch import Tensor

import interp

HEAD = 2
"""The head that it is planted in: with two key-value heads the second one serves it."""

POSITIONS = ("wpe", "embed_positions", "position_embeddings", "token_type_embeddings")

WIDTH = 8
"""Of the codes of tokens, and of a head of the small models."""


def planted(
    model: transformers.PreTrainedModel, layer: int, stack: str | None = None
) -> transformers.PreTrainedModel:
    """The model, changed in place: head 2 of `layer` compares codes that differ for each token.

    Tokens are codes of 8 signs of which any two differ in at least two places, positions are no
    part of the stream, and layers before `layer` add nothing.
    """
    signs = itertools.product((1.0, -1.0), repeat=WIDTH)
    codes = torch.tensor([code for code in signs if code.count(-1.0) % 2 == 0])
    with torch.no_grad():
        for name, weight in model.named_parameters():
            before = any(f".{earlier}." in name for earlier in range(layer))
            if before or any(part in name for part in POSITIONS):
                weight.zero_()
        table = model.get_input_embeddings().weight
        table.zero_()
        table[: len(codes), :WIDTH] = codes
        table[: len(codes), WIDTH : 2 * WIDTH] = -codes  # So that a norm takes no mean away.
        attention = attention_of(model, layer, stack)
        for rows in rows_of(attention, model.config.model_type):
            rows.zero_()
            rows[:, :WIDTH] = 4 * torch.eye(WIDTH)
        for name, norm in attention.named_parameters():
            if "norm" in name and norm.shape == (WIDTH,):
                norm.fill_(6.0)
    return model


def attention_of(
    model: transformers.PreTrainedModel, layer: int, stack: str | None = None
) -> torch.nn.Module:
    """The attention of a layer as transformers has it; without `stack`, of the encoder."""
    part = model
    if model.config.is_encoder_decoder:
        part = model.get_decoder() if stack == "decoder" else model.get_encoder()
    ends = (f".{layer}.self_attn", f".{layer}.attn", f".{layer}.attention.self")
    ends += (f"block.{layer}.layer.0.SelfAttention",)
    ends += (f".{layer}.self_attention", f".{layer}.attention", f".{layer}.attn.attention")
    ends += (f".{layer}.temporal_block", f".{layer}.mixer", f".{layer}.multi_head_attention")
    found = [module for name, module in part.named_modules() if f".{name}".endswith(ends)]
    return found[-1]


def rows_of(attention: torch.nn.Module, family: str) -> tuple[Tensor, ...]:
    """Views of what makes the queries and keys of head 2, `[8, 32]` each.

    How each family stores them is written out here, apart from what interp and TransformerLens
    take it to be.
    """
    own = slice(HEAD * WIDTH, (HEAD + 1) * WIDTH)
    if family in ("gpt2", "openai-gpt"):
        q, k, _ = attention.c_attn.weight.T.split(32)
        return q[own], k[own]
    if family in ("mpt", "modernbert"):
        q, k, _ = attention.Wqkv.weight.split(32)
        return q[own], k[own]
    if family == "phi3":
        q, k, _ = attention.qkv_proj.weight.split((32, 16, 16))
        return q[own], k[WIDTH:]
    if family in ("gpt_neox", "bloom", "falcon", "persimmon"):
        fused = attention.query_key_value.weight
        if len(fused) == 96:  # Query, key and value of each head in turn.
            by_head = fused.view(4, 3, WIDTH, 32)
            return by_head[HEAD, 0], by_head[HEAD, 1]
        return fused[own], fused[32 : 32 + WIDTH]  # One key-value head.
    if family in ("deepseek_v2", "minicpm3"):
        with torch.no_grad():
            for down in (attention.q_a_proj.weight, attention.kv_a_proj_with_mqa.weight):
                down[:16] = torch.eye(16, 32)
        q = attention.q_b_proj.weight.view(4, WIDTH + 4, 16)[HEAD]
        q.data.zero_()
        return q[:WIDTH], attention.kv_b_proj.weight.view(4, -1, 16)[HEAD, :WIDTH]
    if family == "ctrl":
        return attention.Wq.weight[own], attention.Wk.weight[own]
    if family in ("bert", "roberta"):
        return attention.query.weight[own], attention.key.weight[own]
    if family == "t5":
        return attention.q.weight[own], attention.k.weight[own]
    if family == "qwen3_next":  # A gate stands beside each head's query.
        q = attention.q_proj.weight.view(4, 2, WIDTH, 32)[HEAD, 0]
    else:
        q = attention.q_proj.weight[own]
    keys = attention.k_proj.weight.view(-1, WIDTH, 32)
    return q, keys[HEAD * len(keys) // 4]


def remade(model: transformers.PreTrainedModel, how: str = "eager") -> transformers.PreTrainedModel:
    """The same model, made with that attention from the start: some ignore a later switch."""
    with torch.random.fork_rng():
        config = copy.deepcopy(model.config)
        twin = type(model)._from_config(config, attn_implementation=how)
    twin.load_state_dict(model.state_dict())
    return twin.eval()


def own_patterns(
    model: transformers.PreTrainedModel, ids: Tensor, stack: str | None = None
) -> list[Tensor]:
    """What the model says of its attention: `[batch, head, query, key]` of each layer with any."""
    twin = remade(model)
    both = {} if stack is None else {"decoder_input_ids": ids}
    with torch.no_grad():
        outputs = twin(ids, **both, output_attentions=True)
    said = outputs["attentions" if stack is None else f"{stack}_attentions"]
    return [pattern for pattern in said if pattern is not None]


def read(model: interp.Model, ids: Tensor, stack: str | None = None) -> dict[int, Tensor]:
    """Each layer's patterns; of an encoder-decoder, the encoder's unless `stack` is given."""
    if model.direction == "encoder-decoder":
        stack = stack or "encoder"
    decoded = {"decoder_inputs": ids} if stack == "decoder" else {}
    patterns = interp.attention_patterns(model, ids, stack=stack, **decoded)
    return dict(zip(patterns.layers, patterns.as_subclass(Tensor), strict=True))
