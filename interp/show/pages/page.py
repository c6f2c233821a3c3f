"""The content of a page of heads, and its file: `Gallery`.

The page holds all heads as small pictures, grouped by label, and each in full with its tokens.
`interp.show.pages.packing` packs the weights, `interp.show.pages.webpage` writes the HTML.
"""

import io
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from interp.errors import InputError
from interp.files import staged, write_json
from interp.heads import Head
from interp.kinds.builtin import kind_of
from interp.kinds.kind import Kind
from interp.scan.explain import row_of
from interp.scan.table import HeadScan
from interp.show.about import probe_of, scored_over
from interp.show.pages import webpage
from interp.show.pages.packing import STEPS, PackedPrompt
from interp.show.pages.sheet import sheet
from interp.text import prose, visible

LEAST = 0.05
"""Smallest weight in a file of JSON, if the caller does not say."""

_EXAMPLES = ("unexplained", "engagement")
"""What a scan with `explained` keeps of each head."""


@dataclass(frozen=True, eq=False)
class Gallery(webpage.Html):
    """A page of heads, made by `gallery`.

    A notebook displays it in a frame, or as a still picture (PNG) if it cannot display pages.

    `scan` is the table of labels and scores, `prompts` hold the packed weights of `heads`, the
    first of `notes` says what was left out, and `alone` is the head of a page of one in full.
    `values` are numbers by head, in a `unit`, that pictures show and are sorted by. A page that is
    `live`, with the text of its first prompt, asks its server for further ones.

    Example:
        >>> import interp
        >>> toy = interp.build_circuit("absolute", vocabulary=64, length=33)
        >>> patterns = interp.attention_patterns(toy, [[0, 5, 6, 7, 5, 6]])
        >>> interp.gallery(interp.classify_heads(patterns), patterns).head("L1H5")
        Gallery(L1H5 in attention heads: on prompts of 6 tokens)
    """

    title: str
    scan: HeadScan
    heads: list[Head]
    prompts: list[PackedPrompt]
    notes: list[str]
    alone: Head | None = None
    values: Mapping[Head, float] | None = None
    unit: str = "value"
    live: str | None = None

    def head(self, name: Any) -> "Gallery":
        """The page of one head in full, with its tokens; `name` is `L5H1`, `5.1` or `(5, 1)`."""
        head = Head.parse(name)
        if head not in self.heads:
            raise InputError(f"name must be a head of the gallery, got {head}")
        title = f"{head} in {self.title}"
        notes = [note for prompt in self.prompts for note in prompt.notes]
        return replace(self, title=title, heads=[head], notes=notes, alone=head)

    def __repr__(self) -> str:
        lengths = ", ".join(str(len(prompt.text)) for prompt in self.prompts)
        left_out = f"; {'; '.join(self.notes)}" if self.notes else ""
        heads = "" if self.alone else f"{len(self.heads)} heads "
        return f"Gallery({self.title}: {heads}on prompts of {lengths} tokens{left_out})"

    def to_html(self) -> str:
        """The page: one HTML document without any reference to the outside."""
        return self._html

    @cached_property
    def _html(self) -> str:
        table = []
        for row in self._rows:
            also = ", ".join(word for word in row["labels"] if word != row["label"])
            words = prose(row["label"]), _fixed(row), also and prose(also)
            table.append((row["name"], *words))
        blocks = {
            f"w{i}-{head}": prompt.weights[head]
            for i, prompt in enumerate(self.prompts)
            for head in self.heads
        }
        more = {
            "picture": self._repr_png_(),
            "table": table,
            "interactive": self.alone is None and self.live is None,
        }
        return webpage.page(self.title, self._data(), blocks, live=self.live is not None, **more)

    @property
    def _height(self) -> int:
        return 890 if self.alone else 760

    def to_json(self, *, least: float = LEAST) -> dict[str, Any]:
        """Prompts, and heads with their evidence and attention, as plain values.

        `docs/see.md` explains the entries. Weights below `least` are left out, 0 for none.
        """
        heads = []
        for head in self.heads:
            attention = []
            for prompt in self.prompts:
                weights = prompt.pattern(head)
                kept = (weights >= max(least, 0.5 / STEPS)).nonzero().tolist()
                attention.append([[q, k, round(weights[q, k].item(), 3)] for q, k in kept])
            known, row = self.scan.made_by.get("explained", {}), row_of(self.scan, head)
            heads.append(
                row
                | {name: known.get(name, {}).get(str(head), []) for name in _EXAMPLES}
                | {"explain": self.scan.explain(head).splitlines(), "attention": attention}
                | ({} if self.values is None else {"value": self.values.get(head)})
            )
        prompts = [prompt.to_json(()) for prompt in self.prompts]
        for prompt in prompts:
            del prompt["sinks"]  # They are in the columns of a head.
        about = {"title": self.title, "notes": self.notes, "least": least, "unit": self.unit}
        return {"schema_version": 1, **about, "prompts": prompts, "heads": heads}

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page to an `.html` file, or `to_json` to a `.json` file, and return its path.

        The file is written whole or not at all. Missing folders are created.
        """
        path = Path(path)
        if path.suffix != ".json":
            return super().save(path)
        with staged(path.parent) as scratch:
            write_json(scratch / path.name, self.to_json(), indent=None)
        return path

    def _repr_png_(self) -> bytes:
        prompt = self.prompts[0]
        if self.alone:
            # A page of all heads needs no matplotlib.
            from interp.show.figures.head import head_page
            from interp.show.figures.style import styled

            file = io.BytesIO()
            with styled():
                head_page(prompt, self.alone, scan=self.scan).savefig(file, format="png", dpi=144)
            return file.getvalue()
        sections = []
        for word in self._groups:
            members = [row for row in self._rows if row["label"] == word]
            members.sort(key=lambda row: -1 if row["score"] is None else row["score"], reverse=True)
            captions = [f"{row['name']} {_fixed(row)}" for row in members]
            pictures = [prompt.pictures[Head.parse(row["name"])] for row in members]
            sections.append((f"{prose(word)} ({len(members)})", captions, pictures))
        return sheet(sections, causal=prompt.causal)

    @cached_property
    def _rows(self) -> list[dict[str, Any]]:
        """What the page knows of each head."""
        frame = self.scan.frame.astype(object)
        records = frame.where(frame.notna(), None).set_index("name").to_dict("index")
        rows = []
        for head in self.heads:
            row = records[str(head)]
            scores = {name: row[name] and round(row[name], 4) for name in self._kinds}
            kind = kind_of(row["label"], self.scan.kinds)
            about = {"name": str(head), "layer": head.layer, "head": head.head}
            about |= {"label": row["label"], "labels": list(row["labels"])}
            about["borderline"] = (row.get("borderline") or "").split(", ")
            about |= {"kind": kind and kind.name, "score": scores.get(kind.name) if kind else None}
            kept = self.scan.made_by.get("explained", {})
            examples = {name: kept.get(name, {}).get(str(head)) for name in _EXAMPLES}
            about |= {"examples": examples} if all(examples.values()) else {}
            value = (self.values or {}).get(head)
            rows.append(about | {"scores": scores, "value": value})
        return rows

    @property
    def _kinds(self) -> dict[str, Kind]:
        """The kinds that these heads can be of, by name."""
        return {} if self.prompts[0].keys else self.scan.kinds

    @property
    def _groups(self) -> list[str]:
        shown = {row["label"] for row in self._rows}
        return [word for word in self.scan.summary() if word in shown]

    def _data(self) -> dict[str, Any]:
        held = [word for row in self._rows for word in row["labels"]]
        words = [word for kind in self.scan.kinds.values() for word in kind.labels if word in held]
        words += sorted(set(held) - set(words))
        kinds, thresholds, over = self._kinds, self.scan.thresholds, scored_over(self.scan)
        sinks = [Head.parse(row["name"]) for row in self._rows if row["kind"] == "sink"]
        here = ", not over this prompt" if self.live is None else ""
        return {
            "about": self._about(),
            "notes": [*self.notes, *self._lost(), *self._notes(over), *self._of_labels()],
            "alone": self.alone and str(self.alone),
            "scored": f"Scores over {over}{here}:" if kinds else "",
            "kinds": [{"kind": name, "word": kind.label} for name, kind in kinds.items()],
            "looks": {
                word: kind.looks(thresholds, causal=self.scan.causal)
                for kind in kinds.values()
                for word in kind.scored_labels
            },
            "labels": [
                {"word": word, "kind": kind and kind.name, "count": held.count(word)}
                for word, kind in ((word, kind_of(word, self.scan.kinds)) for word in words)
            ],
            "groups": self._groups,
            "heads": self._rows,
            "prompts": [prompt.to_json(sinks) for prompt in self.prompts],
            "values": self.values
            and {
                "word": self.unit,
                "largest": max(map(abs, self.values.values())) or 1.0,
            },
            "circuitsvis": None,
            "live": self.live,
        }

    def _lost(self) -> list[str]:
        """Which kinds have no outlines because the table came from a file."""
        lost = ", ".join(kind.label for kind in self._kinds.values() if not kind.has_rule)
        give = "give these kinds as kinds= or --kinds when the table is loaded"
        return [f"No targets are outlined for {lost}: {give}."] * bool(lost)

    def _about(self) -> str:
        """The origin of the labels, in words, and the model, if the title does not name it."""
        if any(prompt.keys for prompt in self.prompts):
            return "Cross-attention: queries and keys are of two texts, and heads have no labels."
        name = prose(str(self.scan.made_by.get("model", self.title)))
        model = "" if name in self.title else f"{name}. "
        if not (probe := probe_of(self.scan)):
            return f"{model}Labels and scores were computed from attention patterns."
        there = {kind.part for kind in self.scan.kinds.values()} - {"repeated", "random"}
        others = " and of text" * bool(there)
        return (
            f"{model}Labels and scores are from a scan of {probe['rows']} prompts of"
            f" {probe['length']} random tokens that repeat{others}, not from this page's prompts."
        )

    def _notes(self, over: str) -> list[str]:
        """How to read the pictures, of one head or of all."""
        cross = any(prompt.keys for prompt in self.prompts)
        sides = "queries of one text go down, keys of another" if cross else "queries go down, keys"
        read = f"{sides} across, counted from 0; the colour is the attention weight from 0 to 1."
        steps = "Weights are stored in steps of 1/255: each is within 0.002 of the model's."
        if self.alone:
            return [f"{read[0].upper()}{read[1:]} {steps}"]
        score = (
            " The number under a picture is the score of its own label, or of the label or score"
        )
        score += f" that you chose: the mean attention on the targets over {over}."
        if self.scan.borderline():
            score += " ~ marks a borderline score, which may be on either side of the threshold."
        blocks = "In small pictures of long prompts a pixel is the largest weight of its block."
        notes = [f"Each picture is one head: {read}{'' if cross else score}", f"{steps} {blocks}"]
        if self.values:
            notes.append(f"The number in colour is the {self.unit}: orange above 0, purple below.")
        return notes

    def _of_labels(self) -> list[str]:
        """The meaning of signs in the names of tokens, if there are any."""
        texts = [text for p in self.prompts for text in (p.text, p.across)]
        names = "".join(label for text in texts for label in text.labels)
        notes = []
        if re.search("<0x[0-9A-F]{2}>", names):
            notes.append("<0xF0> is a byte of a character")
        if "\ufffd" in names:
            notes.append("\ufffd is a character, or part of one, that the tokenizer does not give")
        if any([*map(visible, text.texts)] != text.labels for text in texts):
            notes.append("#1234 is the id of a token whose name others have too")
        if re.search(r"U\+[0-9A-F]{4}", names):
            notes.append("U+200B is an invisible character, by its number")
        return [f"Token names: {'; '.join(notes)}."] if notes else []


def _fixed(row: dict[str, Any]) -> str:
    near = "~" * (row["kind"] in row["borderline"])
    return "" if row["score"] is None else f"{near}{row['score']:.2f}"
