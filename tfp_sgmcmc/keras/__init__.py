"""`model.fit` as a posterior sampler: a Keras callback around any stochastic-gradient kernel."""

from tfp_sgmcmc.keras.callback import SamplerCallback
from tfp_sgmcmc.keras.likelihoods import NegativeLogLikelihood
from tfp_sgmcmc.keras.patterns import by_variable
from tfp_sgmcmc.keras.predict import Prediction
from tfp_sgmcmc.keras.target import ModelLogProb

__all__ = ["ModelLogProb", "NegativeLogLikelihood", "Prediction", "SamplerCallback", "by_variable"]
