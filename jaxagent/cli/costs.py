"""What a run cost, in `costs.json` of its work folder: seconds, and the most memory it took.

policy_seconds                 making a new policy, nearly all of it the warm start
seconds, peak_bytes, cores     of the whole command, when it ran from an empty folder to its end
"""

import os
import resource
import sys
from collections.abc import Mapping
from pathlib import Path

from jaxagent.cli.json_files import read_json
from jaxagent.json_lines import write_json

Costs = Mapping[str, float]


def read_costs(path: Path) -> Costs:
    """What is known of a run's costs; nothing when there is no such file."""
    remedy = "Delete it; what it tells is lost."
    return read_json(path, "record of costs", remedy=remedy) if path.exists() else {}


def add_costs(path: Path, costs: Costs) -> None:
    """Writes costs beside those that are known."""
    write_json(path, {**read_costs(path), **costs})


def costs_of_command(seconds: float) -> Costs:
    """What this process took so far."""
    unit = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss, in bytes
    peak = unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"seconds": seconds, "peak_bytes": peak, "cores": os.cpu_count() or 1}
