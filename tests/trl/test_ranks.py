"""Several processes score and train as one does."""

import json

import numpy as np
import pytest

from openrlhf_dynamicrubric import objectives
from openrlhf_dynamicrubric.records import read_records
from tests.trl.rank_reward import run_case
from tests.trl.ranks import one_by_one, torchrun
from tests.trl.test_reward import advantages_of, by_hand

pytestmark = pytest.mark.slow
IMAGE = [{"role": "assistant", "content": [{"type": "image"}]}]


def split(rows, ranks):
    size = len(rows) // ranks
    return [rows[rank * size : (rank + 1) * size] for rank in range(ranks)]


def rows_of(prompts, size):
    return [[prompt, f"{prompt} answer {group}.{member}"] for group, prompt in enumerate(prompts) for member in range(size)]


def cases_for(ranks, folder):
    """Groups of 4 on 2 ranks (or of 3 on 3) that begin on one rank and end on the next."""
    size, count = (4, 3) if ranks == 2 else (3, 4)
    options = {"num_generations": size}
    prompts = list("pqrs"[:count])
    plain = rows_of(prompts, size)
    uneven = [plain[:1], *split(plain[1:], ranks - 1)] if ranks == 2 else [plain[:1], plain[1:8], plain[8:]]
    spoilt = [*plain[:-1], [plain[-1][0], IMAGE]]
    blocked = folder / "a file"
    blocked.write_text("")
    return {
        "cut": {"rows": split(plain, ranks), "options": options, "records": str(folder / "records")},
        "duplicates": {"rows": split(rows_of(["p"] * count, size), ranks), "options": options},
        "inferred": {"rows": split(plain, ranks)},
        "uneven": {"rows": uneven, "options": options},
        "unscorable": {"rows": split(rows_of(["p", "broken", *prompts[2:]], size), ranks), "options": options},
        "malformed": {"rows": split(spoilt, ranks), "options": options},
        "explode": {"rows": split(rows_of(["p", "explode", *prompts[2:]], size), ranks), "options": options},
        "mixed": {"rows": split([*plain[1:], plain[0]], ranks), "options": options},
        "indivisible": {"rows": split(plain, ranks), "options": {"num_generations": 5}},
        "disk": {"rows": split(plain, ranks), "options": options, "records": str(blocked / "records")},
        "hopeless": {
            "rows": split(rows_of(["broken"] * count, size), ranks),
            "options": {**options, "max_unscorable_steps": 2},
            "times": 3,
        },
        "none": {"rows": [[] for _ in range(ranks)]},
    }


@pytest.fixture(scope="module", params=[2, 3])
def seen(request, tmp_path_factory):
    """By case: what each rank saw, and what one process sees of all rows."""
    folder = tmp_path_factory.mktemp(f"ranks{request.param}")
    cases = cases_for(request.param, folder)
    (folder / "cases.json").write_text(json.dumps(list(cases.values())))
    torchrun("rank_reward.py", folder / "cases.json", folder, ranks=request.param)
    by_rank = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(request.param)]
    single = {
        name: run_case({**case, "records": None}, [row for rows in case["rows"] for row in rows])
        for name, case in cases.items()
        if name != "explode"  # a single process raises the judge's own error
    }
    return {name: ([ranks[n] for ranks in by_rank], single.get(name)) for n, name in enumerate(cases)}, folder


@pytest.mark.parametrize("name", ["cut", "duplicates", "inferred", "uneven", "unscorable", "none"])
def test_scores_are_those_of_one_process(seen, name):
    ranks, single = seen[0][name]
    assert [score for rank in ranks for score in rank["scores"]] == single["scores"]
    assert single["error"] is None
    assert single["scores"] or name == "none"
    for column in ("rubric", "verdicts"):
        assert [text for rank in ranks for text in rank["extra"].get(column, [])] == single["extra"].get(column, [])


def test_rows_of_a_group_that_cannot_be_scored_are_none_on_every_rank(seen):
    ranks, _ = seen[0]["unscorable"]
    missing = [score is None for rank in ranks for score in rank["scores"]]
    assert missing == [text.startswith("(none") for rank in ranks for text in rank["extra"]["rubric"]]
    assert 0 < sum(missing) < len(missing)


@pytest.mark.parametrize("name", ["cut", "duplicates", "unscorable"])
def test_judging_is_shared_out_and_nothing_is_judged_twice(seen, name):
    ranks, single = seen[0][name]
    written = [rank["written"] for rank in ranks]
    assert sum(written) == single["written"]
    assert max(written) - min(written) <= 1
    asked = [tuple(pair) for rank in ranks for pair in rank["asked"]]
    assert sorted(asked) == sorted(map(tuple, single["asked"]))
    assert len(set(asked)) == len(asked)


def test_metrics_cover_all_groups_and_come_from_the_first_rank(seen):
    (first, *others), single = seen[0]["unscorable"]
    assert all(rank["metrics"] == {} for rank in others)
    without_time = {name: value for name, value in first["metrics"].items() if not name.endswith("seconds")}
    assert without_time == {name: value for name, value in single["metrics"].items() if not name.endswith("seconds")}


def test_records_hold_every_group_once(seen):
    ranks, _ = seen[0]["cut"]
    rows = list(read_records(seen[1]))
    assert [score for row in rows for score in row["scores"]] == [score for rank in ranks for score in rank["scores"]]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("malformed", "RankError: on rank {last} of {size}: DataError: completion {row} has a part of type 'image'"),
        ("explode", "RankError: on rank 1 of {size}: ZeroDivisionError: a fault of the judge"),
        ("mixed", "DataError: completions 0 and "),
        ("indivisible", "DataError: 12 completions over all ranks do not divide into groups of 5"),
        ("disk", "RankError: on rank 0 of {size}: NotADirectoryError"),
        ("hopeless", "UnscorableRunError: no group could be scored in 2 steps in a row; the last reason: the judge is down"),
    ],
)
def test_an_error_on_one_rank_is_raised_on_all_with_its_message(seen, name, message):
    ranks, _ = seen[0][name]
    size = len(ranks)
    message = message.format(last=size - 1, size=size, row=12 // size - 1)
    assert [rank["error"][: len(message)] for rank in ranks] == [message] * size


def test_no_rank_is_left_waiting_when_one_fails(tmp_path):
    cases = cases_for(2, tmp_path)
    (tmp_path / "cases.json").write_text(json.dumps([cases["malformed"]]))
    ended = one_by_one("rank_reward.py", tmp_path / "cases.json", tmp_path, "stop", ranks=2)
    for code, stderr in ended:
        assert code != 0  # usually 1; torch's own threads may abort a process that ends without taking its group down
        assert "on rank 1 of 2: DataError: completion 5 has a part of type 'image'" in stderr


# Groups of 2 on 2 x 3 rows, and of 3 on 3 x 2 rows: every rank's border cuts a group.
SHAPES = [(2, 3, 2), (3, 2, 3)]


def trained(kind, tiny, folder, shape):
    ranks, per_device, size = shape
    torchrun("rank_train.py", kind, tiny, folder, per_device, size, ranks=ranks)
    by_rank = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(ranks)]
    assert len({rank["weights"] for rank in by_rank}) == 1, "the ranks' models differ"
    return by_rank


@pytest.mark.parametrize("shape", SHAPES)
def test_a_policy_trains_on_whole_groups(tiny, tmp_path, shape):
    _, per_device, size = shape
    by_rank = trained("policy", tiny, tmp_path, shape)

    def laid_end_to_end(key):
        return [row for rank in by_rank for row in rank[key][:per_device]]

    scores = by_hand(laid_end_to_end("prompts"), laid_end_to_end("texts"), size)
    assert np.ptp(scores) > 0
    assert laid_end_to_end("advantages") == pytest.approx(advantages_of(scores, size), abs=1e-5)
    rows = list(read_records(tmp_path))
    train_rows = [row for row in rows if row["mode"] == "train"]
    assert [score for row in train_rows for score in row["scores"]] == pytest.approx(scores)
    eval_rows = [row for row in rows if row["mode"] == "eval"]
    assert {len(row["responses"]) for row in eval_rows} == {2}
    assert sum(rank["written"] for rank in by_rank) == len(rows)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_generator_trains_on_the_papers_advantages(tiny, tmp_path, shape):
    _, _, size = shape
    by_rank = trained("generator", tiny, tmp_path, shape)
    rows = list(read_records(tmp_path))
    assert [row["rubric_text"] for row in rows] == [text for rank in by_rank for text in rank["texts"]]
    assert [row["member"] for row in rows] == list(range(size)) * (len(rows) // size)
    groups = zip(*(np.array([row[key] for row in rows]).reshape(-1, size) for key in ("disc", "anchor")), strict=True)
    expected = np.concatenate([objectives.combine_advantages(disc, anchor) for disc, anchor in groups])
    assert np.ptp(expected) > 0.5
    assert [row for rank in by_rank for row in rank["advantages"]] == pytest.approx(expected, abs=1e-6)
    log = by_rank[0]["logs"][0]
    assert log["dynamicrubric/disc"] == pytest.approx(np.mean([row["disc"] for row in rows]))


def test_no_rank_is_left_waiting_when_the_generators_judge_fails_on_one(tiny, tmp_path):
    ended = one_by_one("rank_train.py", "broken", tiny, tmp_path, 3, 2, ranks=2)
    for code, stderr in ended:
        assert code != 0  # usually 1; torch's own threads may abort a process that ends without taking its group down
        assert "RankError: on rank 1 of 2: ZeroDivisionError" in stderr
