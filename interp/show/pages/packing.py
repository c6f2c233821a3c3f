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
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from interp.errors import InputError
from interp.heads import Head
from interp.kinds.kind import kinds_of
from interp.kinds.looks import marked, resting_columns
from interp.scan.table import HeadScan
from interp.show.about import special_of, thresholds_of
from interp.show.pages.sheet import SIDE
from interp.show.prompt import LONGEST, Prompt
from interp.text import prose

STEPS = 255
"""A weight is stored as a whole number of steps of 1/255."""


def as_steps(
    pattern: Float[Tensor, "head query key"], *, where: str, causal: bool = True
) -> UInt8[Tensor, "head query key"]:
    """The weights of heads as whole numbers of steps, from 0 to 255."""
    if not pattern.isfinite().all():
        raise InputError(f"patterns must be finite, got NaN or infinity in {where}")
    low, high = pattern.aminmax()
    if low < -1e-6 or high > 1 + 1e-3:
        worst = (low if low < -1e-6 else high).item()
        raise InputError(f"patterns must be from 0 to 1, got {worst:.3g} in {where}")
    if causal and pattern.triu(1).any():
        raise InputError(f"patterns must be causal, got a query in {where} that looks ahead")
    return (pattern * STEPS).round().clamp(0, STEPS).to(torch.uint8)


def packed(steps: UInt8[Tensor, "query key"], *, causal: bool = True) -> str:
    """The weights, key by key and within a key query by query, deflated (zlib), in base64.

    With `causal`, only the lower triangle.
    """
    steps = steps.cpu().T
    if causal:
        steps = steps[tuple(torch.triu_indices(*steps.shape))]
    # Level 5 takes half the time of the default 6 and needs 3 % more bytes.
    cells = zlib.compress(steps.contiguous().numpy().tobytes(), 5)
    return base64.b64encode(cells).decode("ascii")


def unpacked(text: str, *, keys: int | None = None) -> Float[Tensor, "query key"]:
    """The weights that `packed` stored, as the page reads them; 0 where a query would look ahead.

    Args:
        text: Result of `packed`.
        keys: Number of keys if all weights were stored; None for the lower triangle.

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
    """Small pictures of at most `most` pixels a side: each pixel the largest weight of its block.

    With the largest, a stripe one token wide stays dark.
    """
    queries, keys = steps.shape[1:]
    block = -(-max(queries, keys) // most)
    padded = torch.nn.functional.pad(steps, (0, -keys % block, 0, -queries % block))
    return padded.unflatten(2, (-1, block)).unflatten(1, (-1, block)).amax((2, 4))


@dataclass(frozen=True)
class PackedPrompt(Prompt):
    """One prompt as a page stores it: cut to `LONGEST` tokens, with packed weights.

    Attributes:
        title: Name of the prompt.
        thresholds: Thresholds, which decide whether a column is a sink.
        targets: By kind, for each query the keys where such a head should look.
        sinks: By head, the columns where it rests.
        weights: By head, the packed weights.
        pictures: By head, a thumbnail.
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
        """A prompt without weights; `add` adds them. `reads` is the prompt as one text."""
        thresholds, text = thresholds_of(scan), prompt.text.beginning(LONGEST)
        special = sorted({*special_of(scan), *prompt.special})
        targets = {}
        for kind in kinds_of(prompt.causal) if prompt.keys is None else ():
            cells = marked(kind, text.ids, thresholds, special, causal=prompt.causal)
            targets[kind] = [row.nonzero().flatten().tolist() for row in cells]
        if title is None:
            begins = prose("".join(prompt.text.texts[:40]) if reads is None else reads)
            begins = begins if len(begins) < 60 else begins[:58] + "…"
            count = len(prompt.text)
            title = f"{count} token{'' if count == 1 else 's'}: {begins}"
        return cls(
            text,
            {},
            prompt.longest,
            prompt.keys and prompt.keys.beginning(LONGEST),
            prompt.causal,
            special,
            title=prose(title),
            thresholds=thresholds,
            targets=targets,
        )

    @property
    def notes(self) -> list[str]:
        """What a reader must know if the prompt is cut."""
        if self.longest == self.whole:
            return []
        note = (
            f"A prompt of {self.whole:,} tokens is cut to its first {self.longest:,}; the weights"
            " are those of the whole prompt."
        )
        return [note if self.causal else f"{note} Attention to later tokens is not shown."]

    def add(self, layer: int, pattern: Float[Tensor, "head query key"], heads: Collection[Head]):
        """Pack the heads of a layer that are in `heads`, without later tokens."""
        wanted = [head for head in range(len(pattern)) if Head(layer, head) in heads]
        if not wanted:
            return
        cut = pattern[wanted, : len(self.text), : len(self.across)].detach().float()
        steps = as_steps(cut, where=f"layer {layer}", causal=self.causal)
        if self.keys is None:
            ids = self.text.ids.to(cut.device)
            known = self.thresholds, self.special
            resting = resting_columns(cut, ids, *known, causal=self.causal).cpu()
            for head, columns in zip(wanted, resting, strict=True):
                self.sinks[Head(layer, head)] = columns.nonzero().flatten().tolist()
        for head, cells, picture in zip(wanted, steps, thumbnail(steps, most=SIDE), strict=True):
            self.weights[Head(layer, head)] = packed(cells, causal=self.causal)
            self.pictures[Head(layer, head)] = picture.cpu()

    def pattern(self, head: Head) -> Float[Tensor, "query key"]:
        """The weights of `head`, in steps of 1/255."""
        return unpacked(self.weights[head], keys=None if self.causal else len(self.across))
