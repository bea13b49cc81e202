# Has no types of its own that describe its tensors; everything in it is Any to the type checker.
from typing import Any

def __getattr__(name: str) -> Any: ...
