"""Every head of a model in one page: `gallery`, and what is left out where it would not fit."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from interp.errors import InputError, is_number, quoted
from interp.heads import Head
from interp.kinds.labels import CROSS, HeadLabel
from interp.kinds.targets import NONE
from interp.scan.table import HeadScan
from interp.show.pages.page import Gallery
from interp.show.pages.prompts import LONGEST, Prompt, Source, Text, sources
from interp.text import prose

if TYPE_CHECKING:
    from interp.models import Model

LIMIT = 20.0
"""Size of a page in millions of bytes; beyond it the weakest heads of each label are left out."""


def gallery(
    scan: HeadScan | Sequence[HeadLabel] | None,
    patterns: Any,
    tokens: Any = None,
    *,
    causal: bool | None = None,
    texts: Sequence[Any] | None = None,
    layers: Sequence[int] | None = None,
    heads: Sequence[Any] | None = None,
    titles: Sequence[str] | None = None,
    title: str | None = None,
    limit: float = LIMIT,
) -> Gallery:
    """A page with every head of `patterns`: all at a glance by label, and each in full.

    Args:
        scan: The labels and scores, from `scan_heads` or `classify_heads`; None for
            cross-attention, whose heads have no labels.
        patterns: From `attention_patterns`, or attention after the softmax of any source that
            `interp.read_patterns` takes; each row of a batch is a prompt. A list of such, each
            with its tokens, makes prompts of several lengths.
        tokens: The token ids that were run, where `patterns` do not carry them.
        causal: Whether no query looks ahead. If left out, what `attention_patterns` returned
            knows it, and other patterns are causal, as for `classify_heads`.
        texts: The text of each token, for each row; `<id>` if there is none.
        layers: The layers' own numbers, where `patterns` do not carry them; `0, 1, ...`.
        heads: Which heads (`L5H1`, `Head(5, 1)`); all if left out.
        titles: Of the prompts; else how each begins.
        title: Of the page; if left out "attention heads", after the name of the scan's model,
            which `classify_heads` does not know.
        limit: Size of the page in millions of bytes. Where it would be larger, it shows the
            strongest heads of each label, as many of each as there is room for, and says so.
            A prompt of more than 1,024 tokens is cut to these, which changes no weight
            that is shown.

    Raises:
        InputError: If shapes or lengths disagree, a pattern is no attention in its direction,
            `patterns` have other layers or heads than `scan`, a head of `heads` is not there, not
            even one head of each label has room, cross-attention comes with a scan, or other
            attention without one.
    """
    room = room_of(limit)
    known = None if scan is None else _table(scan)
    rows = list(sources(patterns, tokens, texts, layers, causal=causal))
    held = {layer: len(pattern) for row in rows for layer, pattern in row.layers}
    if known is None and any(row.keys is None for row in rows):
        raise InputError(
            "scan must be what classify_heads(patterns) or scan_heads returned, got None, which is"
            " for cross-attention alone"
        )
    if known is not None and any(row.keys is not None for row in rows):
        raise InputError(
            "scan must be None for cross-attention, of whose heads no kind is defined, got"
            f" {type(scan).__name__}"
        )
    table = _unlabelled(held) if known is None else known
    _refuse_another_model(table, held, some=all(row.named for row in rows))
    wanted = _wanted(table, heads, held)
    prompts = []
    for row, name in zip(rows, _titles(titles, len(rows)), strict=True):
        prompt = Prompt.of(row, table, name)
        for layer, pattern in row.layers:
            prompt.add(layer, pattern, wanted)
        if absent := wanted - prompt.weights.keys():
            raise InputError(f"patterns must hold {min(absent)} for every prompt, got one without")
        prompts.append(prompt)
    return _fitted(table, wanted, prompts, title, room)


def gallery_of_model(
    scan: HeadScan,
    model: "Model",
    inputs: Sequence[Any],
    *,
    heads: Sequence[Any] | None = None,
    titles: Sequence[str] | None = None,
    title: str | None = None,
    limit: float = LIMIT,
    progress: Callable[[int, int], None] | None = None,
) -> Gallery:
    """`gallery` of a model's attention on each of `inputs`, one layer's patterns at a time.

    Args:
        scan: Of this model.
        model: Runs the prompts.
        inputs: Texts, or rows of token ids.
        heads: As for `gallery`, like the options after it.
        titles: Of the prompts; else how each begins, as the tokenizer reads the whole.
        title: Of the page.
        limit: Size of the page in millions of bytes.
        progress: Called with the prompts behind us, and their number.

    Raises:
        InputError: As `gallery`, and if a prompt is empty or too long.
    """
    from interp.models import hooks

    room = room_of(limit)
    held = dict.fromkeys(hooks.attention_layers(model, None), model.n_heads)
    _refuse_another_model(scan, held, some=False)
    wanted = _wanted(scan, heads, held)
    rows = [model.to_tokens(one)[0] for one in inputs]
    prompts = []
    for row, name in zip(rows, _titles(titles, len(rows)), strict=True):
        ids = row[row != NONE]
        causal = model.direction == "causal"
        text = Text(ids, model.texts_of(ids))
        reads = None
        if model.tokenizer is not None and int(ids.max()) < len(model.tokenizer):
            reads = model.tokenizer.decode(ids.tolist())
        own = Source(text, [], named=True, causal=causal, special=model.special, reads=reads)
        prompt = Prompt.of(own, scan, name)
        hooks.run(
            model,
            # Later tokens change the weights of those that see them.
            ids[None, : LONGEST if causal else None],
            # A prompt is filled before the loop goes on.
            lambda layer, pattern, prompt=prompt: prompt.add(layer, pattern[0], wanted),
            layers=sorted({head.layer for head in wanted}),
        )
        prompts.append(prompt)
        if progress:
            progress(len(prompts), len(rows))
    return _fitted(scan, wanted, prompts, title, room)


def estimate(heads: int, lengths: Sequence[int], *, causal: bool = True) -> float:
    """About how large the page will be, in millions of bytes.

    Weights of language models take some 0.36 bytes each at 128 tokens and 0.16 at 512, where
    more of them are near 0: about `4 / sqrt(tokens)`. The rest is circuitsvis' script and the
    still picture.
    """
    shown = [min(length, LONGEST) for length in lengths]
    weights = sum(4 / n**0.5 * n * ((n + 1) / 2 if causal else n) for n in shown)
    return 0.6 + heads * (weights + 1500) / 1e6


def room_of(limit: float) -> int:
    """The bytes that a page may take, from `limit` in millions.

    Raises:
        InputError: If it is no number above 0.
    """
    if not is_number(limit) or limit <= 0:
        raise InputError(f"limit must be a number above 0 (millions of bytes), got {limit}")
    return round(limit * 1e6)


def _table(scan: Any) -> HeadScan:
    if isinstance(scan, HeadScan):
        return scan
    if not isinstance(scan, list | tuple) or not all(isinstance(one, HeadLabel) for one in scan):
        raise InputError(
            "scan must be what scan_heads or classify_heads returned, and patterns come after it,"
            f" got {type(scan).__name__}"
        )
    if not scan:
        raise InputError("scan must hold at least one head, got none")
    return HeadScan.of(scan)


def _unlabelled(held: Mapping[int, int]) -> HeadScan:
    """A table of heads without scores, all with the label that says what they are."""
    heads = [Head(layer, head) for layer, count in held.items() for head in range(count)]
    return HeadScan.of([HeadLabel(head, CROSS, (CROSS,), {}, {}) for head in heads])


def _refuse_another_model(scan: HeadScan, held: Mapping[int, int], *, some: bool) -> None:
    """Refuse heads by layer that the scan cannot be of; `some` may be part of its layers alone."""
    heads = Counter(scan.frame["layer"].tolist())
    if not some and len(held) != len(heads):
        raise InputError(
            f"patterns must have the scan's {len(heads)} layers, got {len(held)}: name them with"
            " layers if they are some of these"
        )
    for layer, count in held.items():
        if count != heads[layer]:
            raise InputError(
                f"patterns must have the heads of the scan, {heads[layer]} in layer {layer}, got"
                f" {count}: is one of another model?"
            )


def _wanted(scan: HeadScan, heads: Sequence[Any] | None, held: Mapping[int, int]) -> set[Head]:
    there = {Head(layer, head) for layer, count in held.items() for head in range(count)}
    if heads is None:
        return there
    known = {Head.parse(name) for name in scan.frame["name"].tolist()}
    asked = {Head.parse(head) for head in heads}
    if not asked:
        raise InputError("heads must name at least one head, got none")
    for place, those in (("scan", known), ("patterns", there)):
        if absent := asked - those:
            raise InputError(f"heads must be in the {place}, got {min(absent)}, which is not")
    return asked


def _titles(titles: Sequence[str] | None, count: int) -> list[str | None]:
    if titles is None:
        return [None] * count
    fit = isinstance(titles, list | tuple) and all(isinstance(t, str) for t in titles)
    if not fit or len(titles) != count:
        raise InputError(f"titles must be one for each of {count} prompts, got {titles!r}")
    return list(titles)


def _fitted(
    scan: HeadScan,
    heads: set[Head],
    prompts: list[Prompt],
    title: Any,
    room: int,
) -> Gallery:
    """The gallery, with as many heads as there is room for."""
    if not isinstance(title, str | None):
        raise InputError(f"title must be text, got {quoted(title)}")
    model = f"{scan.made_by['model']}: " if "model" in scan.made_by else ""
    name = prose(f"{model}attention heads" if title is None else title)
    notes = [note for prompt in prompts for note in prompt.notes]
    if missing := len(scan.frame) - len(heads):
        notes = [*notes, f"{missing} of the scan's {len(scan.frame)} heads are not on this page."]
    whole = Gallery(name, scan, sorted(heads), prompts, notes)
    sizes = {head: sum(len(p.weights[head]) for p in prompts) for head in heads}
    size = len(whole.to_html().encode())
    if size <= room:
        return whole
    first = dict(zip(scan.frame["name"].tolist(), scan.frame["label"].tolist(), strict=True))
    ranked = [
        [head for head in scan.heads(word) if head in heads and first[str(head)] == word]
        for word in scan.summary()
    ]
    fixed = size - sum(sizes.values())
    for most in range(max(map(len, ranked)) - 1, 0, -1):
        kept = [head for group in ranked for head in group[:most]]
        if fixed + sum(sizes[head] for head in kept) <= room:
            note = (
                f"All {len(heads)} heads would take {size / 1e6:.1f} million bytes, more than the"
                f" limit of {room / 1e6:g}: this page shows the strongest {most} of each label,"
                f" {len(kept)} in all."
            )
            return replace(whole, heads=sorted(kept), notes=[note, *notes])
    raise InputError(
        f"limit must leave room for one head of each label, got {room / 1e6:g} million bytes for a"
        f" page of {size / 1e6:.1f}: name fewer heads, or shorten the prompt"
    )
