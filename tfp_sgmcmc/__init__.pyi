"""The public names, each with its home; `__init__.py` loads a name from there on first use."""

from tfp_sgmcmc import adaptation as adaptation
from tfp_sgmcmc import covariance as covariance
from tfp_sgmcmc import diagnostics as diagnostics
from tfp_sgmcmc import keras as keras
from tfp_sgmcmc import kernels as kernels
from tfp_sgmcmc import preconditioners as preconditioners
from tfp_sgmcmc import random as random
from tfp_sgmcmc import sampling as sampling
from tfp_sgmcmc import schedules as schedules
from tfp_sgmcmc import storage as storage
from tfp_sgmcmc import targets as targets
from tfp_sgmcmc.adaptation import sample as sample
from tfp_sgmcmc.adaptation import tune as tune
from tfp_sgmcmc.diagnostics import NonFiniteChainError as NonFiniteChainError
from tfp_sgmcmc.diagnostics import check_finite as check_finite
from tfp_sgmcmc.diagnostics import report as report
from tfp_sgmcmc.kernels import NOGIN as NOGIN
from tfp_sgmcmc.kernels import SGFS as SGFS
from tfp_sgmcmc.kernels import SGHMC as SGHMC
from tfp_sgmcmc.kernels import SGLD as SGLD
from tfp_sgmcmc.kernels import SGNHT as SGNHT
from tfp_sgmcmc.kernels import CCAdL as CCAdL
from tfp_sgmcmc.kernels import CorrectedLangevin as CorrectedLangevin
from tfp_sgmcmc.kernels import ModifiedSGLD as ModifiedSGLD
from tfp_sgmcmc.kernels import ReplicaExchangeSGLD as ReplicaExchangeSGLD
from tfp_sgmcmc.kernels import UnderdampedLangevin as UnderdampedLangevin
from tfp_sgmcmc.sampling import SampleResult as SampleResult
from tfp_sgmcmc.sampling import ShardedResult as ShardedResult
from tfp_sgmcmc.sampling import export_program as export_program
from tfp_sgmcmc.sampling import open_shards as open_shards
from tfp_sgmcmc.storage import Directory as Directory
from tfp_sgmcmc.targets import SVRG as SVRG
from tfp_sgmcmc.targets import ControlVariate as ControlVariate
from tfp_sgmcmc.targets import FullDataLogProb as FullDataLogProb
from tfp_sgmcmc.targets import GradientEstimate as GradientEstimate
from tfp_sgmcmc.targets import GrowingBatch as GrowingBatch
from tfp_sgmcmc.targets import LinearModel as LinearModel
from tfp_sgmcmc.targets import MinibatchLogProb as MinibatchLogProb
from tfp_sgmcmc.targets import ShardedLogProb as ShardedLogProb
from tfp_sgmcmc.targets import StreamedLogProb as StreamedLogProb
from tfp_sgmcmc.targets import find_center as find_center
from tfp_sgmcmc.targets import largest_curvature as largest_curvature
from tfp_sgmcmc.targets import preflight as preflight
from tfp_sgmcmc.targets import whiten as whiten

__version__: str
