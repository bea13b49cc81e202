"""Values of the catalogue that are accepted, each with the reason why that does no harm."""

from __future__ import annotations

import re

# Patterns of "callable(argument=value)", and the reason.
REASONS = {
    r"SGHMC\(covariance=None\)": "None leaves the gradient noise uncorrected, as documented",
    r"(SGFS|NOGIN)\(num_estimation_steps=None\)": "None chooses the number by a rule",
    r"RunningMean\(decay=0.0\)": "the average of the last minibatch alone",
    r"(Minibatch|Sharded|Streamed)LogProb\(log_prior_fn=a function, returns 0.0\)": "a flat prior",
    r"StreamedLogProb\(num_examples=9\)": "a dataset may drop its remainder of one example",
    r"StreamedLogProb\(files=\[\]\)": "no files are known",
    r"CCAdL\.largest_stable_step\(largest_noise=(True|0|1\.5|array\(\[1.*|<tf\.Tensor.*)\)": (
        "an eigenvalue of the noise, or one for each chain"
    ),
    r"sample\(target=(<function log_prior.*|<tfp_sgmcmc.targets.base.FullDataLogProb object)\)": (
        "a log posterior of all data"
    ),
    r"sample\((num_chains|min_ess)=None\)": "None leaves the default",
    r"SamplerCallback\(kernel=None\)": "an ensemble that needs no kernel",
    r"preflight\(rtol=inf\)": "allows every difference, as was asked",
    r"(check_finite|integrated_autocorrelation_time|autocorrelation_time_unit_cost)"
    r"\(samples=(\[\]|\{\}|array\(\[\].*)\)": "no draws, of which nothing is said",
    r"weighted_expectation\(values=\{\}\)": "an empty nest, as given",
    r"PositionDependent\(divergence_fn=a function, returns (1|array\(\[1., 1.\]\))\)": "a constant "
    "that broadcasts to the state",
    r"ConstantBelow\(schedule=a function, returns array\(.*\)": "one value for each chain",
    r"find_center\(learning_rate=a function, returns 0.0\)": "warns that it has not converged",
    r"kinetic_temperature\(momentum=\[\[1.0\], \[1.0, 2.0\]\]\)": "a nest of three scalar parts",
    r"Traces\(weights=(\[\]|\{\}|set\(\)|0)\)": "no weight is traced, as was asked",
    r"GrowingBatch\(growth=inf\)": "all examples from the second estimate on",
    r"SamplerCallback\(num_groups=\d+\)": "a batch has as many groups as examples, at most",
    r"Posterior.distil\(batch_size=\d+\)": "a step takes all rows, as in fit",
    r"Posterior.plot_(calibration|predictions)\((x|y)=float\d\d \[8, 1\]\)": "one for each row",
    r"Posterior.plot_predictions\(batch_size=\d+\)": "rows are fewer",
    r"Traces\(sampler=<.*SamplerCallback object\)": "the sampler of its own fit takes its place",
    r"find_step_size\(sample_weight=float64 \[8\]\)": "a weight for each row",
}

# Public names that no user calls with arguments of his own, and the reason; the rest is called.
UNCALLED = {
    r".*(Reducer|RunningMean|History)\.(initialize|one_step|finalize|init|update|update_slots)": (
        "TFP or a kernel calls it"
    ),
    r"covariance\.\w+\.(evaluate|groups|init|num_bytes|prepare|with_average)": "a kernel calls it",
    r"covariance\.(CovarianceEstimator|NoiseCovariance.*)": "what a kernel works with",
    r"preconditioners\.\w+\.(evaluate|init)": "a kernel calls it",
    r"preconditioners\.(Preconditioner|NaturalGradientICA)": "it has no arguments",
    r"kernels.CorrectedLangevin.largest_stable_step": "infinite, whatever the arguments",
    r".*\.(bootstrap|chain_shape|metric_product)": "a kernel or a check calls it",
    r"targets\.\w+\.(draw|estimate_from|gathered|linear_predictor|log_likelihood|log_prior|model_log_prior|next_draw"
    r"|next_indices|rows|scaled_sum|scores|sum_over_chunks|summed|weighted|with_most|reads|log_prob"
    r"|predictor)": "a kernel or another target calls it",
    r"targets\.(StreamedLogProb|ShardedLogProb)\.(estimate|constrain|unconstrain|with_.*)": (
        "that of MinibatchLogProb"
    ),
    r"targets\.(Target|Target\.estimate|CenterReport|as_target)": "an interface, a result, a part",
    r"random\.(fresh_seed|numbered_seed)": "no arguments, and a part of others",
    r".*\.(figure|named_draws|to_inference_data|rhat|effective_sample_size|to_estimator)": (
        "no arguments"
    ),
    r".*(Error|Report|Result|Summary)": "what a call returns or raises",
    r"keras\.(IndependentBatches|WorkerBatches|SamplerCallback|SWAG|Traces)\.(at|begin_epoch|rows|shares|spec_of"
    r"|get_tf_dataset|get_config|on_\w+|set_model)": "Keras calls it",
    r"keras\.(NegativeLogLikelihood|losses\.\w+)\.(call|distribution|from_config|get_config)": (
        "Keras calls it"
    ),
    r"schedules\.(Schedule|\w+\.get_config)": "an interface that Keras calls",
    r"schedules\.Cyclical\.(is_sampling|position)": "of a step, which a kernel numbers",
    r"adaptation\.Choices(\.program)?": "what a call returns",
    r"diagnostics\.(Certificate|Comparison|LeaveOneOut)": "what a call returns",
    r".*\.table": "no arguments",
    r"sampling\.ShardedResult\.(log_likelihood|loo|map|plot|plot_marginals|predict|summary)": (
        "that of SampleResult"
    ),
    r".*\.(noise_temperature|largest_noise|log_prob_of_many|features)": (
        "a check or a target calls it"
    ),
    r"kernels\.CCAdL\.relaxation_steps": "that of NOGIN",
    r"kernels\.\w+\.experimental_with_shard_axes": "a kernel of TFP calls it",
    r"random\.integers_of": "a part of others",
    r"targets\.(Sharded|Streamed)LogProb\.from_joint": "that of MinibatchLogProb",
    r"keras\.Collect\.(over|with_phases)": "the callback calls it",
    r"keras\.FitResult\.(begin_fit|end_execution|end_fit)": "the callback calls it",
    r"keras\.SamplerCallback\.data": "that of IndependentBatches",
    r"keras\.SamplerCallback\.predict": "that of its posterior",
    r"keras\.ModelLogProb\.estimate": "called by the entry of ModelLogProb",
}


def reason(name: str, argument: str, value: str) -> str:
    """Returns why a value does no harm, or an empty string if no reason is known."""
    text = f"{name}({argument}={value})"
    return next((why for pattern, why in REASONS.items() if re.fullmatch(pattern, text)), "")
