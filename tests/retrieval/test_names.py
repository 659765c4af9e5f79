"""Names: one normal form, unique in a base, none that means "reject"."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxagent.retrieval.names import normal_name, unique_names


@pytest.mark.parametrize(
    ("names", "unique"),
    [
        (
            ["Georgia", "Chad", "georgia", "Georgia"],
            ("Georgia", "Chad", "georgia (2)", "Georgia (3)"),
        ),
        (["None", " NONE", "Nones"], ("None (entity)", "NONE (entity) (2)", "Nones")),
        (["Georgia", "Georgia", "Georgia (2)"], ("Georgia", "Georgia (3)", "Georgia (2)")),
        (["A  b\n", "Ａ"], ("A b", "Ａ")),
    ],
)
def test_names_get_a_suffix_where_they_are_taken(names, unique):
    assert unique_names(names) == unique


def test_an_empty_name_is_refused():
    with pytest.raises(ValueError, match="entity 1 is empty"):
        unique_names(["a", " "])


@given(
    st.lists(st.sampled_from(["a", "A", "a (2)", "a (3)", "None", "none (entity)", "é", "e\u0301"]))
)
def test_unique_names_never_agree_with_each_other_or_with_reject(names):
    normal = [normal_name(name) for name in unique_names(names)]
    assert len(set(normal)) == len(normal)
    assert "none" not in normal
