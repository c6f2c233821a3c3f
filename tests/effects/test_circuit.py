from dataclasses import replace

import pytest
import torch
from matplotlib.colors import to_hex
from tiny_models import tiny

import interp
from interp.effects.circuit import ABLATIONS, SHARES, Pairs, _overlaps
from interp.kinds.evidence import resampled
from interp.show.figures.graph import PATHS, circuit_graph, faithfulness_curve
from interp.show.figures.style import QUIET

CLEAN = torch.tensor([[5, 6, 7, 8, 5, 9, 30, 41], [50, 6, 7, 8, 5, 9, 30, 41]])
METRIC = interp.logit_difference(right=[3, 4], wrong=[10, 11])


def pairs_of(
    family: str, *, apart: float | None = None, metric: interp.effects.metrics.Metric = METRIC
) -> Pairs:
    """Prompts that differ in one token; with `apart`, in an embedding that differs by so much."""
    model, corrupted = interp.load_model(tiny(family)), CLEAN.clone()
    corrupted[:, 3] = 99
    if apart is not None:
        table = model.plain.get_input_embeddings().weight
        with torch.no_grad():
            generator = torch.Generator().manual_seed(0)
            table[99] = table[8] + apart * torch.randn(table.shape[1], generator=generator)
    return Pairs(model, CLEAN, corrupted, metric)


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_scores_of_a_small_change_are_those_of_exact_patching(family):
    """The change is so small that the model is linear in it."""
    pairs = pairs_of(family, apart=1e-3)
    scores, wiring = pairs.scores(1).double().sum(0), pairs.wiring
    others = wiring.run(CLEAN.where(CLEAN != 8, 99)).outputs
    exact = []
    for edge in range(0, len(scores), 3):
        kept = wiring.edges & ~pairs.mask(torch.tensor([edge]))
        logits = wiring.run(CLEAN, kept=kept, others=others).logits.double()
        exact.append((pairs.clean - METRIC(logits, CLEAN).double()).sum())
    scores, exact = scores[::3], torch.stack(exact)
    assert torch.allclose(scores, exact, rtol=0.02, atol=0.01 * float(exact.abs().max()))
    assert (exact.abs() > 0.05 * exact.abs().max()).sum() > 6


def test_with_many_steps_the_edges_from_the_embedding_sum_to_the_difference():
    pairs = pairs_of("llama", apart=0.3)
    from_embedding = int(pairs.wiring.edges[0].sum())
    whole = [pairs.scores(steps)[:, :from_embedding].sum(1).double() for steps in (1, 16)]
    difference = pairs.clean - pairs.corrupted
    assert torch.allclose(whole[1], difference, rtol=0.02)
    assert not torch.allclose(whole[0], difference, rtol=0.02)


@pytest.fixture(scope="module")
def circuit():
    toy = interp.build_circuit("absolute", vocabulary=32, length=16)
    rows = torch.tensor([[0, 5, 6, 7, 5], [0, 9, 8, 7, 9], [0, 4, 11, 12, 4]])
    corrupted = rows.clone()
    corrupted[:, 1] = 20
    metric = interp.logit_difference(right=[6, 8, 11], wrong=[7, 7, 12])
    return interp.find_circuit(toy, (rows, corrupted), metric, draws=5)


def test_the_built_circuit_is_found(circuit):
    edges = circuit.to_frame()
    kept = edges.loc[edges["kept"], ["source", "target", "path"]].values.tolist()
    assert sorted(kept) == [
        ["L0H3", "L1H5", "k"],
        ["L1H5", "logits", ""],
        ["embedding", "L0H3", "v"],
    ]
    assert circuit.jaccard == 1
    assert circuit.cmd["counterfactual"] < 0.03
    assert "3 of 310 edges kept" in repr(circuit)


def test_faithfulness_is_0_without_edges_and_1_with_all(circuit):
    table = circuit.faithfulness
    assert [*table["ablation"].unique()] == [*ABLATIONS]
    for _, rows in table.groupby("ablation"):
        assert len(rows) == len(SHARES)
        assert rows["faithfulness"].iloc[0] == 0
        assert (rows["connected"].iloc[0], rows["edges"].iloc[-1]) == (0, 310)
        assert rows["faithfulness"].iloc[-1] == rows["random"].iloc[-1] == 1
    counterfactual = table[table["ablation"] == "counterfactual"]
    assert counterfactual["random"].iloc[-2] < 0.1 < counterfactual["faithfulness"].iloc[-2]
    whole = (1 - table["faithfulness"][:10]).abs()
    widths = table["share"][:10].diff()[1:]
    area = ((whole[1:].to_numpy() + whole[:-1].to_numpy()) / 2 * widths.to_numpy()).sum()
    assert circuit.cmd["counterfactual"] == pytest.approx(area)


def test_a_circuit_is_saved(circuit, tmp_path):
    circuit.save(tmp_path / "circuit.json")
    again = type(circuit).load(tmp_path / "circuit.json")
    assert repr(again) == repr(circuit)
    assert again.to_frame().equals(circuit.to_frame())
    assert again.faithfulness.equals(circuit.faithfulness)


def test_prompts_without_a_difference_are_refused():
    toy = interp.build_circuit("absolute", vocabulary=16, length=16)
    rows = torch.tensor([[0, 5, 6, 7, 5]])
    with pytest.raises(interp.InputError, match="metric must differ"):
        interp.find_circuit(toy, (rows, rows), interp.logit_difference(right=[6], wrong=[7]))


def test_layers_that_put_a_norm_on_the_stream_are_refused():
    with pytest.raises(interp.InputError, match="must add to the stream, but layer 0 of OpenAIGPT"):
        interp.find_circuit(tiny("gpt"), (CLEAN, CLEAN.flip(1)), METRIC)


def test_the_graph_draws_each_kept_edge_once(circuit):
    figure = circuit_graph(circuit)
    panel = figure.axes[0]
    assert [text.get_text() for text in panel.texts] == ["E", "U", "3", "5"]
    assert [text.get_position() for text in panel.texts] == [(-1, 0), (2, 0), (0, 0), (1, 1)]
    drawn = [to_hex(patch.get_edgecolor()) for patch in panel.patches]
    by_path = {path: colour for path, (colour, _) in PATHS.items()}
    assert sorted(drawn) == sorted([by_path["k"], by_path["v"], QUIET])
    assert len(circuit_graph(circuit, edges=1).axes[0].patches) == 1
    nothing = replace(circuit, frame=circuit.to_frame().assign(kept=False))
    with pytest.raises(interp.InputError, match="at least one edge"):
        circuit_graph(nothing)


def test_the_curve_draws_each_ablation_and_the_overlap(circuit):
    left, right = faithfulness_curve(circuit).axes
    lines = [line for line in left.lines if len(line.get_xdata()) == len(SHARES)]
    for how, solid, dotted in zip(ABLATIONS, lines[::2], lines[1::2], strict=True):
        rows = circuit.faithfulness[circuit.faithfulness["ablation"] == how]
        assert [*solid.get_ydata()] == [*rows["faithfulness"]]
        assert [*dotted.get_ydata()] == [*rows["random"]]
        assert [*right.lines[0].get_ydata()] == [*rows["jaccard"]]
    assert right.lines[1].get_xdata()[0] == circuit.made_by["share"] * 310


def test_the_overlap_of_a_size_is_of_the_largest_edges_of_two_resamples():
    """By hand: sets of edges of each resample."""
    scores = torch.randn(6, 40, generator=torch.Generator().manual_seed(0))
    found = _overlaps(scores, [3, 20, 40], 5, seed=1)
    times = resampled(6, 10, 1).float()
    for draw in range(5):
        sums = [(each @ scores).abs() for each in times[2 * draw : 2 * draw + 2]]
        for size, overlap in zip([3, 20, 40], found[draw].tolist(), strict=True):
            one, two = ({*x.topk(size).indices.tolist()} for x in sums)
            assert overlap == pytest.approx(len(one & two) / len(one | two))
