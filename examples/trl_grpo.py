# pyright: reportPrivateImportUsage=false
"""GRPO on a policy of your own with DynamicRubric rewards: python examples/trl_grpo.py, or torchrun / accelerate launch.

Runs on a CPU with the embedded model in all three roles, which shows that everything runs and nothing else: name real models.
"""

from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer

from openrlhf_dynamicrubric.anchors import data_path
from openrlhf_dynamicrubric.llm.embedded import embedded_model
from openrlhf_dynamicrubric.trl import DynamicRubricReward


def main() -> None:
    prompts = load_dataset("json", data_files=str(data_path("demo")), split="train")  # any dataset with a `prompt` column
    prompts = prompts.map(lambda row: {"prompt": [{"role": "user", "content": row["prompt"]}]})
    reward = DynamicRubricReward(
        generator="embedded",  # or a folder, or a hub's name
        verifier="embedded",
        records="runs/trl_grpo_py/records",  # every rubric, verdict and score
        max_items=3,
        max_criterion_chars=60,
        rubric_max_tokens=160,
    )
    args = GRPOConfig(
        output_dir="runs/trl_grpo_py",
        num_generations=4,  # K, the responses that are scored together
        per_device_train_batch_size=4,
        max_completion_length=48,
        max_steps=2,
        logging_steps=1,
        report_to="none",
        use_cpu=True,
        bf16=False,
    )
    trainer = GRPOTrainer(model=str(embedded_model()), reward_funcs=reward, args=args, train_dataset=prompts)
    trainer.train()


if __name__ == "__main__":
    main()
