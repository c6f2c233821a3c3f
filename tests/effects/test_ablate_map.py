"""Ablation maps, compared with plain hooks on models of transformers."""

import pandas as pd
import pytest
import torch
from hooked import difference, metric, prompts, whole, z_of
from tiny_models import tiny

import interp
from interp.effects.ablate_map import random_draws
from interp.effects.metrics import probability
from interp.heads import Head


@pytest.mark.parametrize("how", ["zero", "mean", "resample"])
def test_an_ablation_map_equals_plain_hooks(how):
    texts = prompts()[1][:2]
    model = tiny("llama")

    def new_z(_, row, layer):
        every = [z_of(model, "llama", ids, layer) for ids in texts]
        if how == "mean":
            return torch.cat([z[1:] for z in every]).mean(0).expand(9, 4, -1)
        return 0 * every[0] if how == "zero" else every[1 - row]

    changed = torch.zeros(2, 2, 4).double()
    for row, ids in enumerate(texts):
        for layer in range(2):
            new = new_z(model, row, layer)
            for head in range(4):

                def edit(z, head=head, new=new):
                    z[:, head] = new[:, head]

                changed[row, layer, head] = difference(model, "llama", row, ids, layer, edit)
    measure = metric("llama", slice(2))
    effects = interp.ablate(model, texts, measure, how=how)
    expected = changed.mean(0) - whole("llama", texts).mean()
    assert torch.allclose(torch.tensor(effects.matrix().to_numpy()), expected, atol=1e-4)
    assert expected.abs().max() > 0.05
    some = interp.ablate(model, texts, measure, ["L1H2", "L1H0"], how)
    frame = effects.to_frame().drop(columns=["random_low", "random_high"])
    pd.testing.assert_frame_equal(
        some.to_frame()[frame.columns],
        frame[frame["name"].isin(["L1H0", "L1H2"])].reset_index(drop=True),
    )


def test_sets_and_labels_are_taken_out_together_next_to_random_sets():
    texts, model = prompts()[1][:2], interp.load_model(tiny("llama"))
    plain, measure = tiny("llama"), metric("llama", slice(2))
    before = whole("llama", texts)

    def change(heads) -> torch.Tensor:
        values = torch.zeros(2).double()
        for row, ids in enumerate(texts):
            with interp.ablated(plain, [*heads]):
                values[row] = difference(plain, "llama", row, ids)
        return values - before

    pair = ["L0H1", "L1H3"]
    scan = interp.scan_heads(model, rows=2, quick=True, length=30)
    scan.frame.loc[[1, 7], "labels"] = scan.frame.loc[[1, 7], "labels"].map(
        lambda labels: ("induction", *labels)
    )
    options = {"how": "zero", "draws": 4, "seed": 3}
    found = interp.ablate(model, texts, measure, {"mine": pair, "one": "L1H0"}, **options)
    frame = found.to_frame().set_index("name")
    assert frame["heads"].to_dict() == {"mine": "L0H1 L1H3", "one": "L1H0"}
    changes = change(pair)
    assert frame.loc["mine", "effect"] == pytest.approx(float(changes.mean()), abs=1e-5)
    assert abs(frame.loc["mine", "effect"]) > 1e-2
    ends = sorted(changes.tolist())
    assert [frame.loc["mine", "low"], frame.loc["mine", "high"]] == pytest.approx(ends, abs=1e-4)
    draws = random_draws([Head.parse(name) for name in pair], 4, 4, 3)
    effects = [float(change(draw).mean()) for draw in draws]
    band = frame.loc["mine", ["random_low", "random_high"]].tolist()
    assert band == pytest.approx([min(effects), max(effects)], abs=1e-5)
    by_list = interp.ablate(model, texts, measure, [pair, ["L1H0"]], **options).to_frame()
    assert by_list["name"].tolist() == ["L0H1+L1H3", "L1H0"]
    assert by_list["effect"].tolist() == found.to_frame()["effect"].tolist()
    by_label = interp.ablate(model, texts, measure, "induction", scan=scan, **options).to_frame()
    assert by_label["name"].tolist() == ["induction"]
    assert by_label["heads"].tolist() == ["L0H1 L1H3"]
    assert by_label["effect"].tolist() == [frame.loc["mine", "effect"]]
    # Given one head of the pair, the other one's effect is what is still missing.
    given = interp.ablate(model, texts, measure, ["L1H3", "L0H2"], given="L0H1", **options)
    row = given.to_frame().set_index("name").loc["L1H3"]
    expected = float((changes - change(["L0H1"])).mean())
    assert row["effect"] == pytest.approx(expected, abs=1e-5)
    assert row["alone"] == pytest.approx(float(change(["L1H3"]).mean()), abs=1e-5)
    assert row["backup"] == pytest.approx(row["effect"] - row["alone"], abs=1e-6)
    assert row["backup_low"] <= row["backup"] <= row["backup_high"]
    assert abs(row["backup"]) > 1e-3
    assert given.made_by["given"] == ["L0H1"]
    others = [Head(1, i) for i in (0, 1, 2)]
    alone = [float((change([h, "L0H1"]) - change(["L0H1"])).mean()) for h in others]
    assert row["random_low"] == pytest.approx(min(alone), abs=1e-5)
    # Of all heads the given ones have no row.
    every = interp.ablate(model, texts, measure, given=pair, how="zero").to_frame()
    assert not {*every["name"]} & {*pair}
    assert len(every) == 6


def test_a_planted_backup_is_revealed_by_what_it_backs_up(tmp_path):
    """A twin of the induction head: without either nothing changes, without both all is lost."""
    toy = interp.build_circuit("absolute", vocabulary=16, length=16)
    attention = toy.plain.transformer.h[1].attn
    with torch.no_grad():
        for weights in (attention.c_attn.weight, attention.c_attn.bias[None]):
            by_head = weights.unflatten(-1, (3, 8, -1))
            by_head[..., 6, :] = by_head[..., 5, :]
        by_head = attention.c_proj.weight.unflatten(0, (8, -1))
        by_head[6] = by_head[5]
    own, measure = [[0, 5, 6, 7, 5], [0, 8, 9, 3, 8]], probability(right=[6, 9])
    alone = interp.ablate(toy, own, measure, how="zero").to_frame().set_index("name")
    assert alone.loc[["L1H5", "L1H6"], "effect"].abs().max() < 1e-3
    found = interp.ablate(toy, own, measure, how="zero", given="L1H5")
    frame = found.to_frame().set_index("name")
    assert frame["backup"].idxmin() == "L1H6"
    assert frame.loc["L1H6", "backup_high"] < -0.9 < frame.loc["L1H6", "backup_random_low"]
    assert frame["backup"].drop("L1H6").abs().max() < 1e-3
    assert found.matrix("backup").loc["L1", "H6"] == frame.loc["L1H6", "backup"]
    found.save(tmp_path / "backup.json")
    pd.testing.assert_frame_equal(
        interp.HeadEffects.load(tmp_path / "backup.json").to_frame(), found.to_frame()
    )


def test_what_cannot_be_replaced_is_refused():
    model, (clean, _) = interp.load_model(tiny("gpt2")), prompts()
    with pytest.raises(interp.InputError, match="how must be one of mean, zero, resample"):
        interp.ablate(model, clean, metric("gpt2"), how="half")
    for wrong, words in (
        ({"heads": []}, "heads must be at least one, got none"),
        ({"heads": {"nobody": []}}, "must be at least one beyond given, got none for 'nobody'"),
        ({"heads": "L0H0", "given": ["L0H0"]}, "beyond given, got none for 'L0H0'"),
        ({"heads": "induction"}, "head must be named like"),
        ({"heads": [["L9H0"]]}, "heads must be heads of"),
    ):
        with pytest.raises(interp.InputError, match=words):
            interp.ablate(model, clean, metric("gpt2"), **wrong)
    sets = interp.ablate(model, clean, metric("gpt2"), [["L0H0", "L0H1"]], "zero", draws=1)
    with pytest.raises(interp.InputError, match="effects must be of single heads for a matrix"):
        sets.matrix()
    with pytest.raises(interp.InputError, match=r"at least two of each length .* one of 6 tokens"):
        interp.ablate(model, clean, metric("gpt2"), how="resample")
