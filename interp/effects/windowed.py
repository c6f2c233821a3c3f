"""A model with a cut key-value cache: only the last tokens stay, or those and some early ones.

When text is written token by token, a cut cache holds at each step the keys and values of some
earlier tokens, as they were made: later evictions do not change them. So one pass over the whole
text with a mask gives the same result: query i sees exactly the keys that the cache holds at
step i.

The mask does not give the positions of the keys. When kept tokens are next to the last ones,
StreamingLLM (Xiao et al. 2023, arXiv 2309.17453) numbers positions inside the cache, and rotates
the keys again at every step: the kept keys stay right before the others, within the length of
the cache, however long the text is. Rotary scores depend on distances alone (Su et al. 2021,
arXiv 2104.09864), so among the last tokens the numbering changes nothing, and for a cache of the
last tokens alone there is no difference at all. Only the distance to the kept keys differs:

    text positions     query - key                          grows without end
    cache positions    min(query, last) - key,  last = first + size - 1

Therefore every row runs twice in one batch, once at its positions in the text and once at
`min(query, last)`, and a score with a kept key takes its query from the second. Both halves get
the same output, so they stay the same stream.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor

from interp.attention.reference import attention_scores, causal_mask, hide, softmax
from interp.effects.losses import next_token_losses
from interp.errors import Count, InputError, Whole, checked
from interp.models import Model, attend_with
from interp.models.finite import refuse_not_finite
from interp.models.stream import streams
from interp.scan.plan import row_length

Visit = Callable[[int, Float[Tensor, "row head query key"]], None]


@checked
@dataclass(frozen=True)
class Cut:
    """The tokens that a cache of limited size holds.

    Attributes:
        size: Number of tokens in the cache at most, the query's own among them.
        kept: Number of early tokens among them, which stay; the others are the last ones.
        first: Position of the first token that stays.
        renumbered: Whether positions are those inside the cache; else those in the text.
    """

    size: Count
    kept: Annotated[Whole, Field(ge=0)] = 0
    first: Annotated[Whole, Field(ge=0)] = 0
    renumbered: bool = True

    def __post_init__(self) -> None:
        if self.kept >= self.size:
            raise InputError(
                f"kept must be less than the cache's {self.size} tokens, got {self.kept}"
            )

    @property
    def turns(self) -> bool:
        """Whether positions in the cache differ from those in the text."""
        return self.renumbered and self.kept > 0

    def visible(self, length: int) -> Bool[Tensor, "query key"]:
        """The keys that each query of a text of `length` tokens finds in the cache.

        These are the last `size` until the kept tokens would leave; then the kept ones and the
        last `size - kept`.

        Example:
            >>> Cut(3, kept=1).visible(5).int()
            tensor([[1, 0, 0, 0, 0],
                    [1, 1, 0, 0, 0],
                    [1, 1, 1, 0, 0],
                    [1, 0, 1, 1, 0],
                    [1, 0, 0, 1, 1]], dtype=torch.int32)
        """
        query, key = torch.arange(length)[:, None], torch.arange(length)
        last = torch.where(query < self.first + self.size, self.size, self.size - self.kept)
        stays = (self.first <= key) & (key < self.first + self.kept)
        return causal_mask(length) & (stays | (query - key < last))

    def places(self, length: int) -> Int[Tensor, " query"]:
        """The position of each query relative to the kept keys.

        Example:
            >>> Cut(3, kept=1).places(5)
            tensor([0, 1, 2, 2, 2])
        """
        return torch.arange(length).clamp(max=self.first + self.size - 1)


def losses(
    model: Model,
    tokens: Int[Tensor, "row pos"],
    cut: Cut | None,
    *,
    heads: Bool[Tensor, "layer head"] | None = None,
    visit: Visit | None = None,
) -> Float[Tensor, "row query"]:
    """The loss of each next token, in nats, with a cut cache.

    Each row is run by itself, with one layer's `head x pos x pos` scores in memory at a time.

    Args:
        model: A rotary model (see `check`).
        tokens: Rows of one length, without padding.
        cut: Contents of the cache; None: everything.
        heads: Heads with a cut cache, the others keep theirs whole; None: all.
        visit: Callback, called with the layer and its pattern, once for every row and layer.

    Returns:
        Entry q is the loss of token `q + 1`, given the contents of the cache at q.
    """
    length = tokens.shape[1]
    cut = cut or Cut(length)
    heads = torch.ones(model.n_layers, model.n_heads) > 0 if heads is None else heads
    places = [torch.arange(length), *([cut.places(length)] if cut.turns else [])]
    options = {"position_ids": torch.stack(places).to(model.device), "use_cache": False}
    attend = partial(_attend, cut, heads.to(model.device), visit, model.parts)
    rows = []
    with attend_with(model.plain, attend), torch.no_grad():
        for row in tokens[:, None]:
            ids = row.expand(len(places), -1).to(model.device)
            logits = model.plain(ids, **options).logits[:1]
            rows.append(next_token_losses(logits, row).cpu())
    by_query = torch.cat(rows)
    refuse_not_finite(by_query, model)
    return by_query


def check(model: Model, length: int) -> None:
    """Refuse a model whose cache cannot be cut this way, with a test run on four tokens.

    Its context must hold `length` tokens, its attention must have no windows or learned sinks and
    use transformers' interface, and its positions must be rotary.
    """
    row_length(model, length)
    if windows := [window for window in model.windows if window is not None and window < length]:
        raise InputError(f"model must see all {length} tokens, got a window of {windows[0]}")
    if model.learned_sinks:
        raise InputError(f"model must have no learned sinks, got {model.name}, which has some")
    if not streams(model):
        raise InputError(f"model must use transformers' attention interface, got {model.name}")
    losses(model, model.vocabulary[:4][None], Cut(2, kept=1))


def _attend(
    cut: Cut,
    heads: Bool[Tensor, "layer head"],
    visit: Visit | None,
    layers: dict[Any, int],
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    slopes: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention as transformers calls it, with each query limited to the keys in its cache."""
    if attention_mask is not None:
        raise NotImplementedError("a cut cache cannot be combined with another attention mask")
    if slopes is not None:
        raise InputError("model must have rotary positions, got ALiBi")
    layer, length = layers[module], query.shape[2]
    cut_heads = heads[layer, :, None, None]
    group = query.shape[1] // key.shape[1]
    k, v = (x.float().repeat_interleave(group, 1) for x in (key, value))
    q = query.float()
    scores = attention_scores(q[:1], k[:1], scale=scaling)
    mask = causal_mask(length).to(query.device)
    mask = mask & (cut.visible(length).to(query.device) | ~cut_heads)
    if cut.turns:
        if not torch.allclose(value[0], value[1], rtol=1e-3, atol=1e-5, equal_nan=True):
            name = type(module).__name__
            raise InputError(f"model must have rotary positions, got others in its {name}")
        stay = slice(cut.first, cut.first + cut.kept)
        in_cache = attention_scores(q[1:], k[1:, :, stay], scale=scaling)
        scores[..., stay] = torch.where(cut_heads, in_cache, scores[..., stay])
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    pattern = softmax(hide(scores, mask))
    if visit is not None:
        visit(layer, pattern)
    out = rearrange(pattern @ v[:1], "b head n d -> b n head d").to(query.dtype)
    return out.expand(len(query), -1, -1, -1).contiguous(), None
