"""What replicas learn beside text, as the fleet passes it on to a new one: acceptance by features, and step times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from drafters import SuffixTreeDrafter
from vllm_specx.fleet.messages import Prior
from vllm_specx.tuner import CostModel

_REACH: Final = "reach"
_LEAST_INFORMATION: Final = 1.0  # of outcomes, in all features together
_LEAST_STEPS: Final = 50


class Learner:
    """The parts of a proposer that learn.

    Args:
        hardware: which step times are of use here.
        costs: model of step times; None where they are stated.

    """

    def __init__(self, hardware: str, costs: CostModel | None) -> None:
        """Remember where to look."""
        self._name = f"costs on {hardware}"
        self._costs = costs

    def export(self, drafter: SuffixTreeDrafter) -> dict[str, Prior]:
        """Copy what was learnt here so far, where it is worth anything."""
        priors = {}
        weights, information = drafter.calibration.export()
        if (known := float(information.sum()) - drafter.calibration.least) > _LEAST_INFORMATION:
            priors[_REACH] = Prior(known, _packed({"weights": weights, "information": information}))
        if self._costs is not None and self._costs.num_learned >= _LEAST_STEPS:
            priors[self._name] = Prior(float(self._costs.num_learned), _packed(self._costs.export()))
        return priors

    def start_from(self, drafter: SuffixTreeDrafter, priors: Mapping[str, Prior]) -> list[str]:
        """Take over what fits; return its names. Raises ValueError for what is not as it should be."""
        taken = []
        if (reach := priors.get(_REACH)) is not None:
            arrays = _unpacked(reach, "weights", "information")
            drafter.calibration.start_from(arrays["weights"], arrays["information"])
            taken.append(_REACH)
        costs = priors.get(self._name)
        if costs is not None and self._costs is not None and self._costs.num_learned == 0:
            arrays = _unpacked(costs, "cov")
            side = int(np.sqrt(len(arrays["cov"])))
            self._costs.start_from({**arrays, "cov": arrays["cov"].reshape(max(side, 1), -1)})
            taken.append(self._name)
        return taken


def _packed(arrays: Mapping[str, NDArray[np.float64]]) -> dict[str, bytes]:
    return {name: array.astype("<f8").tobytes() for name, array in arrays.items()}


def _unpacked(prior: Prior, *needed: str) -> dict[str, NDArray[np.float64]]:
    if missing := [name for name in needed if name not in prior.arrays]:
        raise ValueError(f"{missing[0]} is missing")
    return {name: np.frombuffer(data, dtype="<f8").astype(np.float64) for name, data in prior.arrays.items()}
