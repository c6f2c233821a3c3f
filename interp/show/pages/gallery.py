"""Every head of a model in one page: `gallery`, and which heads stay if the page is too large."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from interp.effects.head_effects import HeadEffects
from interp.errors import InputError, checked
from interp.heads import Head
from interp.kinds.labels import CROSS, HeadLabel
from interp.scan.record import check_made_by
from interp.scan.table import HeadScan
from interp.show.pages.packing import PackedPrompt
from interp.show.pages.page import Gallery
from interp.show.prompt import LONGEST, Prompt, Text, prompts_of
from interp.show.values import values_of
from interp.text import prose

if TYPE_CHECKING:
    from interp.models import Model
    from interp.models.rows import Rows

LIMIT = 20.0  # Largest size of a page in millions of bytes, by default.
Megabytes = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@checked
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
    values: Any = None,
    limit: Megabytes = LIMIT,
) -> Gallery:
    """A page with every head of `patterns`: all at a glance by label, and each in full.

    Args:
        scan: Labels and scores, from `scan_heads` or `classify_heads`; None for
            cross-attention, whose heads have no labels.
        patterns: Result of `attention_patterns`, or attention after the softmax of any source that
            `interp.read_patterns` takes; each row of a batch is a prompt. A list of these, each
            with its tokens, makes prompts of several lengths.
        tokens: Token ids that were run, if `patterns` do not carry them.
        causal: Whether each query sees only itself and earlier tokens. By default as `patterns`
            record it; patterns without a record are causal, as for `classify_heads`.
        texts: Text of each token, for each row; `<id>` by default.
        layers: Numbers of the layers, if `patterns` do not carry them; `0, 1, ...` by default.
        heads: Heads to show (`L5H1`, `5.1`, `Head(5, 1)`); all by default.
        titles: Names of the prompts; by default their beginnings.
        title: Title of the page; by default the name of the scan's model and "attention heads".
        values: A number for each head, such as effects from `interp.patch`, or an array
            `[layer, head]`: pictures show it in colour and are sorted by it, largest first.
        limit: Largest size of the page in millions of bytes. A larger page keeps the strongest
            heads of each label, and says so. A prompt of more than 1,024 tokens is cut to the
            first 1,024, which changes no weight on the page.

    Example:
        >>> import interp
        >>> toy = interp.build_circuit("absolute", vocabulary=64, length=33)
        >>> patterns = interp.attention_patterns(toy, [[0, *range(5, 15), *range(5, 15)]])
        >>> page = gallery(interp.classify_heads(patterns), patterns)
        >>> page.head("L1H5").to_html()[:15]  # `save` writes it.
        '<!doctype html>'
    """
    prompts = prompts_of(patterns, tokens, texts, layers, causal=causal)
    cross = any(prompt.keys is not None for prompt in prompts)
    if (scan is None) != cross:
        rule = "None for cross-attention" if cross else "from scan_heads or classify_heads"
        raise InputError(f"scan must be {rule}, got {type(scan).__name__}")
    held = {layer: len(pattern) for one in prompts for layer, pattern in one.layers.items()}
    if scan is None:
        every = [Head(layer, head) for layer, count in held.items() for head in range(count)]
        scan = [HeadLabel(head, CROSS, (CROSS,), {}, {}) for head in every]
    table = scan if isinstance(scan, HeadScan) else HeadScan.of(scan)
    wanted = _wanted(table, heads, held, some=all(prompt.named for prompt in prompts))
    wrong = sorted({head for prompt in prompts for head in prompt.not_finite} & wanted)
    if (heads is not None and wrong) or len(wrong) == len(wanted):
        raise InputError(f"heads must have finite attention, got {', '.join(map(str, wrong))}")
    wanted -= {*wrong}
    listed = f"Not finite, and not shown: {', '.join(map(str, wrong))}."
    packed = []
    for prompt, name in zip(prompts, _titles(titles, len(prompts)), strict=True):
        one = PackedPrompt.of(prompt, table, name)
        for layer, pattern in prompt.layers.items():
            one.add(layer, pattern, wanted)
        if absent := wanted - one.weights.keys():
            raise InputError(f"patterns must hold {min(absent)} for every prompt, got one without")
        packed.append(one)
    notes, numbers = [listed] * bool(wrong), None if values is None else values_of(values)
    unit = values.made_by.get("unit", "value") if isinstance(values, HeadEffects) else "value"
    page = _fitted(table, wanted, packed, title, limit, notes)
    return replace(page, values=numbers, unit=prose(unit))


@checked
def gallery_of_model(
    scan: HeadScan,
    model: "Model",
    inputs: Sequence[Any],
    *,
    heads: Sequence[Any] | None = None,
    titles: Sequence[str] | None = None,
    title: str | None = None,
    limit: Megabytes = LIMIT,
    progress: Callable[[int, int], None] | None = None,
) -> Gallery:
    """`gallery` of a model's attention on each of `inputs`, with one layer in memory at a time.

    `inputs` are texts, conversations or rows of token ids, and `progress` is called with the
    number of finished prompts and of all. The other arguments are those of `gallery`.
    """
    from interp.models import hooks
    from interp.models.rows import each_prompt

    check_made_by(scan.made_by, model, "scan")
    held = dict.fromkeys(hooks.attention_layers(model, None), model.n_heads)
    wanted = _wanted(scan, heads, held, some=False)
    rows = [model.rows_of(one) for one in each_prompt(inputs)]
    prompts = []
    for row, name in zip(rows, _titles(titles, len(rows)), strict=True):
        prompt = packed_prompt(model, scan, row, name)
        hooks.run(
            model,
            # In a bidirectional model later tokens change the weights of earlier queries.
            row.tokens[:, : LONGEST if prompt.causal else None],
            lambda layer, pattern, prompt=prompt: prompt.add(layer, pattern[0], wanted),
            layers=sorted({head.layer for head in wanted}),
        )
        prompts.append(prompt)
        if progress:
            progress(len(prompts), len(rows))
    return _fitted(scan, wanted, prompts, title, limit)


def packed_prompt(model: "Model", scan: HeadScan, rows: "Rows", title: str | None) -> PackedPrompt:
    """One prompt of a model, still without weights."""
    if len(rows.tokens) != 1:
        raise InputError(f"inputs must be one row each, got one of {len(rows.tokens)}")
    ids, added, reads = rows.tokens[0], rows.template[0], None
    if model.tokenizer is not None and int(ids.max()) < len(model.tokenizer):
        reads = model.tokenizer.decode(ids[~added].tolist())
    known = {"causal": model.direction == "causal", "special": model.special}
    known |= {"template": added} if added.any() else {}
    whole = Prompt(Text(ids, model.texts_of(ids)), {}, len(ids), **known)
    return PackedPrompt.of(whole, scan, title, reads)


def gallery_of_prompts(
    scan: HeadScan, prompts: Sequence[PackedPrompt], *, live: str | None = None
) -> Gallery:
    """The page of prompts whose weights are packed; `live` as in `Gallery`."""
    page = _fitted(scan, {*prompts[0].weights}, [*prompts], None, LIMIT)
    return replace(page, live=live)


def _wanted(
    scan: HeadScan, heads: Sequence[Any] | None, held: Mapping[int, int], *, some: bool
) -> set[Head]:
    """The heads to show. `held` are numbers of heads by layer; `some` layers may be absent."""
    counts = Counter(scan.frame["layer"].tolist())
    if not some and len(held) != len(counts):
        raise InputError(
            f"patterns must have the scan's {len(counts)} layers, got {len(held)}: if they are"
            " some of these, name them with layers"
        )
    for layer, count in held.items():
        if count != counts[layer]:
            raise InputError(
                f"patterns must have {counts[layer]} heads in layer {layer}, got {count}"
            )
    present = {Head(layer, head) for layer, count in held.items() for head in range(count)}
    chosen = present if heads is None else {Head.parse(head) for head in heads}
    if not chosen or chosen - present:
        absent = ", ".join(map(str, sorted(chosen - present))) or "none"
        raise InputError(f"heads must be in the patterns, got {absent}")
    return chosen


def _titles(titles: Sequence[str] | None, count: int) -> Sequence[str | None]:
    if titles is not None and len(titles) != count:
        raise InputError(f"titles must be one for each of {count} prompts, got {len(titles)}")
    return [None] * count if titles is None else titles


def _fitted(
    scan: HeadScan,
    heads: set[Head],
    prompts: list[PackedPrompt],
    title: str | None,
    limit: float,
    notes: Sequence[str] = (),
) -> Gallery:
    """The gallery, with as many heads as there is room for."""
    model = f"{scan.made_by['model']}: " if "model" in scan.made_by else ""
    name = prose(title or f"{model}attention heads")
    notes = [*notes, *(note for prompt in prompts for note in prompt.notes)]
    if missing := len(scan.frame) - len(heads):
        notes = [*notes, f"{missing} of the scan's {len(scan.frame)} heads are not on this page."]
    whole = Gallery(name, scan, sorted(heads), prompts, notes)
    sizes = {head: sum(len(p.weights[head]) for p in prompts) for head in heads}
    size, room = len(whole.to_html().encode()), round(limit * 1e6)
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
            )
            note += f" limit of {limit:g}: this page shows the strongest {most} of each label,"
            note += f" {len(kept)} in all."
            return replace(whole, heads=sorted(kept), notes=[note, *notes])
    raise InputError(
        "limit must leave room for one head of each label, got"
        f" {limit:g} for a page of {size / 1e6:.1f} million bytes"
    )
