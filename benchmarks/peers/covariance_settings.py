"""Settings that both sides of `covariance.py` share."""

PRIOR_PRECISION = 0.01
FRICTION = 1.0
DECAY = 0.99
STEP_SIZES = {"NOGIN": 0.02, "CCAdL": 0.003, "SGLD": 2e-4}
