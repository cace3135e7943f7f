"""Operations: each one's forward and its gradients side by side.

To add an operation, decorate a function of arrays with ``op``, set its gradients
(``minipipe.op``), and name it in ``__init__.pyi``. Its file needs another name, because
importing a file hides a function of its name. A test fails until it has a gradient
check.
"""

from minipipe._lazy import names_on_demand
from minipipe.core.functional.linear import linear as linear

# Arithmetic of Tensor is attached at once. The others, once their files are imported,
# would be hidden by these.
from minipipe.functional import operators as operators
from minipipe.functional.attention import attention as attention
from minipipe.functional.embedding import embedding as embedding
from minipipe.functional.gelu import gelu as gelu

__getattr__, __dir__, __all__ = names_on_demand(__name__, __file__)
