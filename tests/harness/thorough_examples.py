"""Examples of docstrings that take half a second or more and whose lines other tests execute.

`conftest.py` marks them `thorough`.
"""

THOROUGH_EXAMPLES = {
    f"tfp_sgmcmc.{name}"
    for name in (
        "adaptation.drivers.sample",
        "adaptation.tuning.tune",
        "diagnostics.gradient_noise.SamplingThresholdReducer",
        "diagnostics.stein.KernelSteinDiscrepancyReducer",
        "diagnostics.certificate.certify",
        "diagnostics.leave_one_out.compare",
        "kernels.annealed_sghmc.AnnealedSGHMC",
        "kernels.base.StochasticGradientKernel",
        "kernels.ccadl.CCAdL",
        "kernels.corrected_langevin.CorrectedLangevin",
        "kernels.independent_metropolis.IndependentMetropolis",
        "kernels.modified_sgld.ModifiedSGLD",
        "kernels.nogin.NOGIN",
        "kernels.replica_exchange_sgld.ReplicaExchangeSGLD",
        "kernels.sgfs.SGFS",
        "kernels.sghmc.SGHMC",
        "kernels.sgld.SGLD",
        "kernels.sgnht.SGNHT",
        "kernels.underdamped_langevin.UnderdampedLangevin",
        "keras.last_layer.last_layer_laplace",
        "keras.swag.SWAG",
        "keras.callback.SamplerCallback",
        "keras.find_step_size.find_step_size",
        "keras.posterior.posterior.Posterior.distil",
        "keras.posterior.posterior.Posterior.to_keras_model",
        "keras.traces.Traces",
        "sampling.programs.export_program",
        "sampling.run.sample_chain",
        "sampling.shards.shard_driver.sample_shards",
        "sampling.result.SampleResult.loo",
        "sampling.result.SampleResult.map",
        "sampling.result.SampleResult.summary",
        "targets.control_variates.control_variate.ControlVariate",
        "targets.laplace.laplace.whiten",
        "targets.model_target.LinearModel",
        "targets.minibatch.MinibatchLogProb.from_joint",
        "targets.streamed.StreamedLogProb",
        "targets.streamed.StreamedLogProb.from_joint",
        "targets.streaming.row_pool.draw_pool",
        "targets.validation.gradient_check.preflight",
    )
}
