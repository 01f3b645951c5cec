"""What saving and restoring many small variables costs, beside writing and reading the same values as one safetensors file."""

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from _harness import Row, main, measure, row

SHAPE = [4]


def rows(quick: bool) -> Iterator[Row]:
    """Seconds to save and to restore so many variables."""
    for count in (1_000, 4_000) if quick else (10_000, 100_000):
        with tempfile.TemporaryDirectory() as folder:
            yield from _saved_and_restored(count, Path(folder), 3 if quick else 5)


def _saved_and_restored(count: int, folder: Path, rounds: int) -> Iterator[Row]:
    import dovetail as tf

    values = {f"v{i}": np.ones(SHAPE, np.float32) for i in range(count)}
    plain, path = folder / "values.safetensors", str(folder / "model")
    with tf.Graph().as_default(), tf.Session() as session:
        for name in values:
            tf.get_variable(name, SHAPE, initializer=tf.ones_initializer())
        saver = tf.train.Saver()
        session.run(tf.global_variables_initializer())
        mine, peer = measure(
            partial(saver.save, session, path, write_meta_graph=False), partial(save_file, values, plain), rounds=rounds
        )
        yield row(f"save {count:,} variables", "s", mine, peer, "safetensors")
        mine, peer = measure(partial(saver.restore, session, path), partial(load_file, plain), rounds=rounds)
        yield row(f"restore {count:,} variables", "s", mine, peer, "safetensors")


if __name__ == "__main__":
    main("Checkpoints", rows)
