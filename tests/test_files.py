import re
from pathlib import Path

import pytest

from interp.errors import InputError
from interp.files import staged


class Stopped(Exception):
    pass


def contents(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*.txt")}


def listing(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def write(folder: Path, **texts: str) -> None:
    for name, words in texts.items():
        (folder / f"{name}.txt").write_text(words)


def test_files_appear_when_the_block_has_ended_and_not_before(tmp_path):
    with staged(tmp_path) as scratch:
        write(scratch, a="1", b="2")
        assert not (tmp_path / "a.txt").exists()
    assert contents(tmp_path) == {"a.txt": "1", "b.txt": "2"}


def test_nothing_is_left_but_the_files(tmp_path):
    with staged(tmp_path) as scratch:
        write(scratch, a="1")
    assert listing(tmp_path) == ["a.txt"]
    assert not scratch.exists()


def test_an_empty_block_makes_the_folder(tmp_path):
    with staged(tmp_path / "new"):
        pass
    assert listing(tmp_path / "new") == []


def test_missing_folders_are_made(tmp_path):
    with staged(tmp_path / "one" / "two") as scratch:
        write(scratch, a="1")
    assert contents(tmp_path) == {"one/two/a.txt": "1"}


def test_a_folder_may_be_given_as_text(tmp_path):
    with staged(str(tmp_path)) as scratch:
        write(scratch, a="1")
    assert contents(tmp_path) == {"a.txt": "1"}


def test_a_namesake_is_replaced_and_its_neighbour_kept(tmp_path):
    write(tmp_path, a="old", neighbour="kept")
    with staged(tmp_path) as scratch:
        write(scratch, a="new")
    assert contents(tmp_path) == {"a.txt": "new", "neighbour.txt": "kept"}


def fail(folder: Path, failure: type[BaseException], meanwhile: Path | None = None) -> None:
    with staged(folder) as scratch:
        write(scratch, a="new", b="half")
        if meanwhile is not None:
            write(meanwhile, other="theirs")
        raise failure


FAILURES = [Stopped, KeyboardInterrupt, SystemExit, OSError]


@pytest.mark.parametrize("failure", FAILURES)
def test_a_failure_leaves_the_folder_as_it_was(tmp_path, failure):
    write(tmp_path, a="old")
    with pytest.raises(failure):
        fail(tmp_path, failure)
    assert contents(tmp_path) == {"a.txt": "old"}
    assert listing(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("failure", FAILURES)
def test_a_failure_takes_back_the_folders_that_were_made(tmp_path, failure):
    with pytest.raises(failure):
        fail(tmp_path / "one" / "two", failure)
    assert listing(tmp_path) == []


def test_a_failure_keeps_a_made_folder_that_someone_else_has_used(tmp_path):
    with pytest.raises(Stopped):
        fail(tmp_path / "one" / "two", Stopped, meanwhile=tmp_path / "one")
    assert contents(tmp_path) == {"one/other.txt": "theirs"}
    assert not (tmp_path / "one" / "two").exists()


def test_after_a_failure_the_next_attempt_succeeds(tmp_path):
    with pytest.raises(Stopped):
        fail(tmp_path / "out", Stopped)
    with staged(tmp_path / "out") as scratch:
        write(scratch, a="whole")
    assert contents(tmp_path) == {"out/a.txt": "whole"}


@pytest.mark.parametrize("below", ["", "below", "below/deeper"], ids=["itself", "below", "deeper"])
def test_a_folder_that_cannot_be_written_is_refused_by_name(tmp_path, below):
    # Permissions do not stop root; a regular file in the way stops everyone.
    in_the_way = tmp_path / "file"
    in_the_way.write_text("precious")
    folder = in_the_way / below if below else in_the_way
    refusal = pytest.raises(
        InputError, match=f"folder must be writable, got {re.escape(str(folder))}"
    )
    with refusal, staged(folder):
        pytest.fail("the block must not start")
    assert in_the_way.read_text() == "precious"
    assert listing(tmp_path) == ["file"]


def test_a_folder_in_the_way_of_a_file_leaves_everything_as_it_was(tmp_path):
    (tmp_path / "b.txt").mkdir()
    with pytest.raises((InputError, OSError)), staged(tmp_path) as scratch:
        write(scratch, a="1", b="2")
    assert listing(tmp_path) == ["b.txt"]


def test_a_refused_folder_leaves_no_other_folder_behind(tmp_path):
    too_long = "x" * 300
    with (
        pytest.raises(InputError, match="folder must be writable"),
        staged(tmp_path / "new" / too_long),
    ):
        pytest.fail("the block must not start")
    assert listing(tmp_path) == []
