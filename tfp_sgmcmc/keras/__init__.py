"""`model.fit` as a posterior sampler: a Keras callback around any stochastic-gradient kernel."""

from tfp_sgmcmc.keras.callback import SamplerCallback
from tfp_sgmcmc.keras.evaluate import Evaluation
from tfp_sgmcmc.keras.likelihoods import NegativeLogLikelihood
from tfp_sgmcmc.keras.patterns import by_variable
from tfp_sgmcmc.keras.posterior import Posterior
from tfp_sgmcmc.keras.predict import PosteriorPrediction, Prediction
from tfp_sgmcmc.keras.target import ModelLogProb

__all__ = [
    "Evaluation",
    "ModelLogProb",
    "NegativeLogLikelihood",
    "Posterior",
    "PosteriorPrediction",
    "Prediction",
    "SamplerCallback",
    "by_variable",
]
