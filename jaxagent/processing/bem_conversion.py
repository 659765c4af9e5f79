"""BEM's published SavedModel to a folder of ours, its order found by scoring known pairs.

The variables have no names and several orders fit their shapes (`weights/bem.Order`). So every
order that an alphabetical tree can have is tried on pairs whose verdict is known, then the others;
exactly one of a kind must give every verdict. Wrong orders scramble the network, whose answer then
hardly depends on its input: one positive and one negative pair already rule most of them out.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxagent.models.bem import Model
from jaxagent.processing.bem import VOCABULARY, Packing, Pair, open_packing, scores
from jaxagent.trees import Params
from jaxagent.weights.bem import (
    Order,
    is_alphabetical,
    orders,
    variables_config,
    variables_params,
    write_bem,
)
from jaxagent.weights.safetensors import WeightsError
from jaxagent.weights.tensor_bundle import read_bundle

THRESHOLD = 0.5
CARD = "card.json"

_QUESTION = "Where does this hotel derive its name from?"
README_PAIRS: Mapping[Pair, bool] = {
    Pair("William and Mary Menger", "the Menger family", _QUESTION): True,
    Pair("the Baker family", "the Menger family", _QUESTION): False,
}
"""Pairs with their verdicts, from the README of google-research/encyclopedic_vqa."""


class Found(NamedTuple):
    """The order that gives every verdict, its parameters, and its probability of each pair."""

    order: Order
    params: Params
    probabilities: tuple[float, ...]


def convert_bem(
    saved_model: str | Path,
    vocabulary: str | Path,
    folder: str | Path,
    *,
    pairs: Mapping[Pair, bool] = README_PAIRS,
) -> Found:
    """Writes the folder that `Bem` opens, of a SavedModel and the vocabulary that belongs to it.

    `pairs` are known verdicts, at least one of each kind. Raises WeightsError when a file is
    corrupt or no order of the variables gives the verdicts, BemError for a wrong vocabulary.
    """
    if set(pairs.values()) != {True, False}:
        raise ValueError(
            f"The {len(pairs)} known pairs hold one kind of verdict only. Give at least one pair "
            "that is equivalent and one that is not."
        )
    variables = saved_variables(saved_model)
    model = Model(variables_config(variables))
    packing = open_packing(Path(vocabulary), model)
    found = found_order(model, variables, packing, pairs)
    write_bem(folder, model.config, found.params)
    shutil.copyfile(vocabulary, Path(folder) / VOCABULARY)
    card = {
        "made_from": "google/answer_equivalence/bem/1",
        "order": found.order._asdict(),
        "pairs": [
            pair._asdict() | {"equivalent": verdict, "probability": round(probability, 4)}
            for (pair, verdict), probability in zip(pairs.items(), found.probabilities, strict=True)
        ],
    }
    (Path(folder) / CARD).write_text(json.dumps(card, indent=2, ensure_ascii=False) + "\n")
    return found


def saved_variables(saved_model: str | Path) -> list[np.ndarray]:
    """The variables of a SavedModel in the order of their numbers; WeightsError when they lack."""
    named = read_bundle(Path(saved_model) / "variables" / "variables")
    numbered = {
        int(number): array
        for name, array in named.items()
        if (number := name.removeprefix("variables/").partition("/")[0]).isdecimal()
    }
    if sorted(numbered) != list(range(len(numbered))) or not numbered:
        raise WeightsError(
            f"{saved_model} holds {len(numbered)} numbered variables with gaps, such as "
            f"{next(iter(named), 'none')!r}; BEM has variables/0 to variables/205. Download it "
            "again."
        )
    return [np.asarray(numbered[number], np.float32) for number in sorted(numbered)]


def found_order(
    model: Model,
    variables: Sequence[np.ndarray],
    packing: Packing,
    pairs: Mapping[Pair, bool],
) -> Found:
    """The one order that gives every verdict.

    Raises WeightsError when none does, or when several of a kind do and more pairs are needed.
    """
    best = (-1, np.zeros(0, np.float32))
    for _, kind in groupby(orders(), key=is_alphabetical):
        passing = []
        for order in kind:
            params = variables_params(variables, model.config, order)
            found = scores(model, params, packing, list(pairs))
            right = int(np.sum((found >= THRESHOLD) == np.array(list(pairs.values()))))
            best = max(best, (right, found), key=lambda one: one[0])
            if right == len(pairs):
                passing.append(Found(order, params, tuple(found.tolist())))
        if len(passing) == 1:
            return passing[0]
        if passing:
            orders_found = "; ".join(str(tuple(one.order)) for one in passing)
            raise WeightsError(
                f"{len(passing)} orders of the variables give all {len(pairs)} known verdicts: "
                f"{orders_found}. Give more known pairs."
            )
    raise WeightsError(
        f"No order of the variables gives all {len(pairs)} known verdicts; the best gives "
        f"{best[0]}, with the probabilities {np.round(best[1], 3).tolist()}. Check the pairs and "
        "the vocabulary, or download the model again."
    )
