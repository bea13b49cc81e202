"""The demonstration behind `python -m tfp_sgmcmc`, written with the public API alone."""
