"""How a result was made: the record that files keep next to the numbers."""

import json
import logging
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from interp.errors import InputError, Seed, told, validated
from interp.files import versions
from interp.kinds.scores import Thresholds
from interp.patterns.tensor import MOST_LAYERS
from interp.text import prose

if TYPE_CHECKING:
    from interp.models import Model

LOG = logging.getLogger("interp")

Size = Annotated[int, Field(ge=1, lt=2**31)]
TokenId = Annotated[int, Field(ge=0, lt=2**63)]


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


class KindRecord(BaseModel):
    """A kind that was asked for: its words, its threshold, where it was scored, and its null.

    `digest` is that of its rule (`Kind.digest`).
    """

    model_config = ConfigDict(strict=True, extra="allow")

    look: str
    threshold: Annotated[float, Field(gt=0, le=1)]
    on: str
    null: str
    digest: str = ""


class PlaceRecord(BaseModel):
    """A token of an example, in its text."""

    model_config = ConfigDict(strict=True, extra="allow")

    position: Annotated[int, Field(ge=0, description="position in the row, counted from 0")]
    token: Annotated[str, Field(description="text of the token")]
    before: Annotated[str, Field(description="text before it")]
    after: Annotated[str, Field(description="text after it")]


class ExampleRecord(BaseModel):
    """A pair of a query and a key, and the attention from one to the other."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)

    weight: Annotated[float, Field(ge=0, le=1.01, description="attention, in [0, 1]")]
    row: Annotated[int, Field(ge=0, description="row of the text, counted from 0")]
    query: Annotated[PlaceRecord, Field(description="the token that attends")]
    key: Annotated[PlaceRecord, Field(description="the token that it attends to")]
    engaged: Annotated[
        float | None,
        Field(ge=0, le=1.01, description="only in `engagement`: mean of the tenth, in [0, 1]"),
    ] = None


class ExplainedRecord(BaseModel):
    """How the explained share was measured, and examples of each head (`L5H1`).

    `low` and `high` are the 95 % interval of the model's share; `unexplained` has the pairs with
    the most attention that no kind explains, `engagement` the tenths of the queries, the least
    engaged first.
    """

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)

    first_query: int = 0
    most_queries: int = 0
    low: float | None = None
    high: float | None = None
    unexplained: dict[str, list[ExampleRecord]] = {}
    engagement: dict[str, list[ExampleRecord]] = {}


class Record(BaseModel):
    """How a result was made. Entries with other names are kept as they are.

    Attributes:
        digest: Digest of the weights (`interp.models.identity`), if they were in memory.
        attention: Kind of attention of each layer; `none...` where a layer has none.
        dtype: Number format of the weights, or of given patterns.
        off_cpu: Largest difference from the CPU's attention; None if not compared.
        tokenizer: Whether the model has a tokenizer.
        scored_on: Part of the probes on which each kind is scored.
        kinds: The kinds by name, if others than the default ones were asked for.
        explained: How the explained share was measured, the model's interval, and examples.
        left_out: Absent columns, and why.
        patterns: File of given patterns; `rows` and `length` are their prompts and tokens.
    """

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)

    model: str = ""
    digest: str | None = None
    n_heads: Annotated[int, Field(ge=1, le=MOST_LAYERS)] = MOST_LAYERS
    attention: list[str] = []
    dtype: str = ""
    device: str = ""
    off_cpu: float | None = None
    bos: TokenId | None = None
    bos_text: str | None = None
    special: list[TokenId] = []
    seed: Seed = 0
    tokenizer: bool = False
    probes: list[ProbeRecord] = []
    scored_on: dict[str, str] = {}
    thresholds: dict[str, int | float] = {}
    kinds: dict[Annotated[str, Field(pattern="^[a-z][a-z0-9_]*$")], KindRecord] = {}
    explained: ExplainedRecord = ExplainedRecord()
    left_out: dict[str, str] = {}
    patterns: dict[str, Any] = {}
    rows: Size = 1
    length: Size = 1
    learned_sinks: bool = False

    @staticmethod
    def of_model(model: "Model", *, layers: bool = False, **more: Any) -> dict[str, Any]:
        """The record of a run of `model`: what identifies it, `more`, and the versions.

        With `layers` it has their number, heads and attention too. An entry of `more` replaces
        the model's entry of that name.
        """
        slopes = model.alibi_slopes
        inside = {name: getattr(model, name) for name in ("n_layers", "n_heads", "direction")}
        inside |= {"attention": [*model.kinds], "alibi_slopes": slopes and [*slopes]}
        return {
            **Record.identity(model),
            **(inside if layers else {}),
            "device": model.device.type,
            **({} if model.device.type == "cpu" else {"off_cpu": model.off_cpu}),
            "bos": model.bos,
            **more,
            "versions": versions(),
        }

    @staticmethod
    def identity(model: "Model") -> dict[str, Any]:
        """Which weights `model` runs: name, revision, digest, adapters, quantization, dtype."""
        changed = {"adapters": model.adapters, "quantization": model.quantization}
        return {
            "model": model.name,
            "revision": model.revision,
            "digest": model.digest,
            **{name: value for name, value in changed.items() if value},
            "dtype": model.dtype_name,
        }

    @classmethod
    def check(cls, made_by: Any, heads: Collection[tuple[int, int]]) -> dict[str, Any]:
        """`made_by` unchanged, if it can be the record of a table with these heads.

        Raises:
            InputError: If JSON cannot hold it, an entry is not what a scan writes, or the model
                has other heads than the table.
        """
        try:
            json.dumps(made_by, ensure_ascii=False, allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise InputError(f"made_by must hold what JSON can: {told(error)}") from None
        record: Record = validated("made_by", made_by, TypeAdapter(cls))
        Thresholds(**record.thresholds)  # pyright: ignore[reportArgumentType]
        layers = [i for i, kind in enumerate(record.attention) if not kind.startswith("none")]
        known = {(layer, head) for layer in layers for head in range(record.n_heads)}
        if record.attention and known != {*heads}:
            raise InputError(f"table must have the {len(known)} heads of made_by, got {len(heads)}")
        return made_by


def check_made_by(made_by: Mapping[str, Any], model: "Model", what: str) -> None:
    """Refuse the record of `what` if it was made with other weights than those of `model`.

    Records without a digest, and those of weights in another number format, are compared by the
    model's name; the latter give a warning, and so do tables without a record (CSV files).
    """
    if "model" not in made_by:
        LOG.warning("%s does not record its model: it cannot be compared with %s", what, model.name)
    name, dtype = str(made_by.get("model", model.name)), made_by.get("dtype")
    theirs = made_by.get("digest")
    digest = model.digest if theirs else None
    if digest and dtype == model.dtype_name:
        if theirs != digest:
            raise InputError(
                f"{what} must be of the model's weights, {model.name} with digest {digest}, got"
                f" one of {prose(name)} with digest {prose(str(theirs))}"
            )
    elif name != model.name:
        raise InputError(f"{what} must be of the model, {model.name}, got one of {prose(name)}")
    elif digest:
        LOG.warning(
            "%s was made in %s, and the model runs in %s: whether its weights are the same cannot"
            " be compared",
            what,
            dtype,
            model.dtype_name,
        )
