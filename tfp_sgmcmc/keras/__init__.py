"""`model.fit` as a posterior sampler: a Keras callback around any stochastic-gradient kernel."""

# ruff: noqa: E402, I001  # the backend is checked before Keras loads it
from tfp_sgmcmc.internal import keras_backend

keras_backend.check()

from tfp_sgmcmc.keras import losses
from tfp_sgmcmc.keras.last_layer import last_layer_laplace
from tfp_sgmcmc.keras.swag import SWAG
from tfp_sgmcmc.keras.callback import SamplerCallback
from tfp_sgmcmc.keras.data.fit_batches import IndependentBatches
from tfp_sgmcmc.keras.data.fit_batches import WorkerBatches
from tfp_sgmcmc.keras.find_step_size import find_step_size
from tfp_sgmcmc.keras.fit_result import FitResult
from tfp_sgmcmc.keras.model.likelihoods import NegativeLogLikelihood
from tfp_sgmcmc.keras.model.log_prob import ModelLogProb
from tfp_sgmcmc.keras.model.priors import by_variable
from tfp_sgmcmc.keras.options import Chains, Collect
from tfp_sgmcmc.keras.posterior.evaluate import TemperatureScaling, expected_calibration_error
from tfp_sgmcmc.keras.posterior.evaluate import Evaluation
from tfp_sgmcmc.keras.posterior.posterior import Posterior
from tfp_sgmcmc.keras.posterior.predict import PosteriorPrediction, Prediction, Predictive
from tfp_sgmcmc.keras.posterior.summary import Summary
from tfp_sgmcmc.keras.records.fit_plan import FitPlan as Plan
from tfp_sgmcmc.keras.traces import Traces

__all__ = [
    "SWAG",
    "Chains",
    "Collect",
    "Evaluation",
    "FitResult",
    "IndependentBatches",
    "ModelLogProb",
    "NegativeLogLikelihood",
    "Plan",
    "Posterior",
    "PosteriorPrediction",
    "Prediction",
    "Predictive",
    "SamplerCallback",
    "Summary",
    "TemperatureScaling",
    "Traces",
    "WorkerBatches",
    "by_variable",
    "expected_calibration_error",
    "find_step_size",
    "last_layer_laplace",
    "losses",
]
