import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_dynamicrubric.errors import DataError
from openrlhf_dynamicrubric.trl import groups
from openrlhf_dynamicrubric.trl.groups import Row, cut_groups, infer_group_size, on_all_ranks, put_together, share_of


def rows(prompts, **more):
    return [Row(prompt, f"response {index}", **more) for index, prompt in enumerate(prompts)]


def test_rows_are_cut_by_position_and_keep_their_order():
    first, second = cut_groups(rows("aabb"), 2)
    assert (first.prompt, first.responses) == ("a", ("response 0", "response 1"))
    assert (second.prompt, second.responses) == ("b", ("response 2", "response 3"))


def test_two_neighbouring_groups_with_one_prompt_stay_two():
    assert [one.responses for one in cut_groups(rows("aaaa"), 2)] == [
        ("response 0", "response 1"),
        ("response 2", "response 3"),
    ]


def test_the_dataset_id_names_the_group():
    assert cut_groups(rows("aa", id="p-7"), 2)[0].id == "p-7"


def test_rows_that_do_not_divide_are_refused_with_both_numbers():
    with pytest.raises(DataError, match="5 completions over all ranks do not divide into groups of 4"):
        cut_groups(rows("aaaaa"), 4)


@pytest.mark.parametrize("size", [0, -1])
def test_a_group_has_at_least_one_row(size):
    with pytest.raises(DataError, match="do not divide"):
        cut_groups(rows("aa"), size)


def test_two_prompts_in_one_group_are_named_by_position():
    with pytest.raises(DataError, match=r"completions 4 and 6 .* one group of 4, but their prompts differ: 'b' and 'c'"):
        cut_groups(rows("aaaabbcc"), 4)


def test_chats_are_compared_by_their_turns():
    chat = [{"role": "user", "content": "Hi"}]
    assert len(cut_groups(rows([chat, [dict(chat[0])]]), 2)) == 1


@pytest.mark.parametrize(
    ("prompts", "size"),
    [("aaaa", 4), ("aabb", 2), ("aabbbb", 2), ("aaaaaabbb", 3), ("abab", 1), ("a", 1), ("aaaabbbbaaaa", 4)],
)
def test_the_group_size_is_the_divisor_of_all_runs(prompts, size):
    assert infer_group_size(list(prompts)) == size


@given(st.lists(st.integers(), max_size=30), st.integers(1, 7))
def test_what_is_shared_out_comes_back_in_order(items, size):
    shares = []
    for rank in range(size):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(groups, "rank_and_size", lambda rank=rank: (rank, size))
            shares.append(share_of(items))
    assert put_together(shares) == items
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_one_process_needs_no_gathering_and_keeps_its_own_errors():
    assert on_all_ranks(lambda: "done") == ["done"]
    with pytest.raises(ZeroDivisionError):
        on_all_ranks(lambda: 1 // 0)
