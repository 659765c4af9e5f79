"""Progress bars: one line that is rewritten on a terminal, and a line now and then elsewhere."""

import sys
from types import TracebackType

from tqdm import tqdm


class Bars:
    """A `Progress` that shows one bar at a time and closes it when the next thing begins.

    Used as a context, so that the last bar is closed when something raises.
    """

    def __init__(self, *, stream=None):
        self.stream = stream or sys.stderr
        self.bar: tqdm | None = None
        self.shown: tuple[str, int] | None = None

    def __call__(self, what: str, done: int, total: int, note: str = "") -> None:
        if self.bar is None or self.shown != (what, total):
            self.close()
            self.shown = (what, total)
            live = self.stream.isatty()
            self.bar = tqdm(
                desc=what,
                total=total,
                file=self.stream,
                mininterval=0.2 if live else 20.0,
                dynamic_ncols=live,
                ncols=None if live else 90,
            )
        if note:
            self.bar.set_postfix_str(note, refresh=False)
        self.bar.update(done - self.bar.n)
        if done >= total:
            self.close()

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()
            self.bar = None

    def __enter__(self) -> "Bars":
        return self

    def __exit__(
        self, kind: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
