"""The policy of a site: its file site.toml, which no message of a server changes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge

from fedadmm.core import atomic_files
from fedadmm.core.config_tree import from_config
from fedadmm.core.errors import ConfigError, ParameterError, StateError
from fedadmm.core.parts import Count, Natural, Positive, checked

if TYPE_CHECKING:
    from fedadmm.flower.site.gate import Terms

POLICY = "site.toml"


class DeclinedError(StateError):
    """The site's policy does not allow a request; the text is for both sides."""


@checked
class SitePolicy:
    """The policy of a site: the keys of its file `site.toml`.

    A SuperNode's own `--node-config` may hold the keys that are numbers or true and false, with
    dashes, and comes before the file.

    Args:
        algorithms: the methods that it takes part in, by their names; "none" allows all.
        models: the models that it trains, as class and number of parameters: "Sequential-14".
        uploads: the stages that every upload must pass, such as "clip" or "gaussian".
        apps: the SHA-256 hashes of the Flower apps that may run at this site, as `fedadmm deploy
            pin` prints them; "none" allows all.  `fedadmm deploy node` checks the hash before any
            code of the app runs; plain `flower-supernode` does not.
        masked: whether only masked sums may leave (secure aggregation), never a single upload.
        other_sites: at least this many other sites must be in the federation.
        minimum_sites: where uploads are masked, at least this many sites, itself included, must be
            in a sum.
        sets_apart: where uploads are masked: the sites of a sum must be those of every upload from
            the same model, and of every one that was not acknowledged, or differ by
            `minimum_sites`.  Uploads of one round leave with the same sites in any case.
        epsilon: the privacy budget of its samples over all runs; with a budget of the solver, the
            smaller one.  A run without noise at the site is declined.
        evaluations: how many models the site evaluates a day (UTC).  Its metrics are exact, for any
            model that a server sends: a thousand of them reveal a sample.
        evaluations_with_noise: whether it evaluates models also in a run with differential privacy,
            which does not cover exact metrics.
        evaluation_noise: in a run with DP-SGD it answers with its accuracy only, from the number of
            correct answers plus Gaussian noise of this standard deviation; every answer is charged
            to the privacy account, and declined beyond the budget.
        metrics: the measurements that may leave, by their names; "none" allows all.
        task_bytes: the size of the largest task.
        task_steps: the most steps of a round.
        server_key: the Ed25519 public key, in hexadecimal digits, that must have signed a task.
        approval: whether a person at the site must allow a run before its first round, and before
            any metric leaves.
    """

    algorithms: Sequence[str] | None = None
    models: Sequence[str] | None = None
    uploads: Sequence[str] = ()
    apps: Sequence[str] | None = None
    masked: bool = False
    other_sites: Natural = 0
    minimum_sites: Annotated[int, Ge(3)] = 3
    sets_apart: bool = False
    epsilon: Positive | None = None
    evaluations: Annotated[int, Ge(0)] = 0
    evaluations_with_noise: bool = False
    evaluation_noise: Positive | None = None
    metrics: Sequence[str] | None = None
    task_bytes: Count | None = None
    task_steps: Count | None = None
    server_key: str | None = None
    approval: bool = False

    def __post_init__(self) -> None:
        key = self.server_key
        for one in self.apps or ():
            if not _is_digits(one):
                raise ParameterError(
                    f"SitePolicy.apps: got {one!r}, expected 64 hexadecimal digits, as `fedadmm "
                    "deploy pin` prints them."
                )
        if key is not None and not _is_digits(key):
            raise ParameterError(
                f"SitePolicy: server_key: got {key!r}, expected 64 hexadecimal digits, as in "
                "keys/operator.pub of the server"
            )

    def configured(self, node: Mapping[str, Any]) -> SitePolicy:
        """Return the policy with the keys of a node's own configuration."""
        names = {name.replace("_", "-"): name for name in self.__dataclass_fields__}
        given = {name: node[key] for key, name in names.items() if key in node}
        try:
            return replace(self, **given) if given else self
        except ParameterError as error:
            raise ConfigError(f"node-config: {error}") from None

    def refuse(self, terms: Terms) -> None:
        """Decline a run with terms that this policy does not allow."""
        if self.algorithms is not None and terms.algorithm not in self.algorithms:
            raise _declined("algorithms", self.algorithms, f"this run's is {terms.algorithm}")
        if self.models is not None and terms.model not in self.models:
            raise _declined("models", self.models, f"this run's is {terms.model}")
        missing = [stage for stage in self.uploads if stage not in terms.uploads]
        if missing:
            has = ", ".join(terms.uploads) or "none"
            raise _declined("uploads", self.uploads, f"this run's stages are {has}")
        if self.apps is not None and terms.app not in self.apps:
            found = (
                f"this run's is {terms.app}"
                if terms.app
                else ("this node does not compute its hash; start it by fedadmm deploy node")
            )
            raise _declined("apps", self.apps, found)
        if self.masked and terms.minimum_sites == 0:
            raise _declined("masked", "true", f"this run's aggregator is {terms.aggregator}")
        if terms.clients - 1 < self.other_sites:
            have = f"this run has {terms.clients - 1}"
            raise _declined("other_sites", self.other_sites, have)
        if self.epsilon is not None and not terms.noise:
            detail = "this run adds no noise at the site, which spends more than any budget"
            raise _declined("epsilon", f"{self.epsilon:g}", detail)

    def refuse_size(self, size: int) -> None:
        """Decline a task that is too large."""
        if self.task_bytes is not None and size > self.task_bytes:
            raise _declined("task_bytes", self.task_bytes, f"the task has {size}")

    def refuse_steps(self, steps: int) -> None:
        """Decline a task with too much local work."""
        if self.task_steps is not None and steps > self.task_steps:
            raise _declined("task_steps", self.task_steps, f"a round has {steps}")

    def leaving(self, measured: Mapping[str, float]) -> dict[str, float]:
        """Return the metrics that may leave the site."""
        allowed = self.metrics
        return {k: v for k, v in measured.items() if allowed is None or k in allowed}

    def declines(self, answered: int, *, noised: bool) -> str | None:
        """Return why the site evaluates no model after this many today; None if it does."""
        if self.evaluations == 0:
            return (
                "this site does not evaluate models; evaluations=N in its node-config or "
                f"{POLICY} lets it answer N questions a day"
            )
        if noised and not self.evaluations_with_noise and self.evaluation_noise is None:
            return (
                "this site does not evaluate models of a run with noise, because its answers would "
                "have none; evaluation-noise=S in its node-config adds noise to them, and "
                "evaluations-with-noise=true lets exact ones leave"
            )
        if answered >= self.evaluations:
            return f"this site has answered {answered} questions today, which is all it does"
        return None


def _is_digits(text: str) -> bool:
    return len(text) == 64 and set(text) <= set("0123456789abcdef")


def _declined(field: str, value: object, found: str) -> DeclinedError:
    shown = (
        ", ".join(value) if isinstance(value, Sequence) and not isinstance(value, str) else value
    )
    return DeclinedError(f"{field} is {shown} in this site's {POLICY}, but {found}")


def read_policy(path: Path) -> SitePolicy:
    """Read a site.toml; a ConfigError names the wrong key."""
    return _parsed(atomic_files.read(path).decode("utf-8", errors="replace"), str(path))


@lru_cache(maxsize=64)
def _parsed(text: str, title: str) -> SitePolicy:
    from fedadmm.study import config

    return from_config(SitePolicy, config.parse(text, title), title=title)


def written(given: Mapping[str, Any]) -> str:
    """Return a site.toml with every key: the given ones set, the others as comments."""
    said = _sentences(SitePolicy.__doc__ or "")
    lines = [
        "# The policy of this site.  Only this file and the node's own configuration set it, and",
        "# nothing that a server sends changes it.  It is read again for every message.",
        "",
    ]
    usual = {one.name: one.default for one in fields(SitePolicy)}
    for name, default in usual.items():
        lines += [f"# {line}" for line in said[name]]
        example = given.get(name, _EXAMPLES.get(name, default))
        mark = "" if name in given else "# "
        lines += [f"{mark}{name} = {json.dumps(example)}", ""]
    return "\n".join(lines)


_EXAMPLES = {
    "algorithms": ["fedadmm"],
    "models": ["Sequential-14"],
    "uploads": ["clip"],
    "apps": ["0" * 64],
    "epsilon": 3.0,
    "evaluation_noise": 4.0,
    "metrics": ["loss"],
    "task_bytes": 1_000_000,
    "task_steps": 1000,
    "server_key": "0" * 64,
}
"""The values shown in comments where the default is none."""


def _sentences(text: str) -> dict[str, list[str]]:
    """Return the description of each field in the docstring."""
    found: dict[str, list[str]] = {}
    name = ""
    for line in text.partition("Args:")[2].splitlines():
        head, colon, rest = line.strip().partition(": ")
        if colon and line.startswith(" " * 8) and not line.startswith(" " * 12):
            name, line = head, rest
        if name and line.strip():
            found.setdefault(name, []).append(line.strip())
    return found
