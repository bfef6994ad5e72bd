"""The client that runs a notebook: nbclient's, which hears of every reply, and of outputs keeps what memory holds."""

from collections import Counter
from queue import Empty
from time import monotonic
from typing import Any

from jupyter_client.asynchronous import AsyncKernelClient
from jupyter_client.channels import AsyncZMQSocketChannel
from nbclient import NotebookClient
from traitlets import Type

_LOOK_AGAIN_S = 0.5
_MOST_CHARACTERS_KEPT = 6_000_000  # characters of a cell's outputs: what else it shows is left out


class _Channel(AsyncZMQSocketChannel):
    """A channel that looks for messages now and then, even if nothing woke it.

    Where a cell has widgets, nbclient writes to the kernel's shell channel while it waits for a
    reply there, and the write may swallow the wake-up of that very reply. It is then found when the
    cell's time is up, minutes later (https://github.com/jupyter/nbclient/issues/312).
    """

    # The asynchronous channel's own signature differs from its base class's in this, too.
    async def get_msg(self, timeout: float | None = None) -> Any:  # type: ignore[override]  # as in jupyter_client
        ends = float("inf") if timeout is None else monotonic() + timeout
        while True:
            try:
                return await super().get_msg(max(0.0, min(_LOOK_AGAIN_S, ends - monotonic())))
            except Empty:
                if monotonic() >= ends:
                    raise


class _KernelClient(AsyncKernelClient):
    shell_channel_class = Type(_Channel)


class NotebookRunner(NotebookClient):
    """Runs a notebook, as nbclient's `NotebookClient` does, whose options it takes; `.execute()` runs all cells."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._kept: Counter[int] = Counter()  # characters by cell

    def create_kernel_manager(self) -> Any:
        manager = super().create_kernel_manager()
        manager.client_factory = _KernelClient
        return manager

    def output(
        self, outs: list[Any], msg: dict[str, Any], display_id: str | None, cell_index: int
    ) -> Any:
        content = msg["content"]
        shown = [content.get("text", ""), *content.get("data", {}).values()]
        self._kept[cell_index] += sum(len(str(part)) for part in shown)
        if self._kept[cell_index] > _MOST_CHARACTERS_KEPT:
            return None
        return super().output(outs, msg, display_id, cell_index)

    @property
    def stopped_by_hand(self) -> bool:
        """Whether Ctrl-C was pressed: nbclient then ends the kernel, and raises no KeyboardInterrupt."""
        return hasattr(self, "_async_cleanup_kernel_future")
