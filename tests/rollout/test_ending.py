from hypothesis import given
from hypothesis import strategies as st

from jaxagent.rollout.ending import Ending, ending

END = 0
PIECES = {
    END: "<|im_end|>",
    1: "Par",
    2: "is</",
    3: "answer>\n",
    4: "</answer>",
    5: "</",
    6: "ans",
    7: "wer>",
}
STOPS = ("</answer>", "</rerank>")


def decode(ids) -> str:
    return "".join(PIECES[one] for one in ids)


def found(ids, num_old=0) -> Ending | None:
    return ending(ids, num_old, stops=STOPS, end_id=END, decode=decode)


def test_a_stop_string_that_straddles_tokens_ends_at_the_token_that_completes_it():
    assert found([1, 2, 3, 1]) == Ending(num_tokens=3, text="Paris</answer>", finish="stop")
    assert found([1, 5, 6, 7], num_old=3) == Ending(
        num_tokens=4, text="Par</answer>", finish="stop"
    )


def test_the_end_token_ends_a_turn_and_is_no_text():
    assert found([1, 0, 4]) == Ending(num_tokens=2, text="Par", finish="end")
    assert found([4, 0]) == Ending(num_tokens=1, text="</answer>", finish="stop")
    assert found([2, 0, 3]) == Ending(num_tokens=2, text="is</", finish="end")


def test_an_open_turn_has_no_ending():
    assert found([1, 2]) is None
    assert found([]) is None


@given(
    st.lists(st.sampled_from(list(PIECES)), max_size=12), st.lists(st.integers(1, 4), max_size=12)
)
def test_the_ending_does_not_depend_on_how_many_tokens_arrive_at_a_time(ids, steps):
    whole = found(ids)
    num_old = 0
    for step in (*steps, len(ids)):
        num_new = min(num_old + step, len(ids))
        if (part := found(ids[:num_new], num_old)) is not None:
            break
        num_old = num_new
    assert part == whole
