import pytest

import interp
from interp.trust.exam import Draft


@pytest.fixture(scope="module")
def question():
    return Draft("rotary", vocabulary=20).back_up().question("backup", "backup")


@pytest.mark.parametrize("sign", [1, -1])
def test_the_planted_backup_is_found_with_the_head_that_it_backs_up(question, sign):
    def metric(logits, tokens):
        return sign * question.metric(logits, tokens)

    found = interp.find_backups(question.model, question.clean, metric)
    best, second = found.strongest(2).to_dict("records")
    (backup,) = question.backups
    assert (best["name"], best["given"]) == (str(backup), "L1H2")
    assert 20 < best["low"] < best["effect"] < best["high"]
    assert abs(best["alone"]) < 0.05 * best["effect"]
    assert abs(second["effect"]) < 0.2 * best["effect"]


def test_the_score_is_the_conditional_effect_minus_the_one_alone(question, tmp_path):
    arguments = question.model, question.clean, question.metric
    found = interp.find_backups(*arguments, how="zero", given=["L1H2"])
    assert found.to_frame()["layer"].unique().tolist() == [2]
    given = interp.ablate(*arguments, heads=["L2H0"], how="zero", given="L1H2").to_frame()
    row = found.to_frame().set_index("name").loc["L2H0"]
    score = abs(given["effect"][0]) - abs(given["alone"][0])
    assert row["effect"] == pytest.approx(score, abs=1e-4)
    found.save(tmp_path / "backups.json")
    assert interp.HeadEffects.load(tmp_path / "backups.json").to_frame().equals(found.to_frame())


def test_a_head_without_a_later_one_is_refused(question):
    with pytest.raises(interp.InputError, match="given must have a head before another layer"):
        interp.find_backups(question.model, question.clean, question.metric, given="L2H0")
