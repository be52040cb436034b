"""Language models that write rubrics and answer yes or no."""
