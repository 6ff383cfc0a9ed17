"""Write a recovery checkpoint of a run as a Hugging Face folder, and publish it on the hub if asked to.

examples:
  areal export runs/gsm8k/grpo
  areal export runs/gsm8k/grpo --step 40 --output models/gsm8k-40
  areal export runs/gsm8k/grpo --push-to-hub org/gsm8k-grpo --private
  areal export runs/gsm8k/grpo --push-to-hub org/gsm8k-grpo --dry-run

It needs one process and no accelerator, however many ranks trained the model, and works while the run goes on. Of a run
that trains adapters, the folder has the merged model; a second one beside it, with -adapter at its end, the adapters.
A damaged checkpoint is refused (exit code 21) with the command for the newest one that is intact.

--push-to-hub publishes the folder with a model card from the run (configuration, data, curves, evaluation) in one
commit; the token comes from HF_TOKEN or `hf auth login`. With --dry-run it shows the card. docs/hub.md has more.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from areal.api import UsageError
from areal.cli.output import CommandReport

if TYPE_CHECKING:
    import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `areal export`."""
    parser.add_argument("run_dir", metavar="RUN", type=Path, help="run directory, the folder that holds checkpoints/")
    parser.add_argument("--step", type=int, metavar="N", help="step of the checkpoint (default: the newest)")
    parser.add_argument("--output", type=Path, metavar="DIR", help="folder of the model (default: RUN/exports/step-N)")
    parser.add_argument("--push-to-hub", metavar="ORG/NAME", help="publish the folder as this model repository")
    parser.add_argument("--private", action="store_true", help="make a new repository private")
    parser.add_argument("--revision", metavar="BRANCH", help="branch to publish to (default: main); made if it is new")
    parser.add_argument("--dry-run", action="store_true", help="say what would be written, and write nothing")


def run(arguments: argparse.Namespace) -> CommandReport:
    """Write the folder, or say which."""
    from areal.trainer.export import check_step, export_checkpoint, find_step
    from areal.trainer.milestones import export_folder

    name = None
    if arguments.push_to_hub is not None:
        from areal.hub.publishing import repository_name

        name = repository_name(arguments.push_to_hub, arguments.revision)
    elif arguments.private or arguments.revision is not None:
        raise UsageError("--private and --revision belong to --push-to-hub", fix="add --push-to-hub ORG/NAME")
    step = find_step(arguments.run_dir, arguments.step)
    folder = arguments.output or export_folder(arguments.run_dir, step)
    if arguments.dry_run:
        from areal.models.saving import check_replaceable

        check_replaceable(folder)
        check_step(arguments.run_dir, step)
        verb = "replace" if folder.exists() else "write"
        data: dict[str, Any] = {"folder": str(folder), "step": step, "replaces": folder.exists()}
        text = f"would {verb} {folder} with the model after step {step}"
        if name is not None:
            from areal.trainer.model_card import build_card

            card = build_card(arguments.run_dir, name, step=step)
            data["hub"] = {"repo": name.repo, "revision": name.revision, "private": arguments.private, "card": card}
            text += f", and publish it as {name} with all files of the folder and this README.md:\n\n{card}"
        return CommandReport(text=text, data=data)
    if name is not None:
        from areal.hub.publishing import check_token

        check_token(name)
    exported = export_checkpoint(arguments.run_dir, step=step, output=folder)
    adapter = None if exported.adapter is None else str(exported.adapter)
    text = f"wrote {exported.folder}, the model after step {step}"
    text = text if adapter is None else f"{text}, and {adapter}, the adapters alone"
    data = {"folder": str(exported.folder), "step": step, "adapter": adapter}
    if name is not None:
        from areal.trainer.export import push_model

        done = push_model(arguments.run_dir, exported.folder, name, step=step, private=arguments.private)
        data["hub"] = {"repo": done.repo, "revision": done.revision, "commit": done.commit, "url": done.url}
        text += f"\npublished {done.url} at commit {done.commit}"
    return CommandReport(text=text, data=data)
