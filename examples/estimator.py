"""scikit-learn's interface: four clinics that see different tumours learn one classifier."""

from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import LeaveOneGroupOut, cross_val_score, train_test_split

from fedadmm import FederatedClassifier

tumours = load_breast_cancer()
X, y = tumours.data, tumours.target_names[tumours.target]  # labels may be words
X[::50, 3] = np.nan  # and columns may have gaps
radius = X[:, 0]
clinic = np.digitize(radius, np.quantile(radius, [0.25, 0.5, 0.75]))  # small ones here, large there

train, test = train_test_split(np.arange(len(y)), test_size=0.25, random_state=0)
for method in ("fedavg", "fedadmm"):
    model = FederatedClassifier(method, rounds=10)
    model.fit(X[train], y[train], groups=clinic[train])
    loss = model.history_[-1]["metrics"]["loss"]
    print(f"{method:8} accuracy {model.score(X[test], y[test]):.1%}, training loss {loss:.3f}")

model.partial_fit(X[train], y[train], groups=clinic[train], rounds=10)  # ten rounds more
print(f"round {len(model.history_)}: loss {model.history_[-1]['metrics']['loss']:.3f}")
print("a clinic that took no part:", end="")
for score in cross_val_score(
    FederatedClassifier(rounds=10),
    X,
    y,
    groups=clinic,  # for the splits
    cv=LeaveOneGroupOut(),
    params={"groups": clinic},  # for fit: the other clinics are the clients
):
    print(f" {score:.1%}", end="")
print("\nreport:", model.report("report").relative_to(Path()))
