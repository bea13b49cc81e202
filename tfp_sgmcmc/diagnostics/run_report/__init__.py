"""The report on a run: bias, convergence, and tests of the gradients at its draws."""
