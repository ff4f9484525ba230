"""Counting that is interrupted, killed, or runs out of disk leaves no files."""

import os
import resource

from counting_shards import SMALL, corpus_of, write_shards
from lattice_bpd.train import count_corpus


def run_with_small_files(limit, call):
    """Runs a call in a child process whose files may not grow above a limit: a full disk."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        try:
            call()
        except OSError as error:
            os.write(write, f"{error.errno} {error}".encode())
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as pipe:
        return pipe.read()


def test_a_full_disk_says_how_much_is_needed(tmp_path):
    write_shards(tmp_path, 5)
    (tmp_path / "temporary").mkdir()
    output = tmp_path / "counts"
    output.write_bytes(b"old")
    names = {path.name for path in tmp_path.iterdir()}
    corpus = corpus_of(*(tmp_path / f"{i}.bin" for i in range(4)))

    def count():
        folder = tmp_path / "temporary"
        count_corpus(corpus, output, order=4, memory=SMALL, threads=1, temp_dir=folder)

    message = run_with_small_files(4096, count)
    assert "cannot write a temporary file in" in message
    for part in ("bytes of this file were written, about", "are needed and", "are free", "--temp"):
        assert part in message
    needed = int(message.split("written, about ")[1].split()[0])
    assert 8_000 < needed < 60_000  # a run of 2,500 tokens
    message = run_with_small_files(30_000, count)  # enough for the runs, not for the counts
    assert f"{output}" in message
    assert list((tmp_path / "temporary").iterdir()) == []
    assert {path.name for path in tmp_path.iterdir()} == names
    assert output.read_bytes() == b"old"
