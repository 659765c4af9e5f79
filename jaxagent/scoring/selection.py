"""Rejection sampling: which of a policy's own dialogues are worth learning from.

Source: ProMSA, section 3: several dialogues a question; kept are those that are well-formed,
executable, within budget and right, at most one a question. Ours: among the kept of a question the
one with the fewest calls, then the first.
"""

from collections.abc import Sequence

from jaxagent.agents import mmagent_r2
from jaxagent.scoring.infoseek import guarded_score
from jaxagent.types import Trajectory


def is_kept(trajectory: Trajectory) -> bool:
    """Whether a dialogue is right and without a fault, and was neither cut nor forced.

    A call past its budget, an unknown tool and bad arguments are faults in every method.
    """
    dialogue = trajectory.dialogue
    state = dialogue.state
    forced = isinstance(state, mmagent_r2.State) and state.forced
    whole = dialogue.done and not forced and not trajectory.truncated
    return whole and not state.faults and guarded_score(dialogue.answer, trajectory.question) == 1


def best_of_each(groups: Sequence[Sequence[Trajectory]]) -> list[Trajectory]:
    """At most one dialogue of each question's group, in the order of the groups."""
    kept = ([row for row in group if is_kept(row)] for group in groups)
    return [min(rows, key=lambda row: row.num_calls) for rows in kept if rows]
