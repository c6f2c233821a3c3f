"""The weights with which a model's heads read and write the stream: norms folded in.

How a family stores its weights is never taken on trust. Folding, fused blocks, the order of
heads, the kind of rotary positions and the scale are right if the weights give the scores that
the model computes. `head_weights` tests this for every layer on a few tokens, and refuses a layer
that fails.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, get_args

import torch
from einops import einsum, rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.errors import InputError, checked, told
from interp.kinds.mass import FromQK
from interp.models import Model, attention_layers, evaluating, load_model
from interp.models.families import is_alibi, rotary_tables, text_config
from interp.models.hooks import run_with
from interp.models.stream import stream, streams
from interp.weights.composition import Composition, compose
from interp.weights.heads import Distance, HeadWeights, Pairing, Rotary
from interp.weights.norms import Norm

TRIED_ON = 12
"""Number of tokens on which the weights must give the model's own scores."""


def norm_before(model: Model, layer: int) -> Norm:
    """The norm whose output a layer's heads read; the identity if there is none."""
    block = model.bridge.blocks[layer]
    d_model = int(model.bridge.cfg.d_model)
    like = torch.ones(d_model, device=model.device, dtype=next(block.parameters()).dtype)
    return Norm(_module(block, "ln1") or torch.nn.Identity(), like)


def written(model: Model, layer: int) -> Float[Tensor, "head d_value d_model"]:
    """W_O of a layer as it is stored: how its heads write to the residual stream."""
    return _weight(_attention(model, layer), "W_O", layer)


def values(
    model: Model, layer: int, *, fold: bool = True
) -> tuple[
    Float[Tensor, "kv_head d_model d_value"],
    Float[Tensor, "kv_head d_value"],
    Float[Tensor, "head d_value d_model"],
]:
    """W_V, b_V and W_O of a layer; with `fold` as in `interp.weights.heads.HeadWeights`."""
    W_O = written(model, layer)
    after = _module(model.bridge.blocks[layer], "ln1_post")
    if fold and after is not None:
        like = torch.ones_like(model.bridge.blocks[layer].attn.W_O[0, 0])
        W_O = Norm(after, like).fold_written(W_O)
    return *_read(model, "V", layer, fold), W_O


def head_weights(
    model: Any, layers: Sequence[int] | None = None, *, fold: bool = True
) -> dict[int, HeadWeights]:
    """Every layer's heads as they read the residual stream, tested on the model's own scores.

    Args:
        model: `Model`, or anything that `load_model` accepts.
        layers: Layers in any order; all that have attention if left out.
        fold: Whether to fold norms in. Without it the weights are the stored ones, which
            TransformerLens shows and many published numbers use; they read the norm's output.

    Returns:
        Weights by layer, in the order of `layers`, in float32. Where rotary angles depend on the
        length of the prompt (longrope, dynamic), they are those of a short one.
    """
    model = load_model(model)
    wanted = list(dict.fromkeys(attention_layers(model, layers)))
    for layer in wanted:
        _refuse_other_scores(model, layer)
    tokens = model.vocabulary[:TRIED_ON][None]
    streams_in = run_with(model, tokens, [f"blocks.{i}.hook_resid_pre" for i in wanted])
    seen = _seen(model, tokens, wanted)
    rotaries = _rotaries(model)
    found: dict[int, HeadWeights] = {}
    for layer, x in zip(wanted, streams_in.values(), strict=True):
        weights, score = _weights(model, layer), seen[layer]
        d_head, scale = weights.W_Q.shape[-1], score.scale or 1.0
        sigma = norm_before(model, layer).scale_of(x)
        tried = [
            {"scale": factor, "softcap": score.softcap, "rotary": rotary}
            for rotary in rotaries
            if rotary is None or 2 * len(rotary.angles) <= d_head
            for factor in (scale, scale * d_head**-0.5)  # OPT scales its queries before.
        ]
        errors = [(score.off(replace(weights, **one), x, sigma), one) for one in tried]
        off, positions = min(errors, key=lambda error: error[0])
        if not off <= (1e-4 if model.dtype_name == "float32" else 5e-2):
            wrong = f"those of layer {layer} are {off:.1%} off: this attention is not known"
            raise InputError(f"weights must give the scores of {model.name}, but {wrong}")
        found[layer] = replace(weights if fold else _weights(model, layer, False), **positions)
    return found


@checked
def composition_scores(model: Any, *, distance: Distance = 0, fold: bool = True) -> Composition:
    """How strongly each head reads what each earlier head writes: see `interp.weights.composition`.

    Folding matters: gains weight the dimensions differently from the stored matrices. In
    SmolLM2-135M-Instruct as stored, L16H0 is first of all earlier heads for the keys of the
    induction heads L17H3, L18H7, L17H4 and L18H6 (.219, .208, .206, .202). Folded, it is first for
    those of layer 17 (.168, .158) and second, after L17H8, for those of layer 18 (.165, .161). The
    distance changes none of these by more than .002, up to 50 tokens.

    Args:
        model: `Model`, or anything that `load_model` accepts.
        distance: Tokens from query back to key, where positions are rotary.
        fold: Whether to fold norms in; without it the numbers are those of TransformerLens.
    """
    model = load_model(model)
    weights = head_weights(model, fold=fold)
    return compose(weights, n_layers=model.n_layers, distance=distance)


def token_sample(model: Model, count: int = 4096, *, seed: int = 0) -> Int[Tensor, " token"]:
    """Ids of `count` ordinary tokens, drawn without replacement; all if there are fewer."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(model.vocabulary), generator=generator)
    return model.vocabulary[order[:count]].sort().values


def embedding(
    model: Any, ids: Int[Tensor, " token"], *, through_mlp: bool = False
) -> Float[Tensor, "token d_model"]:
    """Tokens as a head reads them if nothing else is in the stream: divided by their norm's scale.

    Rows `e / sigma(e)` in float32, with the sigma of the first layer's norm, as `HeadWeights` reads
    them; without learned positions. With `through_mlp` e is the effective embedding: it includes
    what the first MLP writes for the embedding, and in models with MLPs is closer to what later
    heads read (Wang et al. 2022, arXiv 2211.00593, section on copy scores).
    """
    model = load_model(model)
    inner = model.inner if model.plain is None else model.plain
    table = at_hand("the embedding", inner.get_input_embeddings().weight)
    if outside := [i for i in ids.tolist() if not 0 <= i < len(table)]:
        raise InputError(f"ids must be from 0 to {len(table) - 1}, got {outside[0]}")
    # Some models multiply the embedding (Gemma, Granite): two tokens show by what.
    pair = run_with(model, model.vocabulary[:2, None], ["blocks.0.hook_resid_pre"])
    apart = torch.sub(*pair["blocks.0.hook_resid_pre"][:, 0].float())
    stored = torch.sub(*table[model.vocabulary[:2].to(table.device)].float())
    rule = "the residual stream must start with the embedding"
    if len(stored) != len(apart):
        raise InputError(f"{rule}, got {len(stored)} dimensions in a stream of {len(apart)}")
    times = (apart @ stored) / (stored @ stored)
    if not torch.allclose(apart, times * stored, rtol=1e-2, atol=1e-2 * float(apart.abs().max())):
        raise InputError(f"{rule}, got another")
    x = table[ids.to(table.device)] * times.to(table.dtype)
    if through_mlp:
        block = model.bridge.blocks[0]
        before = _module(block, "ln2") or _module(block, "ln1") or torch.nn.Identity()
        after = _module(block, "ln2_post") or torch.nn.Identity()
        with torch.no_grad(), evaluating(block.mlp):
            out = block.mlp.original_component(before(x)[None])
            x = x + after(out[0] if isinstance(out, tuple) else out)[0]
    x, found = x.float(), torch.zeros_like(x, dtype=torch.float)
    some = x.any(-1)  # Rows of padding are 0 and stay 0.
    found[some] = x[some] / norm_before(model, 0).scale_of(x[None, some])[0, :, None]
    return found


def _module(block: Any, name: str) -> Any:
    """The module of a block as transformers has it, or None."""
    return block._modules[name].original_component if name in block._modules else None


def _attention(model: Model, layer: int) -> Any:
    """A layer's attention, with weights that can be read."""
    attention = model.bridge.blocks[layer].attn
    for name, weight in attention.original_component.named_parameters():
        at_hand(f"{name.replace('_original_component.', '')} of layer {layer}", weight)
    return attention


def at_hand(name: str, weight: Tensor) -> Tensor:
    """A weight without its gradient, if it is in memory and not packed."""
    if weight.is_meta:  # As that of an offloaded layer.
        raise InputError(f"weights must be in memory, got {name} elsewhere")
    if not weight.is_floating_point():
        kind = str(weight.dtype).removeprefix("torch.")
        raise InputError(f"weights must be numbers by themselves, got {name} packed as {kind}")
    return weight.detach()


def _weight(attention: Any, name: str, layer: int) -> Tensor:
    try:
        return getattr(attention, name).detach().float()
    except Exception as error:  # Bridges without this weight raise anything.
        raise InputError(f"layer {layer} must have {name} by head: {told(error)}") from None


def _read(model: Model, which: str, layer: int, fold: bool) -> tuple[Tensor, Tensor]:
    """Weight and bias of queries, keys or values, by head; a missing bias is 0."""
    attention = _attention(model, layer)
    W = _weight(attention, f"W_{which}", layer)
    b = getattr(attention, f"b_{which}", None)
    b = W.new_zeros(W.shape[0], W.shape[2]) if b is None else b.detach().float()
    if not fold:
        return W, b
    norm = norm_before(model, layer)
    return norm.fold(W.mT).mT, b + einsum(norm.bias, W, "d, h d e -> h e")


def _refuse_other_scores(model: Model, layer: int) -> None:
    """Raise if scores are not products of queries and keys that are linear in the stream."""
    refused = f"weights must give the scores of {model.name}, but "
    config = text_config(model.inner)
    if getattr(config, "kv_lora_rank", None):
        raise InputError(f"{refused}latent attention has no separate keys for each head")
    if is_alibi(config):
        raise InputError(f"{refused}ALiBi adds a bias by distance to them")
    attention = _attention(model, layer).original_component
    if norms := " and ".join(name for name, _ in attention.named_children() if "norm" in name):
        raise InputError(f"{refused}{norms} of layer {layer} normalize each query and key")


@dataclass
class _Seen:
    """A layer's own scores on a few tokens; where `scale` is None, the logarithm of its pattern.

    `counted` marks the scores that are known.
    """

    scores: Float[Tensor, "batch head query key"]
    counted: Bool[Tensor, "batch head query key"]
    scale: float | None = None
    softcap: float | None = None

    def off(
        self,
        weights: HeadWeights,
        x: Float[Tensor, "batch pos d_model"],
        sigma: Float[Tensor, "batch pos"],
    ) -> float:
        """Largest error of the scores that `weights` give, relative to the largest score."""
        error = weights.scores(x.float(), sigma) - self.scores
        if self.scale is None:  # A pattern leaves a constant of each row of scores unknown.
            seen = torch.where(self.counted, error, 0).sum(-1, keepdim=True)
            error = error - seen / self.counted.sum(-1, keepdim=True)
        most, largest = (float(x[self.counted].abs().max()) for x in (error, self.scores))
        return most / largest if largest else most  # A head without weights scores 0 everywhere.


def _seen(model: Model, tokens: Tensor, layers: Sequence[int]) -> dict[int, _Seen]:
    """Each layer's own attention on `tokens`: its scores, or if they are unknown its patterns."""
    found: dict[int, _Seen] = {}

    def look(layer: int, attention: FromQK) -> None:
        scores = einsum(attention.q, attention.k, "b q kv g e, b k kv e -> b kv g q k")
        scores = rearrange(scores * attention.scale, "b kv g q k -> b (kv g) q k")
        if attention.softcap is not None:
            scores = attention.softcap * (scores / attention.softcap).tanh()
        everything = torch.ones_like(scores, dtype=torch.bool)
        found[layer] = _Seen(scores, everything, attention.scale, attention.softcap)

    if streams(model):
        stream(model, tokens, look)
        return found
    hooks = [f"blocks.{layer}.attn.hook_pattern" for layer in layers]
    for layer, pattern in zip(layers, run_with(model, tokens, hooks).values(), strict=True):
        # Smaller probabilities have lost digits.
        found[layer] = _Seen(pattern.float().log(), pattern > 1e-30)
    return found


def _weights(model: Model, layer: int, fold: bool = True) -> HeadWeights:
    """A layer's weights, without scale and rotary positions."""
    W_V, b_V, W_O = values(model, layer, fold=fold)
    W_Q, b_Q = _read(model, "Q", layer, fold)
    W_K, b_K = _read(model, "K", layer, fold)
    centred = fold and norm_before(model, layer).centred
    weights = HeadWeights(W_Q, W_K, W_V, W_O, b_Q, b_K, b_V, scale=1.0, centred=centred)
    for name, W in vars(weights).items():
        if isinstance(W, Tensor) and not W.isfinite().all():
            where = f"{name} of layer {layer} of {model.name} or in the norm before it"
            raise InputError(f"weights must be finite numbers, but not all are in {where}")
    return weights


def _rotaries(model: Model) -> list[Rotary | None]:
    """Every way in which this model might turn queries and keys, by its buffers."""
    found = {
        (pairing, gain, *angles.tolist()): Rotary(angles.float(), pairing, gain)
        for (angles, gain), pairing in product(rotary_tables(model.inner), get_args(Pairing))
    }
    return [*found.values(), None]
