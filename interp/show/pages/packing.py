"""Attention weights in few bytes: what a page carries and the browser unpacks.

A weight `w` in [0, 1] becomes the whole number `round(255 w)`, so the unpacked weight differs by
at most half a step, 1/510 = 0.00196. Weights are stored column by column: neighbours in a column
are alike (a sink is a column), which deflate exploits. Of a causal pattern only the lower triangle
is stored, of any other pattern everything.
"""

import base64
import zlib
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from interp.errors import InputError
from interp.heads import Head
from interp.kinds.builtin import kinds_of
from interp.kinds.looks import marked, resting_columns
from interp.scan.table import HeadScan
from interp.show.about import special_of
from interp.show.pages.sheet import SIDE
from interp.show.prompt import LONGEST, Prompt, Text
from interp.text import joined, prose

STEPS = 255


def as_steps(
    pattern: Float[Tensor, "head query key"], *, where: str, causal: bool = True
) -> UInt8[Tensor, "head query key"]:
    """The weights of heads as whole numbers of steps, from 0 to 255."""
    low, high = pattern.aminmax()
    if not (low >= -1e-6 and high <= 1 + 1e-3):  # Also if one is NaN.
        raise InputError(f"patterns must be from 0 to 1, got {low:.3g} to {high:.3g} in {where}")
    if causal and pattern.triu(1).any():
        raise InputError(f"patterns must be causal, got a query in {where} that looks ahead")
    return (pattern * STEPS).round().clamp(0, STEPS).to(torch.uint8)


def packed(steps: UInt8[Tensor, "query key"], *, causal: bool = True) -> str:
    """The weights by key, then query, deflated, in base64; if causal, the lower triangle only."""
    steps = steps.cpu().T
    if causal:
        steps = steps[tuple(torch.triu_indices(*steps.shape))]
    # Level 5 takes half the time of the default 6 and needs 3 % more bytes.
    cells = zlib.compress(steps.contiguous().numpy().tobytes(), 5)
    return base64.b64encode(cells).decode("ascii")


def unpacked(text: str, *, keys: int | None = None) -> Float[Tensor, "query key"]:
    """The weights that `packed` stored, as the page reads them; 0 where a query would look ahead.

    `keys` is the number of keys if all weights were stored; None for the lower triangle.

    Example:
        >>> unpacked(packed(torch.tensor([[255, 0], [51, 204]], dtype=torch.uint8)))
        tensor([[1.0000, 0.0000],
                [0.2000, 0.8000]])
    """
    cells = torch.frombuffer(bytearray(zlib.decompress(base64.b64decode(text))), dtype=torch.uint8)
    if keys is not None:
        return cells.view(keys, -1).T / STEPS
    length = int((2 * len(cells) + 0.25) ** 0.5)
    places = torch.triu_indices(length, length)
    pattern = torch.zeros(length, length)
    pattern[places[1], places[0]] = cells / STEPS
    return pattern


def thumbnail(
    steps: UInt8[Tensor, "head query key"], *, most: int
) -> UInt8[Tensor, "head down across"]:
    """Pictures of at most `most` pixels a side: each pixel the largest weight of its block."""
    queries, keys = steps.shape[1:]
    block = -(-max(queries, keys) // most)
    padded = torch.nn.functional.pad(steps, (0, -keys % block, 0, -queries % block))
    return padded.unflatten(2, (-1, block)).unflatten(1, (-1, block)).amax((2, 4))


@dataclass(frozen=True)
class PackedPrompt(Prompt):
    """One prompt as a page stores it: cut to `LONGEST` tokens, with packed weights.

    `targets` are by kind the keys of each query, `sinks` by head the columns where it rests.
    """

    title: str = ""
    thresholds: dict[str, Any] = field(default_factory=dict)
    targets: dict[str, list[list[int]]] = field(default_factory=dict)
    sinks: dict[Head, list[int]] = field(default_factory=dict)
    weights: dict[Head, str] = field(default_factory=dict)
    pictures: dict[Head, UInt8[Tensor, "down across"]] = field(default_factory=dict)

    @classmethod
    def of(
        cls, prompt: Prompt, scan: HeadScan, title: str | None, reads: str | None = None
    ) -> "PackedPrompt":
        """A prompt without weights; `add` adds them.

        `reads` is the prompt as one text, without what a chat template added.
        """
        text, keys = prompt.text.beginning(LONGEST), prompt.keys
        special = sorted({*special_of(scan), *prompt.special})
        known = {"thresholds": scan.thresholds, "special": special}
        targets = {}
        for name, kind in kinds_of(prompt.causal, scan.kinds).items() if keys is None else ():
            if not kind.has_rule:
                continue
            more = {"causal": prompt.causal, "texts": text.texts}
            cells = marked(kind, text.ids, **more, **known)
            targets[name] = [row.nonzero().flatten().tolist() for row in cells]
        if title is None:
            added = {*prompt.templated}
            texts = (text for place, text in enumerate(prompt.text.texts) if place not in added)
            begins = prose(joined([*islice(texts, 40)]) if reads is None else reads)
            begins, count = begins if len(begins) < 60 else begins[:58] + "…", len(prompt.text)
            name = f"{count} token{'' if count == 1 else 's'}: {begins}"
        else:
            name = prose(title)
        keys = keys and keys.beginning(LONGEST)
        named = {"title": name, "targets": targets}
        if prompt.template is not None:
            named["template"] = prompt.template[:LONGEST]
        return cls(text, {}, prompt.longest, keys, prompt.causal, **known, **named)

    @property
    def notes(self) -> list[str]:
        """What a reader must know if the prompt is cut."""
        if self.longest == self.whole:
            return []
        ahead = "" if self.causal else " Attention to later tokens is not shown."
        cut = f"A prompt of {self.whole:,} tokens is cut to its first {self.longest:,}"
        return [f"{cut}; the weights are those of the whole prompt.{ahead}"]

    def add(self, layer: int, pattern: Float[Tensor, "head query key"], heads: Collection[Head]):
        """Pack the heads of a layer that are in `heads`, without later tokens."""
        wanted = [head for head in range(len(pattern)) if Head(layer, head) in heads]
        if not wanted:
            return
        cut = pattern[wanted, : len(self.text), : len(self.across)].detach().float()
        steps = as_steps(cut, where=f"layer {layer}", causal=self.causal)
        heads = [Head(layer, head) for head in wanted]
        if self.keys is None:
            known = self.text.ids.to(cut.device), self.thresholds, self.special
            resting = resting_columns(cut, *known, causal=self.causal).cpu()
            for head, columns in zip(heads, resting, strict=True):
                self.sinks[head] = columns.nonzero().flatten().tolist()
        for head, cells, picture in zip(heads, steps, thumbnail(steps, most=SIDE), strict=True):
            self.weights[head] = packed(cells, causal=self.causal)
            self.pictures[head] = picture.cpu()

    def to_json(self, sinks: Collection[Head]) -> dict[str, Any]:
        """What a page knows of the prompt besides weights; `sinks` are the heads of that label."""

        def side(text: Text) -> dict[str, Any]:
            special = text.special(self.special)
            return {"ids": text.ids.tolist(), "labels": text.labels, "special": special}

        return {
            **side(self.text),
            "title": self.title,
            "causal": self.causal,
            "template": self.templated,
            "keys": self.keys and {**side(self.keys), "template": []},
            "targets": self.targets,
            "sinks": {str(head): self.sinks[head] for head in sinks},
        }

    def pattern(self, head: Head) -> Float[Tensor, "query key"]:
        """The weights of `head`, in steps of 1/255."""
        return unpacked(self.weights[head], keys=None if self.causal else len(self.across))
