"""`patch`: does an activation of a head from clean prompts bring the answer back in corrupted ones?

To replace the queries, keys, values or pattern of a head is to replace its output: by the one that
it would have with them in this run. So the outputs of all heads of a layer come from one
attention, and all maps from the same passes.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.effects.ablate import AnyHead, chosen_heads
from interp.effects.head_effects import HeadEffects, ids_as_text, record_of, row_of
from interp.effects.losses import interval
from interp.effects.metrics import Metric, bound
from interp.effects.replaced import Change, Group, Prompts
from interp.effects.tasks import paired_tokens
from interp.errors import InputError, Seed, Whole, checked, quoted
from interp.heads import Head
from interp.kinds.mass import FromQK
from interp.kinds.targets import NONE
from interp.models import load_model
from interp.models.stream import outputs_of, streams

LOG = logging.getLogger("interp")

WHAT = ("z", "q", "k", "v", "pattern")
"""What `patch` replaces."""


@checked
def patch(
    model: Any,
    clean: Any,
    corrupted: Any,
    metric: Metric,
    what: str = "z",
    *,
    heads: AnyHead | Sequence[AnyHead] | None = None,
    position: Whole | Literal["each"] | None = None,
    reverse: bool = False,
    seed: Seed = 0,
    progress: Callable[[int, int], None] | None = None,
) -> HeadEffects:
    """The effect of putting each head's activation in clean prompts into the run of corrupted ones.

    An effect is normalised: 0 is the corrupted run and 1 the clean one,
    `(m(patched) - m(corrupted)) / (m(clean) - m(corrupted))`, with the mean over the pairs above
    and below. Heads are patched one at a time (activation patching: Vig et al. 2020,
    arXiv 2004.12265; Wang et al. 2022, arXiv 2211.00593).

    Args:
        model: A `Model`, or anything that `interp.load_model` takes; causal.
        clean: Prompts, as for `Model.to_tokens`, such as those of a task.
        corrupted: Prompts with as many tokens each.
        metric: Metric, such as `interp.logit_difference(task)`, or any function of
            `(logits [batch, pos, id], tokens [batch, pos])` that returns `[batch]`.
        what: Activation that is patched: `z`, a head's output before W_O; `q`, `k` or `v`, its
            queries, keys or values as attention uses them (after norms and rotary positions); or
            `pattern`, its attention weights. All else in the layer stays that of the corrupted run.
            Query heads that share keys and values change together: `k` and `v` then have a row for
            each key-value head, such as `L5KV1`.
        heads: Heads to patch; all if left out. For `k` and `v` the key-value heads that they read.
        position: Token where the activation is patched, from the end of each prompt if negative
            (-1 is the last token); all at once if left out; or `each`, a row for each token, if
            prompts have the same number of tokens. Of a pattern it is the query's.
        reverse: Whether corrupted activations go into the clean run: 0 is then the clean run and 1
            the corrupted one.
        seed: Seed of the intervals.
        progress: Callback, called with (patches done, patches in all).

    Returns:
        The normalised effect of each head, with a 95 % interval over the pairs (bootstrap), and the
        band of an ordinary head.

    Raises:
        InputError: If the prompts of a pair differ in their number of tokens, the metric does not
            differ between the clean and the corrupted run, or `what` is not z and the model's
            attention cannot be streamed.

    Example:
        >>> import torch
        >>> import interp
        >>> toy = interp.build_circuit("absolute", vocabulary=16, length=16)
        >>> clean, corrupted = torch.tensor([[0, 5, 6, 7, 5]]), torch.tensor([[0, 5, 9, 7, 5]])
        >>> metric = interp.logit_difference(right=[6], wrong=[9])
        >>> effects = interp.patch(toy, clean, corrupted, metric)
        >>> effects.strongest(1)["name"].item()  # The induction head.
        'L1H5'
        >>> by_token = interp.patch(toy, clean, corrupted, metric, "v", position="each")
        >>> by_token.matrix().loc["L1H5"].round(2).tolist()  # It reads what follows the first 5.
        [0.0, 0.0, 1.0, 0.0, 0.0]
    """
    if what not in WHAT:
        raise InputError(f"what must be one of {', '.join(WHAT)}, got {quoted(what)}")
    model = load_model(model)
    known, chosen = chosen_heads(model, heads)
    if what != "z" and not streams(model):
        raise InputError(
            f"what must be z for {model.name}, got {what}: its attention cannot be streamed, so its"
            " queries, keys and values are not at hand"
        )
    ids = paired_tokens(model, *((corrupted, clean) if reverse else (clean, corrupted)))
    positions = _positions(ids[1], position)
    metric = bound(metric, model)
    source, prompts = (Prompts(model, each, metric, streamed=what != "z") for each in ids)
    before = prompts.metric()
    whole = source.metric() - before
    _check_whole(whole, seed)
    rows: list[dict[str, Any]] = []
    kept: list[bool] = []
    after: list[Tensor] = []
    total = len(known) * len(positions)
    for layer in dict.fromkeys(head.layer for head in known):
        of_layer = [head for head in known if head.layer == layer]
        groups = [*zip(source.groups, prompts.groups, strict=True)]
        units = [*_units(of_layer, groups[0][0], what)]
        for at in positions:
            outputs = [patched(what, layer, *pair, at) for pair in groups]
            changes: list[Change] = []
            for row, of_unit in units:
                changes.append({h: [z[:, :, h.head] for z in outputs] for h in of_unit})
                rows.append({**row, "what": what, **({} if at is None else {"position": at})})
                kept.append(not set(of_unit).isdisjoint(chosen))
            after.append(prompts.replaced(changes))
            if progress is not None:
                progress(sum(map(len, after)) * len(of_layer) // len(units), total)
    source_run, target_run = ("corrupted", "clean") if reverse else ("clean", "corrupted")
    made_by = record_of(
        model,
        metric,
        f"{what} of the {source_run} run",
        f"share of the {source_run} run: 0 {target_run}, 1 {source_run}",
        seed=seed,
        position=position,
        **{f"{source_run}_mean": float((whole + before).mean())},
        **{f"{target_run}_mean": float(before.mean())},
        clean=ids_as_text(ids[reverse]),
        prompts=ids_as_text(ids[1]),
    )
    return HeadEffects.of(rows, torch.cat(after) - before, whole, seed, made_by, kept)


def patched(
    what: str, layer: int, source: Group, target: Group, position: int | None = None
) -> Float[Tensor, "batch pos head d_value"]:
    """What the heads of a layer put out in `target` with an activation that they have in `source`.

    At one position, or at all.
    """
    at: Any = slice(None) if position is None else [position]
    new = source.z[layer]
    if what != "z":
        own, theirs = target.attention[layer], source.attention[layer]
        reads = _reads(own)
        for name in "qk" if what == "pattern" else what:
            there = slice(None) if what == "pattern" else at
            reads[name] = reads[name].clone()
            reads[name][:, there] = _reads(theirs)[name][:, there]
        new = outputs_of(own, **reads)
    if what in ("q", "k", "v"):
        return new
    z = target.z[layer].clone()
    z[:, at] = new[:, at]
    return z


def _reads(attention: FromQK) -> dict[str, Float[Tensor, "batch pos ..."]]:
    assert attention.v is not None  # A stream gives them.
    return {"q": attention.q, "k": attention.k, "v": attention.v.transpose(1, 2)}


def _units(
    heads: Sequence[Head], group: Group, what: str
) -> Iterator[tuple[dict[str, Any], list[Head]]]:
    """What is patched at once in a layer: its row, and the heads whose outputs change."""
    layer = heads[0].layer
    shared = group.attention[layer].k.shape[2] if what in ("k", "v") else len(heads)
    for index in range(shared):
        row = row_of(Head(layer, index))
        if shared < len(heads):
            row["name"] = f"L{layer}KV{index}"
        size = len(heads) // shared
        yield row, [*heads[index * size : (index + 1) * size]]


def _positions(
    tokens: Int[Tensor, "batch pos"], position: int | str | None
) -> list[int] | list[None]:
    if position is None:
        return [None]
    lengths = (tokens != NONE).sum(-1)
    shortest, longest = int(lengths.min()), int(lengths.max())
    if isinstance(position, str):
        if shortest < longest:
            raise InputError(
                f"position must be a number for prompts of {shortest} to {longest} tokens, got"
                " each: give prompts of one length, or count from the end"
            )
        return [*range(longest)]
    if not -shortest <= position < shortest:
        raise InputError(
            f"position must be from {-shortest} to {shortest - 1}, as the shortest prompt has"
            f" {shortest} tokens, got {position}"
        )
    return [position]


def _check_whole(whole: Float[Tensor, " batch"], seed: int) -> None:
    """Refuse or warn about a difference that effects cannot be divided by."""
    if not whole.mean():
        raise InputError(
            "metric must differ between clean and corrupted prompts, got no difference"
        )
    low, high = interval(whole[:, None], seed) if len(whole) > 1 else (1.0, 1.0)
    if low <= 0 <= high:
        LOG.warning(
            "the metric differs between clean and corrupted prompts by %.2g only, 95 %% interval"
            " %.2g to %.2g: effects are divided by this difference and mean little",
            *(whole.mean(), low, high),
        )
