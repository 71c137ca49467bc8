"""Updates of a network: forward, loss, backward, clipping and a step of AdamW.

On a CPU they are made one by one. A GPU would idle while the host launches the hundreds of kernels of an
update, so there one update is captured as a CUDA graph, which is replayed for all later ones.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from ssmperf.engine.judge.loops.recording import HEADROOM, CannotRecord, no_waiting
from ssmperf.engine.layers.network import Network
from ssmperf.engine.layers.task import IGNORED
from ssmperf.papers.learn.data import scored

BETAS, CLIP = (0.9, 0.98), 1.0
AHEAD = 32  # updates that the host prepares, at least, before it waits for the device
WARM_UPS = 3  # updates before a capture, in which kernels are compiled and libraries set up

Work = Callable[[], Tensor]
_spoiled: list[Any] = []  # graphs whose capture the driver broke off; torch still has pointers to them


def make_updates(network: Network, backend: str, device: str, *, decay: float) -> Updates:
    """Make the object that updates a network on its device."""
    if torch.device(device).type == "cuda":
        return GraphUpdates(network, backend, torch.device(device), CudaGraphs(device), decay=decay)
    return Updates(network, backend, decay=decay)


def logits(network: nn.Module, tokens: Tensor, places: Tensor, backend: str) -> Tensor:
    """Compute the logits at places of the flattened tokens alone: (places, classes)."""
    assert isinstance(network, Network)
    hidden, _ = network.hidden(tokens, backend=backend)
    found: Tensor = network.head(hidden.flatten(0, 1)[places])
    return found


class Updates:
    """Makes updates one by one.

    without_graph: why a GPU makes updates one by one; empty if it replays a graph, has not captured one yet,
        or is a CPU.
    room: number of scored places for which there is memory; 0 where each update takes its own.
    """

    def __init__(self, network: Network, backend: str, *, decay: float, **adam: Any) -> None:
        self.network, self.backend = network, backend
        self.made = 0  # updates
        self.parameters = list(network.parameters())
        self.without_graph, self.room = "", 0
        options = {"lr": 0.0, **adam}
        self.optimizer = torch.optim.AdamW(self.parameters, betas=BETAS, weight_decay=decay, **options)

    def __call__(self, tokens: Tensor, targets: Tensor, rate: float) -> Tensor:
        """Make one update; return its mean loss over the scored places, on the device."""
        places = scored(targets)
        self._begin()
        self._set_rate(rate)
        loss = self._gradients(tokens, places, targets.flatten()[places])
        self.optimizer.step()
        return loss

    def state(self) -> dict[str, Any]:
        """Give the contents of a checkpoint."""
        return {"optimizer": self.optimizer.state_dict(), "room": self.room, "made": self.made}

    def load(self, state: Mapping[str, Any]) -> None:
        """Load the contents of a checkpoint, before the first update."""
        self.optimizer.load_state_dict(state["optimizer"])
        self.room, self.made = state["room"], state["made"]

    def release(self) -> None:
        """Free the memory of updates."""

    def _begin(self) -> None:
        """Count an update, and number its dropout."""
        self.made += 1
        self.network.dropout.number.fill_(self.made)

    def _set_rate(self, rate: float | Tensor) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    def _gradients(self, tokens: Tensor, places: Tensor, wanted: Tensor) -> Tensor:
        """Compute clipped gradients; return the loss. A wanted class that is IGNORED does not count."""
        self.network.train()
        given = logits(self.network, tokens, places, self.backend)
        self.network.eval()
        loss = functional.cross_entropy(given, wanted, ignore_index=IGNORED)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, CLIP)
        return loss.detach()


class Graphs(Protocol):
    """Does work on fixed memory as usual, or records it to be replayed."""

    def send(self, parts: Sequence[Tensor], to: Tensor) -> None:
        """Copy parts from the CPU into a buffer of the device, one behind another."""

    def run(self, work: Work) -> Tensor:
        """Do the work."""

    def check(self, work: Work) -> Tensor:
        """Do the work. Raises CannotRecord if it could not be recorded."""

    def record(self, work: Work) -> tuple[Callable[[], None], Tensor]:
        """Record the work without doing it. Raises CannotRecord if that fails.

        Returns:
            A function that does the work, and the memory in which it leaves its result.
        """


class GraphUpdates(Updates):
    """Makes a few updates one by one, then captures one and replays it.

    All read the same buffers, so that an update is the same work whether it is replayed or not. Where an
    update has fewer scored places than there is room for, others that do not count fill the rest. If one has
    more, there is a new buffer and a new capture. If an update cannot be captured, all later ones are made
    one by one, and `without_graph` says why.
    """

    def __init__(
        self, network: Network, backend: str, device: torch.device, graphs: Graphs, *, decay: float
    ) -> None:
        self.graphs = graphs
        self.rate = torch.zeros((), dtype=torch.float32, device=device)
        # On a GPU the optimiser must read its rate and count its steps on the device.
        on_device = {"capturable": True, "fused": True} if device.type == "cuda" else {}
        super().__init__(network, backend, decay=decay, lr=self.rate, **on_device)
        self._set_rate(self.rate)
        self._buffer: Tensor | None = None
        self._inputs: tuple[Tensor, Tensor, Tensor]
        self._ready = 0  # updates that were made one by one with this buffer, or count as such
        self._replay: Callable[[], None] | None = None
        self._loss: Tensor | None = None  # in the memory of the graph

    def __call__(self, tokens: Tensor, targets: Tensor, rate: float) -> Tensor:
        self._begin()
        self._fill(tokens, targets)
        self.rate.fill_(rate)
        if self._replay is None and self._ready >= WARM_UPS and not self.without_graph:
            self._record()
        if self._replay is None or self._loss is None:
            self._ready += 1
            return self.graphs.run(self._update)
        self._replay()
        return self._loss.clone()

    def load(self, state: Mapping[str, Any]) -> None:
        super().load(state)
        self._set_rate(self.rate)  # the kept groups have a rate of their own

    def release(self) -> None:
        if self._loss is not None:
            self._loss.cpu()  # waits, since a graph that is under way must not be dropped
        self._replay = self._loss = None
        self.optimizer.zero_grad()

    def _fill(self, tokens: Tensor, targets: Tensor) -> None:
        """Copy the inputs of an update into the buffer, without waiting for the device."""
        places = scored(targets)
        if self._buffer is None or len(places) > self.room:
            self._make_room(tokens, len(places))
        assert self._buffer is not None
        padding = self.room - len(places)
        parts = (
            tokens.flatten(),
            places,
            torch.arange(padding),  # distinct places, since a backward pass adds equal ones up one by one
            targets.flatten()[places],
            torch.full((padding,), IGNORED),
        )
        self.graphs.send(parts, self._buffer)

    def _make_room(self, tokens: Tensor, needed: int) -> None:
        """Make a buffer for tokens and so many scored places; drop the graph captured with the old one."""
        self.room = room_for(needed, self.room, tokens.numel())
        self.release()
        self._ready = min(self._ready, WARM_UPS - 1)
        lengths = (tokens.numel(), self.room, self.room)
        self._buffer = torch.zeros(sum(lengths), dtype=torch.int64, device=self.rate.device)
        flat, places, wanted = self._buffer.split(lengths)
        self._inputs = flat.view(tokens.shape), places, wanted

    def _work(self) -> Tensor:
        """Compute the gradients on the buffer's contents."""
        return self._gradients(*self._inputs)

    def _update(self) -> Tensor:
        """Make an update on the buffer's contents."""
        loss = self._work()
        self.optimizer.step()
        return loss

    def _record(self) -> None:
        """Capture an update; a failed attempt changes neither parameters nor the optimiser's state."""
        try:
            self.graphs.check(self._work)
            self.optimizer.zero_grad()  # so that the captured gradients get memory of the graph
            self._replay, self._loss = self.graphs.record(self._update)
        except CannotRecord as error:
            self.without_graph = str(error)
        if self.without_graph:
            self.optimizer.zero_grad()
            gc.collect()  # nodes of the failed pass, which would go on with its stream


def room_for(needed: int, before: int, most: int) -> int:
    """Choose for how many places to have room: for those of the first update, and later for a quarter more.

    In most tasks all updates have the same number. before: the room that there was; 0 means none.
    """
    if needed <= before:
        return before
    return min(most, needed + needed // 4) if before else needed


class CudaGraphs:
    """Does work on the current stream, on which it is captured too, or on one of its own beside the default.

    A backward pass runs on the stream of its forward pass, and the default stream cannot be captured. Work
    begins after what the current stream has been given, which waits for it.

    A capture that the driver breaks off leaves torch's allocator as if it went on. So work that waits for the
    device is found before. Where a capture is broken off nevertheless, its pool is closed, and no other one
    is tried in this process.
    """

    def __init__(self, device: torch.device | str) -> None:
        self.device = torch.device(device)
        current = torch.cuda.current_stream(self.device)
        is_default = current == torch.cuda.default_stream(self.device)
        self._stream = torch.cuda.Stream(self.device) if is_default else current
        self._needs_bytes = 0
        self._sent, self._reached = 0, torch.cuda.Event(blocking=True)

    def send(self, parts: Sequence[Tensor], to: Tensor) -> None:
        """Copy parts into a buffer; wait for the device only if it is AHEAD updates behind."""
        if self._sent % AHEAD == 0:
            self._reached.synchronize()
            self._reached.record(torch.cuda.current_stream(self.device))
        self._sent += 1
        staged = torch.empty(len(to), dtype=to.dtype, pin_memory=True)  # kept by torch until it is copied
        torch.cat(list(parts), out=staged)
        to.copy_(staged, non_blocking=True)

    def run(self, work: Work) -> Tensor:
        current = torch.cuda.current_stream(self.device)
        self._stream.wait_stream(current)
        try:
            with torch.cuda.stream(self._stream):
                return work()
        finally:
            current.wait_stream(self._stream)

    def check(self, work: Work) -> Tensor:
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_allocated(self.device)
        reason = ""
        try:
            with no_waiting():
                result = self.run(work)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # if its cause is another one, doing it again raises it again
            reason = described(error)
        if reason:
            raise CannotRecord(reason)
        self._needs_bytes = torch.cuda.max_memory_allocated(self.device) - before
        return result

    def record(self, work: Work) -> tuple[Callable[[], None], Tensor]:
        reason = self._unfit()
        if reason:
            raise CannotRecord(reason)
        graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
        current = torch.cuda.current_stream(self.device)
        try:
            with (
                torch.cuda.device(self.device),
                torch.cuda.stream(current),  # restores the stream, which a failed capture does not
                torch.cuda.graph(graph, pool, self._stream, capture_error_mode="thread_local"),
            ):
                try:
                    result = work()
                except Exception as error:  # any exception that is raised under capture is the reason
                    reason = described(error)
                    raise  # the end of a capture that was broken off raises another one
        except Exception as error:
            reason = reason or described(error)
        if reason:  # here no frame of the failed work is left
            self._give_up(graph, pool)
            raise CannotRecord(reason)
        return graph.replay, result

    def _unfit(self) -> str:
        """Say why a capture would fail, without trying it; nothing if it may work."""
        if _spoiled:
            return "not tried: an earlier capture in this process was broken off"
        try:
            torch.cuda.synchronize(self.device)
            torch.cuda.empty_cache()
        except RuntimeError as error:
            return described(error)
        free, _ = torch.cuda.mem_get_info(self.device)
        if free < HEADROOM * self._needs_bytes:
            return f"a graph's {self._needs_bytes / 2**30:.1f} GiB do not fit beside the allocated memory"
        return ""

    def _give_up(self, graph: torch.cuda.CUDAGraph, pool: Any) -> None:
        """Clean up after a failed capture."""
        self._stream = torch.cuda.Stream(self.device)
        try:
            graph.pool()
        except RuntimeError:  # the capture itself was broken off, not only the work
            _spoiled.append(graph)
            index = self._stream.device_index
            with contextlib.suppress(RuntimeError):
                torch._C._cuda_endAllocateToPool(index, pool)
                torch._C._cuda_releasePool(index, pool)
        graph.reset()
        torch.cuda.synchronize(self.device)


def described(error: Exception) -> str:
    """Give an error's type and the first line of its text."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
