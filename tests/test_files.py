import json
import re
import subprocess
import sys
from pathlib import Path
from threading import Event, Thread

import numpy as np
import pytest
from safetensors.numpy import save_file

from interp.errors import InputError
from interp.files import content_of, held, parsed, refuse_of_another, staged, write_json


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
    write(tmp_path, a="old", neighbour="kept")
    with staged(tmp_path) as scratch:
        write(scratch, a="new", b="2")
        assert contents(tmp_path)["a.txt"] == "old"
    assert contents(tmp_path) == {"a.txt": "new", "b.txt": "2", "neighbour.txt": "kept"}
    with staged(tmp_path / "empty"):
        pass
    assert listing(tmp_path / "empty") == []


def fail(folder: Path, failure: type[BaseException], meanwhile: Path | None = None) -> None:
    with staged(folder) as scratch:
        write(scratch, a="new", b="half")
        if meanwhile is not None:
            write(meanwhile, other="theirs")
        raise failure


@pytest.mark.parametrize("failure", [Stopped, KeyboardInterrupt, SystemExit, OSError])
def test_a_failure_leaves_the_folder_as_it_was(tmp_path, failure):
    write(tmp_path, a="old")
    for folder in (tmp_path, tmp_path / "one" / "two"):
        with pytest.raises(failure):
            fail(folder, failure)
        assert contents(tmp_path) == {"a.txt": "old"}
        assert listing(tmp_path) == ["a.txt"]


def test_a_failure_keeps_a_made_folder_that_someone_else_has_used(tmp_path):
    with pytest.raises(Stopped):
        fail(tmp_path / "one" / "two", Stopped, meanwhile=tmp_path / "one")
    assert contents(tmp_path) == {"one/other.txt": "theirs"}
    assert not (tmp_path / "one" / "two").exists()


def test_a_folder_that_cannot_be_written_is_refused_and_leaves_no_other_folder(tmp_path):
    # Permissions do not stop root; a regular file in the way stops everyone.
    (tmp_path / "file").write_text("precious")
    for below in ("file", "file/below", "file/below/deeper", f"new/{'x' * 300}"):
        rule = f"folder must be writable, got {re.escape(str(tmp_path / below))}"
        with pytest.raises(InputError, match=rule), staged(tmp_path / below):
            pytest.fail("the block must not start")
        assert (tmp_path / "file").read_text() == "precious"
        assert listing(tmp_path) == ["file"]


def test_a_folder_in_the_way_of_a_file_leaves_everything_as_it_was(tmp_path):
    (tmp_path / "b.txt").mkdir()
    with pytest.raises((InputError, OSError)), staged(tmp_path) as scratch:
        write(scratch, a="1", b="2")
    assert listing(tmp_path) == ["b.txt"]


STOPPED = """
import json, os, signal, sys
from pathlib import Path
from interp.files import staged

def write(out, names):
    with staged(out) as scratch:
        for name in names:
            (scratch / f"{name}.txt").write_text("new")

def stop(event, _):
    global steps
    steps -= event.startswith(("open", "os.", "shutil.", "fcntl."))
    if steps == 0:
        steps = -1
        os.kill(os.getpid(), number)

def found(home):
    return {str(file.relative_to(home)): file.read_text() for file in home.rglob("*.txt")}

number, new = signal.Signals[sys.argv[2]], sys.argv[3] == "new"
signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
status, number_of_steps = 1, 0
while status:
    number_of_steps += 1
    home = Path(sys.argv[1], str(number_of_steps))
    home.mkdir()
    if not new:
        (home / "out").mkdir()
        for name in "abcz":
            (home / "out" / f"{name}.txt").write_text("old")
    if (child := os.fork()) == 0:
        steps = number_of_steps
        sys.addaudithook(stop)
        try:
            write(home / "out", "abc")
        except SystemExit:
            os._exit(1)
        steps = -1
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    after = found(home)
    write(home / "out", "d")
    print(json.dumps([after, found(home), os.listdir(home) + os.listdir(home / "out")]))
"""


@pytest.mark.parametrize("new", [True, False], ids=["new folder", "existing folder"])
@pytest.mark.parametrize("signal", ["SIGKILL", "SIGTERM"])
def test_a_process_stopped_at_any_step_leaves_whole_files_only(tmp_path, signal, new):
    command = [sys.executable, "-c", STOPPED, str(tmp_path), signal, "new" if new else "there"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    before = {} if new else {f"out/{name}.txt": "old" for name in "abcz"}
    whole = {**before, **{f"out/{name}.txt": "new" for name in "abc"}}
    ends = []
    for after, at_last, listed in map(json.loads, printed.splitlines()):
        visible = {name: text for name, text in after.items() if ".interp-" not in name}
        assert set(visible.values()) <= {"old", "new"}
        assert visible in (before, whole) or not new
        assert visible.get("out/z.txt") == before.get("out/z.txt")
        assert signal == "SIGKILL" or visible == after
        # The next run removes what the stopped one left, and nothing else.
        assert at_last == {**visible, "out/d.txt": "new"}
        assert sorted(listed) == sorted(["out", *(Path(name).name for name in at_last)])
        ends.append(visible == whole)
    assert 0 < sum(ends) < len(ends)


def test_files_can_be_written_in_one_step_within_another(tmp_path):
    with staged(tmp_path / "out") as scratch:
        for name in "ab":
            with staged(scratch) as inner:
                write(inner, **{name: "1"})
        with staged(scratch / "below") as inner:
            write(inner, c="1")
    assert contents(tmp_path / "out") == {"a.txt": "1", "b.txt": "1", "below/c.txt": "1"}
    assert listing(tmp_path) == ["out"]


def test_the_scratch_folder_of_a_running_process_is_kept(tmp_path):
    with staged(tmp_path) as first:
        write(first, a="first")
        with staged(tmp_path) as second:
            write(second, b="second")
        assert contents(first) == {"a.txt": "first"}
    assert contents(tmp_path) == {"a.txt": "first", "b.txt": "second"}


def test_two_processes_that_make_the_same_folder_both_write_to_it(tmp_path):
    with staged(tmp_path / "out") as scratch, staged(tmp_path / "out") as other:
        write(scratch, a="1")
        write(other, b="2")
    assert contents(tmp_path) == {"out/a.txt": "1", "out/b.txt": "2"}
    assert listing(tmp_path) == ["out"]


def test_the_files_of_one_process_move_before_any_of_anothers(tmp_path):
    written, held_now = Event(), Event()

    def other() -> None:
        with staged(tmp_path) as scratch:
            write(scratch, a="other", b="other")
            written.set()
            held_now.wait()

    thread = Thread(target=other)
    thread.start()
    written.wait()
    with held(tmp_path) as alone:
        assert alone
        with held(tmp_path) as again:
            assert again is False
        held_now.set()
        thread.join(0.2)
        write(tmp_path, a="mine")
        assert not (tmp_path / "b.txt").exists()
    thread.join()
    assert contents(tmp_path) == {"a.txt": "other", "b.txt": "other"}


def test_results_of_another_model_are_not_written_over(tmp_path):
    record = tmp_path / "heads.json"
    refuse_of_another(tmp_path / "not there", "one")
    record.write_text('{"made_by": {"model": "one"}}', encoding="utf-8")
    (tmp_path / "other.json").write_text("[1]", encoding="utf-8")
    refuse_of_another(tmp_path, "one")
    for place in (tmp_path, record):
        with pytest.raises(InputError, match=r"^out must .*heads\.json.* 'one'"):
            refuse_of_another(place, "another")
    refuse_of_another(tmp_path, "one", "abc")  # An older record, without a digest.
    record.write_text('{"made_by": {"model": "one", "digest": "123"}}', encoding="utf-8")
    refuse_of_another(tmp_path, "one", "123")
    with pytest.raises(InputError, match=r"^out must .*'one' with weights of digest 123: choose"):
        refuse_of_another(tmp_path, "one", "abc")


FULL = """
import resource, sys
import numpy
from interp.errors import InputError
from interp.files import staged
from safetensors.numpy import save_file

limits = resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY)
try:
    with staged(sys.argv[1]) as scratch:
        resource.setrlimit(*limits)
        save_file({"weight": numpy.zeros(1000)}, scratch / "model.safetensors")
except InputError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="has no limit on the size of files")
def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path):
    out = tmp_path / "out"
    command = [sys.executable, "-c", FULL, str(out)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout == f"{out} must have room: File too large\n"
    assert listing(tmp_path) == []


def test_weights_can_be_read_by_whoever_can_read_what_is_beside_them(tmp_path):
    with staged(tmp_path / "out") as scratch:
        write(scratch, a="1")
        save_file({"weight": np.zeros(3)}, scratch / "model.safetensors")
    assert len({path.stat().st_mode for path in (tmp_path / "out").iterdir()}) == 1


def test_json_is_utf8_with_finite_numbers(tmp_path):
    write_json(tmp_path / "a.json", {"é": [1.5, None]})
    assert (tmp_path / "a.json").read_bytes().decode() == '{\n "é": [\n  1.5,\n  null\n ]\n}\n'
    assert parsed(content_of(tmp_path / "a.json")) == {"é": [1.5, None]}
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "b.json", float("nan"))


@pytest.mark.parametrize(
    "content", [b"{", b"\xff", b'{"a": 1, "a": 2}', b"[NaN]", b"[" * 100_000, b"9" * 5000]
)
def test_other_json_is_refused(content):
    with pytest.raises(InputError):
        parsed(content)


def test_a_device_or_a_missing_file_is_never_read(tmp_path):
    (tmp_path / "endless").symlink_to("/dev/zero")
    for path in (tmp_path / "endless", tmp_path, tmp_path / "missing"):
        with pytest.raises(InputError, match=path.name):
            content_of(path)
