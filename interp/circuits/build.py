"""`build_circuit`: a hand-built induction circuit as a model like any other."""

import re
from collections import Counter
from dataclasses import asdict, replace
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from interp.circuits.absolute import Absolute
from interp.circuits.built import BITS, LONGEST, MOST_SHARP, Built, Parts, Share
from interp.circuits.rotary import Rotary
from interp.errors import InputError, Seed, Whole, checked
from interp.kinds.probes import passages

if TYPE_CHECKING:
    from interp.models import Model

LEAST = 8
"""Fewest ids and positions: below, there is hardly anything to repeat."""

MOST = 4 ** BITS[-1] // 2 + 1
"""Most ids, BOS among them."""

Positions = Annotated[Literal["absolute", "rotary"], Field()]
Vocabulary = Annotated[Whole, Field(ge=LEAST, le=MOST)]
Length = Annotated[Whole, Field(ge=LEAST, le=LONGEST)]
Sharpness = Annotated[float, Field(strict=True, gt=0, le=10 * MOST_SHARP)]
KeyValueHeads = Annotated[Literal[1, 2, 4], Field()]


@checked
def build_circuit(
    positions: Positions,
    vocabulary: Vocabulary,
    length: Length,
    *,
    sharpness: Sharpness | None = None,
    bos: Annotated[Whole, Field(ge=0)] = 0,
    kv_heads: KeyValueHeads | None = None,
    previous: bool = True,
    match: bool = True,
    blur: Share = 0.0,
    wrong_copy: Share = 0.0,
    seed: Seed = 0,
) -> "Model":
    """Build a two-layer induction circuit by hand: right by construction, or wrong as asked.

    Head `L0H3` (rotary: `L0H1`) attends to the previous token and writes it to the current
    position; `L1H5` (rotary: `L1H2`) looks for the position whose previous token is the current
    token, and copies the token there. Without a match, and in all other heads, attention goes to
    BOS, and every logit is 0. A text without BOS has no sink. The derivation is in
    `interp.circuits.built`.

    Args:
        positions: `absolute` (a `GPT2LMHeadModel`) or `rotary` (a `LlamaForCausalLM`).
        vocabulary: Number of ids, BOS among them, from 8 to 32,769.
        length: Number of positions, BOS among them, from 8 to 4,096.
        sharpness: Score, in nats before the softmax, of the right key, in both heads; all others
            score less. If left out, the least at which every query puts 0.9999 of its attention
            on its targets: from 27 to about 90, by vocabulary and length.
        bos: Id of the sink.
        kv_heads: Key-value heads for the four heads of the rotary circuit: 1, 2 or 4; 2 if left
            out.
        previous: Whether there is a previous-token head.
        match: Whether the induction head matches; if not, it always attends to BOS.
        blur: Share of the previous-token head's attention that goes two tokens back.
        wrong_copy: Share of the tokens that are copied as another token.
        seed: Seed of the directions, the tokens' code words, and the idle heads' weights. The
            global generator is not used.

    Returns:
        A `Model`; `.plain` is the transformers model, `.tokenizer` has one token a word. The
        width is the least that holds vocabulary and length: 256 up to 513 ids, 512 up to 2,049,
        1,024 up to 8,193, then 2,048; a rotary circuit of some 3,000 positions needs 512 at least.

    Raises:
        InputError: If the construction cannot hold the vocabulary or the length.

    Example:
        >>> toy = build_circuit("absolute", vocabulary=16, length=16)
        >>> toy.plain.generate(toy.to_tokens([[0, 5, 6, 7, 5]]), max_new_tokens=2)[0].tolist()
        [0, 5, 6, 7, 5, 6, 7]
    """
    parts = Parts(previous, match, blur, wrong_copy)
    built = weights_of(
        positions,
        vocabulary,
        length,
        sharpness=sharpness,
        bos=bos,
        kv_heads=kv_heads,
        parts=parts,
        seed=seed,
    )
    from interp.models import assembled

    return assembled(
        built.family,
        built.settings,
        built.weights,
        bos=built.bos,
        words=words(built.settings["vocab_size"], built.bos),
        name=f"hand-built-{positions}",
    )


def weights_of(
    positions: str,
    vocabulary: int,
    length: int,
    *,
    sharpness: float | int | None,
    bos: int,
    kv_heads: int | None,
    parts: Parts,
    seed: int,
) -> Built:
    """The circuit of `build_circuit` as weights alone."""
    if bos >= vocabulary:
        raise InputError(f"bos must be below the vocabulary of {vocabulary} ids, got {bos}")
    if kv_heads is not None and positions == "absolute":
        raise InputError(f"kv_heads must be left out with absolute positions, got {kv_heads}")
    if parts.wrong_copy > 0 and round(parts.wrong_copy * (vocabulary - 1)) < 2:
        raise InputError(
            f"wrong_copy must be 0 or two tokens of {vocabulary - 1} at least,"
            f" got {parts.wrong_copy}"
        )
    for bits in BITS:
        if vocabulary - 1 > 4**bits // 2:
            continue
        if positions == "absolute":
            plan = Absolute(bits, vocabulary, length, bos, parts, seed)
        else:
            plan = Rotary(bits, vocabulary, length, bos, kv_heads or 2, parts, seed)
        needed = plan.needed()
        if needed is not None:
            built = plan.build(needed if sharpness is None else float(sharpness))
            return _described(built, positions, seed)
    raise AssertionError(f"no width holds {vocabulary} ids and {length} positions")


def _described(built: Built, positions: str, seed: int) -> Built:
    """The circuit with its record among its settings, so that it stays with the model."""
    record = {
        "positions": positions,
        "previous_token_head": str(built.previous),
        "induction_head": str(built.induction),
        "sharpness": built.sharpness,
        **asdict(built.parts),
        "seed": seed,
    }
    return replace(built, settings={**built.settings, "hand_built": record})


def words(vocabulary: int, bos: int) -> list[str]:
    """The text of each id: `<s>`, `<unk>`, then words of the project's texts, commonest first.

    After these, id 900 is `w900`.
    """
    found = re.findall(r"\w+|[^\w\s]+", " ".join(passages().values()))
    common = (word for word, _ in Counter(found).most_common())
    others = chain(["<unk>"], common)
    return ["<s>" if i == bos else next(others, f"w{i}") for i in range(vocabulary)]
