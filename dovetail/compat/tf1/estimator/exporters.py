"""Who exports an estimator's model, and when: told of each evaluation by `train_and_evaluate`."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from ....graph.core.errors import NotFoundError
from ....graph.formats.atomic_files import path_of
from ....io.files import DeleteRecursively
from .export import ServingInputReceiver
from .training import Exporter


class LatestExporter(Exporter):
    """Exports the model at each evaluation, and keeps the newest ones.

    Args:
        name: of its folder in `<model_dir>/export`.
        serving_input_receiver_fn: as of `Estimator.export_saved_model`.
        assets_extra: as there.
        as_text: as there.
        exports_to_keep: how many; None: all.
    """

    def __init__(
        self,
        name: str,
        serving_input_receiver_fn: Callable[[], ServingInputReceiver],
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        exports_to_keep: int | None = 5,
    ) -> None:
        if exports_to_keep is not None and exports_to_keep <= 0:
            raise ValueError(f"`exports_to_keep`, if provided, must be a positive number. Got {exports_to_keep}")
        self.name = name
        self._receive, self._assets, self._as_text, self._keep = (
            serving_input_receiver_fn,
            assets_extra,
            as_text,
            exports_to_keep,
        )

    def export(
        self,
        estimator: Any,
        export_path: str,
        checkpoint_path: str,
        eval_result: dict[str, Any],
        is_the_final_export: bool,
    ) -> str | None:
        """Export the model; gives its folder."""
        made: str = estimator.export_saved_model(
            export_path,
            self._receive,
            assets_extra=self._assets,
            as_text=self._as_text,
            checkpoint_path=checkpoint_path,
        )
        kept = sorted((p for p in path_of(export_path).iterdir() if p.name.isdecimal()), key=lambda p: int(p.name))
        for old in kept[: -self._keep] if self._keep else ():
            with contextlib.suppress(OSError, NotFoundError):  # another process may remove it, too
                DeleteRecursively(str(old))
        return made


class FinalExporter(LatestExporter):
    """Exports the model once training has ended. Arguments as of `LatestExporter`."""

    def __init__(
        self,
        name: str,
        serving_input_receiver_fn: Callable[[], ServingInputReceiver],
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
    ) -> None:
        super().__init__(name, serving_input_receiver_fn, assets_extra, as_text, None)

    def export(
        self,
        estimator: Any,
        export_path: str,
        checkpoint_path: str,
        eval_result: dict[str, Any],
        is_the_final_export: bool,
    ) -> str | None:
        """Export the model if it is the last time; gives its folder, or None."""
        return (
            super().export(estimator, export_path, checkpoint_path, eval_result, True) if is_the_final_export else None
        )


def loss_smaller(best_eval_result: Mapping[str, Any] | None, current_eval_result: Mapping[str, Any] | None) -> bool:
    """Whether the loss of the second is smaller. ValueError: one has none."""
    for result in (best_eval_result, current_eval_result):
        if not result or "loss" not in result:
            raise ValueError(f"an evaluation's result must have a 'loss', not {result!r}")
    assert best_eval_result is not None and current_eval_result is not None
    return bool(best_eval_result["loss"] > current_eval_result["loss"])


class BestExporter(LatestExporter):
    """Exports the model whenever an evaluation is better than all before.

    Args:
        name: as of `LatestExporter`.
        serving_input_receiver_fn: as of `LatestExporter`.
        assets_extra: as of `LatestExporter`.
        as_text: as of `LatestExporter`.
        exports_to_keep: as of `LatestExporter`.
        event_file_pattern: accepted: what was best is kept in the exporter's own folder.
        compare_fn: a function of `best_eval_result` and `current_eval_result`: whether the second is better.
    """

    def __init__(
        self,
        name: str = "best_exporter",
        serving_input_receiver_fn: Callable[[], ServingInputReceiver] | None = None,
        event_file_pattern: str | None = None,
        compare_fn: Callable[..., bool] = loss_smaller,
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        exports_to_keep: int | None = 5,
    ) -> None:
        if serving_input_receiver_fn is None:
            raise ValueError("serving_input_receiver_fn must be given")
        super().__init__(name, serving_input_receiver_fn, assets_extra, as_text, exports_to_keep)
        self._compare = compare_fn

    def export(
        self,
        estimator: Any,
        export_path: str,
        checkpoint_path: str,
        eval_result: dict[str, Any],
        is_the_final_export: bool,
    ) -> str | None:
        """Export the model if it is the best one so far; gives its folder, or None. What was best outlives a restart."""
        file = path_of(export_path) / "best.json"
        best = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None
        if best is not None and not self._compare(best_eval_result=best, current_eval_result=eval_result):
            return None
        made = super().export(estimator, export_path, checkpoint_path, eval_result, is_the_final_export)
        file.write_text(json.dumps({k: float(v) for k, v in eval_result.items()}), encoding="utf-8")
        return made


__all__ = ["BestExporter", "FinalExporter", "LatestExporter"]
