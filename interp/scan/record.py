"""How a result was made: the record that files keep beside the numbers."""

import json
from collections.abc import Collection
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from interp.errors import InputError, Seed, quoted, told, validated
from interp.files import versions
from interp.heads import Head
from interp.kinds.scores import Thresholds
from interp.patterns.tensor import MOST_LAYERS

if TYPE_CHECKING:
    from interp.models import Model

Size = Annotated[int, Field(ge=1, lt=2**31)]
Layers = Annotated[int, Field(ge=1, le=MOST_LAYERS)]
TokenId = Annotated[int, Field(ge=0, lt=2**63)]

_TOGETHER = {
    "probes": ("tokenizer", "bos", "bos_text", "seed", "dtype", "device"),
    "patterns": ("rows", "length", "dtype", "special", "learned_sinks"),
    "attention": ("n_layers", "n_heads"),
}
"""Entries that a record must have where it has the one before the colon."""


class ProbeRecord(BaseModel):
    """The token rows of one probe.

    `parts` names the groups of queries that are scored, `periods` has the period of each row
    that repeats, `tokens` the ids of each row, separated by spaces.
    """

    model_config = ConfigDict(strict=True, extra="allow")

    parts: Annotated[list[str], Field(min_length=1)]
    rows: Size
    length: Size
    periods: list[Size]
    tokens: list[Annotated[str, Field(pattern=r"^\d+( \d+)*$")]] | None = None

    @model_validator(mode="after")
    def _sizes_agree(self) -> "ProbeRecord":
        repeats = self.parts != ["text"]
        if len(self.periods) != self.rows * repeats or max(self.periods, default=0) >= self.length:
            raise ValueError(f"have a period below {self.length} for each of its {self.rows} rows")
        lengths = [row.count(" ") + 1 for row in self.tokens or ()]
        if self.tokens is not None and lengths != [self.length] * self.rows:
            raise ValueError(f"have {self.rows} rows of {self.length} token ids")
        return self


class Record(BaseModel):
    """How a result was made. Entries with other names are kept as they are.

    Attributes:
        revision: Commit of the weights, or their SHA-256.
        attention: Kind of attention of each layer; `none...` where a layer has none.
        dtype: Number format of the weights, or of given patterns.
        off_cpu: Largest difference from the CPU's attention; None if not compared.
        n_bos: Number of BOS tokens that open a row.
        tokenizer: Whether the model has a tokenizer.
        scored_on: Part of the probes on which each kind is scored.
        left_out: Absent columns, and why.
        patterns: File of given patterns; `rows` and `length` are their prompts and tokens.
    """

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)

    model: str = ""
    revision: str | None = None
    n_layers: Layers = MOST_LAYERS
    n_heads: Layers = MOST_LAYERS
    direction: Literal["causal", "both ways"] = "causal"
    attention: list[str] = []
    alibi_slopes: list[float] | None = None
    dtype: str = ""
    device: str = ""
    off_cpu: float | None = None
    bos: TokenId | None = None
    bos_text: str | None = None
    special: list[TokenId] = []
    n_bos: Annotated[int, Field(ge=0, le=2)] = 0
    seed: Seed = 0
    method: Literal["stream", "hooks"] = "stream"
    tokenizer: bool = False
    probes: list[ProbeRecord] = []
    scored_on: dict[str, str] = {}
    thresholds: dict[str, int | float] = {}
    versions: dict[str, str] = {}
    quick: bool = False
    left_out: dict[str, str] = {}
    patterns: dict[str, Any] = {}
    rows: Size = 1
    length: Size = 1
    learned_sinks: bool = False

    @model_validator(mode="after")
    def _is_complete(self) -> "Record":
        for name in _TOGETHER.keys() & self.model_fields_set:
            if absent := [other for other in _TOGETHER[name] if other not in self.model_fields_set]:
                raise ValueError(f"have {', '.join(absent)} where it has {name}")
        if "patterns" in self.model_fields_set and not isinstance(self.patterns.get("file"), str):
            raise ValueError("name the file of the patterns")
        if self.attention and len(self.attention) != self.n_layers:
            raise ValueError(f"have the attention of each of {self.n_layers} layers")
        return self

    @staticmethod
    def of_model(model: "Model", *, layers: bool = False, **more: Any) -> dict[str, Any]:
        """The record of a run of `model`: what identifies it, `more`, and the versions.

        Args:
            model: The model that was run.
            layers: Whether to record the layers too: their number, heads and attention.
            more: Further entries, in the order in which a file shall have them; an entry with
                the name of one of the model's replaces it.
        """
        slopes = model.alibi_slopes
        inside = {
            "n_layers": model.n_layers,
            "n_heads": model.n_heads,
            "direction": model.direction,
            "attention": list(model.kinds),
            "alibi_slopes": None if slopes is None else list(slopes),
        }
        return {
            "model": model.name,
            "revision": model.revision,
            **(inside if layers else {}),
            "dtype": model.dtype_name,
            "device": model.device.type,
            **({} if model.device.type == "cpu" else {"off_cpu": model.off_cpu}),
            "bos": model.bos,
            **more,
            "versions": versions(),
        }

    @classmethod
    def check(cls, made_by: Any, heads: Collection[tuple[int, int]]) -> dict[str, Any]:
        """`made_by` unchanged, if it can be the record of a table with these heads.

        Args:
            made_by: A record from anywhere.
            heads: Layer and head of each row of the table.

        Raises:
            InputError: If JSON cannot hold it, an entry is not what a scan writes, or the model
                has other heads than the table.
        """
        try:
            json.dumps(made_by, ensure_ascii=False, allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise InputError(f"made_by must hold what JSON can: {told(error)}") from None
        record: Record = validated("made_by", made_by, TypeAdapter(cls))
        if unknown := record.thresholds.keys() - {field.name for field in fields(Thresholds)}:
            raise InputError(f"thresholds must have known names, got {quoted(min(unknown))}")
        Thresholds(**record.thresholds)  # pyright: ignore[reportArgumentType]
        layers, number = record.n_layers, record.n_heads
        if beyond := [Head(*head) for head in heads if head[0] >= layers or head[1] >= number]:
            raise InputError(f"table must have heads of {layers} x {number}, got {beyond[0]}")
        if record.attention:
            have = {i for i, kind in enumerate(record.attention) if not kind.startswith("none")}
            if len(heads) != len(have) * number or not {layer for layer, _ in heads} <= have:
                raise InputError(
                    f"table must have the {len(have) * number} heads of made_by, got {len(heads)}"
                )
        return made_by
