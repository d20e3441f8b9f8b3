"""The accelerator of these tests is a device to Torch like any other: tensors, views, derivatives, training."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

pytestmark = [
    pytest.mark.compiler,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the runtime library is an ELF library"),
]

TRAIN = """
import copy
import acme_device, torch
from acme_model import Model

acme_device.install()
torch.manual_seed(0)
x = torch.randn(4, 8)
here, there = Model(), Model()
there.load_state_dict(here.state_dict())
there.to("acme")
assert {p.device for p in there.parameters()} == {torch.device("acme:0")}
for model, device in ((here, "cpu"), (there, "acme")):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(x.to(device)).pow(2).mean().backward()
        optimizer.step()
for mine, theirs in zip(here.parameters(), there.parameters(), strict=True):
    torch.testing.assert_close(theirs.cpu(), mine)
torch.testing.assert_close(copy.deepcopy(there).cpu()(x), here(x))

a = torch.zeros(2, 3, device="acme")
a[:, 1] = 7
a.t()[2].fill_(5)
assert a.cpu().tolist() == [[0, 7, 5], [0, 7, 5]]
assert a.t().contiguous().view(6).cpu().tolist() == [0, 0, 7, 7, 5, 5]
assert (a.half().dtype, (a > 6).any().item(), torch.acme.get_device_name()) == (torch.float16, True, "Acme A100X")
"""


def test_a_model_trains_on_it_as_on_the_processor(acme: Callable[..., str]) -> None:
    assert acme("-c", TRAIN) == ""
