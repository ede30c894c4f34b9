from tpuctl.api import BlockingTpuctl as BlockingTpuctl
from tpuctl.api import Down as Down
from tpuctl.api import Moment as Moment
from tpuctl.api import StackStatus as StackStatus
from tpuctl.api import Tpuctl as Tpuctl
from tpuctl.api import print_log as print_log
from tpuctl.errors import TpuctlError as TpuctlError

__all__ = [
    "BlockingTpuctl",
    "Down",
    "Moment",
    "StackStatus",
    "Tpuctl",
    "TpuctlError",
    "__version__",
    "print_log",
]

__version__: str
