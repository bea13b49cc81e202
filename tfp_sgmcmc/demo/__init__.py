"""The demonstration behind `python -m tfp_sgmcmc`: two posteriors, two tables, three figures."""
