"""Write a recovery checkpoint of a run as a Hugging Face folder: weights, configuration, tokenizer.

examples:
  areal export runs/gsm8k/grpo
  areal export runs/gsm8k/grpo --step 40 --output models/gsm8k-40
  areal export runs/gsm8k/grpo --dry-run --json

It needs one process and no accelerator, however many ranks trained the model, and works while the run goes on. Of a run
that trains adapters, the folder has the merged model; a second one beside it, with -adapter at its end, the adapters.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from areal.cli.output import Report

if TYPE_CHECKING:
    import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `areal export`."""
    parser.add_argument("run_dir", metavar="RUN", type=Path, help="run directory, the folder that holds checkpoints/")
    parser.add_argument("--step", type=int, metavar="N", help="step of the checkpoint (default: the newest)")
    parser.add_argument("--output", type=Path, metavar="DIR", help="folder of the model (default: RUN/exports/step-N)")
    parser.add_argument("--dry-run", action="store_true", help="say what would be written, and write nothing")


def run(arguments: argparse.Namespace) -> Report:
    """Write the folder, or say which."""
    from areal.trainer.export import export_checkpoint, find_step
    from areal.trainer.milestones import export_folder

    step = find_step(arguments.run_dir, arguments.step)
    folder = arguments.output or export_folder(arguments.run_dir, step)
    if arguments.dry_run:
        from areal.models.saving import check_replaceable

        check_replaceable(folder)
        verb = "replace" if folder.exists() else "write"
        data = {"folder": str(folder), "step": step, "replaces": folder.exists()}
        return Report(text=f"would {verb} {folder} with the model after step {step}", data=data)
    exported = export_checkpoint(arguments.run_dir, step=step, output=folder)
    adapter = None if exported.adapter is None else str(exported.adapter)
    text = f"wrote {exported.folder}, the model after step {step}"
    return Report(
        text=text if adapter is None else f"{text}, and {adapter}, the adapters alone",
        data={"folder": str(exported.folder), "step": step, "adapter": adapter},
    )
