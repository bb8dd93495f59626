"""Whether torchrun started this process; asked before torch is imported.

Example
-------
>>> started_by_torchrun({})
False
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from boldcast.errors import UsageRefused

PLACE_VARIABLES = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
)
"""What torchrun sets for every worker; all of them or none must be there."""


def started_by_torchrun(env: Mapping[str, str] = os.environ) -> bool:
    """Tell whether torchrun started this process.

    Raises
    ------
    UsageRefused
        If the environment is half set, which would start a run that waits for ranks for ever.
    """
    present = [name for name in PLACE_VARIABLES if name in env]
    if "RANK" not in present and "LOCAL_RANK" not in present:
        return False
    if len(present) < len(PLACE_VARIABLES):
        missing = [name for name in PLACE_VARIABLES if name not in env]
        raise UsageRefused(
            f"The environment is half set for distributed training: {', '.join(present)} are "
            f"there, {', '.join(missing)} are not. Start through torchrun, or unset them."
        )
    return True
