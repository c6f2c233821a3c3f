"""Gallery and figures of a model's heads, or of patterns from a file: `scripts/render_gallery.py`.

`ModelPrompts` and `FilePrompts` are the two sources of attention; `render` writes their files.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from interp.errors import InputError
from interp.heads import Head
from interp.kinds import probes
from interp.kinds.kind import kind_of
from interp.kinds.targets import NONE
from interp.patterns.read import read_patterns
from interp.patterns.tensor import AttentionPatterns, Ran
from interp.scan import given
from interp.scan.plan import encoded_passages
from interp.scan.scan import scan_heads
from interp.scan.table import HeadScan
from interp.show.about import zoo_heads
from interp.show.pages.gallery import LIMIT, estimate, gallery, gallery_of_model
from interp.show.pages.page import Gallery
from interp.show.prompt import LONGEST, one_prompt

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from interp.models import Model

DRAWN = ("page", "heads", "arcs", "zoo", "layers")
"""The figures: the strongest heads of each label, heads in full, arcs, zoo, scores by layer."""

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class ModelPrompts:
    """Prompts that a model runs.

    Attributes:
        model: The model.
        rows: Token ids of each prompt.
        titles: Names of the prompts; None for their beginnings.
        seed: Seed of the scan, if there is no table.
    """

    model: "Model"
    rows: list[list[int]]
    titles: list[str] | None = None
    seed: int = 0
    most = LONGEST
    """Most tokens of a prompt in a figure."""

    @property
    def causal(self) -> bool:
        """Whether each query sees only itself and earlier tokens."""
        return self.model.direction == "causal"

    def scan(self, progress: Progress | None) -> HeadScan:
        """The table of the model's heads."""
        return scan_heads(self.model, seed=self.seed, progress=progress)

    def gallery(self, scan: HeadScan, progress: Progress | None, **more: Any) -> Gallery:
        """The page of these prompts; `more` are arguments of `interp.gallery`."""
        more |= {"titles": self.titles, "progress": progress}
        return gallery_of_model(scan, self.model, self.rows, **more)

    def patterns(self, number: int, layers: list[int] | None) -> AttentionPatterns:
        """The patterns of one prompt in some layers, as many tokens as a figure shows."""
        from interp.models.hooks import attention_patterns

        # In a bidirectional model later tokens change the weights of earlier queries.
        row = self.rows[number][: LONGEST if self.causal else None]
        return attention_patterns(self.model, row, layers).beginning(LONGEST)


@dataclass(frozen=True)
class FilePrompts:
    """Prompts whose patterns are in a file, one in each row of a batch, like `ModelPrompts`.

    Attributes:
        layers: Patterns and token ids, from `interp.patterns.read.take`.
        file: Name of the file, for the record.
        tokens: Name of the file of token ids, if it is another.
        special: Ids of special tokens.
        how: Options `learned_sinks` and `causal` of `interp.read_patterns`.
    """

    layers: Ran
    file: Path
    tokens: Path | None = None
    special: Collection[int] = ()
    how: dict[str, bool] = field(default_factory=dict)
    most = given.SHOWN

    @property
    def causal(self) -> bool:  # noqa: D102
        return self.how.get("causal", True)

    @property
    def rows(self) -> list[list[int]]:  # noqa: D102
        return [row[row != NONE].tolist() for row in self.layers.tokens]

    def scan(self, progress: Progress | None) -> HeadScan:  # noqa: D102
        files = self.layers, self.file, self.tokens
        return given.scan_given(*files, special=self.special, **self.how)

    def gallery(self, scan: HeadScan, progress: Progress | None, **more: Any) -> Gallery:  # noqa: D102
        return gallery(scan, read_patterns(self.layers, **self.how), **more)

    def patterns(self, number: int, layers: list[int] | None) -> AttentionPatterns:  # noqa: D102
        one = slice(number, number + 1)
        arrays = [layer[one] for layer in self.layers.arrays]
        cut = replace(self.layers, arrays=arrays, tokens=self.layers.tokens[one])
        return given.first_prompt(cut, **self.how)


def example_prompts(model: "Model", seed: int = 0) -> ModelPrompts:
    """49 random tokens that repeat and, with a tokenizer, 128 tokens of prose."""
    length, closing = min(49, model.n_ctx), [model.closing] * (model.closing is not None)
    shape = {"rows": 1, "length": length - len(closing)}
    random = probes.repeated(model.vocabulary, **shape, bos=model.bos, seed=seed)
    rows = [[*random.tokens[0].tolist(), *closing]]
    titles = [f"{length} random tokens that repeat"]
    prose = dict(zip(probes.passages(), encoded_passages(model))).get("prose")
    if prose is not None:
        opened = [model.bos] * (model.bos is not None) + prose.tolist()
        rows.append([*opened[: min(128, model.n_ctx) - len(closing)], *closing])
        titles.append(f"{len(rows[1])} tokens of prose")
    return ModelPrompts(model, rows, titles, seed)


def chosen_heads(
    scan: HeadScan, heads: Collection[Any] | None, labels: Collection[str] = ()
) -> list[Head] | None:
    """The named heads, or those with one of the labels; None for all."""
    if labels:
        found = {head for word in labels for head in scan.heads(word)}
        if heads is not None or not found:
            raise InputError(f"label must be one that some head has, without heads, got {labels}")
        return sorted(found)
    if heads is None:
        return None
    chosen = dict.fromkeys(map(Head.parse, heads))
    if absent := [str(head) for head in chosen if str(head) not in scan.frame["name"].tolist()]:
        raise InputError(f"heads must be in the scan, got {absent[0]}")
    return list(chosen)


def render(
    folder: Path,
    prompts: ModelPrompts | FilePrompts,
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

    Args:
        folder: Folder to write to; it must exist.
        prompts: Prompts to show the heads on.
        scan: Table of the same model; made by `prompts.scan` if left out.
        formats: Some of `html`, `png`, `svg`, `pdf`.
        draw: Figures to draw in the formats other than `html`: some of `DRAWN`.
        heads: Heads to show; all by default.
        labels: Labels of the heads to show; all by default.
        query: Position of the query of `arcs`; the last by default.
        limit: Largest size of the page in millions of bytes.
        stage: Function that is called with the name of each stage.
        progress: Function that is called with the number of finished parts and of all.
    """
    lengths = [len(row) for row in prompts.rows]
    last = min(prompts.most, *lengths) - 1
    if query is not None and not 0 <= query <= last:
        raise InputError(f"query must be from 0 to {last}, got {query}")
    if scan is None:
        stage("labelling the heads")
        scan = prompts.scan(progress)
    chosen = chosen_heads(scan, heads, labels)
    notes = []
    if "html" in formats:
        count = len(scan.frame) if chosen is None else len(chosen)
        size = estimate(count, lengths, causal=prompts.causal)
        stage(f"drawing {count} heads, a page of about {size:.1f} million bytes")
        page = prompts.gallery(scan, progress, heads=chosen, limit=limit)
        page.save(folder / "gallery.html")
        notes += page.notes
    if endings := [ending for ending in formats if ending != "html"]:
        from interp.show.figures import save_figure

        if (longest := max(lengths)) > prompts.most:
            notes.append(f"Figures show the first {prompts.most:,} of {longest:,} tokens.")
        for name, figure in figures(prompts, scan, draw, chosen, labels, query, stage):
            for ending in endings:
                save_figure(figure, folder / f"{name}.{ending}")
    return notes


def figures(
    prompts: ModelPrompts | FilePrompts,
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
    if not {"page", "heads", "arcs"} & set(draw):
        return
    kinds = [kind.name for kind in map(kind_of, labels) if kind is not None] or None
    layers = None if heads is None else sorted({head.layer for head in heads})
    for number, row in enumerate(prompts.rows):
        stage(f"drawing prompt {number + 1}")
        prompt = one_prompt(prompts.patterns(number, layers), whole=len(row), cross=True)
        end = "" if number == 0 else f"_{number + 1}"
        if "page" in draw:
            more = {"top": 4 if heads is None else 8, "heads": heads, "kinds": kinds}
            yield f"gallery{end}", plots.pattern_page(scan, prompt, **more)
        for head in heads or []:
            if "heads" in draw:
                yield f"head_{head}{end}", plots.head_page(prompt, head, scan=scan)
            if "arcs" in draw:
                yield f"arcs_{head}{end}", plots.attention_arcs(prompt, head, query, scan=scan)
