import pytest

from openrlhf_dynamicrubric.errors import ConfigError
from openrlhf_dynamicrubric.trl.sampling import constrain_vllm, constrained_generate
from tests.trl.support import grpo_args


class Model:
    def generate(self, *args, **kwargs):
        return args, kwargs


def test_the_processor_is_there_inside_and_gone_afterwards():
    model = Model()
    with constrained_generate(model, len):
        args, kwargs = model.generate(1, generation_config=2)
    assert args == (1,)
    assert kwargs == {"generation_config": 2, "logits_processor": [len]}
    assert model.generate(1) == ((1,), {})
    assert "generate" not in vars(model)


def test_it_is_gone_after_an_error_too():
    model = Model()
    with pytest.raises(ZeroDivisionError), constrained_generate(model, len):
        1 // 0  # noqa: B018
    assert "generate" not in vars(model)


def test_vllm_gets_the_schema_beside_the_users_own_options(tmp_path):
    mine = {"seed": 3}
    args = grpo_args(tmp_path, generation_kwargs=mine)
    constrain_vllm(args, {"type": "object"})
    assert args.generation_kwargs == {"seed": 3, "structured_outputs": {"json": {"type": "object"}}}
    assert mine == {"seed": 3}
    constrain_vllm(args, {"type": "object"})  # a second trainer with the same options


@pytest.mark.parametrize(
    "options",
    [{"vllm_structured_outputs_regex": "a+"}, {"generation_kwargs": {"structured_outputs": {"regex": "a+"}}}],
)
def test_a_structure_of_the_users_own_is_not_overwritten(tmp_path, options):
    with pytest.raises(ConfigError, match="set constrained_rubrics to false to use it"):
        constrain_vllm(grpo_args(tmp_path, **options), {})
