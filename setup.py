"""Packaging; see README.md for how to install."""

from pathlib import Path

from setuptools import find_packages, setup

NAME = "openrlhf_dynamicrubric"
INIT = Path(__file__).parent / NAME / "__init__.py"
VERSION = next(line.split('"')[1] for line in INIT.read_text().splitlines() if line.startswith("__version__"))

TRL = [
    "torch>=2.6,<3",
    "transformers>=5.24,<5.25",
    "trl>=1.16,<1.17",
    "accelerate>=1.15,<2",
    "datasets>=5.2,<6",
    "llguidance>=1.9,<2",
]
DEMO = ["gguf>=0.19,<1"]
DEV = [
    "pytest>=9,<10",
    "pytest-timeout>=2.4,<3",
    "hypothesis>=6.170,<7",
    "ruff==0.17.6",
    "pyright==1.1.414",
    "tensorboard>=2.21,<3",
]

setup(
    name=NAME,
    version=VERSION,
    description="Rubric rewards that are written for the responses a policy gives now: DynamicRubric for GRPO trainers.",
    long_description=(Path(__file__).parent / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11",
    packages=find_packages(include=[NAME, f"{NAME}.*"]),
    package_data={NAME: ["py.typed", "report/*.html", "data/*", "prompts/*.txt"]},
    install_requires=["numpy>=2.0,<3", "PyYAML>=6,<7", "rich>=14,<16", "Jinja2>=3.1,<4", "matplotlib>=3.10,<4"],
    extras_require={"trl": TRL, "demo": TRL + DEMO, "dev": TRL + DEMO + DEV},
    entry_points={"console_scripts": ["dynamicrubric = openrlhf_dynamicrubric.cli:main"]},
    classifiers=["Programming Language :: Python :: 3.11", "Typing :: Typed"],
)
