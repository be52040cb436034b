"""`python -m openrlhf_dynamicrubric <command>`, the form that torchrun and accelerate launch."""

import sys

from openrlhf_dynamicrubric.cli import main

if __name__ == "__main__":
    sys.exit(main())
