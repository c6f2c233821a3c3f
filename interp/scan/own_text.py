"""Your own text in a scan: read, cut into rows and measured a piece at a time.

The text is read twice: once to count its rows, once to run them. Only one piece is in memory, and
its scores are summed over `Cut.rows_of_block` neighbouring rows, so that memory does not grow with
the text. With a folder each piece is a file there, and the same call resumes after a stop.
"""

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Int
from safetensors.torch import load_file, save_file
from torch import Tensor

from interp.errors import InputError, quoted, reading
from interp.files import parsed
from interp.kinds import probes
from interp.kinds.explained import QUERIES, SAMPLE, START, Examples, Explained
from interp.kinds.mass import Tally
from interp.kinds.scores import LayerScores
from interp.scan.parts import Parts
from interp.scan.plan import AT_ONCE, framed

if TYPE_CHECKING:
    from interp.models import Model

BLOCKS = 256
"""Number of blocks of rows at which sums are kept, for intervals; a short text has a row each."""

NULL_ROWS = 128
"""First rows that give the nulls of kinds that are scored on text."""

_PIECE = 1 << 16  # Characters of a text file that are tokenized together.

Scores = dict[str, dict[int, list[LayerScores]]]
"""Scores by part and layer, as `interp.scan.measure.measure` returns them."""

Summed = dict[str, dict[int, LayerScores]]


def texts_in(source: Any) -> Iterator[str]:
    """The texts of a file or a folder, or the given ones, one at a time.

    `.jsonl` has an object with `text` in each line, `.parquet` a column `text`; any other file is
    running text in UTF-8, which is read in pieces of whole lines. Of a folder, all files are read
    in the order of their names, but for hidden ones.
    """
    if not isinstance(source, str | os.PathLike):
        yield from _checked(source)
        return
    path = Path(source)
    if path.is_dir():
        names = (name for name in sorted(path.iterdir()) if not name.name.startswith("."))
        for name in names:
            yield from texts_in(name)
        return
    with reading(path, "a file of texts"):
        match path.suffix:
            case ".jsonl":
                with path.open("rb") as file:
                    yield from _checked(parsed(line)["text"] for line in file if line.strip())
            case ".parquet":
                from pyarrow import parquet

                with parquet.ParquetFile(path) as table:
                    for batch in table.iter_batches(64, columns=["text"]):
                        yield from _checked(batch["text"].to_pylist())
            case _:
                with path.open(encoding="utf-8-sig") as file:
                    while piece := file.read(_PIECE) + file.readline(_PIECE):
                        yield piece


def _checked(texts: Iterable[Any]) -> Iterator[str]:
    """The texts, without missing ones."""
    for text in texts:
        if not isinstance(text, str | None):
            raise InputError(f"text must be texts or the path of a file, got {quoted(text)}")
        if text is not None:
            yield text


@dataclass(frozen=True)
class Cut:
    """How a text is cut into rows, each of one text; what is too short for a row is left out.

    Attributes:
        source: The text, as `texts_in` takes it.
        length: Tokens in a row, with BOS; the last row of a text may be shorter.
        n_bos: Number of BOS tokens that open a row.
        rows: Number of rows of each length, without BOS.
        left_out: Number of tokens that are left out.
        sha256: Digest of the text.
    """

    source: Any
    length: int
    n_bos: int
    rows: Counter[int] = field(default_factory=Counter)
    left_out: int = 0
    sha256: str = ""

    @classmethod
    def of(cls, model: "Model", source: Any, length: int, n_bos: int) -> "Cut":
        """Count the rows of a text.

        Raises:
            InputError: If the model has no tokenizer, or no text is long enough for a row.
        """
        if model.tokenizer is None:
            raise InputError(f"text must be read by a tokenizer, and {model.name} has none")
        source = source if isinstance(source, str | os.PathLike) else [*source]
        digest, rows, left_out = hashlib.sha256(), Counter[int](), 0
        for ids in _encoded(model, source, digest.update):
            for row in cls(source, length, n_bos).cut(model, ids):
                rows[len(row)] += len(row) > START
                left_out += len(row) * (len(row) <= START)
        if not rows.total():
            raise InputError(f"text must have texts of more than {START} tokens, got none")
        return cls(source, length, n_bos, +rows, left_out, digest.hexdigest())

    @property
    def rows_of_block(self) -> int:
        """Number of rows whose scores are summed."""
        return -(-self.rows.total() // BLOCKS)

    @property
    def at_once(self) -> int:
        """Number of rows of a piece."""
        return max(AT_ONCE // self.length, self.rows_of_block)

    @property
    def pieces(self) -> int:
        """Number of pieces."""
        return sum(-(-number // self.at_once) for number in self.rows.values())

    def cut(self, model: "Model", ids: Int[Tensor, " id"]) -> Sequence[Int[Tensor, " _"]]:
        """The tokens of a text in rows, without BOS."""
        opening = self.n_bos if model.bos is not None else 0
        closing = model.closing is not None and self.n_bos > 0
        return ids.split(self.length - opening - closing) if len(ids) else []

    def run(self, model: "Model") -> Iterator[probes.Probe]:
        """The text in pieces of rows of one length, in the same order each time."""
        waiting: dict[int, list[Tensor]] = {}

        def probe(rows: list[Tensor]) -> probes.Probe:
            tokens = torch.stack(rows)
            bos = model.bos if self.n_bos else None
            if bos is not None:
                tokens = torch.cat([torch.full_like(tokens[:, :1], bos), tokens], 1)
            part = {"text": torch.ones_like(tokens, dtype=torch.bool)}
            return framed(model, [probes.Probe(tokens, part)], self.n_bos)[0]

        for ids in _encoded(model, self.source):
            for row in self.cut(model, ids):
                if len(row) > START:
                    waiting.setdefault(len(row), []).append(row)
                    if len(waiting[len(row)]) == self.at_once:
                        yield probe(waiting.pop(len(row)))
        for _, rows in sorted(waiting.items()):
            yield probe(rows)

    def record(self) -> dict[str, Any]:
        """What a scan's record says of the text."""
        file = None
        if isinstance(self.source, str | os.PathLike):
            file = os.fsencode(Path(self.source).name).decode(errors="replace")
        tokens = sum(size * number for size, number in self.rows.items())
        return {
            "file": file,
            **{"sha256": self.sha256, "rows": self.rows.total(), "length": self.length},
            **{"tokens": tokens, "left_out": self.left_out, "null_rows": NULL_ROWS},
            "rows_of_block": self.rows_of_block,
        }


def measure_text(
    model: "Model",
    cut: Cut,
    score: Callable[[list[probes.Probe]], Scores],
    nulls: Collection[str],
    *,
    seed: int,
    parts: Parts | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Scores, dict[int, Int[Tensor, " pos"]]]:
    """Measure a text with `score`, which is `interp.scan.measure.measure`.

    Args:
        model: The model that runs.
        cut: The text.
        score: Function from probes to their scores.
        nulls: Parts that are nulls (`Kind.null_part`).
        seed: Random seed of the nulls.
        parts: Files of the pieces, if they are to be kept.
        progress: Function called with (pieces done, pieces in all).

    Returns:
        The scores, and the rows of the examples by number.
    """
    scores: Scores = {}
    examples: dict[int, Examples] = {}
    rows: dict[int, Int[Tensor, " pos"]] = {}
    done = 0
    with parts.kept() if parts else nullcontext():
        for number, probe in enumerate(cut.run(model)):
            if progress is not None:
                progress(number, cut.pieces)
            some = probes.with_nulls(probe, "text", nulls if done < NULL_ROWS else (), seed=seed)
            found = _summed(
                some, score, cut, parts and (lambda make, n=number: parts.fill(n, make))
            )
            for part, by_layer in found.items():
                for layer, one in by_layer.items():
                    if (now := one.explained) is not None and now.examples is not None:
                        before = [examples[layer]] if layer in examples else []
                        examples[layer] = Examples.join([*before, now.examples])
                        one = replace(one, explained=replace(now, examples=None))
                    scores.setdefault(part, {}).setdefault(layer, []).append(one)
            rows |= dict(enumerate(probe.tokens, done))
            used = {row for one in examples.values() for row in one.used()}
            rows = {row: tokens for row, tokens in rows.items() if row in used}
            done += len(probe.tokens)
    for layer, found in examples.items():
        whole = LayerScores.join(scores["text"][layer])
        assert whole.explained is not None
        explained = replace(whole.explained, examples=found)
        scores["text"][layer] = [replace(whole, explained=explained)]
    return scores, rows


def _summed(
    some: list[probes.Probe],
    score: Callable[[list[probes.Probe]], Scores],
    cut: Cut,
    kept: Callable[[Callable[[Path], object]], Path] | None,
) -> Summed:
    """The scores of a piece, those on text summed by blocks; from its file if it is `kept`."""

    def summed() -> Summed:
        # A query is kept if its lot is below this: twice as many as are needed in the end.
        lots = min(1.0, 2 * SAMPLE / (QUERIES * cut.rows.total())) * 2**32
        found: Summed = {}
        for part, by_layer in score(some).items():
            for layer, batches in sorted(by_layer.items()):
                one = LayerScores.join(batches)
                one = one.folded(cut.rows_of_block, lots) if part == "text" else one
                found.setdefault(part, {})[layer] = one
        return found

    if kept is None:
        return summed()
    return _read(kept(lambda path: save_file(dict(_flat("", summed())), path)))


def _encoded(
    model: "Model", source: Any, seen: Callable[[bytes], object] = lambda text: None
) -> Iterator[Int[Tensor, " id"]]:
    """The token ids of each text."""
    for text in texts_in(source):
        seen(text.encode(errors="replace") + b"\0")
        options = {"add_special_tokens": False, "verbose": False}
        yield torch.tensor(model.tokenizer(text, **options)["input_ids"], dtype=torch.long)


def _flat(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    """The tensors inside, by their path."""
    match value:
        case Tensor():
            yield name, value.contiguous()
        case int():
            yield name, torch.tensor(value)
        case None:
            return
        case _:
            inside: Mapping[Any, Any] = vars(value) if is_dataclass(value) else value
            for key, each in inside.items():
                yield from _flat(f"{name}/{key}", each)


def _read(path: Path) -> Summed:
    with reading(path, "a part of a scan (remove it to compute it again)"):
        tree: dict[str, Any] = {}
        for name, value in load_file(path).items():
            *folders, leaf = name.removeprefix("/").split("/")
            place = tree
            for folder in folders:
                place = place.setdefault(folder, {})
            place[leaf] = value
        return {
            part: {int(layer): _layer(one) for layer, one in by_layer.items()}
            for part, by_layer in tree.items()
        }


def _layer(tree: dict[str, Any]) -> LayerScores:
    explained = None
    if known := tree.get("explained"):
        examples = known["examples"]
        examples = Examples(**examples | {"rows": int(examples["rows"])})
        explained = Explained(**known | {"examples": examples})
    tallies = {name: Tally(**tally) for name, tally in tree["tallies"].items()}
    return LayerScores(tallies, tree["sink_position"], None, explained)
