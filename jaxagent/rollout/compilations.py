"""How many programs XLA has compiled in this process, by JAX's own events."""

import jax

_EVENT = "/jax/core/compile/backend_compile_duration"
_count = 0


def num_compilations() -> int:
    """Programs compiled (or read from the persistent cache) since this module was imported."""
    return _count


def _listen(event: str, duration: float, **_) -> None:
    global _count
    _count += event == _EVENT


jax.monitoring.register_event_duration_secs_listener(_listen)
