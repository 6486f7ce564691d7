"""What a site agrees to: its own word, which no message of a server changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

from annotated_types import Ge

from fedadmm.core.errors import ConfigError, ParameterError
from fedadmm.core.parts import Positive, checked


@checked
class SitePolicy:
    """What a site agrees to.

    A SuperNode's own `--node-config` holds the same names with dashes, and comes before what the
    app says.

    Args:
        evaluations: how many questions for its metrics the site answers a day (UTC).  An answer is
            exact, for any model that a server sends: a thousand of them read out a row.
        evaluations_with_noise: whether it answers them also where noise is to hide its rows or the
            site itself, which exact answers are not covered by.
        epsilon: what its rows may spend over all runs; with a budget of the solver, the smaller.
    """

    evaluations: Annotated[int, Ge(0)] = 0
    evaluations_with_noise: bool = False
    epsilon: Positive | None = None

    def configured(self, node: Mapping[str, Any]) -> SitePolicy:
        """The policy with what a node's own configuration says."""
        names = {name.replace("_", "-"): name for name in self.__dataclass_fields__}
        given = {name: node[key] for key, name in names.items() if key in node}
        try:
            return replace(self, **given)
        except ParameterError as error:
            raise ConfigError(f"node-config: {error}") from None

    def declines(self, answered: int, *, noised: bool) -> str | None:
        """Why the site evaluates no model after this many answers today; None if it does."""
        if self.evaluations == 0:
            return (
                "this site does not evaluate models; evaluations=N in its node-config lets it "
                "answer N questions a day"
            )
        if noised and not self.evaluations_with_noise:
            return (
                "this site does not evaluate models of a run with noise, because its answers would "
                "have none; evaluations-with-noise=true in its node-config lets it"
            )
        if answered >= self.evaluations:
            return f"this site has answered {answered} questions today, which is all it does"
        return None
