"""synthetic(alpha, beta) and the InSa regression: the laws they are drawn from."""

import numpy as np
import pytest
import torch
from scipy import stats

from fedadmm.core.errors import ParameterError
from fedadmm.data.problems.generated import InsaOptions, SyntheticOptions

LEVEL = 1e-4
"""A test of the law fails by chance this often; seeds are fixed, so it does not flicker."""


def test_sizes_follow_the_law() -> None:
    sizes = SyntheticOptions(clients=4000).sizes
    assert sizes.min() >= 50
    # Up to rounding down, log(n - 50) is normal with mean 4 and deviation 2.
    logarithms = np.log(sizes[sizes > 150] - 50 + 0.5)
    low = np.log(101)
    law = stats.truncnorm((low - 4) / 2, np.inf, 4, 2)
    assert stats.kstest(logarithms, law.cdf).pvalue > LEVEL


def test_alpha_and_beta_are_standard_deviations() -> None:
    models, inputs = SyntheticOptions(alpha=0.5, beta=3.0, clients=5000)._centres
    assert stats.kstest(models, stats.norm(0, 0.5).cdf).pvalue > LEVEL
    assert stats.kstest(inputs, stats.norm(0, 3.0).cdf).pvalue > LEVEL


def test_inputs_have_the_covariance_j_to_the_minus_1_2() -> None:
    users = SyntheticOptions(clients=400, iid=True, max_samples=400)
    x = torch.cat([users.draw(user)[0][0] for user in range(400)]).double().numpy()
    variance = x.var(axis=0)
    expected = np.arange(1, 61) ** -1.2
    assert variance == pytest.approx(expected, rel=0.05)
    assert np.abs(x.mean(axis=0) / np.sqrt(expected / len(x))).max() < 5
    correlation = np.corrcoef(x.T) - np.eye(60)
    assert np.abs(correlation).max() < 6 / np.sqrt(len(x))


def test_a_users_input_mean_is_spread_by_beta() -> None:
    """v_ij ~ N(B_i, 1), B_i ~ N(0, beta): over users, the mean over j varies by beta^2 + 1/60."""
    users = SyntheticOptions(alpha=0.0, beta=2.0, clients=600, max_samples=200)
    means = np.array([float(users.draw(user)[0][0].double().mean()) for user in range(600)])
    assert means.var() == pytest.approx(4 + 1 / 60, rel=0.2)


def test_only_users_of_the_iid_variant_share_a_model() -> None:
    """What is learnt from half of the users holds for the others, or it does not."""
    from sklearn.linear_model import LogisticRegression

    def transfer(users: SyntheticOptions) -> float:
        rows = users.datasets().train
        half = rows.groups < users.clients // 2
        x, y = rows.inputs.numpy(), rows.labels
        model = LogisticRegression(C=1e3, max_iter=500, tol=1e-2).fit(x[half], y[half])
        return float(model.score(x[~half], y[~half]))

    assert transfer(SyntheticOptions(iid=True, clients=20, max_samples=150)) > 0.75
    assert transfer(SyntheticOptions(alpha=0.0, beta=0.0, clients=20, max_samples=150)) < 0.3


def test_split_seed_and_independence_of_users() -> None:
    users = SyntheticOptions(alpha=1.0, beta=1.0, clients=5, data_seed=3, max_samples=100)
    train, test = users.draw(2)
    n = int(users.sizes[2])
    assert (len(train[0]), len(test[0])) == (int(0.9 * n), n - int(0.9 * n))
    again = SyntheticOptions(alpha=1.0, beta=1.0, clients=5, data_seed=3, max_samples=100).draw(2)
    assert torch.equal(train[0], again[0][0])
    assert torch.equal(train[1], again[0][1])
    other = SyntheticOptions(alpha=1.0, beta=1.0, clients=5, data_seed=4, max_samples=100).draw(2)
    assert not torch.equal(train[0][:5], other[0][0][:5])
    rows = users.datasets()
    begin = int(users.train_sizes[:2].sum())
    assert torch.equal(rows.train.inputs[begin : begin + len(train[0])], train[0])
    assert rows.train.groups.tolist() == np.repeat(range(5), users.train_sizes).tolist()


def test_a_million_users_are_described_without_drawing_them() -> None:
    users = SyntheticOptions(alpha=1.0, beta=1.0, clients=1_000_000)
    assert len(users.sizes) == 1_000_000
    assert len(users.draw(999_999)[0][0]) == users.train_sizes[-1]


def test_insa_rows_come_from_three_laws_in_thirds() -> None:
    table = InsaOptions(clients=10, rows=300, features=200)
    assert np.bincount(table.kinds).tolist() == [100, 100, 100]
    assert (np.diff(table.kinds.astype(int)) != 0).sum() > 100
    clients = [table.draw(client) for client in range(10)]
    assert all(client.features.shape == (30, 200) for client in clients)
    x = torch.cat([c.features for c in clients]).double().numpy()
    y = torch.cat([c.targets for c in clients]).double().numpy()
    laws = (stats.t(5), stats.uniform(-5, 10), stats.norm())
    for kind, law in enumerate(laws):
        assert stats.kstest(x[table.kinds == kind].ravel(), law.cdf).pvalue > LEVEL
        assert stats.kstest(y[table.kinds == kind], law.cdf).pvalue > LEVEL


def test_insa_clients_are_reproducible_and_their_loss_is_half_mse_plus_ridge() -> None:
    table = InsaOptions(clients=2, rows=20, features=6, ridge=0.3, data_seed=5)
    first, again = (
        table.draw(1),
        InsaOptions(clients=2, rows=20, features=6, ridge=0.3, data_seed=5).draw(1),
    )
    assert torch.equal(first.features, again.features)
    w = torch.randn(6)
    expected = ((first.features @ w - first.targets) ** 2).mean() / 2 + 0.15 * (w @ w)
    torch.testing.assert_close(first.value(w), expected)
    with pytest.raises(ParameterError, match="expected a multiple of the 3 clients"):
        InsaOptions(clients=3, rows=20)
