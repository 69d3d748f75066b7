"""`specx regret`: the tuner against rules that know more, or do less, on the same requests."""

from vllm_specx.regret.cells import Workload
from vllm_specx.regret.costs import PACKAGED
from vllm_specx.regret.harness import BASELINES, POLICIES, run_regret
from vllm_specx.regret.settings import RegretSettings

__all__ = ["BASELINES", "PACKAGED", "POLICIES", "RegretSettings", "Workload", "run_regret"]
