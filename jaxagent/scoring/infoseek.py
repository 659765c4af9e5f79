"""InfoSeek's answer metric, exactly as its official evaluator computes it, and a guarded form.

String and Time: equality of normalised texts with any alias (no year arithmetic). Numerical: a
number inside the reference range, or a range that lies in it or meets it with

    IoU = overlap / (length + length of the reference - overlap) >= 1/2,   lengths + 1e-12.

Source: edchengg/infoseek_eval, infoseek_eval.py at bec0c4c, rebuilt from its behaviour; its quirks
are kept, since published figures contain them (`.5` is read as 5, "no number" as the range [0, 0],
units and magnitude words are ignored). They are exploits in reach of a policy in training, so
rewards use `guarded_score`. Every function is linear in the length of its input.
"""

import json
import re
import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from jaxagent.types import AnswerKind, Question

EPSILON = 1e-12
MAX_ANSWER = 10_000
"""Characters above which nothing is an answer for `guarded_score`."""
Reference = Sequence[str] | Sequence[Mapping[str, object]] | Mapping[str, object]
"""`answer_eval` as the files hold it: aliases, a list with one `{wikidata, range}`, or the dict."""

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_DASH_AFTER_DIGIT = re.compile(r"(?<=\d)-")
_NUMBER = re.compile(r"[-+]?\.?\d+(?:,\d{3})*\.?\d*(?:[eE][-+]?\d+)?")


def normal_answer(text: str) -> str:
    """Lower case, ASCII punctuation deleted, the words a, an and the removed, blanks collapsed."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def first_numbers(text: str) -> list[float]:
    """The first two numbers that the evaluator sees, at most.

    Raises ValueError where the evaluator does (`-.5.3`).
    """
    found = []
    for match in _NUMBER.finditer(_DASH_AFTER_DIGIT.sub(" - ", text)):
        digits = match[0].replace(",", "").strip(".")
        found.append(digits if digits.count(".") < 2 else digits.partition(".")[0])
    # All are converted, so that a bad one anywhere raises as it does in the evaluator.
    return [float(digits) for digits in found][:2]


def predicted_number(text: str) -> float | tuple[float, float]:
    """A number, or a range; [0, 0] when there is none, and the first of a descending pair."""
    match first_numbers(text):
        case []:
            return 0.0, 0.0
        case [low, high] if low <= high:
            return low, high
        case [number, *_]:
            return number


def _in_range(predicted: float | tuple[float, float], low: float, high: float) -> bool:
    if not isinstance(predicted, tuple):
        return low <= predicted <= high
    start, end = predicted
    if low <= start <= high and low <= end <= high:
        return True
    overlap = max(0.0, min(end, high) - max(start, low))
    union = (end - start + EPSILON) + (high - low + EPSILON) - overlap
    return overlap / union >= 0.5 - EPSILON


def official_score(prediction: str, reference: Reference, *, kind: AnswerKind) -> float:
    """1 if the prediction matches, else 0; raises ValueError where the evaluator does."""
    if kind == "Numerical":
        row = reference if isinstance(reference, Mapping) else reference[0]
        low, high = [float(str(bound)) for bound in row["range"]][:2]
        return float(_in_range(predicted_number(prediction), low, high))
    given = normal_answer(prediction)
    return float(any(given == normal_answer(alias) for alias in reference))


def reference_of(question: Question) -> Reference:
    """The question's answers in InfoSeek's shape."""
    if question.kind == "Numerical":
        if question.answer_range is None:
            raise ValueError(
                f"Question {question.data_id} is Numerical without a range; give answer_range."
            )
        return [{"wikidata": None, "range": list(question.answer_range)}]
    return question.answers


def guarded_score(prediction: str | None, question: Question) -> float:
    """`official_score` for training: 0 where nothing was answered or nothing could be read.

    Nothing: no or a blank answer, a text that normalises to nothing ("a", "..."), a numerical
    answer without a number, a text too long to be an answer. A number that makes the evaluator stop
    scores 0.
    """
    reference = reference_of(question)
    if prediction is None or len(prediction) > MAX_ANSWER or not normal_answer(prediction):
        return 0.0
    try:
        if question.kind == "Numerical" and not first_numbers(prediction):
            return 0.0
        return official_score(prediction, reference, kind=question.kind)
    except ValueError:
        return 0.0


@dataclass(frozen=True, kw_only=True)
class SplitScore:
    """Percentages of one split, rounded to two digits; 0 where a type does not occur."""

    score: float
    score_time: float
    score_num: float
    score_string: float


@dataclass(frozen=True, kw_only=True)
class InfoSeekScore:
    """The official result, and what it hides.

    `final` is the harmonic mean of the two rounded splits, `micro` the mean over all predictions.
    `coverage` is the share of references that were answered; a score under full coverage is not
    comparable, since missing predictions leave the denominator.
    """

    final: float
    unseen_question: SplitScore
    unseen_entity: SplitScore
    micro: float
    coverage: float
    num_unknown: int
    num_repeated: int


def harmonic_mean(first: float, second: float) -> float:
    """The harmonic mean as the evaluator takes it: a zero becomes 1e-12."""
    first, second = first or EPSILON, second or EPSILON
    return 2 * first * second / (first + second)


def _percent(values: Sequence[float]) -> float:
    return round(100 * sum(values) / len(values), 2) if values else 0.0


def _split_score(rows: Sequence[tuple[AnswerKind, float]]) -> SplitScore:
    def of(kind: AnswerKind) -> float:
        return _percent([value for name, value in rows if name == kind])

    return SplitScore(
        score=_percent([value for _, value in rows]),
        score_time=of("Time"),
        score_num=of("Numerical"),
        score_string=of("String"),
    )


def infoseek_score(
    predictions: Iterable[Mapping[str, str]],
    references: Iterable[Mapping[str, object]],
    question_types: Iterable[Mapping[str, str]],
) -> InfoSeekScore:
    """The score of prediction rows `{data_id, prediction}` against the files' rows.

    A prediction of an unknown id is left out and a repeated one counts twice, as in the evaluator;
    every split that does not end in `unseen_question` counts as unseen entity. Raises KeyError for
    a reference without a question type.
    """
    kinds = {row["data_id"]: row["question_type"] for row in question_types}
    known = {row["data_id"]: (row, kinds[row["data_id"]]) for row in references}
    rows: dict[bool, list[tuple[AnswerKind, float]]] = {True: [], False: []}
    answered: set[str] = set()
    num_unknown = num_repeated = 0
    for row in predictions:
        data_id = row["data_id"]
        if data_id not in known:
            num_unknown += 1
            continue
        num_repeated += data_id in answered
        answered.add(data_id)
        reference, kind = known[data_id]
        value = official_score(row["prediction"], reference["answer_eval"], kind=kind)
        rows[reference["data_split"].endswith("unseen_question")].append((kind, value))
    question, entity = _split_score(rows[True]), _split_score(rows[False])
    return InfoSeekScore(
        final=round(harmonic_mean(question.score, entity.score), 2),
        unseen_question=question,
        unseen_entity=entity,
        micro=_percent([value for _, value in (*rows[True], *rows[False])]),
        coverage=len(answered) / len(known) if known else 0.0,
        num_unknown=num_unknown,
        num_repeated=num_repeated,
    )


def json_lines(text: str) -> Iterator[dict[str, object]]:
    """The rows of a JSON-lines file; a blank line raises JSONDecodeError, as in the evaluator."""
    lines = text.split("\n")
    yield from (json.loads(line) for line in (lines[:-1] if text.endswith("\n") else lines))
