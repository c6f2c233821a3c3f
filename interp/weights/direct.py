"""Direct effects: each head's part of the logits, along the residual stream and the unembedding.

What the unembedding reads is a sum of parts: embedding, every head's output, biases, every MLP's
output. With the scales of all norms on the stream's path held fixed it is linear in them
(`interp.weights.linear`), so each part has a separate effect on every logit, and the effects sum
to the logit. Where the only such norm is the final one, with scale sigma:

    logit_y = sum over parts of  (part . u_y) / sigma + (b . W_U)_y + b_U_y,    u_y = gain * W_U_y

A head's part at query q is itself a sum over the keys that it attends to, `A_qk v_k W_O`: its
effect through some keys alone is the same product with those values (Elhage et al. 2021;
for the source of an induction head McDougall et al. 2023, arXiv 2310.04625). All effects here
are on the logit of one token minus the mean over the vocabulary, since adding a constant to all
logits changes nothing.

Some models cap their logits, `c tanh(logit / c)` (Gemma 2). Effects are on the logits before the
cap, where the sum is exact. To first order they move the capped logit by `1 - (capped / c) ** 2`
times as much.
"""

from collections.abc import Callable
from functools import cached_property, partial

import torch
from einops import einsum, rearrange, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.errors import InputError
from interp.kinds.mass import FromQK, Tally
from interp.kinds.targets import NONE
from interp.models import Model, evaluating
from interp.models.stream import Visit
from interp.weights.folded import values
from interp.weights.heads import copying_scores
from interp.weights.linear import Linear, Norms, both_inputs, linear_pass, stack_of

_SMALL, _LARGE = 2.0**-10, 2.0**14
"""Outputs of the unembedding that show a factor of the logits, and a cap."""


class Readout:
    """The way from heads to logits as a linear map, with the scales of norms held fixed.

    Attributes:
        W_U: The unembedding, minus its mean over the vocabulary.
        factor: Number by which the model multiplies what the unembedding gives (Cohere, Granite).
        cap: Bound c of the logits `c tanh(logit / c)`, or None. Effects are on those before it.
        close: Largest error of a sum of effects, relative to the largest logit.
        grams: `W_O W_O^T` of the heads of each layer, after `copying`.
    """

    def __init__(self, model: Model, *, causal: bool = True) -> None:
        if model.plain is None:
            raise InputError("the model does not run in transformers")
        if causal and model.direction != "causal":
            raise InputError("direct effects are on the next token of a causal model")
        self.head = model.plain.get_output_embeddings()
        if self.head is None:
            raise InputError("there is no language-model head")
        self.model, self.norms = model, Norms()
        self.grams: dict[int, Float[Tensor, "head d_value d_value"]] = {}
        W_U = _at_hand(self.head.weight).float()
        self.W_U: Float[Tensor, "vocab d_read"] = W_U - W_U.mean(0)
        self.factor, self.cap = self._beyond()
        self.close = 1e-3 if model.dtype_name == "float32" else 5e-2

    def _beyond(self) -> tuple[float, float | None]:
        """Factor and cap, by what the model makes of a small and a large output of W_U."""

        def fill(module: object, inputs: object, output: Tensor) -> Tensor:
            filled = torch.full_like(output, _SMALL)
            filled[..., 1] = _LARGE
            return filled

        with evaluating(self.model.plain), self.head.register_forward_hook(fill), torch.no_grad():
            token = self.model.vocabulary[:1, None].to(self.model.device)
            decoded = None if stack_of(self.model) is None else token
            logits = self.model.plain(**both_inputs(token, decoded)).logits
            small, large = logits[0, -1, :2].tolist()
        factor = small / _SMALL
        return factor, None if abs(large / _LARGE - factor) <= 1e-2 * abs(factor) else large

    def check(self) -> None:
        """Raise unless heads reach the logits as this module assumes, on a few tokens."""
        tokens = self.model.vocabulary[:8][None].to(self.model.device)
        keys = torch.arange(tokens.shape[1], device=tokens.device).expand(*tokens.shape, -1)
        outputs: dict[int, Tensor] = {}

        def look(layer: int, attention: FromQK) -> None:
            outputs[layer] = attention.brought(keys)

        run = parts_of(self, tokens, tokens.roll(-1, dims=1), look)[0]
        for layer, out in outputs.items():
            z = rearrange(run.heads[layer].detach().float(), "b q h d -> b h q d")
            if not (z - out).abs().max() <= self.close * z.abs().max():
                raise InputError("a head's output is not the sum of its weighted values")

    def towards(self, answers: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch pos d_read"]:
        """Direction of each position's answer in what the unembedding reads."""
        return self.factor * self.W_U[answers.to(self.W_U.device)]

    def bias_of(self, norm: torch.nn.Module) -> Tensor:
        """Bias of a norm; 0 if the stream does not pass it, so that it was not probed."""
        return self.norms[norm].bias if norm in self.norms else self.W_U.new_zeros(())

    def bias(self, answers: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch pos"]:
        """Effect of the unembedding's bias."""
        b_U = getattr(self.head, "bias", None)
        b_U = self.W_U.new_zeros(len(self.W_U)) if b_U is None else b_U.detach().float()
        return self.factor * (b_U - b_U.mean())[answers.to(b_U.device)]

    @cached_property
    def tail(self) -> Float[Tensor, "d_read d_model"]:
        """From the stream after the last layer to what the unembedding reads.

        Up to a positive factor: the scale of the final norm.
        """
        model, after = self.model, self.model.n_layers
        tokens = model.vocabulary[:1, None]
        run = linear_pass(model, tokens, lambda *_: None, self.norms, layers=[after])
        rows = torch.eye(self.W_U.shape[1], device=run.last.device, dtype=run.last.dtype)
        (found,) = torch.autograd.grad(
            run.last, run.streams[after], rows[:, None, None], is_grads_batched=True
        )
        return found[:, 0, 0].float()

    def copying(self) -> Float[Tensor, "layer head"]:
        """`interp.weights.heads.copying_scores` of every head, norms folded in, W_U centred.

        Of the layers with attention. Fills `grams`.
        """
        W_E = self.model.plain.get_input_embeddings().weight.detach().float()
        if W_E.shape[1] != self.tail.shape[1]:
            raise InputError("the stream does not start with the embedding")
        ring = self.tail.T @ (self.W_U.T @ W_E)
        scores = []
        for layer, (W_V, _, W_O) in values(self.model).items():
            W_V = repeat(W_V, "kv d e -> (kv g) d e", g=len(W_O) // len(W_V))
            scores.append(copying_scores(W_V, W_O, ring))
            self.grams[layer] = W_O @ W_O.mT
        return torch.stack(scores)


def _at_hand(W_U: Tensor) -> Tensor:
    """The unembedding without its gradient, if it is in memory and not packed."""
    if W_U.is_meta:  # As that of an offloaded layer.
        raise InputError("weights must be in memory, got the unembedding elsewhere")
    if not W_U.is_floating_point():
        kind = str(W_U.dtype).removeprefix("torch.")
        packed = f"the unembedding packed as {kind}"
        raise InputError(f"weights must be numbers by themselves, got {packed}")
    return W_U.detach()


def value_norms(
    v: Float[Tensor, "batch kv_head key d_value"], gram: Float[Tensor, "head d_value d_value"]
) -> Float[Tensor, "batch head key"]:
    """`|v W_O|`: how far one unit of attention to a key moves the residual stream.

    (Kobayashi et al. 2020, arXiv 2004.10102.) Computed as the root of `v (W_O W_O^T) v`, so that
    no vector of the stream's width is made for every key and head. `gram` is `W_O W_O^T`. Scales
    of a norm after the heads and gates, which depend on the query, are left out.
    """
    gram = rearrange(gram, "(kv g) d e -> kv g d e", kv=v.shape[1])
    squares = einsum(v.float(), gram, v.float(), "b kv k d, kv g d e, b kv k e -> b kv g k")
    return rearrange(squares, "b kv g k -> b (kv g) k").clamp(min=0).sqrt()


class StripeEffects:
    """Every head's direct effect on the right next token through its induction targets alone.

    Of repeated rows. Call `look` for each layer of an `interp.weights.linear.linear_pass`.
    """

    def __init__(self, readout: Readout, tokens: Int[Tensor, "batch pos"]) -> None:
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
        counted = (keys != NONE).any(-1) & counted & self.has_next
        self._found[layer] = attention.brought(keys), counted

    def tallies(self, run: Linear) -> dict[int, Tally]:
        """The effects in logits, by layer, after the pass `run`."""
        gradients = run.gradients(self.towards, [run.heads[layer] for layer in self._found])
        found = {}
        for (layer, (brought, counted)), gradient in zip(
            self._found.items(), gradients, strict=True
        ):
            effect = einsum(brought, gradient.float(), "b h q d, b q h d -> b h q")
            found[layer] = Tally.of(effect, torch.zeros_like(effect), counted)
        return found


def logit_parts(
    model: Model,
    tokens: Int[Tensor, "batch pos"],
    answers: Int[Tensor, "batch pos"],
    *,
    readout: Readout | None = None,
    decoder_tokens: Int[Tensor, "batch pos"] | None = None,
) -> dict[str, Float[Tensor, "..."]]:
    """Every part's direct effect on the logit of `answers`, minus the mean over the vocabulary.

    Of a masked language model (BERT), the logit of `answers` at a masked token; of an
    encoder-decoder, of the decoder, whose input is `decoder_tokens`.

    Returns:
        `heads [layer, batch, head, pos]`, `attention_bias` and `mlp [layer, batch, pos]`,
        `embedding` and `constant [batch, pos]`, in logits; of a decoder also `cross`, like `heads`,
        its attention to the encoder. Their sum is the logit, before a cap.
        `mlp` is what the layer adds without heads: its MLP, its experts, and in a layer without
        attention (hybrids), where `heads` are 0, what is there instead. In a model that is not
        causal a part's effect through what follows the layers is to first order (its gradient),
        and `constant` has the rest: with an activation there (BERT's head) effects are
        approximate, without one (T5, BART) exact.
    """
    readout = readout or Readout(model, causal=False)
    if (decoder_tokens is None) != (stack_of(model) is None):
        raise InputError(
            f"decoder_tokens must come with an encoder-decoder only, got {model.name}, which is"
            f" {model.direction}"
        )
    decoded = None if decoder_tokens is None else decoder_tokens.to(model.device)
    ids = tokens.to(model.device), answers.to(model.device)
    return parts_of(readout, *ids, lambda *_: None, decoded)[1]


def parts_of(
    readout: Readout,
    tokens: Int[Tensor, "batch pos"],
    answers: Int[Tensor, "batch pos"],
    visit: Visit,
    decoder_tokens: Int[Tensor, "batch pos"] | None = None,
) -> tuple[Linear, dict[str, Float[Tensor, "..."]], Float[Tensor, "batch pos"]]:
    """The pass, the result of `logit_parts`, and the logits of the model as it is: their sum."""
    model, given = readout.model, []
    with (
        evaluating(model.plain),
        readout.head.register_forward_hook(lambda module, inputs, output: given.append(output)),
        torch.no_grad(),
    ):
        logits = model.plain(**both_inputs(tokens, decoder_tokens)).logits.float()
    uncapped = readout.factor * given[0].float()
    expected = uncapped if readout.cap is None else readout.cap * (uncapped / readout.cap).tanh()
    if not (logits - expected).abs().max() <= readout.close * logits.abs().max():
        raise InputError("the logits are not what the unembedding gives, times a factor, capped")

    logits = uncapped - uncapped.mean(-1, keepdim=True)
    expected = logits.gather(-1, answers[..., None])[..., 0]
    stack, is_causal = stack_of(model), model.direction == "causal"
    n_layers, n_heads = model.layers_of(stack), model.heads_of(stack)
    ends = () if is_causal else (n_layers,)
    options = {"layers": ends, "decoder_tokens": decoder_tokens}
    run = linear_pass(model, tokens, visit, readout.norms, parts=True, **options)
    constant = readout.bias(answers)
    for end in ends:
        x = run.streams[end]
        (gradient,) = run.gradients(readout.towards(answers), [x])
        constant = expected - (gradient.float() * x.detach().float()).sum(-1)
    batch, length = answers.shape
    found = {
        "heads": constant.new_zeros(n_layers, batch, length, n_heads),
        "attention_bias": constant.new_zeros(n_layers, batch, length),
        "mlp": constant.new_zeros(n_layers, batch, length),
        "embedding": torch.zeros_like(constant),
        "constant": constant,
    }
    names = ["heads"]
    if stack is not None:
        names.append("cross")
        found["cross"] = torch.zeros_like(found["heads"])
    # Where the gradient is taken, what it is multiplied by, and where the effect belongs.
    z, crossed = run.heads, run.cross
    embedding = next(iter(run.streams.values()))
    passed: list[_Term] = [
        (embedding, embedding.detach, found["embedding"]),
        *((z[i], z[i].detach, found["heads"][i]) for i in z),
        *((x, x.detach, found["cross"][i]) for i, x in crossed.items()),
    ]
    others: list[_Term] = [
        *((x, x.detach, found["mlp"][i]) for i, x in run.others),
        *(
            (x, partial(bias_of, W_O, z), found["attention_bias"][i])
            for W_O, i, z, x in run.written
        ),
        *((y, partial(readout.bias_of, norm), constant) for norm, y in run.normed),
    ]
    for terms, unused in ((passed, False), (others, True)):
        at = [at for at, _, _ in terms]
        gradients = run.gradients(readout.towards(answers), at, unused=unused)
        for gradient, (_, part, place) in zip(gradients, terms, strict=True):
            effect = part().float() * gradient.float()
            place += effect.reshape(*place.shape, -1).sum(-1)
    for name in names:
        found[name] = found[name].transpose(2, 3)
    by_head = sum(found[name].sum((0, 2)) for name in names)
    total = by_head + found["attention_bias"].sum(0) + found["mlp"].sum(0)
    total = total + found["embedding"] + found["constant"]
    if not (total - expected).abs().max() <= readout.close * logits.abs().max():
        raise InputError("the parts of the residual stream do not sum to the logits")
    return run, found, expected


_Term = tuple[Tensor, Callable[[], Tensor], Tensor]


def bias_of(W_O: torch.nn.Module, z: Tensor) -> Tensor:
    """What an output projection adds to whatever it reads, for inputs such as `z`."""
    with torch.no_grad():
        return W_O(torch.zeros_like(z[:1, :1]))
