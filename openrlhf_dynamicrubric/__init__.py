"""DynamicRubric: rubric rewards written for the responses that a policy gives now (arXiv:2607.20083).

Importing the package loads numpy and the standard library only; adapters and backends load what they need when they are used.
"""

from openrlhf_dynamicrubric.evaluator import Evaluator, EvaluatorConfig
from openrlhf_dynamicrubric.types import Evaluation, ResponseSet, Rubric, RubricItem, Unscorable

__version__ = "0.1.0"
__all__ = ["Evaluation", "Evaluator", "EvaluatorConfig", "ResponseSet", "Rubric", "RubricItem", "Unscorable"]
