"""Attention patterns of any source, one prompt at a time: what figures and pages show."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.errors import InputError
from interp.heads import Head
from interp.kinds.kind import Kind
from interp.kinds.looks import marked
from interp.kinds.targets import NONE
from interp.patterns.read import carries_tokens, take
from interp.patterns.tensor import AttentionPatterns, as_numbers, check_pattern
from interp.scan.table import HeadScan
from interp.show.about import special_of
from interp.text import distinct, visible

LONGEST = 1024
"""Most tokens of a prompt that a page or a figure shows."""


@dataclass(frozen=True)
class Text:
    """The tokens along one side of a pattern: ids without padding, and the text of each."""

    ids: Int[Tensor, " pos"]
    texts: Sequence[str]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def labels(self) -> list[str]:
        """The visible text of each token; different tokens have different labels."""
        return distinct([visible(text) for text in self.texts], self.ids.tolist())

    def special(self, ids: Collection[int]) -> list[int]:
        """Positions of the tokens with these ids."""
        return [place for place, token in enumerate(self.ids.tolist()) if token in ids]

    def beginning(self, most: int) -> "Text":
        """The first `most` tokens."""
        return Text(self.ids[:most].cpu(), list(self.texts[:most]))


@dataclass(frozen=True)
class Prompt:
    """One prompt of a run, without padding: its tokens and its patterns.

    `text` holds the queries' tokens, `keys` those of the keys in cross-attention, `layers` the
    patterns by number of the layer, and `special` the special tokens' ids. `whole` is the number
    of tokens before a cut; without `named`, layers count from 0. `template` are the tokens that a
    chat template added, if there is one.
    """

    text: Text
    layers: Mapping[int, Float[Tensor, "head query key"]]
    whole: int
    keys: Text | None = None
    causal: bool = True
    special: Collection[int] = ()
    named: bool = True
    template: Bool[Tensor, " pos"] | None = None

    @property
    def templated(self) -> list[int]:
        """Positions of the chat template."""
        return [] if self.template is None else self.template.nonzero()[:, 0].tolist()

    @property
    def across(self) -> Text:
        """The keys' tokens."""
        return self.text if self.keys is None else self.keys

    @property
    def hidden(self) -> Bool[Tensor, "query key"]:
        """The cells that a query cannot see."""
        return torch.full((len(self.text), len(self.across)), self.causal).triu(1)

    @property
    def longest(self) -> int:
        """Number of tokens of the longer side."""
        return max(len(self.text), len(self.across))

    @property
    def not_finite(self) -> list[Head]:
        """Heads with NaN or infinity among their weights."""
        return [
            Head(layer, head)
            for layer, pattern in self.layers.items()
            for head in (~pattern.isfinite().all(-1).all(-1)).nonzero().flatten().tolist()
        ]

    def pattern(self, head: Head) -> Float[Tensor, "query key"]:
        """The attention of `head`, in float32 on the CPU."""
        if head.layer not in self.layers or head.head >= len(self.layers[head.layer]):
            raise InputError(f"patterns must hold {head}, got layers {list(self.layers)} without")
        return self.layers[head.layer][head.head].detach().cpu().float()

    def special_ids(self, scan: HeadScan | None) -> set[int]:
        """Ids of the special tokens that the prompt or the scan knows."""
        return {*self.special, *(special_of(scan) if scan is not None else ())}

    def targets_of(
        self, kind: Kind | None, scan: HeadScan | None, head: Head | None = None
    ) -> Bool[Tensor, "query key"] | None:
        """Targets of the kind; of a sink, also the columns that `head` uses as sinks.

        None for a kind whose rule is not known.
        """
        if kind is None or scan is None or not kind.has_rule:
            return None
        known = self.text.ids, scan.thresholds, self.special_ids(scan)
        pattern = None if head is None else self.pattern(head)
        more = {"causal": self.causal, "texts": self.text.texts, "attention": pattern}
        return marked(kind, *known, **more)


def one_prompt(
    patterns: Any,
    *,
    row: int | None = None,
    whole: int | None = None,
    cross: bool = False,
    **source: Any,
) -> Prompt:
    """The prompt in `row` of patterns of any source, as `interp.gallery` takes them.

    A `Prompt` is returned as it is. `whole` is the number of tokens before a cut, `cross` says
    whether cross-attention is accepted, and `source` are arguments of `prompts_of`.
    """
    if isinstance(patterns, Prompt):
        return patterns
    prompts = prompts_of(patterns, **source)
    if row is None and len(prompts) > 1:
        raise InputError(f"row must be given for a batch of {len(prompts)} prompts, got none")
    if row is not None and not 0 <= row < len(prompts):
        raise InputError(f"row must be from 0 to {len(prompts) - 1}, got {row}")
    prompt = prompts[row or 0]
    if prompt.longest > LONGEST:
        raise InputError(f"patterns must have at most {LONGEST} tokens, got {prompt.longest}")
    if prompt.keys is not None and not cross:
        raise InputError("patterns must be a text's attention to itself, got cross-attention")
    if whole is not None and whole < len(prompt.text):
        raise InputError(f"whole must be at least {len(prompt.text)}, got {whole}")
    return replace(prompt, whole=whole or len(prompt.text))


def prompts_of(
    patterns: Any,
    tokens: Any = None,
    texts: Sequence[Any] | None = None,
    layers: Sequence[int] | None = None,
    *,
    causal: bool | None = None,
) -> list[Prompt]:
    """Each row of a batch, or of each batch in a list, as a prompt without its padding."""
    if isinstance(patterns, list | tuple) and all(map(carries_tokens, patterns)):
        if not patterns:
            raise InputError("patterns must hold at least one prompt, got none")
        known = {"tokens": tokens, "texts": texts, "layers": layers, "causal": causal}
        return [row for one in patterns for row in prompts_of(one, **known)]
    ran = take(patterns, tokens)
    causal = ran.causal if causal is None else causal
    ids = ran.tokens.cpu()
    numbers = as_numbers(ran.layers if layers is None else layers)
    if len(numbers) != len(ran.arrays):
        raise InputError(f"layers must name all {len(ran.arrays)} layers, got {len(numbers)}")
    # The patterns of `attention_patterns` were checked when they were computed.
    checked = isinstance(patterns, AttentionPatterns) or ran.checked
    checked = checked and causal == ran.causal
    known = {"learned_sinks": ran.learned_sinks, "causal": causal, "key_tokens": ran.key_tokens}
    known |= {"first_query": ran.first_query}
    for number, pattern in zip(numbers, ran.arrays, strict=True):
        if not checked or ids.shape != (len(pattern), pattern.shape[2]):
            check_pattern(pattern.detach().float().cpu(), ids, where=f"layer {number}", **known)
    queries = _texts_of(ids, ran.texts if texts is None else texts)
    keys = [(place, None) for place, _ in queries]
    if ran.key_tokens is not None:
        keys = _texts_of(ran.key_tokens.cpu(), ran.key_texts)
    return [
        Prompt(
            text,
            {n: layer[row][:, down, across] for n, layer in zip(numbers, ran.arrays)},
            max(len(text), len(other or ())),
            other,
            causal,
            ran.special,
            layers is not None or ran.numbered,
            None if ran.template is None else ran.template[row, down].cpu(),
        )
        for row, ((down, text), (across, other)) in enumerate(zip(queries, keys, strict=True))
    ]


def _texts_of(
    ids: Int[Tensor, "batch pos"], texts: Sequence[Any] | None
) -> list[tuple[slice, Text]]:
    """The place of each row's tokens, without its padding, and the tokens."""
    if texts is not None and all(isinstance(text, str) for text in texts):
        texts = [texts]
    if texts is not None and len(texts) != len(ids):
        raise InputError(f"texts must be a list for each of {len(ids)} rows, got {len(texts)}")
    rows = []
    for row, padded in enumerate(ids):
        places = (padded != NONE).nonzero().flatten().tolist()
        if not places:
            raise InputError(f"tokens must have at least one token in row {row}, got none")
        real = slice(places[0], places[-1] + 1)
        words = [f"<{i}>" for i in padded[real].tolist()] if texts is None else list(texts[row])
        if len(words) != len(places):
            raise InputError(f"texts must name each of {len(places)} tokens, got {len(words)}")
        rows.append((real, Text(padded[real], words)))
    return rows
