"""The weights with which a model's heads read and write the stream: norms folded in.

How a family stores its weights is never taken on trust: they are read by running its modules
(`interp.weights.probed`), and must give the scores that the model computes. `head_weights` tests
this for every layer on a few tokens, and refuses a layer that fails.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import product
from typing import Any, NoReturn, get_args

import torch
from einops import einsum, rearrange
from jaxtyping import Float, Int
from torch import Tensor

from interp.errors import InputError, checked, told
from interp.models import Model, attention_layers, cheap_forward, evaluating, load_model
from interp.models.families import layer_modules, output_projections, rotary_tables
from interp.models.reading import Call, Stopped, rereading
from interp.weights.composition import Composition, compose
from interp.weights.heads import Distance, HeadWeights, Pairing, Rotary
from interp.weights.linear import linear_pass
from interp.weights.norms import Held, Norm, held
from interp.weights.probed import Layer, recorded

TRIED_ON = 32
"""Number of tokens on which the weights must give the model's own scores."""


def norm_before(model: Model, layer: int) -> Norm:
    """The norm whose output a layer's heads read; the identity if there is none."""
    return recorded(model, model.vocabulary[:1][None], [layer])[0].before


def values(
    model: Model,
) -> dict[
    int,
    tuple[
        Float[Tensor, "kv_head d_model d_value"],
        Float[Tensor, "kv_head d_value"],
        Float[Tensor, "head d_value d_model"],
    ],
]:
    """W_V, b_V and W_O of each layer with attention, as in `interp.weights.heads.HeadWeights`."""
    read = _read(model, attention_layers(model, None))
    for layer, (heads, _, seen) in read.items():
        _refuse_off(model, layer, "values", _off_values(heads, seen))
    return {layer: (heads.W_V, heads.b_V, heads.W_O) for layer, (heads, *_) in read.items()}


def head_weights(
    model: Any, layers: Sequence[int] | None = None, *, fold: bool = True
) -> dict[int, HeadWeights]:
    """Every layer's heads as they read the residual stream, tested on the model's own scores.

    Args:
        model: `Model`, or anything that `load_model` accepts.
        layers: Layers in any order; all that have attention if left out.
        fold: Whether to fold norms and gates in. Without it the weights are the stored ones, which
            TransformerLens shows and many published numbers use; they read the norm's output.

    Returns:
        Weights by layer, in the order of `layers`, in float32. Factors that the model applies to
        all queries or keys alike are part of W_Q and W_K (OPT, YaRN). Where rotary angles depend
        on the length of the prompt (longrope, dynamic), they are those of a short one.
    """
    model = load_model(model)
    wanted = list(dict.fromkeys(attention_layers(model, layers)))
    return _tested(model, wanted, fold)


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

    Example:
        >>> import interp
        >>> toy = interp.build_circuit("absolute", vocabulary=64, length=33)
        >>> composition_scores(toy).strongest("K")["earlier"].iloc[0]  # The previous-token head.
        'L0H3'
    """
    model = load_model(model)
    weights = head_weights(model, fold=fold)
    _check_stream(model)
    return compose(weights, n_layers=model.n_layers, distance=distance)


def _check_stream(model: Model) -> None:
    """Refuse a model in which later layers do not read what a head writes as it was written."""
    layers = attention_layers(model, None)
    run = linear_pass(model, model.vocabulary[:2][None], lambda *_: None, {}, layers=layers)
    start = next(iter(run.streams.values()))
    along = torch.ones_like(start)
    along[..., ::2] = -2.0
    for layer in layers:
        if run.streams[layer] is not start:
            (moved,) = torch.autograd.grad(run.streams[layer], start, along, retain_graph=True)
            if torch.cosine_similarity(moved, along, dim=-1).min() < 1 - 1e-4:
                raise InputError(
                    "composition needs a residual stream to which layers only add, got one that"
                    f" something else, such as a norm, changes before layer {layer} of {model.name}"
                )


def token_sample(model: Model, count: int = 4096, *, seed: int = 0) -> Int[Tensor, " token"]:
    """Ids of `count` ordinary tokens, drawn without replacement; all if there are fewer."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(model.vocabulary), generator=generator)
    return model.vocabulary[order[:count]].sort().values


def embedding(
    model: Any, ids: Int[Tensor, " token"], *, through_mlp: bool = False
) -> Float[Tensor, "token d_model"]:
    """Tokens as a head reads them if nothing else is in the stream: divided by their norm's scale.

    Rows `e / sigma(e)` in float32, with the sigma of the norm before the first heads, as
    `HeadWeights` reads them; without learned positions. With `through_mlp` e is the effective
    embedding: it includes what the first layer writes for the embedding without its heads, and in
    models with MLPs is closer to what later heads read (Wang et al. 2022, arXiv 2211.00593,
    section on copy scores).
    """
    model = load_model(model)
    norm, table = norm_before(model, model.attending[0]), model.plain.get_input_embeddings()
    if outside := [i for i in ids.tolist() if not 0 <= i < table.num_embeddings]:
        raise InputError(f"ids must be from 0 to {table.num_embeddings - 1}, got {outside[0]}")

    def stored(ids: Tensor) -> Tensor:
        with torch.no_grad():
            return table(ids.to(model.device))

    # Some models multiply the embedding (Granite): two tokens show by what.
    pair = model.vocabulary[:2]
    apart, as_stored = (torch.sub(*x.float()) for x in (_at_first(model, pair), stored(pair)))
    rule = "the residual stream must start with the embedding"
    if apart.shape != as_stored.shape:
        raise InputError(f"{rule}, got {len(as_stored)} dimensions in a stream of {len(apart)}")
    times = (apart @ as_stored) / (as_stored @ as_stored)
    close = 1e-2 * float(apart.abs().max())
    if not torch.allclose(apart, times * as_stored, rtol=1e-2, atol=close):
        raise InputError(f"{rule}, got another")
    x = stored(ids)
    x = x * times.to(x.dtype)
    if through_mlp:
        x = _at_first(model, ids, x)
    x, found = x.float(), torch.zeros_like(x, dtype=torch.float)
    some = x.any(-1)  # Rows of padding are 0 and stay 0.
    found[some] = x[some] / norm.scale_of(x[None, some])[0, :, None]
    return found


def _at_first(
    model: Model, ids: Int[Tensor, " token"], x: Float[Tensor, "token d_model"] | None = None
) -> Float[Tensor, "token d_model"]:
    """What enters the first layer for each token alone; with `x`, what that layer makes of `x`.

    The layer then works without its heads.
    """
    block, W_O = layer_modules(model.plain)[0], output_projections(model.plain).get(0)

    def enter(module: Any, args: Any, options: Any) -> Any:
        call = Call(args, options, None)
        if x is None:
            raise Stopped(call.read)
        return call.on(x[:, None])

    def leave(module: Any, args: Any, output: Any) -> NoReturn:
        raise Stopped(Call(args, {}, output).gave)

    def silence(module: Any, args: Any, output: Tensor) -> Tensor:
        return torch.zeros_like(output)

    with ExitStack() as hooks, torch.no_grad(), evaluating(model.plain):
        hooks.enter_context(block.register_forward_pre_hook(enter, with_kwargs=True))
        hooks.enter_context(block.register_forward_hook(leave))
        if W_O is not None:
            hooks.enter_context(W_O.register_forward_hook(silence))
        try:
            model.plain(ids[:, None].to(model.device), **cheap_forward(model.plain))
        except Stopped as stopped:
            return stopped.args[0][:, 0]
    raise InputError(f"model must run its first layer, got {model.name}, which does not")


def _tested(model: Model, layers: Sequence[int], fold: bool) -> dict[int, HeadWeights]:
    try:
        read = _read(model, layers, stored=not fold)
    except InputError:
        raise
    except Exception as error:  # Attention that is not streamed fails in any way.
        raise InputError(
            f"weights must be of attention that can be streamed, got {model.name}: {told(error)}"
        ) from error
    found = {}
    for number, (folded, stored, layer) in read.items():
        rotaries = _rotaries(model, folded.W_Q.shape[-1])
        errors = [(_off(replace(folded, rotary=rotary), layer), rotary) for rotary in rotaries]
        off, rotary = min(errors, key=lambda error: error[0])
        _refuse_off(model, number, "scores", off)
        _refuse_off(model, number, "values", _off_values(folded, layer))
        found[number] = replace(folded if fold else stored, rotary=rotary)
    return found


def _refuse_off(model: Model, layer: int, what: str, off: float) -> None:
    """Refuse weights whose results are too far from the model's own."""
    close = 1e-4 if {w.dtype for w in model.inner.parameters()} <= {torch.float32} else 5e-2
    if not off <= close:
        raise InputError(
            f"weights must give the {what} of {model.name}, but those of layer {layer} are"
            f" {off:.1%} off: this attention is not known, such as one that clips its queries"
        )


def _read(
    model: Model, layers: Sequence[int], *, stored: bool = False
) -> dict[int, tuple[HeadWeights, HeadWeights, Layer]]:
    """Each layer's weights without rotary positions, folded and as stored, and the layer itself.

    Norms inside the attention are held at their mean scale in the pass of the layer. Unless asked
    for, the stored weights may have them.
    """
    tokens = token_sample(model, min(TRIED_ON, model.n_ctx))[None]
    seen = recorded(model, tokens, layers)
    norms: Held = {}
    for module, calls in (norm for layer in seen for norm in layer.inner.items()):
        norm = Norm(module, torch.ones_like(calls[0][0].flatten(0, -2)[0]))
        norms[module] = norm, norm.mean_scale(calls)
    if norms:
        with held(norms):
            seen = recorded(model, tokens, layers)
    first = recorded(model, tokens[:, :1], layers)
    with rereading(model):
        maps = [layer.maps(norms) for layer in first]
        none = dict.fromkeys(norms)
        plain = [layer.maps(none) for layer in first] if stored and norms else maps
    found = {}
    for number, layer, *both in zip(layers, seen, maps, plain, strict=True):
        after = {"W_O": layer.written(), "scale": layer.heads.scale, "softcap": layer.heads.softcap}
        weights, as_stored = (HeadWeights(**each, **after) for each in both)
        weights = _folded(weights, layer)
        for name, W in vars(weights).items():
            if isinstance(W, Tensor) and not W.isfinite().all():
                where = f"{name} of {layer.where}"
                raise InputError(f"weights must be finite numbers, but not all are in {where}")
        found[number] = weights, as_stored, layer
    return found


def _folded(heads: HeadWeights, layer: Layer) -> HeadWeights:
    """Weights that read the output of the norm before them, turned into those that read x / sigma.

    What follows the heads is folded into W_O: a gate at its mean, and a norm without its scale.
    """
    norm = layer.before
    parts = {f"W_{part}": norm.fold(getattr(heads, f"W_{part}").mT).mT for part in "QKV"}
    for part in "QKV":
        bias = einsum(norm.bias, getattr(heads, f"W_{part}"), "d, h d e -> h e")
        parts[f"b_{part}"] = getattr(heads, f"b_{part}") + bias
    W_O = layer.after.fold_written(layer.gate()[..., None] * heads.W_O)
    return replace(heads, **parts, W_O=W_O, centred=norm.centred)


def _off(heads: HeadWeights, layer: Layer) -> float:
    """Largest error of the scores that `heads` give, relative to the largest score."""
    seen = layer.heads
    scores = einsum(seen.q, seen.k, "b q kv g e, b k kv e -> b kv g q k") * seen.scale
    scores = rearrange(scores, "b kv g q k -> b (kv g) q k")
    ours = replace(heads, softcap=None).scores(layer.stream.float(), layer.sigma())
    return _apart(ours, scores)


def _off_values(heads: HeadWeights, layer: Layer) -> float:
    """Largest error of the values that `heads` give, and of what W_O makes of the heads' outputs.

    Relative to the largest value and output.
    """
    x = layer.stream.float() / layer.sigma()[..., None]
    v = einsum(x, heads.W_V, "b k d, kv d e -> b kv k e") + heads.b_V[:, None]
    with torch.no_grad():
        output = layer.W_O(layer.joined)
    # The attention of Bloom and BERT adds the stream itself; BERT's has a norm after the sum.
    added = [layer.stream, layer.call.read]
    if layer.given is layer.call.gave:
        added.append(torch.zeros_like(output))
    off = min(_apart(output + one, layer.given) for one in added)
    assert layer.heads.v is not None  # A stream gives them.
    return max(_apart(v, layer.heads.v), off)


def _apart(ours: Tensor, theirs: Tensor) -> float:
    """Largest difference relative to the largest number; a layer without weights gives 0s."""
    most, largest = (float(x.float().abs().max()) for x in (ours - theirs, theirs))
    return most / largest if largest else most


def _rotaries(model: Model, d_head: int) -> list[Rotary | None]:
    """Every way in which this model might turn queries and keys, by its buffers."""
    found: dict[Any, Rotary] = {}
    ways = product(rotary_tables(model.plain), get_args(Pairing), (1, -1))
    for table, pairing, way in ways:
        angles = way * table.float()
        rest = d_head - 2 * len(angles)
        for first in {0, rest} if rest >= 0 else ():
            found[pairing, first, *angles.tolist()] = Rotary(angles, pairing, first)
    return [*found.values(), None]
