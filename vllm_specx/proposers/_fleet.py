"""How a proposer becomes a member of a fleet."""

from __future__ import annotations

from importlib.util import find_spec
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING, Any

from vllm.logger import init_logger

from vllm_specx.config import ConfigError, SpecxConfig
from vllm_specx.memory import vocabulary
from vllm_specx.proposers._lengths import MeasuredCosts
from vllm_specx.proposers._memory import is_output_rank

if TYPE_CHECKING:
    from vllm_specx.fleet.member import Member

logger = init_logger("vllm.specx")


def join_fleet(
    options: SpecxConfig, vllm_config: Any, owner: Any, capacity: int, policy: Any
) -> Member | None:
    """Start to join the fleet that the options name, on the rank whose drafts are used; None elsewhere and without one.

    Args:
        options: `fleet` is read.
        vllm_config: the engine's.
        owner: the proposer; the member leaves when it goes.
        capacity: tokens of its shared memory.
        policy: what its step times are learnt by.

    Raises:
        ConfigError: Ray is not installed and the fleet is required, or the engine has no tokenizer.

    """
    fleet = options.fleet
    if fleet is None or not is_output_rank(vllm_config.parallel_config):
        return None
    if find_spec("ray") is None:
        what = "specx.fleet needs Ray, which is not installed: pip install 'vllm-specx[ray]'"
        if fleet.required:
            raise ConfigError(what)
        logger.warning_once("%s. This replica goes on by itself", what)
        return None
    from vllm_specx.fleet.identity import hardware_of, model_of
    from vllm_specx.fleet.link import Link
    from vllm_specx.fleet.member import Member
    from vllm_specx.fleet.messages import settings_of
    from vllm_specx.fleet.priors import Learner

    costs = policy.costs if isinstance(policy, MeasuredCosts) else None
    model_config = vllm_config.model_config
    member = Member(
        fleet,
        Link(fleet.address, settings_of(fleet, options.memory_ttl_s)),
        model=model_of(model_config),
        vocabulary=vocabulary.fingerprint_of_model(model_config, "fleet"),
        vocab_size=model_config.get_vocab_size(),
        capacity=capacity,
        learner=Learner(hardware_of(vllm_config, () if costs is None else costs.sizes), costs),
    )
    Finalize(owner, member.close, exitpriority=9)  # after the keeper, which ends the requests
    return member
