"""The choice of windows against its equation, row by row."""

import numpy as np

from tfp_sgmcmc.keras.adaptation.annealed_ensemble import WINDOWS, choose_windows, last_window

S, C, Q = 40, 5, 30
RNG = np.random.default_rng(0)
TIMES = (np.arange(S) + 1) / S
FOLD = RNG.integers(0, C, size=Q)


def losses(log_likelihood, window):
    """Returns E of each row, from probabilities of chains."""
    inside = [s for s in range(S) if window[0] < TIMES[s] <= window[1] + 1e-9]
    found = []
    for row, fold in enumerate(FOLD):
        p = [
            np.mean(np.exp([log_likelihood[s, (fold + i) % C, row] for s in inside]))
            for i in (0, 1)
        ]
        delta = (p[0] - p[1]) / (p[0] + p[1])
        found.append(-np.log(np.mean(p)) - 0.6 * delta**2 / 2)
    return np.array(found)


def test_windows_within_a_standard_error_of_the_best_are_chosen():
    levels = -1 + 0.3 * np.sin(3 * TIMES)[:, np.newaxis, np.newaxis]
    log_likelihood = levels + 0.3 * RNG.normal(size=[S, C, Q])
    found = choose_windows(log_likelihood, TIMES, FOLD)
    each = {w: losses(log_likelihood, w) for w in WINDOWS}
    assert all(np.isclose(found.loss[w], e.mean()) for w, e in each.items())
    best = min(each.values(), key=np.mean)
    gaps = {w: e - best for w, e in each.items()}
    want = tuple(w for w, g in gaps.items() if g.mean() <= g.std() / Q**0.5 + 1e-12)
    assert found.windows == want and 1 <= len(want) < len(WINDOWS)
    inside = [any(a < t <= b + 1e-9 for a, b in want) for t in TIMES]
    np.testing.assert_array_equal(found.is_chosen, inside)
    assert "30 rows" in str(found)


def test_chains_that_disagree_do_not_make_a_window_look_good():
    """One chain is sure of the right class and the other of a wrong one, only in the first half."""
    log_likelihood = np.full([S, C, Q], -0.3)
    log_likelihood[: S // 2] = np.where(np.arange(C) % 2, -0.01, -50.0)[:, np.newaxis]
    found = choose_windows(log_likelihood, TIMES, np.zeros(Q, int))
    assert found.is_chosen.tolist() == [t > 0.5 for t in TIMES]


def test_rows_that_chains_have_seen_do_not_count():
    log_likelihood = -1 + 0.3 * RNG.normal(size=[S, C, Q])
    spoilt = log_likelihood.copy()
    for row, fold in enumerate(FOLD):
        for i in (2, 3, 4):
            spoilt[:, (fold + i) % C, row] = 0.0
    assert (
        choose_windows(spoilt, TIMES, FOLD).loss == choose_windows(log_likelihood, TIMES, FOLD).loss
    )


def test_short_runs_take_what_they_have():
    assert last_window(np.array([0.3, 0.6])).is_chosen.tolist() == [False, True]
    assert last_window(np.array([0.01])).is_chosen.all()
    found = choose_windows(RNG.normal(size=[2, C, Q]), np.array([0.5, 1.0]), FOLD)
    assert set(found.loss) < set(WINDOWS)
    assert found.is_chosen.any()
