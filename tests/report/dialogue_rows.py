"""Rows of dialogues as evaluations write them, for tests of what is made of them."""


def dialogue_row(at: int, accuracy: float, **changes) -> dict:
    """The row of question `at`, about an entity of its own."""
    return {
        "id": f"q{at}#0",
        "data_id": f"q{at}",
        "split": "unseen_entity",
        "family": "single",
        "kind": "String",
        "ambiguous": False,
        "entity_ids": [f"e{at}"],
        "accuracy": accuracy,
        "identified": True,
        "rank": 1,
        "tower": None,
        "rejections": 0,
        "calls": 2,
        "tokens": 100,
        "truncated": False,
        "reward": accuracy,
        "terms": {"outcome": accuracy},
        "images": [],
        "turns": [],
    } | changes
