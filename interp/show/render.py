"""Gallery and figures of a model's heads, or of patterns from a file: `scripts/render_gallery.py`.

`of_model` and `of_file` are the two sources of attention; `render` writes their files.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from interp.errors import InputError
from interp.heads import Head
from interp.kinds import probes
from interp.kinds.builtin import kind_of
from interp.kinds.targets import NONE
from interp.patterns.read import copied
from interp.patterns.tensor import AttentionPatterns, Ran
from interp.scan import given
from interp.scan.plan import encoded_passages
from interp.scan.scan import scan_heads
from interp.scan.table import HeadScan
from interp.show.about import zoo_heads
from interp.show.pages.gallery import LIMIT, gallery, gallery_of_model
from interp.show.pages.page import Gallery
from interp.show.prompt import LONGEST, one_prompt

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from interp.models import Model

DRAWN = ("page", "heads", "row", "cards", "arcs", "zoo", "layers")
"""The figures: the strongest heads of each label, heads in full, side by side, with their evidence,
arcs, zoo, scores by layer."""

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Prompts:
    """Prompts to show heads on, and the functions that read their attention.

    `most` is the most tokens of a prompt in a figure. `scan` makes the table of heads, and takes
    `progress`; `gallery` makes the page from the table, `heads`, `limit` and `progress`; `patterns`
    returns those of a prompt's number and layers (None for all), cut for a figure.
    """

    rows: list[list[int]]
    most: int
    scan: Callable[..., HeadScan]
    gallery: Callable[..., Gallery]
    patterns: Callable[[int, list[int] | None], AttentionPatterns | Ran]


def of_model(
    model: "Model",
    inputs: list[Any],
    titles: list[str] | None = None,
    seed: int = 0,
    kinds: Any = None,
) -> Prompts:
    """Prompts that a model runs, as `Model.to_tokens` takes each.

    `seed` and `kinds` are those of the scan, if there is no table.
    """
    from interp.models.hooks import attention_patterns

    causal = model.direction == "causal"
    read = [model.rows_of(one) for one in inputs]

    def patterns(number: int, layers: list[int] | None) -> AttentionPatterns:
        # In a bidirectional model later tokens change the weights of earlier queries.
        row = read[number].beginning(LONGEST if causal else None)
        return attention_patterns(model, row, layers).beginning(LONGEST)

    def page(scan: HeadScan, **more: Any) -> Gallery:
        return gallery_of_model(scan, model, read, titles=titles, **more)

    rows = [row.tokens[0].tolist() for row in read]
    return Prompts(
        rows, LONGEST, partial(scan_heads, model, seed=seed, kinds=kinds), page, patterns
    )


def of_file(
    ran: Ran, file: Path, tokens: Path | None, special: Collection[int], **how: bool
) -> Prompts:
    """Prompts whose patterns are in a file, one in each row of a batch.

    `file` and `tokens` name the files for the record, `special` are the special tokens' ids, and
    `how` are options `learned_sinks` and `causal` of `interp.read_patterns`.
    """
    rows = [row[row != NONE].tolist() for row in ran.tokens]

    def patterns(number: int, layers: list[int] | None) -> Ran:
        one = slice(number, number + 1)
        arrays = [layer[one] for layer in ran.arrays]
        return given.first_prompt(replace(ran, arrays=arrays, tokens=ran.tokens[one]), **how)

    def scan(progress: Progress | None) -> HeadScan:
        return given.scan_given(ran, file, tokens, special=special, **how)

    def page(scan: HeadScan, progress: Progress | None, **more: Any) -> Gallery:
        return gallery(scan, copied(replace(ran, **how))[0], **more)

    return Prompts(rows, given.SHOWN, scan, page, patterns)


def example_prompts(model: "Model", seed: int = 0, kinds: Any = None) -> Prompts:
    """49 random tokens that repeat and, with a tokenizer, 128 tokens of prose."""
    length, closing = min(49, model.n_ctx), [model.closing] * (model.closing is not None)
    shape = {"rows": 1, "length": length - len(closing)}
    random = probes.repeated(model.vocabulary, **shape, bos=model.bos, seed=seed)
    rows = [[*random.tokens[0].tolist(), *closing]]
    titles = [f"{length} random tokens that repeat"]
    prose = encoded_passages(model).get("prose")
    if prose is not None:
        opened = [model.bos] * (model.bos is not None) + prose.tolist()
        rows.append([*opened[: min(128, model.n_ctx) - len(closing)], *closing])
        titles.append(f"{len(rows[1])} tokens of prose")
    return of_model(model, rows, titles, seed, kinds)


def chosen_heads(
    scan: HeadScan, heads: Collection[Any] | None, labels: Collection[str] = ()
) -> list[Head] | None:
    """The named heads, or those with one of the labels; None for all."""
    if labels:
        found = {head for word in labels for head in scan.heads(word)}
        if heads is not None:
            raise InputError("heads must be left out with label, got both")
        if not found:
            raise InputError(f"label must be one that some head has, got {', '.join(labels)}")
        return sorted(found)
    if heads is None:
        return None
    chosen = dict.fromkeys(map(Head.parse, heads))
    if absent := [str(head) for head in chosen if str(head) not in scan.frame["name"].tolist()]:
        raise InputError(f"heads must be in the scan, got {absent[0]}")
    return list(chosen)


def render(
    folder: Path,
    prompts: Prompts,
    scan: HeadScan | None = None,
    *,
    formats: Collection[str] = ("html",),
    draw: Collection[str] = ("page",),
    heads: Collection[Any] | None = None,
    labels: Collection[str] = (),
    query: int | None = None,
    limit: float = LIMIT,
    stage: Callable[[str], None] = lambda name: None,
    progress: Progress | None = None,
) -> list[str]:
    """Write gallery.html and the figures to `folder`, and return notes on what was left out.

    The folder must exist, and `scan` is by default `prompts.scan`. `formats` are some of `html`,
    `json`, `png`, `svg` and `pdf`; `draw`, some of `DRAWN`, are the figures in the last three.
    `heads` and `labels` choose heads, `query` is that of `arcs` (by default the last), and `limit`
    the page's largest size in millions of bytes. `stage` is called with the name of each stage,
    `progress` with the number of finished parts and of all.
    """
    lengths = [len(row) for row in prompts.rows]
    last = min(prompts.most, *lengths) - 1
    if query is not None and not 0 <= query <= last:
        raise InputError(f"query must be from 0 to {last}, got {query}")
    if scan is None:
        stage("labelling the heads")
        scan = prompts.scan(progress=progress)
    chosen = chosen_heads(scan, heads, labels)
    notes = []
    if wanted := [ending for ending in formats if ending in ("html", "json")]:
        stage(f"drawing {len(scan.frame if chosen is None else chosen)} heads")
        page = prompts.gallery(scan, heads=chosen, limit=limit, progress=progress)
        for ending in wanted:
            page.save(folder / f"gallery.{ending}")
        notes += page.notes
    if endings := [ending for ending in formats if ending not in ("html", "json")]:
        from interp.show.figures import save_figures

        if (longest := max(lengths)) > prompts.most:
            notes.append(f"Figures show the first {prompts.most:,} of {longest:,} tokens.")
        for name, figure in figures(prompts, scan, draw, chosen, labels, query, stage):
            save_figures({name: figure}, folder, endings)
    return notes


def figures(
    prompts: Prompts,
    scan: HeadScan,
    draw: Collection[str],
    heads: list[Head] | None,
    labels: Collection[str],
    query: int | None,
    stage: Callable[[str], None],
) -> "Iterator[tuple[str, Figure]]":
    """Each figure of `draw`, with its name: `gallery`, `head_L5H1`, `arcs_L5H1`, `zoo` ...

    Names of the second prompt's figures end in `_2`, and so on.
    """
    from interp.show import figures as plots

    if "layers" in draw:
        yield "score_by_layer", plots.score_by_layer(scan)
    if "zoo" in draw:
        stage("drawing the zoo")
        layers = sorted({head.layer for head in zoo_heads(scan).values()}) or [0]
        patterns = prompts.patterns(0, layers)
        yield "zoo", plots.head_zoo(scan, patterns, whole=len(prompts.rows[0]))
    if not {"page", "heads", "row", "cards", "arcs"} & set(draw):
        return
    found = (kind_of(label, scan.kinds) for label in labels)
    kinds = [kind.name for kind in found if kind is not None] or None
    layers = None if heads is None else sorted({head.layer for head in heads})
    for number, row in enumerate(prompts.rows):
        stage(f"drawing prompt {number + 1}")
        prompt = one_prompt(prompts.patterns(number, layers), whole=len(row), cross=True)
        end = "" if number == 0 else f"_{number + 1}"
        if "page" in draw:
            more = {"top": 4 if heads is None else 8, "heads": heads, "kinds": kinds}
            yield f"gallery{end}", plots.pattern_page(scan, prompt, **more)
        if "row" in draw:
            yield f"row{end}", plots.heads_row(prompt, heads or [], scan=scan)
        for head in heads or []:
            if "cards" in draw:
                yield f"card_{head}{end}", plots.head_card(scan, head, prompt)
            if "heads" in draw:
                yield f"head_{head}{end}", plots.head_page(prompt, head, scan=scan)
            if "arcs" in draw:
                yield f"arcs_{head}{end}", plots.attention_arcs(prompt, head, query, scan=scan)
