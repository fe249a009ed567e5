import multiprocessing

import pytest

from faenet_calc.errors import InputError
from faenet_calc.files import atomic_files, locked, write_atomically


def test_a_failed_write_keeps_the_old_file_and_leaves_nothing_behind(tmp_path):
    path = tmp_path / "model.txt"
    write_atomically(path, b"old")

    def fail(temporary):
        temporary.write_bytes(b"half of the ne")
        raise RuntimeError("disk full")

    with pytest.raises(RuntimeError, match="disk full"):
        write_atomically(path, fail)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
    write_atomically(path, lambda temporary: temporary.write_bytes(b"new"))
    assert path.read_bytes() == b"new"


def test_the_writer_sees_the_file_name_that_decides_the_format(tmp_path):
    write_atomically(tmp_path / "slab.extxyz", lambda temporary: temporary.write_text(temporary.name))
    assert (tmp_path / "slab.extxyz").read_text() == "slab.extxyz"


def test_several_files_are_replaced_together_or_not_at_all(tmp_path):
    targets = [tmp_path / "train", tmp_path / "val"]
    with pytest.raises(ZeroDivisionError), atomic_files(targets) as temporary:
        temporary[0].write_text("first")
        1 / 0  # noqa: B018
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(InputError, match=r"nowhere is not a folder"):
        write_atomically(tmp_path / "nowhere" / "file", b"")


def hold(path, held, release):
    with locked(path):
        held.set()
        release.wait()


def test_a_lock_excludes_other_processes_and_ends_with_its_holder(tmp_path):
    path = tmp_path / ".lock"
    context = multiprocessing.get_context("spawn")
    held, release = context.Event(), context.Event()
    holder = context.Process(target=hold, args=(path, held, release))
    holder.start()
    try:
        assert held.wait(600)
        with pytest.raises(InputError, match="in use by another process"), locked(path, wait=False):
            pass
    finally:
        holder.kill()
        holder.join()
    with locked(path, wait=False):
        pass
