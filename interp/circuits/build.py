"""`build_circuit`: a hand-built induction circuit as a model like any other."""

import re
from collections import Counter
from dataclasses import asdict, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, get_args

from interp.circuits.absolute import Absolute
from interp.circuits.built import BITS, LONGEST, MOST_SHARP, Built, Parts
from interp.circuits.rotary import KV_HEADS, Rotary
from interp.errors import InputError, is_number, whole, whole_seed
from interp.kinds.probes import passages

if TYPE_CHECKING:
    from interp.models import Model

Positions = Literal["absolute", "rotary"]

LEAST = 8
"""Ids and positions at least: below, there is hardly anything to repeat."""

MOST = 4 ** BITS[-1] // 2 + 1
"""Ids at most, BOS among them."""


def build_circuit(
    positions: str,
    vocabulary: SupportsIndex,
    length: SupportsIndex,
    *,
    sharpness: float | int | None = None,
    bos: SupportsIndex = 0,
    kv_heads: SupportsIndex | None = None,
    previous: bool = True,
    match: bool = True,
    blur: float | int = 0.0,
    wrong_copy: float | int = 0.0,
    seed: SupportsIndex = 0,
) -> "Model":
    """Build a two-layer induction circuit by hand: right by construction, or wrong as asked.

    Head `L0H3` (rotary: `L0H1`) attends to the previous token and writes it beside the current
    one; `L1H5` (rotary: `L1H2`) looks for the place whose previous token is the current one and
    copies what stands there. Without a match, and in all other heads, attention rests on BOS,
    and every logit is 0. A text without BOS has no place to rest. The derivation is in
    `interp.circuits.built`.

    Args:
        positions: `absolute` (a `GPT2LMHeadModel`) or `rotary` (a `LlamaForCausalLM`).
        vocabulary: Ids, BOS among them, from 8 to 32,769.
        length: Positions, BOS among them, from 8 to 4,096.
        sharpness: Score, in nats before the softmax, of a key that is just right, in both heads;
            all others score less. If left out, what gives every query 0.9999 of its attention
            where it should be: from 27 to about 90, by vocabulary and length.
        bos: The id on which heads rest.
        kv_heads: Key-value heads for the four heads of the rotary circuit: 1, 2 or 4; 2 if left
            out.
        previous: Whether there is a previous-token head.
        match: Whether the induction head matches; if not, it always rests.
        blur: Share of the previous-token head's attention that goes two tokens back.
        wrong_copy: Share of the tokens that are copied as another token.
        seed: Of the directions, of which token has which code word, and of idle heads' weights.
            The global generator is left alone.

    Returns:
        A `Model`; `.plain` is the transformers model, `.tokenizer` has one token a word. The
        width is the least that holds vocabulary and length: 256 up to 513 ids, 512 up to 2,049,
        1,024 up to 8,193, then 2,048; a rotary circuit of some 3,000 positions needs 512 at least.

    Raises:
        InputError: If the construction cannot hold the vocabulary or the length, or an argument
            is not what it should be.
    """
    built = weights_of(
        positions,
        vocabulary,
        length,
        sharpness=sharpness,
        bos=bos,
        kv_heads=kv_heads,
        parts=Parts.checked(previous=previous, match=match, blur=blur, wrong_copy=wrong_copy),
        seed=seed,
    )
    from interp.models import assembled

    texts = words(built.settings["vocab_size"], built.bos)
    return assembled(
        built.family,
        built.settings,
        built.weights,
        bos=built.bos,
        words=texts,
        name=f"hand-built-{positions}",
    )


def weights_of(
    positions: str,
    vocabulary: SupportsIndex,
    length: SupportsIndex,
    *,
    sharpness: Any,
    bos: SupportsIndex,
    kv_heads: SupportsIndex | None,
    parts: Parts,
    seed: SupportsIndex,
) -> Built:
    """The circuit of `build_circuit` as weights alone.

    Raises:
        InputError: As there.
    """
    if positions not in get_args(Positions):
        raise InputError(
            f"positions must be one of {', '.join(get_args(Positions))}, got {positions!r}"
        )
    vocabulary = whole("vocabulary", vocabulary, least=LEAST, most=MOST)
    length = whole("length", length, least=LEAST, most=LONGEST)
    bos = whole("bos", bos, least=0, most=vocabulary - 1)
    seed = whole_seed(seed)
    if kv_heads is not None and positions == "absolute":
        raise InputError(f"kv_heads must be left out with absolute positions, got {kv_heads}")
    kv = 2 if kv_heads is None else whole("kv_heads", kv_heads)
    if kv not in KV_HEADS:
        raise InputError(f"kv_heads must be one of 1, 2, 4, got {kv}")
    if parts.wrong_copy > 0 and round(parts.wrong_copy * (vocabulary - 1)) < 2:
        raise InputError(
            f"wrong_copy must be 0 or two tokens of {vocabulary - 1} at least,"
            f" got {parts.wrong_copy}"
        )
    if sharpness is not None and not (is_number(sharpness) and 0 < sharpness <= 10 * MOST_SHARP):
        raise InputError(
            f"sharpness must be above 0 and at most {10 * MOST_SHARP}, got {sharpness!r}"
        )
    for bits in BITS:
        if vocabulary - 1 > 4**bits // 2:
            continue
        if positions == "absolute":
            plan = Absolute(bits, vocabulary, length, bos, parts, seed)
        else:
            plan = Rotary(bits, vocabulary, length, bos, kv, parts, seed)
        needed = plan.needed()
        if needed is not None:
            built = plan.build(needed if sharpness is None else float(sharpness))
            return _described(built, positions, seed)
    raise AssertionError(f"no width holds {vocabulary} ids and {length} positions")


def _described(built: Built, positions: str, seed: int) -> Built:
    """The same with a record of what it is among its settings, so that it stays with the model."""
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
    """The text of each id: `<s>`, `<unk>`, then those of the project's texts, commonest first.

    Where these are used up, id 900 is `w900`.
    """
    found = re.findall(r"\w+|[^\w\s]+", " ".join(passages().values()))
    common = (word for word, _ in Counter(found).most_common())
    others = chain(["<unk>"], common)
    return ["<s>" if i == bos else next(others, f"w{i}") for i in range(vocabulary)]
