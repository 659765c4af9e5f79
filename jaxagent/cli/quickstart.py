"""`jaxagent quickstart`: base, training, evaluation and page in one go, sized for two CPU cores.

It is `train` on the experiment `flags_mmagent_r2_grpo` with shorter runs: the base is built with
query views left to be rendered when looked at, MMAgent-R2 learns by GRPO for a few minutes from the
cold start that ships with the package, and at most 200 questions are asked before and after.
`--short` does the same with thirty countries and a handful of steps and questions, for CI.
"""

import argparse
from collections.abc import Sequence

from jaxagent.cli.configs import config_flags, read_config
from jaxagent.cli.train import run_and_report

EXPERIMENT = "flags_mmagent_r2_grpo"
USUAL = {"rl.minutes": 4.0, "evaluation.questions": 200}
SHORT_COUNTRIES = (
    *("td", "fr", "it", "de", "be", "ie", "ci", "ml", "gn", "pe", "at", "lv", "pl", "id", "ng"),
    *("co", "ec", "ve", "se", "no", "fi", "dk", "is", "jp", "bd", "pw", "la", "vn", "cn", "tr"),
)
SHORT = {
    "data.flags.countries": SHORT_COUNTRIES,
    "data.flags.val_entities": 6,
    "data.flags.test_entities": 8,
    "retrieval.measured": 20,
    "rollout.slots": 16,
    "rollout.rows": (16,),
    "rollout.image_rows": (16,),
    "rollout.chunk_lengths": (64, 128),
    "rollout.context": 640,
    "packing.row_lengths": (640,),
    "rl.minutes": 0.0,
    "rl.steps": 2,
    "rl.questions": 4,
    "rl.samples": 4,
    "evaluation.questions": 16,
    "report.dialogues": 16,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workdir", default="work/quickstart", help="what it makes lies here")
    parser.add_argument("--short", action="store_true", help="two minutes instead of ten")


def run(options: argparse.Namespace, rest: Sequence[str]) -> int:
    sizes = SHORT if options.short else USUAL
    run_and_report(read_config(EXPERIMENT, sizes | config_flags(rest)), options.workdir)
    return 0
