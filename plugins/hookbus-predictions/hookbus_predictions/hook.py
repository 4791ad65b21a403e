"""Hook that writes predictions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from hookbus import Hook, Needs, Run, hookimpl
from hookbus.checkpoint import commit_file
from hookbus.errors import ConfigError, LoopError, format_path
from hookbus.evaluation import count_samples, split_samples
from hookbus.writers import OutputFiles, resolve_output_path, sanitize_name
from hookbus_predictions.config import PredictionsConfig
from hookbus_predictions.earlier import find_predictions, remove_outdated
from hookbus_predictions.formats import WRITERS
from hookbus_predictions.parts import Part, Rows, build_rows, iter_rows, load_parts, save_part, save_parts

FORBIDDEN = re.compile(r"[^\w.-]")
"""Characters of the name of a loader that are replaced in the name of its file."""


class PredictionsHook(Hook):
    """Write the outputs of each predicted sample and its index in the data. No effect in a training."""

    Config = PredictionsConfig
    needs = Needs(points=("after_predict_iter",))
    config: PredictionsConfig

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self._resources = ExitStack()
        self._files: OutputFiles | None = None
        self._earlier: list[Path] = []
        self._written: list[Path] = []
        self._reset()

    def __getstate__(self) -> dict[str, Any]:
        # Open resources belong to the run in progress.
        return {**vars(self), "_resources": ExitStack(), "_files": None, "_parts": [], "_is_open": False}

    def check(self, run: Run) -> None:
        """Check the path of the file, and that no predictions exist that the run would replace.

        Raises:
            ConfigError: If there is no work directory for a relative path, or if the file exists.
        """
        if run.mode != "predict":
            return
        path = self._get_path(run)
        self.check_unique(
            run,
            f"writes to {path}",
            "Set another `file` for one of them.",
            setting="file",
            get_value=lambda hook: hook._get_path(run),
        )
        if not self.config.overwrite:
            _refuse(self._find_earlier(run))

    def before_run(self, run: Run, mode: str) -> None:
        """Find earlier predictions, and remove the temporary files of killed processes, before any rank writes."""
        if mode == "predict":
            self._files = OutputFiles(run, self._get_path(run).parent)
            self._earlier, self._written = [], []
            if self.config.overwrite:
                self._earlier = run.ranks.call_on_main(f"{self.name}: earlier files", partial(self._find_earlier, run))

    @hookimpl(frequency=False)
    def before_predict_epoch(self, run: Run, dataloader_name: str | None) -> None:
        """Begin the file of a loader."""
        self._close()
        self._path = self._get_loader_path(run, dataloader_name)
        # A loop may name its loaders here only.
        if not self.config.overwrite and self._path not in self._get_paths(run):
            run.ranks.call_on_main(f"{self.name}: existing files", lambda: _refuse(find_predictions([self._path])))
        if self.config.interval != "batch":
            self._spool = self._create_temporary("parts")
        if self.config.interval != "epoch":
            self._batches = self._batch_directory
            run.register_output(self._batches, "predictions of each batch")
            if self.config.overwrite:  # earlier predictions are replaced when those of the loader are complete
                self._batches = self._create_temporary("batches")
        self._is_open = True

    def after_predict_iter(self, run: Run, batch_idx: int, outputs: Any, indices: Sequence[int] | None) -> None:
        """Write the predictions of a batch.

        Raises:
            LoopError: If the outputs contain no value for each sample, or cannot be written.
        """
        if not self._is_open:  # a loop that does not emit `before_predict_epoch`
            self.before_predict_epoch(run, None)
        counted = indices is None or isinstance(indices, range)
        rows = self._build_rows(run, outputs, indices)
        if self.config.interval != "epoch":
            self._write_batch(run, batch_idx, rows)
        if self.config.interval != "batch":
            part = self._spool / f"{len(self._parts)}.pt"
            self._parts.append(save_part(part, rows, counted=counted))
        self._count += len(rows["index"])

    @hookimpl(frequency=False)
    def after_predict_epoch(self, run: Run) -> None:
        """Write the files of a loader. A collective call.

        Raises:
            LoopError: If the predictions cannot be written in the format of the file.
        """
        if self._is_open and self.config.interval != "batch":
            if self.config.merge:
                # Only rank 0 reads the lists of the parts: there may be one for each of millions of batches.
                directories = run.ranks.call_on_all(f"{self.name}: parts", self._save_parts)
                run.ranks.call_on_main(f"{self.name}: file", partial(self._merge, run, directories))
            else:
                own = partial(self._write_file, run, [self._parts], self._rank_path(run))
                run.ranks.call_on_all(f"{self.name}: file", own)
        if self._is_open and self.config.interval != "epoch" and self.config.overwrite:
            run.ranks.call_on_all(f"{self.name}: batches", self._replace_batches)
        self._close()

    def after_predict(self, run: Run) -> None:
        """Remove the earlier predictions that were not replaced, such as those of more batches. A collective call."""
        if self._earlier:
            written = run.ranks.call_on_all(f"{self.name}: written files", lambda: self._written)
            outdated = set(self._earlier).difference(*written)
            run.ranks.call_on_main(f"{self.name}: outdated files", partial(remove_outdated, outdated))

    def cleanup(self) -> None:
        """Remove the temporary files of a failed prediction."""
        self._close()
        self._files = None

    # -- internal ------------------------------------------------------------------------------

    def _reset(self) -> None:
        self._is_open = False  # whether a loader is in progress
        self._path, self._spool, self._batches = Path(), Path(), Path()
        self._parts: list[Part] = []
        self._count = 0
        self._names: set[str] | None = None  # columns of the first batch
        self._reported: set[str] = set()

    def _close(self) -> None:
        self._resources.close()
        self._reset()

    def _get_path(self, run: Run) -> Path:
        return resolve_output_path(run, self.name, "file", self.config.file)

    def _get_loader_path(self, run: Run, loader: object) -> Path:
        path = self._get_path(run)
        return path if loader is None else path.with_stem(f"{path.stem}-{sanitize_name(str(loader), FORBIDDEN, 100)}")

    def _get_paths(self, run: Run) -> list[Path]:
        """Return the file without the name of a loader, and those of the loaders that are known in advance."""
        loaders = run.predict_loader if isinstance(run.predict_loader, Mapping) else ()
        return [self._get_path(run), *(self._get_loader_path(run, name) for name in loaders)]

    @property
    def _batch_directory(self) -> Path:
        return self._path.with_name(f"{self._path.stem}-batches")

    def _create_temporary(self, name: str) -> Path:
        """Create a directory that is removed at the end of the loader."""
        assert self._files is not None
        directory = self._resources.enter_context(self._files.temporary(name))
        directory.mkdir()
        return directory

    def _rank_path(self, run: Run) -> Path:
        return self._path.with_name(f"{self._path.stem}-rank{run.ranks.rank}{self._path.suffix}")

    def _build_rows(self, run: Run, outputs: Any, indices: Sequence[int] | None) -> Rows:
        count = count_samples(outputs) if indices is None else len(indices)
        columns, omitted = split_samples(outputs, count)
        if not columns:
            raise LoopError(
                f"outputs: expected a value for each of the {count} samples of a batch, got "
                f"{', '.join(omitted) or 'none'}. Return tensors whose first dimension is that of the samples."
            )
        for output in set(omitted) - self._reported:
            self._reported.add(output)
            run.logger.warning("An output without a value for each sample is not written: %s.", output)
        try:
            rows = build_rows(range(self._count, self._count + count) if indices is None else indices, columns)
        except ValueError as error:
            raise LoopError(f"outputs: {error}") from None
        self._check_names(set(rows))
        return rows

    def _check_names(self, names: set[str]) -> None:
        """Raise if a batch has other outputs than the first one, whose rows would not have the same columns."""
        if self._names is None:
            self._names = names
        if different := sorted(names ^ self._names):
            raise LoopError(
                f"outputs: expected the same outputs for every batch, got {', '.join(different)} for some of them "
                "only. Return the same outputs for every batch."
            )

    def _write_batch(self, run: Run, batch_idx: int, rows: Rows) -> None:
        rank = f"rank{run.ranks.rank}-" if run.ranks.world_size > 1 else ""
        self._create(self._batches / f"{rank}{batch_idx:06d}{self._path.suffix}", [rows], len(rows["index"]))

    def _replace_batches(self) -> None:
        """Move the files of the batches of this rank to their directory."""
        for file in sorted(self._batches.iterdir()):
            path = self._batch_directory / file.name
            path.parent.mkdir(parents=True, exist_ok=True)
            commit_file(file, path)
            self._written.append(path)

    def _save_parts(self) -> Path:
        save_parts(self._spool, self._parts)
        return self._spool

    def _merge(self, run: Run, directories: Sequence[Path]) -> None:
        self._write_file(run, [load_parts(directory) for directory in directories], self._path)

    def _write_file(self, run: Run, ranks: Sequence[Sequence[Part]], path: Path) -> None:
        count = sum(part.count for own in ranks for part in own)
        run.register_output(path, f"{count:,} predictions")
        self._create(path, iter_rows(ranks), count)
        self._written.append(path)
        run.logger.info("Wrote %s predictions to %s.", count, format_path(path))

    def _create(self, path: Path, rows: Iterable[Rows], count: int) -> None:
        """Write a file under a temporary name, fsync and rename it."""
        assert self._files is not None
        with self._files.temporary(path.name) as temporary:
            try:
                WRITERS[path.suffix](temporary, rows, count)
            except ValueError as error:
                raise LoopError(f"file: {self.config.file} cannot be written: {error}") from error
            path.parent.mkdir(parents=True, exist_ok=True)
            commit_file(temporary, path)

    def _find_earlier(self, run: Run) -> list[Path]:
        """Return the files of earlier predictions, without those of other instances."""
        others = [hook._get_path(run) for hook in self.find_others(run, PredictionsHook).values()]
        recorded = () if run.work_dir is None else run.work_dir.outputs
        return find_predictions(self._get_paths(run), others, recorded)


def _refuse(existing: Sequence[Path]) -> None:
    """Raise if predictions exist."""
    if existing:
        raise ConfigError(f"file: the predictions exist, got {existing[0]}. Set `overwrite: true`, or another `file`.")
