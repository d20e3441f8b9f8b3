"""Measure which kernels make a model faster and keep its results, and install those alone."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from kernels.errors import RequestError
from kernels.layer import timing
from kernels.layer.autotune_report import AutotuneReport, TunedCall
from kernels.layer.kinds import KindAtSize, Measure, find_kinds, label_of
from kernels.layer.layer import is_function
from kernels.layer.mapping import KernelMapping, SupportsItems
from kernels.layer.marked import ModelModules
from kernels.layer.measure import DEFAULT_TOLERANCE, measure
from kernels.layer.mode import KernelizeFallback, Mode
from kernels.layer.observe import LayerCall, eager, tensors_of
from kernels.layer.plan import LayerRequest
from kernels.layer.report import check_model
from kernels.layer.runs import ModelCall, Outcome, is_compiled, same_outcome
from kernels.layer.swap import decision_of, install, kept_forwards, restore
from kernels.layer.timing import Seconds, Taken, calls_side_by_side, summary
from kernels.layer.tuned import write_tuned
from kernels.layer.whole_model import note_user, request_of
from kernels.support.distributed import gathered, rank_count
from kernels.support.formatting import format_error, wrong_type
from kernels.tracebacks import public

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["autotune"]

#: The most by which a call may take longer than before, however much measurements are apart.
_MOST_SLOWER = 0.01
#: A host that also runs other things was seen to take so many times as long, about (16 cores and an H100, 2026-11-24).
_SLOWER_HOST = 1.5
#: The most sizes of inputs that are measured of one kind of layer.
_MOST_SIZES = 16


@public
def autotune(
    model: nn.Module,
    *calls: Any,
    mapping: KernelMapping | None = None,
    mode: Mode | None = None,
    device: str | torch.device | None = None,
    by_class: SupportsItems[str | type[nn.Module], str] | None = None,
    tolerance: float | None = None,
) -> AutotuneReport:
    """Measure the kernels that are mapped to a model's layers, and install those that pay, and no others.

    Each kind of layer is run with its own forward and with each kernel, on copies of the inputs that the calls bring. A
    kernel is out if it fails, if its results (and gradients, where the call computes some) are further from the exact
    ones than the own forward's allow, if it writes into its arguments, or if its backward writes into the gradient that
    it is given. If the calls need no gradients and a kernel's are wrong, it serves only where none is needed. Of the
    others, those stay that are faster; where that depends on the size of the input, from that size on. Then the calls
    are run whole: none is slower than before, also on a host that takes 1.5 times as long, and none gives other
    results.

    The decisions are kept in the cache for this device, this Torch and these kernels: later `kernelize` calls use them
    without measuring. An error or Ctrl-C leaves the model as it was.

    Args:
        model: The model, in the state in which it will be used: on its device, in `train()` or `eval()`.
        calls: What the model will be used for, such as a prefill and one token, or one training step: a tuple of
            positional arguments, a dictionary of arguments by name, or a function without arguments that calls the
            model. In training, arguments alone run forward and the backward of the loss. Steps of an optimizer are
            undone; what else a function changes, such as a schedule of learning rates, is not.
        mapping: As in `kernelize`. In place of a repository there may be a list of them, which compete.
        mode: As in `kernelize`. With `Mode.TORCH_COMPILE`, and for a model that is compiled, the device's time alone
            counts for a layer, each compiled by itself.
        device: As in `kernelize`.
        by_class: As in `kernelize`.
        tolerance: How many times as far from the exact results as the layer's own a kernel's may be. Default: 8.

    Returns:
        What was measured, chosen and why; it prints as a table.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: There is no call, or an argument's value is wrong, as in `kernelize`.
        Exception: What a call itself raises.

    Example:
        >>> import torch
        >>> from kernels import autotune
        >>> class Slow(torch.nn.Module):  # in place of a kernel's layer
        ...     def forward(self, input):
        ...         return sum(torch.nn.functional.silu(input) for _ in range(50)) / 50
        >>> class Kernel:
        ...     def load(self):
        ...         return Slow
        >>> model = torch.nn.Sequential(torch.nn.SiLU()).eval()
        >>> x = torch.rand(8, 8)
        >>> report = autotune(model, (x,), mapping={"SiLU": {"cpu": Kernel()}}, by_class={"SiLU": "SiLU"}, device="cpu")
        >>> [(row.layer, row.kernel, row.chosen, row.reason) for row in report.rows]
        [('SiLU', 'Kernel', False, 'not faster than its own forward')]
    """
    check_model(model)
    if not calls:
        raise RequestError(
            "`autotune` needs a call to measure: the arguments of the model, or a function that calls it."
        )
    tolerance = DEFAULT_TOLERANCE if tolerance is None else tolerance
    if isinstance(tolerance, bool) or not isinstance(tolerance, (int, float)) or not tolerance > 0:
        raise wrong_type("tolerance", "a positive number", tolerance)
    found = ModelModules(model)
    request = request_of(model, found, mapping, mode, device, KernelizeFallback.ALL, by_class, auto=False)
    return _Tuning(model, calls, found, request, float(tolerance)).run()


#: Which kernel each kind takes at each size; None for its own forward.
_Choice = dict[tuple[int, int], "int | None"]


class _Tuning:
    """One `autotune`."""

    def __init__(
        self, model: nn.Module, calls: Sequence[Any], found: ModelModules, request: LayerRequest, tolerance: float
    ) -> None:
        self.model = model
        self.request = request
        self.tolerance = tolerance
        self.mode = request.modes[0]
        self.calls = [ModelCall(model, call, self.mode) for call in calls]
        self.found = found
        self.compiled = Mode.TORCH_COMPILE in self.mode or is_compiled(model)
        self.kinds = find_kinds(model, found, request)
        self.kind_of = {id(module): number for number, kind in enumerate(self.kinds) for module in kind.modules}
        self.reached: list[set[tuple[int, int]]] = []
        #: The calls that capture a device graph.
        self.captured: set[int] = set()
        #: The time of each call with the own forwards.
        self.plain_seconds: dict[int, Seconds] = {}
        #: What the last call that was run whole gives with the own forwards, and with those rounded otherwise.
        self.outcomes: tuple[int, Outcome, Outcome] | None = None

    def run(self) -> AutotuneReport:
        modules = [module for kind in self.kinds for module in kind.modules]
        if not any(gathered(bool(modules))):
            return AutotuneReport((), ())
        self.before = {id(module): decision_of(module) for module in modules if is_function(module)}
        with kept_forwards([*self.found.modules, *modules]) as keep, _progress(len(self.calls)) as advance:
            for module in (*self.found.modules, *modules):
                restore(module)  # also what another mapping has replaced
            for number, call in enumerate(self.calls):
                self._measure(number, call)
                advance(f"call {number + 1}")
            choice: _Choice = {}
            for number, call in enumerate(self.calls):
                self._settle(number, call, choice)
                advance(f"call {number + 1}, whole")
            times = self._confirm(choice)
            advance("done")
            self._install(choice, final=True)
            keep()
        layers = [kind.record(_of_kind(choice, number)) for number, kind in enumerate(self.kinds) if kind.sizes]
        for each in layers:
            write_tuned(each)
        rows = [
            row
            for number, kind in enumerate(self.kinds)
            for row in kind.rows(_of_kind(choice, number), self._measure_of_layers)
        ]
        return AutotuneReport(tuple(rows), tuple(times), tuple(layers))

    def _check_ranks(self, number: int, call: ModelCall) -> None:
        """Refuse ranks whose calls are not alike: what they measure could not be compared.

        Raises:
            RequestError: Ranks have other layers, or inputs of other sizes.
        """
        if rank_count() == 1:
            return
        found: list[tuple[str, str]] = []

        def see(seen: LayerCall) -> Any:
            tensors = tensors_of((seen.args, seen.kwargs))
            found.append((type(seen.module).__qualname__, label_of(tensors[0]) if tensors else "-"))
            return seen.own(*seen.args, **seen.kwargs)

        call.watch([module for kind in self.kinds for module in kind.modules], see)
        first, *others = gathered(found)
        if any(other != first for other in others):
            raise RequestError(
                f"In call {number + 1} of `autotune`, ranks of this job run other layers, or inputs of other sizes. "
                "Give every rank inputs of the same sizes; or tune in one process, and use its decisions in the job."
            )

    def _measure(self, number: int, call: ModelCall) -> None:
        """Run a call with the own forwards, and measure each kind at the first call of each size."""
        import torch

        self._check_ranks(number, call)
        busy = False
        reached: set[tuple[int, int]] = set()

        def see(seen: LayerCall) -> Any:
            nonlocal busy
            if not busy and _captures():
                self.captured.add(number)
            if busy or _captures():
                return seen.own(*seen.args, **seen.kwargs)
            if Mode.TRAINING in self.mode and not torch.is_grad_enabled():
                return seen.own(*seen.args, **seen.kwargs)  # a checkpoint calls it again, with gradients
            place = self.kind_of[id(seen.module)]
            kind = self.kinds[place]
            found = tensors_of((seen.args, seen.kwargs))
            if not found:
                return seen.own(*seen.args, **seen.kwargs)
            tensor, kind.argument = seen.first_tensor() or (found[0], None)
            size = tensor.numel()
            if size not in kind.sizes and len(kind.sizes) >= _MOST_SIZES:
                return seen.own(*seen.args, **seen.kwargs)
            if size in kind.sizes:
                kind.sizes[size].layers += (place, size) in reached
            else:
                busy = True
                try:
                    kernels = [each.function for each in kind.decisions]
                    measured = measure(seen, kernels, self.tolerance, compiled=self.compiled)
                finally:
                    busy = False
                    gc.collect(1)  # Torch's pytree leaves cycles that hold a layer's inputs
                kind.sizes[size] = KindAtSize(tensor, measured)
            reached.add((place, size))
            return seen.own(*seen.args, **seen.kwargs)

        call.watch([module for kind in self.kinds for module in kind.modules], see)
        self.reached.append(reached)
        # The first rank's times count for all.
        for kind, sizes in zip(self.kinds, gathered([kind.sizes for kind in self.kinds])[0], strict=True):
            kind.sizes = sizes

    def _settle(self, number: int, call: ModelCall, choice: _Choice) -> None:
        """Choose for the sizes of a call: what by itself is faster, if the whole call is not slower for it."""
        entries = sorted(self.reached[number] - choice.keys())
        fixed = {entry: choice[entry] for entry in self.reached[number] & choice.keys()}
        best: _Choice = dict.fromkeys(entries)
        ways = [{entry: self._size(entry).fastest("device") for entry in entries}]
        if number not in self.captured:  # the time of such a call is that of the capture
            ways.append({entry: self._size(entry).fastest("whole") for entry in entries})
            ways.append({entry: self._size(entry).fastest("whole", sure=True) for entry in entries})
        if number not in self.captured and not self.compiled:
            ways.append({entry: next(iter(self._size(entry).right()), None) for entry in entries})
        ways = [way for place, way in enumerate(ways) if way not in ways[:place] and way != best]
        if ways or any(value is not None for value in fixed.values()):
            right = [way for way in ways if self.compiled or self._right(number, call, {**fixed, **way})]
            right = right or [self._largest_right(number, call, fixed, ways)]
            best = right[0] if number in self.captured else self._fastest(number, call, fixed, right)
        choice.update(best)

    def _largest_right(self, number: int, call: ModelCall, fixed: _Choice, ways: list[_Choice]) -> _Choice:
        """The kinds of a way without those that make the call's results differ, the least certain first."""
        way = dict(ways[0]) if ways else {}
        kept = [entry for entry, candidate in way.items() if candidate is not None]

        def certainty(entry: tuple[int, int]) -> float:
            candidate = way[entry]
            contender = self._size(entry).measured.kernels[candidate or 0]
            return contender.difference or 0.0

        for entry in sorted(kept, key=certainty, reverse=True):
            way[entry] = None
            self._size(entry).dropped = "the results of the whole call differ with it"
            if self._right(number, call, {**fixed, **way}):
                return way
        return way

    def _right(self, number: int, call: ModelCall, choice: _Choice) -> bool:
        plain, blurred = self._plain(number, call)
        with self._installed(choice):
            try:
                outcome = call.outcome()
            except Exception:  # noqa: BLE001 - the code of a kernel
                right = False
            else:
                right = same_outcome(outcome, plain, blurred, self.tolerance) is None
        return all(gathered(right))

    def _plain(self, number: int, call: ModelCall) -> tuple[Outcome, Outcome]:
        """What a call gives with the own forwards, and with those rounded otherwise."""
        if self.outcomes is None or self.outcomes[0] != number:
            with self._installed({}), eager() if self.compiled else nullcontext():
                every = [module for kind in self.kinds for module in kind.modules]
                self.outcomes = number, call.outcome(), call.blurred(every)
        return self.outcomes[1:]

    def _fastest(self, number: int, call: ModelCall, fixed: _Choice, ways: list[_Choice]) -> _Choice:
        """The way in which a call is fastest; kinds go back to their own forward until it is not slower than before."""
        entries = [entry for entry in self.reached[number] if entry not in fixed]
        nothing: _Choice = dict.fromkeys(entries)
        while ways:
            before, *times = self._times(number, call, [{}, *({**fixed, **way} for way in ways)])
            self.plain_seconds[number] = _whole(before)
            good = [
                (timing.ratio(each, before).median, place)
                for place, (way, each) in enumerate(zip(ways, times, strict=True))
                if self._is_fast_enough(way, each, before)
            ]
            if good:
                return ways[min(good)[1]]
            smaller = [self._without_least(way) for way in ways[:1]]
            ways = [way for way in smaller if any(value is not None for value in way.values())]
        return nothing

    def _is_fast_enough(self, way: _Choice, after: Sequence[Taken], before: Sequence[Taken]) -> bool:
        """Whether a call is fast enough in a way, on this host and on a slower one.

        It is not slower, within the noise. Where the host's time gets longer and the device's shorter, or the other way
        round, the call must be faster by more than the noise.
        """
        for host in (1.0, _SLOWER_HOST):
            found = timing.ratio(after, before, host=host)
            if all(self._size(entry).is_sure(candidate) for entry, candidate in way.items()):
                most = 1 + min(_MOST_SLOWER, found.noise)
            else:
                most = 1 - max(_MOST_SLOWER, 2 * found.noise)
            if not found.median <= most:
                return False
        return True

    def _without_least(self, way: _Choice) -> _Choice:
        """A way in which the kinds that by themselves gain nothing, or the half that gains least, run their own."""
        chosen = [entry for entry, candidate in way.items() if candidate is not None]
        chosen.sort(key=lambda entry: self._gain(entry, way[entry]))
        slower = sum(self._gain(entry, way[entry]) <= 0 for entry in chosen)
        less = dict(way)
        for entry in chosen[: slower or (len(chosen) + 1) // 2]:
            less[entry] = None
            if self._gain(entry, way[entry]) > 0:
                self._size(entry).dropped = "the whole call is not faster with it"
        return less

    def _times(self, number: int, call: ModelCall, choices: Sequence[_Choice]) -> list[list[Taken]]:
        """The measurements of a whole call with each choice, side by side; infinite with one whose results differ."""
        with call.timed(), kept_forwards([module for kind in self.kinds for module in kind.modules]):
            samples = self._times_compiled(number, call, choices) if self.compiled else self._in_turn(call, choices)
        first: list[list[Taken]] = gathered(samples)[0]
        return first

    def _in_turn(self, call: ModelCall, choices: Sequence[_Choice]) -> list[list[Taken]]:
        prepared = [partial(self._install, choice) for choice in choices]
        slowest = 0.0
        for prepare in prepared:
            prepare()
            slowest = max(slowest, call.seconds())
        return calls_side_by_side([call.ready] * len(choices), prepared, max(gathered(slowest)))

    def _times_compiled(self, number: int, call: ModelCall, choices: Sequence[_Choice]) -> list[list[Taken]]:
        """One after the other, since each has to be compiled; what is compiled is compared, too."""
        import torch

        blurred = self._plain(number, call)[1]
        found: list[list[Taken]] = []
        plain: Outcome | None = None
        seconds = 0.0
        for choice in choices:
            torch.compiler.reset()  # what was compiled has the other forwards in it
            self._install(choice)
            try:
                outcome = call.outcome()
                fault = None if plain is None else same_outcome(outcome, plain, blurred, self.tolerance)
            except Exception as error:
                if plain is None:
                    raise
                fault = format_error(error)
            if any(gathered(fault is not None)):
                found.append([Taken(math.inf, math.inf)] * len(found[0]))
                continue
            plain = plain or outcome
            seconds = seconds or max(gathered(call.seconds()))
            found += calls_side_by_side([call.ready], [_nothing], seconds)
        torch.compiler.reset()
        return found

    def _confirm(self, choice: _Choice) -> list[TunedCall]:
        """Run each call with all that was chosen: none is slower than before, or its kinds go back."""
        found: list[TunedCall] = []
        for number, call in enumerate(self.calls):
            while True:
                mine = {entry: choice.get(entry) for entry in self.reached[number]}
                if all(value is None for value in mine.values()):
                    plain = self.plain_seconds.get(number) or _whole(self._times(number, call, [{}])[0])
                    found.append(TunedCall(plain.median, plain.median, plain.noise))
                    break
                before, after = self._times(number, call, [{}, choice])
                fast = number in self.captured or self._is_fast_enough(mine, after, before)
                if fast and (self.compiled or self._right(number, call, choice)):
                    plain = _whole(before)
                    after_seconds = plain.median * timing.ratio(after, before).median
                    found.append(TunedCall(plain.median, after_seconds, plain.noise))
                    break
                choice.update(self._without_least(mine))
        return found

    @contextmanager
    def _installed(self, choice: _Choice) -> Iterator[None]:
        with kept_forwards([module for kind in self.kinds for module in kind.modules]):
            self._install(choice)
            yield

    def _install(self, choice: _Choice, *, final: bool = False) -> None:
        for number, kind in enumerate(self.kinds):
            decision = kind.decision(_of_kind(choice, number))
            if final and is_function(kind.modules[0]):
                for function in kind.modules:
                    note_user(self.model, function, decision, self.before[id(function)])
            install(kind.modules, decision)

    def _size(self, entry: tuple[int, int]) -> KindAtSize:
        return self.kinds[entry[0]].sizes[entry[1]]

    def _gain(self, entry: tuple[int, int], candidate: int | None) -> float:
        size = self._size(entry)
        return size.gain(candidate, self._measure_of_layers) * size.layers

    @property
    def _measure_of_layers(self) -> Measure:
        return "device" if self.compiled else "whole"


def _captures() -> bool:
    import torch

    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def _of_kind(choice: _Choice, number: int) -> dict[int, int | None]:
    """The kernel that a kind takes at each size."""
    return {size: candidate for (kind, size), candidate in choice.items() if kind == number}


def _whole(times: Sequence[Taken]) -> Seconds:
    return summary([each.whole for each in times])


def _nothing() -> None:
    pass


@contextmanager
def _progress(calls: int) -> Iterator[Callable[[str], None]]:
    """A bar, as huggingface_hub shows them."""
    from huggingface_hub import utils

    bars: Any = utils.tqdm
    with bars(total=2 * calls + 1, desc="autotune", leave=False) as bar:

        def advance(text: str) -> None:
            bar.set_postfix_str(text)
            bar.update()

        yield advance
