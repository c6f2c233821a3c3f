"""What a page of heads shows, and how it is saved: a `Gallery`.

The page holds all heads as small pictures, grouped by label, and each in full with its tokens.
It is one file that refers to nothing outside. How weights become bytes is in
`interp.show.pages.packing`, how data becomes HTML in `interp.show.pages.webpage`.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from interp.errors import InputError
from interp.files import staged
from interp.heads import Head
from interp.kinds.kind import KINDS, Kind, kind_of, kinds_in
from interp.scan.table import HeadScan
from interp.show.pages import webpage
from interp.show.pages.prompts import Prompt, thresholds_of
from interp.show.pages.scored import probe_of, scored_over
from interp.show.pages.sheet import Section, sheet
from interp.text import prose


@dataclass(frozen=True, eq=False)
class Gallery:
    """A page of heads, made by `gallery`.

    In a notebook it shows itself, in a frame of its own, and brings a still picture (PNG) for
    where pages cannot be shown.

    Attributes:
        title: Of the page.
        scan: The table with the heads' labels and scores.
        heads: The heads on the page.
        prompts: The prompts, each with the packed weights of those heads.
        notes: What the page says about itself; first of all what was left out.
        alone: The one head that the page shows in full, if it is a page of one head.
    """

    title: str
    scan: HeadScan
    heads: list[Head]
    prompts: list[Prompt]
    notes: list[str]
    alone: Head | None = None

    def head(self, name: Any) -> "Gallery":
        """One of the heads in full, with its tokens, as a page of its own.

        It shows itself in a notebook and is saved as the whole is.

        Args:
            name: `L5H1`, `5.1` or `(5, 1)`.

        Raises:
            InputError: If the head is not on this page.
        """
        head = Head.parse(name)
        if head not in self.heads:
            raise InputError(f"name must be a head of the gallery, got {head}, which is not")
        title = f"{head} in {self.title}"
        notes = [note for prompt in self.prompts for note in prompt.notes]
        return replace(self, title=title, heads=[head], notes=notes, alone=head)

    def __repr__(self) -> str:
        lengths = ", ".join(str(len(prompt.ids)) for prompt in self.prompts)
        left_out = f"; {'; '.join(self.notes)}" if self.notes else ""
        heads = "" if self.alone else f"{len(self.heads)} heads "
        return f"Gallery({self.title}: {heads}on prompts of {lengths} tokens{left_out})"

    def to_html(self) -> str:
        """The page: one HTML document without any reference to the outside."""
        return self._html

    @cached_property
    def _html(self) -> str:
        rows = self._rows()
        also = [[word for word in row["labels"] if word != row["label"]] for row in rows]
        table = [
            (
                row["name"],
                prose(row["label"]),
                _fixed(row["score"]),
                prose(", ".join(others)) if others else "",
            )
            for row, others in zip(rows, also, strict=True)
        ]
        blocks = {
            f"w{i}-{head}": prompt.weights[head]
            for i, prompt in enumerate(self.prompts)
            for head in self.heads
        }
        return webpage.page(
            self.title,
            self._data(rows),
            blocks,
            picture=self._repr_png_(),
            table=table,
            interactive=self.alone is None,
        )

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page to an `.html` file, whole or not at all, and return its path.

        Folders on the way to it that are not there are made.

        Raises:
            InputError: If the ending is another, or the folder cannot be written to.
        """
        path = Path(path)
        if path.suffix != ".html":
            raise InputError(f"path must end in .html, got {path.name}")
        with staged(path.parent) as scratch:
            (scratch / path.name).write_text(self.to_html(), encoding="utf-8", newline="\n")
        return path

    def _repr_html_(self) -> str:
        return webpage.frame(self.to_html(), height=890 if self.alone else 760)

    def _repr_png_(self) -> bytes:
        rows, prompt = self._rows(), self.prompts[0]
        if self.alone:
            # Needs the figures, which a page of all heads does without.
            from interp.show.pages.still import head_picture

            return head_picture(self.scan, prompt, self.alone)
        sections = []
        for word in self._groups(rows):
            members = [row for row in rows if row["label"] == word]
            members.sort(key=lambda row: -1 if row["score"] is None else row["score"], reverse=True)
            captions = [f"{row['name']} {_fixed(row['score'])}" for row in members]
            pictures = [prompt.pictures[Head(row["layer"], row["head"])] for row in members]
            sections.append(Section(f"{prose(word)} ({len(members)})", captions, pictures))
        return sheet(sections, causal=prompt.causal)

    def _rows(self) -> list[dict[str, Any]]:
        """What the page knows of each head."""
        frame = self.scan.frame.astype(object)
        records = frame.where(frame.notna(), None).to_dict("records")
        found = {record["name"]: record for record in records}
        rows = []
        for head in self.heads:
            row = found[str(head)]
            scores = {
                kind: None if row[kind] is None else round(row[kind], 4) for kind in self._kinds
            }
            kind = _kind(row["label"])
            score = scores.get(kind) if kind else None
            about = {"name": str(head), "layer": head.layer, "head": head.head}
            about |= {"label": row["label"], "labels": list(row["labels"])}
            rows.append(about | {"kind": kind, "score": score, "scores": scores})
        return rows

    @property
    def _kinds(self) -> dict[str, Kind]:
        """The kinds that these heads can be of, by name."""
        return {} if self.prompts[0].keys else kinds_in(self.scan.frame.columns)

    def _groups(self, rows: Sequence[dict[str, Any]]) -> list[str]:
        shown = {row["label"] for row in rows}
        return [word for word in self.scan.summary() if word in shown]

    def _data(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        held = [word for row in rows for word in row["labels"]]
        words = [kind.label for kind in KINDS.values()]
        words += [word for kind in KINDS.values() for word in kind.labels[1:]]
        words = [w for w in words if w in held] + sorted(set(held) - set(words))
        thresholds, kinds = thresholds_of(self.scan), self._kinds
        cross, over = any(prompt.keys for prompt in self.prompts), scored_over(self.scan)
        return {
            "about": _about(self.scan, self.title, cross),
            "notes": [
                *self.notes,
                *_notes(bool(self.alone), cross, over),
                *_of_labels(self.prompts),
            ],
            "alone": self.alone and str(self.alone),
            "scored": f"Scores over {over}, whatever prompt is shown:" if kinds else "",
            "kinds": [{"kind": kind.name, "word": kind.label} for kind in kinds.values()],
            "looks": {
                word: kind.looks(thresholds, causal="induction" in kinds)
                for kind in kinds.values()
                for word in kind.scored_labels
            },
            "labels": [
                {"word": word, "kind": _kind(word), "count": held.count(word)} for word in words
            ],
            "groups": self._groups(rows),
            "heads": rows,
            "prompts": [
                {
                    "title": p.title,
                    "ids": p.ids,
                    "labels": p.labels,
                    "causal": p.causal,
                    "keys": p.keys and {"ids": p.keys.ids.tolist(), "labels": p.keys.labels},
                    "targets": p.targets,
                    "sinks": {
                        row["name"]: p.sinks[Head(row["layer"], row["head"])]
                        for row in rows
                        if row["kind"] == "sink"
                    },
                }
                for p in self.prompts
            ],
            "circuitsvis": None,
        }


def _about(scan: HeadScan, title: str, cross: bool) -> str:
    """What the labels come from, in words, and the model, if the title does not name it."""
    name = prose(str(scan.made_by["model"])) if "model" in scan.made_by else title
    model = "" if name in title else f"{name}. "
    if cross:
        return "Heads that look at another text have no labels: no kind is defined for them."
    probe = probe_of(scan)
    if probe is None:
        return f"{model}Labels and scores come with the patterns; no probe is on record."
    return (
        f"{model}Labels and scores come from a scan of {probe['rows']} prompts of"
        f" {probe['length']} random tokens that repeat, not from the prompts shown here."
    )


_SCORES = (
    "The number under a picture is a score of the head: the mean attention, over {over}, on the"
    " targets of the label or score that the heads are chosen or sorted by, else of its own label."
)


def _notes(alone: bool, cross: bool, over: str) -> list[str]:
    """How to read the pictures, of one head or of all."""
    sides = "queries go down, keys across"
    if cross:
        sides = "queries, of one text, go down, keys, of another, across"
    read = f"{sides}, counted from 0, and the colour is the attention weight from 0 to 1."
    steps = "Weights are kept in steps of 1/255, so that each is within 0.002 of the model's."
    if alone:
        return [f"{read[0].upper()}{read[1:]} {steps}"]
    return [
        f"Each picture is one head: {read}" + ("" if cross else f" {_SCORES.format(over=over)}"),
        f"{steps} In small pictures of long prompts a pixel is the largest weight of its block.",
    ]


def _of_labels(prompts: Sequence[Prompt]) -> list[str]:
    """What the signs in the names of tokens are, if there are any that need it."""
    names = "".join(label for p in prompts for label in (*p.labels, *(p.across.labels)))
    told = []
    if "\ufffd" in names:
        told.append("\ufffd is a token that holds a piece of a character, and has its id after #")
    if re.search(r"U\+[0-9A-F]{4}", names):
        told.append("U+200B and the like are characters that cannot be seen, by their numbers")
    return [f"In the names of tokens {', and '.join(told)}."] if told else []


def _kind(label: str) -> str | None:
    kind = kind_of(label)
    return kind and kind.name


def _fixed(score: float | None) -> str:
    return "" if score is None else f"{score:.2f}"
