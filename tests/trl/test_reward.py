import inspect
import logging
import pickle
import random

import numpy as np
import pytest
import torch
from datasets import Dataset
from trl.trainer.grpo_trainer import GRPOTrainer

from openrlhf_dynamicrubric import Evaluator, EvaluatorConfig
from openrlhf_dynamicrubric.aio import run
from openrlhf_dynamicrubric.errors import ConfigError, DataError, ModelCallError, UnscorableRunError
from openrlhf_dynamicrubric.llm import load
from openrlhf_dynamicrubric.records import read_records
from openrlhf_dynamicrubric.trl.reward import DynamicRubricReward
from openrlhf_dynamicrubric.types import ResponseSet
from tests.scripted import ScriptedModel
from tests.trl.support import Advantages, coin_model, down, grpo_args

# The scripted rubric: "Contains a" weighs 5, "Contains b" 3.
SCORES = {"a": 5 / 8, "b": 3 / 8, "ab": 1.0, "c": 0.0}


def reward(model=None, **options):
    model = model or ScriptedModel()
    return DynamicRubricReward(model, model, **options)


def only_for(word):
    """A generator that is down for every prompt with the word in it."""
    return lambda prompt, seed: down() if word in str(prompt) else ScriptedModel().write(prompt, seed)


class State:
    global_step = 7


# ---- called by hand


def test_each_completion_gets_its_share_of_the_rubrics_weight():
    scores = reward()(["p"] * 4, ["a", "b", "ab", "c"], num_generations=4)
    assert scores == [SCORES["a"], SCORES["b"], SCORES["ab"], SCORES["c"]]
    assert [type(score) for score in scores] == [float] * 4


def test_every_group_has_a_rubric_of_its_own():
    model = ScriptedModel()
    assert reward(model)(["p", "p", "q", "q"], ["a", "b", "ab", "c"]) == [5 / 8, 3 / 8, 1.0, 0.0]
    assert len(model.written) == 2


def test_groups_are_cut_by_position_where_the_size_is_given():
    model = ScriptedModel()
    assert reward(model, num_generations=2)(["p"] * 4, ["a", "b", "ab", "c"]) == [5 / 8, 3 / 8, 1.0, 0.0]
    assert len(model.written) == 2


def test_no_completions_give_no_scores():
    assert reward()([], []) == []


def test_chats_score_as_texts_do():
    prompt = [{"role": "user", "content": [{"type": "text", "text": "p"}]}]
    completions = [[{"role": "assistant", "content": text}] for text in ("a", "b")]
    assert reward()([prompt] * 2, completions) == [5 / 8, 3 / 8]


def test_several_turns_are_judged_as_one_conversation():
    model = ScriptedModel()
    turns = [{"role": "assistant", "content": "b"}, {"role": "tool", "content": "1"}, {"role": "assistant", "content": "b"}]
    reward(model)(["p"] * 2, [turns, turns])
    assert {response for response, _ in model.asked} == {
        '{"role": "assistant", "content": "b"}\n{"role": "tool", "content": "1"}\n{"role": "assistant", "content": "b"}'
    }


def test_a_group_that_cannot_be_scored_gives_none_and_leaves_the_others_alone(caplog: pytest.LogCaptureFixture):
    scores = reward(ScriptedModel(only_for("broken")))(["broken", "broken", "q", "q"], ["a", "b", "a", "b"])
    assert scores == [None, None, 5 / 8, 3 / 8]
    [record] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert record.getMessage() == "1 of 2 groups could not be scored; the first: the judge is down"


def test_an_outage_of_the_verifier_is_no_score_either():
    model = ScriptedModel(judge=lambda response, criterion: ModelCallError("timeout"))
    assert reward(model)(["p"] * 2, ["a", "b"]) == [None, None]


def test_a_run_whose_judges_are_down_is_stopped_with_the_reason():
    broken = reward(ScriptedModel(down), max_unscorable_steps=3)
    for _ in range(2):
        assert broken(["p"] * 2, ["a", "b"]) == [None, None]
    with pytest.raises(
        UnscorableRunError, match="no group could be scored in 3 steps in a row; the last reason: the judge is down"
    ):
        broken(["p"] * 2, ["a", "b"])


def test_one_scored_group_starts_the_count_anew():
    one = reward(ScriptedModel(only_for("broken")), max_unscorable_steps=2)
    for prompt in ("broken", "p", "broken", "p"):
        one([prompt] * 2, ["a", "b"])


def test_zero_bears_any_number_of_steps():
    broken = reward(ScriptedModel(down), max_unscorable_steps=0)
    for _ in range(8):
        assert broken(["p"] * 2, ["a", "b"]) == [None, None]


def test_rows_that_are_no_whole_groups_are_refused():
    with pytest.raises(DataError, match="3 completions over all ranks do not divide into groups of 2"):
        reward(num_generations=2)(["p"] * 3, ["a", "b", "c"])
    with pytest.raises(DataError, match=r"completions 2 and 3 .* their prompts differ"):
        reward(num_generations=2)(["p", "p", "p", "q"], ["a", "b", "c", "d"])
    with pytest.raises(DataError, match="2 prompts for 1 completions"):
        reward()(["p", "p"], ["a"])
    with pytest.raises(DataError, match="completion 1 has a part of type 'image'"):
        reward()(["p"] * 2, ["a", [{"role": "assistant", "content": [{"type": "image"}]}]])


def test_records_name_the_judges_and_no_path(tmp_path):
    named = ScriptedModel()
    named.name = "/somewhere/of/mine/Judge-7B"
    DynamicRubricReward(ScriptedModel(), named, records=tmp_path / "records")(["p"] * 2, ["a", "b"])
    [row] = read_records(tmp_path)
    assert (row["generator"], row["verifier"]) == ("scripted", "Judge-7B")
    (tmp_path / "my-judge").mkdir()
    by_name = DynamicRubricReward(tmp_path / "my-judge", "org/big", records=tmp_path)
    assert by_name.records.context == {"generator": "my-judge", "verifier": "org/big"}
    of_config = DynamicRubricReward(config=EvaluatorConfig(generator="/a/b/c", verifier="embedded"), records=tmp_path)
    assert of_config.records.context == {"generator": "c", "verifier": "embedded"}


def test_extra_columns_are_no_concern_and_ids_reach_the_records(tmp_path):
    scored = reward(records=tmp_path / "records")
    scored(["p"] * 2 + ["q"] * 2, ["a", "b"] * 2, id=[5, 5, 6, 6], anchors=[["x"]] * 4, trainer_state=State())
    first, second = read_records(tmp_path)
    assert [(row["kind"], row["id"], row["step"], row["prompt"]) for row in (first, second)] == [
        ("group", "5", 7, "p"),
        ("group", "6", 7, "q"),
    ]
    assert first["scores"] == [5 / 8, 3 / 8]
    assert first["verdicts"] == [[1, 0], [0, 1]]
    assert "mode" not in first


def test_an_unscorable_group_is_recorded_with_its_reason(tmp_path):
    reward(ScriptedModel(down), records=tmp_path / "records")(["p"] * 2, ["a", "b"])
    [row] = read_records(tmp_path)
    assert (row["scores"], row["step"]) == (None, 0)
    assert row["unscorable"] == {"kind": "generator_call", "reason": "the judge is down"}


def test_rubric_and_verdicts_of_every_row_are_logged_where_the_caller_can():
    extra, metrics = {}, {}
    prompts = ["p"] * 2 + ["broken"] * 2
    reward(ScriptedModel(only_for("broken")))(
        prompts, ["a", "ab", "c", "c"], log_extra=extra.__setitem__, log_metric=metrics.__setitem__
    )
    assert extra == {
        "rubric": ["[5] Contains a\n[3] Contains b"] * 2 + ["(none: the judge is down)"] * 2,
        "verdicts": ["1 0", "1 1", "", ""],
    }
    assert metrics["dynamicrubric/unscorable_groups"] == 0.5
    assert metrics["dynamicrubric/score_gap"] == pytest.approx(3 / 8)


# ---- what an object has to be for TRL


def test_trl_takes_it_for_a_plain_function_of_that_name():
    one = reward()
    assert one.__name__ == "dynamicrubric"
    assert DynamicRubricReward.__name__ == "DynamicRubricReward"
    assert not inspect.iscoroutinefunction(one)
    assert not inspect.iscoroutinefunction(one.__call__)
    assert not isinstance(one, torch.nn.Module)


def test_it_is_pickled_without_the_models_that_it_loaded(monkeypatch: pytest.MonkeyPatch):
    loaded = []

    def load_evaluator(config, *, with_generator=True):
        loaded.append(config.generator)
        model = ScriptedModel()
        return Evaluator(generator=model, verifier=model, config=config)

    monkeypatch.setattr(load, "load_evaluator", load_evaluator)
    one = DynamicRubricReward("some/model", max_items=3, num_generations=2)
    assert loaded == []
    assert one(["p"] * 2, ["a", "b"]) == one(["p"] * 2, ["a", "b"]) == [5 / 8, 3 / 8]
    assert loaded == ["some/model"]
    twin = pickle.loads(pickle.dumps(one))
    assert (twin.config, twin.num_generations) == (one.config, 2)
    assert twin(["p"] * 2, ["a", "b"]) == [5 / 8, 3 / 8]
    assert loaded == ["some/model"] * 2


def test_a_given_judge_is_used_and_only_the_other_one_loaded(monkeypatch: pytest.MonkeyPatch):
    asked = []

    def load_model(name, *, dtype, batch_tokens):
        asked.append((name, dtype, batch_tokens))
        return ScriptedModel()

    monkeypatch.setattr(load, "load_model", load_model)
    one = DynamicRubricReward(verifier=ScriptedModel(), config=EvaluatorConfig(generator="a/b"), judge_batch_tokens=512)
    assert one(["p"] * 2, ["a", "b"]) == [5 / 8, 3 / 8]
    assert asked == [("a/b", "auto", 512)]


def test_judging_leaves_no_trace_in_random_numbers_and_takes_no_gradients():
    modes = []

    def judge(response, criterion):
        modes.append(torch.is_grad_enabled())
        torch.manual_seed(random.randrange(100))
        return float(np.random.rand())

    torch.manual_seed(3), np.random.seed(3), random.seed(3)
    before = torch.get_rng_state(), np.random.get_state(), random.getstate()
    reward(ScriptedModel(judge=judge))(["p"] * 2, ["a", "b"])
    after = torch.get_rng_state(), np.random.get_state(), random.getstate()
    assert torch.equal(before[0], after[0])
    assert (before[1][1] == after[1][1]).all()
    assert before[1][2:] == after[1][2:]
    assert before[2] == after[2]
    assert modes == [False] * 4
    assert torch.is_grad_enabled()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_item": 3}, "unknown option 'max_item'; options are generator, verifier, .*max_items"),
        ({"max_items": 0}, "max_items cannot be 0"),
        ({"num_generations": 0}, "num_generations must be at least 1"),
        ({"max_unscorable_steps": -1}, "max_unscorable_steps must be at least 0"),
        ({"generator": 3}, "generator must be a name, a folder or a LanguageModel, got int"),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(ConfigError, match=message):
        DynamicRubricReward(**options)


# ---- in a trainer


def train(tiny, folder, model, prompts, *, eval_prompts=None, records=None, **options):
    rows = [{"prompt": prompt, "id": f"p{index}", "note": "kept"} for index, prompt in enumerate(prompts)]
    one = reward(model, records=records)
    trainer = GRPOTrainer(
        str(tiny),
        reward_funcs=one,
        args=grpo_args(folder, **options),
        train_dataset=Dataset.from_list(rows),
        eval_dataset=Dataset.from_list([{"prompt": prompt, "id": "e"} for prompt in eval_prompts]) if eval_prompts else None,
    )
    seen = Advantages(trainer)
    before = {name: weight.clone() for name, weight in trainer.model.named_parameters()}
    trainer.train()
    changed = any(not torch.equal(before[name], weight) for name, weight in trainer.model.named_parameters())
    return trainer, seen, changed


def by_hand(prompts, texts, size):
    """Scores of the same completions from the package's own evaluator."""
    groups = [ResponseSet(prompts[start], tuple(texts[start : start + size])) for start in range(0, len(texts), size)]
    model = coin_model()
    outcomes = run(Evaluator(generator=model, verifier=model).evaluate_many(groups))
    return np.concatenate([outcome.scores_K for outcome in outcomes])


def advantages_of(scores, size):
    groups = np.asarray(scores).reshape(-1, size)
    return ((groups - groups.mean(1, keepdims=True)) / (groups.std(1, ddof=1, keepdims=True) + 1e-4)).ravel()


@pytest.mark.parametrize("chat", [False, True])
def test_training_takes_its_advantages_from_the_groups_scores(tiny, tmp_path, chat):
    texts = ["say a", "say b", "say c"]
    prompts = [[{"role": "user", "content": text}] for text in texts] if chat else texts
    trainer, seen, changed = train(
        tiny, tmp_path, coin_model(), prompts, per_device_train_batch_size=12, records=tmp_path / "records"
    )
    scores = by_hand(seen.prompts, seen.texts, 4)
    assert np.ptp(scores) > 0
    assert seen.rows == pytest.approx(advantages_of(scores, 4), abs=1e-5)
    assert changed
    rows = list(read_records(tmp_path))
    assert [score for row in rows for score in row["scores"]] == pytest.approx(scores)
    assert {row["id"] for row in rows} == {"p0", "p1", "p2"}
    assert {(row["mode"], row["step"]) for row in rows} == {("train", 0)}
    assert trainer.state.log_history[0]["rewards/dynamicrubric/mean"] == pytest.approx(scores.mean())
    assert trainer.state.log_history[0]["dynamicrubric/items_per_rubric"] == 3


def test_neighbouring_rows_with_the_same_prompt_are_two_groups(tiny, tmp_path):
    model = coin_model()
    _, seen, _ = train(tiny, tmp_path, model, ["say a", "say a"], per_device_train_batch_size=8)
    assert len(model.written) == 2
    assert seen.rows == pytest.approx(advantages_of(by_hand(seen.prompts, seen.texts, 4), 4), abs=1e-5)


def test_an_unscorable_groups_rows_have_no_advantage_and_the_others_keep_theirs(tiny, tmp_path):
    prompts = ["say a", "broken", "say c"]
    model = coin_model()
    whole = model.write
    model.write = lambda prompt, seed: down() if "broken" in str(prompt) else whole(prompt, seed)
    trainer, seen, _ = train(tiny, tmp_path, model, prompts, per_device_train_batch_size=12)
    expected = advantages_of(by_hand(seen.prompts, seen.texts, 4), 4)
    broken = [prompt == "broken" for prompt in seen.prompts]
    expected[broken] = 0
    assert sum(broken) == 4
    assert seen.rows == pytest.approx(expected, abs=1e-5)
    assert trainer.state.log_history[0]["dynamicrubric/unscorable_groups"] == pytest.approx(1 / 3)


def test_evaluation_has_a_group_size_of_its_own(tiny, tmp_path):
    options = {"eval_strategy": "steps", "eval_steps": 1, "num_generations_eval": 2, "per_device_eval_batch_size": 6}
    trainer, _, _ = train(
        tiny,
        tmp_path,
        coin_model(),
        ["say a", "say b"],
        eval_prompts=["ask a", "ask b", "ask c", "ask d"],
        records=tmp_path / "records",
        **options,
    )
    rows = list(read_records(tmp_path))
    assert [(row["mode"], len(row["responses"])) for row in rows] == [("train", 4)] + [("eval", 2)] * 4
    assert {row["prompt"] for row in rows[1:]} == {"ask a", "ask b", "ask c", "ask d"}
    [logged] = [log for log in trainer.state.log_history if "eval_loss" in log]
    assert logged["eval_dynamicrubric/items_per_rubric"] == 3


def test_groups_gathered_over_several_backward_passes_are_whole(tiny, tmp_path):
    model = coin_model()
    _, seen, _ = train(tiny, tmp_path, model, ["say a", "say b"], per_device_train_batch_size=2, gradient_accumulation_steps=4)
    assert len(model.written) == 2
    assert seen.rows == pytest.approx(advantages_of(by_hand(seen.prompts, seen.texts, 4), 4), abs=1e-5)


def test_a_mode_that_cannot_be_told_is_refused(tiny, tmp_path):
    class Trainer:
        num_generations, num_generations_eval = 4, 2
        args = grpo_args(tmp_path, use_transformers_continuous_batching=True, num_generations_eval=2)

        def log_metric(self, name, value): ...

    with pytest.raises(ConfigError, match=r"num_generations_eval \(2\) to equal num_generations \(4\)"):
        reward()(["p"] * 4, ["a"] * 4, log_metric=Trainer().log_metric)


def test_completions_without_a_group_are_refused() -> None:
    reward = DynamicRubricReward(ScriptedModel(), ScriptedModel())
    with pytest.raises(DataError, match=r"every completion would be a group of its own.*give num_generations"):
        reward(prompts=["p", "q", "p", "q"], completions=["a", "b", "c", "d"])
