"""Direct effects: each head's part of the logits, through the final norm and unembedding.

The residual stream that reaches the final norm is a sum: embedding, every head's output,
biases, every MLP's output. With the norm's scale sigma held fixed, norm and unembedding are
linear, so each part has a separate effect on every logit, and the effects sum to the logit:

    logit_y = sum over parts of  (part . u_y) / sigma + (b . W_U)_y + b_U_y,    u_y = gain * W_U_y

A head's part at query q is itself a sum over the keys that it attends to, `A_qk v_k W_O`: its
effect through some keys alone is the same product with those values (Elhage et al. 2021;
for the source of an induction head McDougall et al. 2023, arXiv 2310.04625). All effects here
are on the logit of one token minus the mean over the vocabulary, since adding a constant to all
logits changes nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from einops import einsum, rearrange, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.errors import InputError
from interp.kinds.mass import FromQK, Tally
from interp.kinds.targets import NONE
from interp.models import Model, alone, evaluating
from interp.models.hooks import run_with
from interp.models.stream import stream
from interp.weights.folded import at_hand, values, written
from interp.weights.heads import copying_scores
from interp.weights.norms import Norm


class Readout:
    """Final norm and unembedding as a linear map, with the norm's scale held fixed."""

    def __init__(self, model: Model) -> None:
        bridge = model.bridge
        if model.plain is None:
            raise InputError("the model does not run in transformers")
        if any("ln1_post" in block._modules for block in bridge.blocks):
            raise InputError("a norm follows the heads' output")
        path = bridge.ln_final.name if "ln_final" in bridge._modules else None
        # With norms after each part, the final norm of OPT is None.
        if path is None or dict(model.plain.named_modules()).get(path) is None:
            raise InputError("there is no final norm")
        self.model = model
        weight = at_hand("the unembedding", model.plain.get_output_embeddings().weight)
        if weight.shape[1] != int(bridge.cfg.d_model):
            raise InputError("the unembedding does not read the residual stream")
        self.norm = Norm(model.plain.get_submodule(path), weight[0])
        W_U = weight.float()
        self.W_U: Float[Tensor, "vocab d_model"] = W_U - W_U.mean(0)
        self.close = 1e-3 if model.dtype_name == "float32" else 5e-2

    def check(self) -> None:
        """Raise unless heads reach the logits as this module assumes, on a few tokens."""
        tokens = self.model.vocabulary[:8][None]
        logit_parts(self.model, tokens, tokens.roll(-1, dims=1), readout=self)

        keys = torch.arange(tokens.shape[1]).expand(1, tokens.shape[1], -1).to(self.model.device)
        outputs: dict[int, Tensor] = {}
        stream(self.model, tokens, lambda i, a: outputs.__setitem__(i, a.brought(keys)))
        seen = run_with(self.model, tokens, [f"blocks.{i}.attn.hook_z" for i in outputs])
        for z, out in zip(seen.values(), outputs.values(), strict=True):
            out = rearrange(out, "b h q d -> b q (h d)")
            if not (z.float().flatten(2) - out).abs().max() <= self.close * z.abs().max():
                raise InputError("a head's output is not the sum of its weighted values")

    @contextmanager
    def watching(self) -> Iterator[list[Float[Tensor, "batch pos"]]]:
        """A list to which each forward pass adds the scale of the final norm."""
        scales = []

        def look(module: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            scales.append(self.norm.scale(inputs[0].float(), output.float()))

        with alone(self.model.plain), self.norm.module.register_forward_hook(look):
            yield scales

    def towards(self, answers: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch pos d_model"]:
        """Direction of each position's answer in the residual stream, times the norm's scale."""
        return self.norm.fold(self.W_U[answers.to(self.W_U.device)])

    def W_O(self, layer: int) -> Float[Tensor, "head d_head d_model"]:
        """How a layer's heads write to the residual stream."""
        return written(self.model, layer)

    def head_directions(
        self, layer: int, towards: Float[Tensor, "batch pos d_model"]
    ) -> Float[Tensor, "batch head pos d_head"]:
        """The same direction in the values of each head of a layer: through its W_O."""
        return einsum(towards, self.W_O(layer), "b q d, h e d -> b h q e")

    def copying(self) -> Float[Tensor, "layer head"]:
        """`interp.weights.heads.copying_scores` of every head, norms folded in, W_U centred."""
        W_E = self.model.plain.get_input_embeddings().weight.detach().float()
        ring = self.norm.fold(self.W_U).T @ W_E
        scores = []
        for layer in range(self.model.n_layers):
            W_V, _, W_O = values(self.model, layer)
            W_V = repeat(W_V, "kv d e -> (kv g) d e", g=len(W_O) // len(W_V))
            scores.append(copying_scores(W_V, W_O, ring))
        return torch.stack(scores)


def value_norms(
    v: Float[Tensor, "batch kv_head key d_head"], W_O: Float[Tensor, "head d_head d_model"]
) -> Float[Tensor, "batch head key"]:
    """`|v W_O|`: how far one unit of attention to a key moves the residual stream.

    (Kobayashi et al. 2020, arXiv 2004.10102.) Computed as the root of `v (W_O W_O^T) v`, so that
    no vector of the stream's width is made for every key and head.
    """
    gram = rearrange(W_O @ W_O.mT, "(kv g) d e -> kv g d e", kv=v.shape[1])
    squares = einsum(v.float(), gram, v.float(), "b kv k d, kv g d e, b kv k e -> b kv g k")
    return rearrange(squares, "b kv g k -> b (kv g) k").clamp(min=0).sqrt()


def through(
    attention: FromQK,
    keys: Int[Tensor, "batch query m"],
    directions: Float[Tensor, "batch head query d_head"],
) -> Float[Tensor, "batch head query"]:
    """Effect of each head through `keys` alone, times the norm's scale."""
    return (attention.brought(keys) * directions).sum(-1)


class StripeEffects:
    """Every head's direct effect on the right next token through its induction targets alone.

    Of repeated rows. Call `look` for each layer of a forward pass inside `Readout.watching`.
    """

    def __init__(self, readout: Readout, tokens: Int[Tensor, "batch pos"]) -> None:
        self.readout = readout
        self.towards = readout.towards(tokens.roll(-1, dims=1))
        self.has_next = torch.arange(tokens.shape[1], device=tokens.device) < tokens.shape[1] - 1
        self._found: dict[int, tuple[Tensor, Tensor]] = {}

    def look(
        self,
        layer: int,
        attention: FromQK,
        keys: Int[Tensor, "batch query m"],
        counted: Bool[Tensor, "batch query"],
    ) -> None:
        """Add one layer: its attention, the keys where it should look, the queries that count."""
        directions = self.readout.head_directions(layer, self.towards)
        counted = (keys != NONE).any(-1) & counted & self.has_next
        self._found[layer] = through(attention, keys, directions), counted

    def tallies(self, scale: Float[Tensor, "batch pos"]) -> dict[int, Tally]:
        """The effects in logits, by layer; `scale` is the final norm's scale in that pass."""
        return {
            layer: Tally.of(effect / scale[:, None], torch.zeros_like(effect), counted)
            for layer, (effect, counted) in self._found.items()
        }


def logit_parts(
    model: Model,
    tokens: Int[Tensor, "batch pos"],
    answers: Int[Tensor, "batch pos"],
    *,
    readout: Readout | None = None,
) -> dict[str, Float[Tensor, "..."]]:
    """Every part's direct effect on the logit of `answers`, minus the mean over the vocabulary.

    Returns:
        `heads [layer, batch, head, pos]`, `attention_bias` and `mlp [layer, batch, pos]`,
        `embedding` and `constant [batch, pos]`, in logits. Their sum is the logit.
    """
    readout = readout or Readout(model)
    towards = readout.towards(answers)
    layers = range(model.n_layers)
    parts = ("hook_mlp_out", "attn.hook_z")
    names = ["blocks.0.hook_resid_pre", *(f"blocks.{i}.{part}" for i in layers for part in parts)]
    with readout.watching() as scales, torch.no_grad(), evaluating(model.plain):
        logits = model.plain(tokens.to(model.device)).logits.float()
    scale = scales[0]
    seen = run_with(model, tokens, names)

    def effect(part: Float[Tensor, "*rest d_model"]) -> Float[Tensor, "batch pos"]:
        return (part.float() * towards).sum(-1) / scale

    heads = []
    for layer in layers:
        z = seen[f"blocks.{layer}.attn.hook_z"].float().flatten(2)
        z = rearrange(z, "b q (h d) -> b h q d", h=model.n_heads)
        directions = readout.head_directions(layer, towards)
        heads.append((z * directions).sum(-1) / scale[:, None])
    biases = [getattr(block.attn, "b_O", None) for block in model.bridge.blocks]
    biases = [torch.zeros_like(scale) if b is None else effect(b.detach()) for b in biases]
    constant = readout.W_U[answers] @ readout.norm.bias
    b_U = getattr(model.plain.get_output_embeddings(), "bias", None)
    found = {
        "heads": torch.stack(heads),
        "attention_bias": torch.stack(biases),
        "mlp": torch.stack([effect(seen[f"blocks.{layer}.hook_mlp_out"]) for layer in layers]),
        "embedding": effect(seen["blocks.0.hook_resid_pre"]),
        "constant": constant if b_U is None else constant + b_U[answers] - b_U.mean(),
    }
    total = found["heads"].sum((0, 2)) + found["attention_bias"].sum(0) + found["mlp"].sum(0)
    total = total + found["embedding"] + found["constant"]
    logits = logits - logits.mean(-1, keepdim=True)
    expected = logits.gather(-1, answers[..., None].to(logits.device))[..., 0]
    if not (total - expected).abs().max() <= readout.close * logits.abs().max():
        raise InputError("the parts of the residual stream do not sum to the logits")
    return found
