import pytest
import torch
from tiny_models import tiny

import interp
from interp.effects.metrics import attention_mass

ROWS = [[5, 6, 7, 8, 5, 6, 7], [50, 6, 7, 81, 5, 6, 41, 7]]
MASS = attention_mass("induction", "L1H2")


def by_hand(model: interp.Model, rows: list[list[int]]) -> float:
    """Mean attention of L1H2 on the token after the last earlier copy of the query's token."""
    means = []
    for row in rows:
        pattern = interp.attention_patterns(model, torch.tensor([row])).numpy()[1, 0, 2]
        before = [[k for k in range(q) if row[k] == row[q]] for q in range(len(row))]
        masses = [pattern[q, places[-1] + 1] for q, places in enumerate(before) if places]
        means.append(float(sum(masses)) / len(masses))
    return sum(means) / len(means)


@pytest.mark.parametrize("family", ["gpt2", "gemma2", "bloom"])
def test_attention_mass_equals_explicit_patterns_with_and_without_an_earlier_head(family):
    model = interp.load_model(tiny(family))
    effects = interp.ablate(model, ROWS, MASS, ["L0H1", "L1H0"], how="zero")
    whole = by_hand(model, ROWS)
    with interp.ablated(model, ["L0H1"]):
        change = by_hand(model, ROWS) - whole
    assert effects.made_by["mean"] == pytest.approx(whole, abs=1e-5)
    assert [*effects.to_frame()["effect"]] == pytest.approx([change, 0], abs=1e-5)
    assert abs(change) > 1e-4
    later = interp.ablate(model, ROWS, attention_mass("induction", "L0H2"), "L1H0")
    assert later.to_frame()["effect"].item() == pytest.approx(0, abs=1e-6)
    for what in ("z", "v"):  # Outputs before W_O, and attention that is streamed.
        patched = interp.patch(model, ROWS, [*ROWS[:1], [81, *ROWS[1][1:]]], MASS, what)
        assert patched.made_by["clean_mean"] == pytest.approx(whole, abs=1e-5)


def test_attention_mass_is_refused_where_it_has_no_meaning():
    model = interp.load_model(tiny("gpt2"))
    for kind in ("sink", "default"):
        with pytest.raises(interp.InputError, match="kind must be one whose targets"):
            attention_mass(kind, "L1H2")
    for message, run in {
        "head must be heads of": lambda: interp.ablate(
            model, ROWS, attention_mass("induction", "L7H0")
        ),
        "got none in '<1> <2> <3>'": lambda: interp.ablate(model, [[1, 2, 3]], MASS),
        "to have gradients": lambda: interp.attribute(model, ROWS, [ROWS[0][::-1], ROWS[1]], MASS),
        "metric must be of logits here": lambda: interp.find_circuit(model, (ROWS, ROWS), MASS),
        "can be streamed": lambda: interp.ablate(tiny("bert"), ROWS, MASS),
    }.items():
        with pytest.raises(interp.InputError, match=message):
            run()
