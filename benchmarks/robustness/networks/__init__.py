"""Small networks of many architectures, each with the data that it is fitted to."""

from benchmarks.robustness.networks import dense, images, refused, sequences, structured
from benchmarks.robustness.networks.network import Network

#: Network by name. A call of an entry makes the network, with the same weights each time.
NETWORKS = dense.NETWORKS | images.NETWORKS | sequences.NETWORKS | structured.NETWORKS
#: The same, of networks that no sampler can take, each with the words that tell why.
REFUSED = refused.NETWORKS

__all__ = ["NETWORKS", "REFUSED", "Network"]
