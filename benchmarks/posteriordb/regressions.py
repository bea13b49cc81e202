"""Linear regressions y ~ N(X beta, sigma^2), with the priors and units of posteriordb."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from benchmarks.posteriordb.posterior import Posterior, density
from datasets import posteriordb_data

tfb, tfd = tfp.bijectors, tfp.distributions
Data = Mapping[str, np.ndarray]


def flat(sigma: tf.Tensor, **_: Any) -> tf.Tensor:
    return tf.zeros_like(sigma)


def half_cauchy(sigma: tf.Tensor, **_: Any) -> tf.Tensor:
    return density(tfd.HalfCauchy, sigma, 0.0, 2.5)


def normal_errors(beta: tf.Tensor, sigma: tf.Tensor, batch: Data) -> tf.Tensor:
    mean = tf.linalg.matvec(batch["x"], beta)
    return tfd.Normal(mean, sigma[..., tf.newaxis]).log_prob(batch["y"])


def regression(
    y: np.ndarray, *columns: Any, prior: Callable[..., tf.Tensor] = flat, constant: bool = True
) -> Posterior:
    """Returns the regression of y on columns, behind a column of ones if it has a `constant`."""
    ones = [np.ones(len(y))] if constant else []
    x = np.column_stack([*ones, *columns]).astype(np.float64)
    data = {"x": x, "y": y.astype(np.float64)}
    shapes = {"beta": [x.shape[1]], "sigma": []}
    return Posterior(prior, normal_errors, data, shapes, {"sigma": tfb.Exp()})


def earnings(*terms: str, response: Callable[[np.ndarray], np.ndarray] = np.log) -> Posterior:
    d = posteriordb_data("earnings")
    height, male = d["height"].astype(np.float64), d["male"]
    z = standardized(height)
    columns = {
        "height": height,
        "log height": np.log(height),
        "male": male,
        "height x male": height * male,
        "z": z,
        "z x male": z * male,
    }
    return regression(response(d["earn"]), *(columns[term] for term in terms))


def standardized(x: np.ndarray, times: float = 1.0) -> np.ndarray:
    return (x - x.mean()) / (times * x.std(ddof=1))


def kidiq(*terms: str) -> Posterior:
    d = posteriordb_data("kidiq")
    columns = {"hs": d["mom_hs"], "iq": d["mom_iq"], "hs x iq": d["mom_hs"] * d["mom_iq"]}
    return regression(d["kid_score"], *(columns[term] for term in terms), prior=half_cauchy)


def kidiq_centered(kind: str) -> Posterior:
    d = posteriordb_data("kidiq_with_mom_work")
    hs, iq = d["mom_hs"], d["mom_iq"]
    if kind == "z":
        hs, iq = standardized(hs, 2.0), standardized(iq, 2.0)
    else:
        hs, iq = (hs - hs.mean(), iq - iq.mean()) if kind == "c" else (hs - 0.5, iq - 100)
    return regression(d["kid_score"], hs, iq, hs * iq)


def mom_work() -> Posterior:
    d = posteriordb_data("kidiq_with_mom_work")
    return regression(d["kid_score"], *(d["mom_work"] == level for level in (2, 3, 4)))


def mesquite(*terms: str, log: bool = True) -> Posterior:
    d = posteriordb_data("mesquite")
    columns = {
        **d,
        "volume": d["diam1"] * d["diam2"] * d["canopy_height"],
        "area": d["diam1"] * d["diam2"],
        "shape": d["diam1"] / d["diam2"],
    }
    if log:
        columns |= {name: np.log(x) for name, x in columns.items() if name not in ("group", "N")}
    return regression(columns["weight"], *(columns[term] for term in terms))


def nes(year: int) -> Posterior:
    d = posteriordb_data(f"nes{year}")
    ages = (d["age_discrete"] == level for level in (2, 3, 4))
    rest = (d[name] for name in ("educ1", "gender", "income"))
    return regression(d["partyid7"], d["real_ideo"], d["race_adj"], *ages, *rest)


def synthetic(name: str) -> Posterior:
    def prior(beta: tf.Tensor, sigma: tf.Tensor) -> tf.Tensor:
        of_beta = tf.reduce_sum(density(tfd.Normal, beta, 0.0, 10.0), axis=-1)
        return of_beta + density(tfd.Normal, sigma, 0.0, 10.0)

    d = posteriordb_data(name)
    return regression(d["y"], d["X"], prior=prior, constant=False)


def kilpisjarvi() -> Posterior:
    d = posteriordb_data("kilpisjarvi_mod")
    of_alpha = float(d["pmualpha"]), float(d["psalpha"])
    of_beta = float(d["pmubeta"]), float(d["psbeta"])

    def log_prior(alpha: tf.Tensor, beta: tf.Tensor, sigma: tf.Tensor) -> tf.Tensor:
        del sigma
        return density(tfd.Normal, alpha, *of_alpha) + density(tfd.Normal, beta, *of_beta)

    def log_likelihood(
        alpha: tf.Tensor, beta: tf.Tensor, sigma: tf.Tensor, batch: Data
    ) -> tf.Tensor:
        mean = alpha[..., tf.newaxis] + beta[..., tf.newaxis] * batch["x"]
        return tfd.Normal(mean, sigma[..., tf.newaxis]).log_prob(batch["y"])

    data = {"x": d["x"].astype(np.float64), "y": d["y"]}
    shapes: dict[str, list[int]] = {"alpha": [], "beta": [], "sigma": []}
    return Posterior(log_prior, log_likelihood, data, shapes, {"sigma": tfb.Exp()})


def diamonds() -> Posterior:
    def log_prior(b: tf.Tensor, Intercept: tf.Tensor, sigma: tf.Tensor) -> tf.Tensor:
        return (
            tf.reduce_sum(density(tfd.Normal, b, 0.0, 1.0), axis=-1)
            + density(tfd.StudentT, Intercept, 3.0, 8.0, 10.0)
            + density(tfd.StudentT, sigma, 3.0, 0.0, 10.0)
        )

    def log_likelihood(
        b: tf.Tensor, Intercept: tf.Tensor, sigma: tf.Tensor, batch: Data
    ) -> tf.Tensor:
        mean = Intercept[..., tf.newaxis] + tf.linalg.matvec(batch["x"], b)
        return tfd.Normal(mean, sigma[..., tf.newaxis]).log_prob(batch["y"])

    d = posteriordb_data("diamonds")
    x = d["X"][:, 1:].astype(np.float64)
    data = {"x": x - x.mean(axis=0), "y": d["Y"]}
    shapes = {"b": [x.shape[1]], "Intercept": [], "sigma": []}
    return Posterior(log_prior, log_likelihood, data, shapes, {"sigma": tfb.Exp()})


POSTERIORS: dict[str, Callable[[], Posterior]] = {
    "earnings-earn_height": lambda: earnings("height", response=np.asarray),
    "earnings-log10earn_height": lambda: earnings("height", response=np.log10),
    "earnings-logearn_height": lambda: earnings("height"),
    "earnings-logearn_height_male": lambda: earnings("height", "male"),
    "earnings-logearn_interaction": lambda: earnings("height", "male", "height x male"),
    "earnings-logearn_interaction_z": lambda: earnings("z", "male", "z x male"),
    "earnings-logearn_logheight_male": lambda: earnings("log height", "male"),
    "kidiq-kidscore_momhs": lambda: kidiq("hs"),
    "kidiq-kidscore_momiq": lambda: kidiq("iq"),
    "kidiq-kidscore_momhsiq": lambda: kidiq("hs", "iq"),
    "kidiq-kidscore_interaction": lambda: kidiq("hs", "iq", "hs x iq"),
    "kidiq_with_mom_work-kidscore_interaction_c": lambda: kidiq_centered("c"),
    "kidiq_with_mom_work-kidscore_interaction_c2": lambda: kidiq_centered("c2"),
    "kidiq_with_mom_work-kidscore_interaction_z": lambda: kidiq_centered("z"),
    "kidiq_with_mom_work-kidscore_mom_work": mom_work,
    "mesquite-mesquite": lambda: mesquite(
        "diam1", "diam2", "canopy_height", "total_height", "density", "group", log=False
    ),
    "mesquite-logmesquite": lambda: mesquite(
        "diam1", "diam2", "canopy_height", "total_height", "density", "group"
    ),
    "mesquite-logmesquite_logvolume": lambda: mesquite("volume"),
    "mesquite-logmesquite_logva": lambda: mesquite("volume", "area", "group"),
    "mesquite-logmesquite_logvas": lambda: mesquite(
        "volume", "area", "shape", "total_height", "density", "group"
    ),
    "mesquite-logmesquite_logvash": lambda: mesquite(
        "volume", "area", "shape", "total_height", "group"
    ),
    **{
        f"nes{year}-nes": lambda year=year: nes(year)
        for year in (1972, 1976, 1980, 1984, 1988, 1992, 1996, 2000)
    },
    "sblrc-blr": lambda: synthetic("sblrc"),
    "sblri-blr": lambda: synthetic("sblri"),
    "kilpisjarvi_mod-kilpisjarvi": kilpisjarvi,
    "diamonds-diamonds": diamonds,
}
