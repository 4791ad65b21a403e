"""Tensors that can be averaged, copied, or only read, in a model with an average and in a run."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from hookbus import Trainer
from hookbus_ema import EMAHook, ExponentialMovingAverage
from hookbus_ema.tensors import can_be_averaged, can_be_copied


class Wrapper(Tensor):
    """Tensor subclass without storage, such as a quantized weight, that supports no operation in place."""

    @staticmethod
    def __new__(cls, packed: Tensor) -> Wrapper:
        return Tensor._make_wrapper_subclass(cls, packed.shape, dtype=torch.float32)  # type: ignore[attr-defined, no-any-return]

    def __init__(self, packed: Tensor) -> None:
        self.packed = packed

    def __repr__(self) -> str:  # type: ignore[override]
        return "Wrapper"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return Wrapper(args[0].packed)
        if func is torch.ops.aten.mul.Tensor:
            return func(*tree_map(lambda value: value.packed.float() if isinstance(value, Wrapper) else value, args))
        raise NotImplementedError(func)


def quantize(values: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated, but models contain such tensors
        return torch.quantize_per_tensor(values, 0.5, 0, torch.qint8)


def to_csr(values: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # in beta state
        return values.to_sparse_csr()


COPIED: dict[str, tuple[Tensor, str]] = {
    "e4m3": (torch.ones(4).to(torch.float8_e4m3fn), "float8_e4m3fn"),
    "e5m2": (torch.ones(4).to(torch.float8_e5m2), "float8_e5m2"),
    "int": (torch.ones(4, dtype=torch.int64), "int64"),
    "packed": (torch.ones(4, dtype=torch.uint8), "uint8"),
    "bool": (torch.ones(4, dtype=torch.bool), "bool"),
    "quantized": (quantize(torch.ones(4)), "qint8"),
    "sparse": (torch.eye(4).to_sparse(), "sparse_coo"),
}
if hasattr(torch, "float8_e8m0fnu"):  # torch 2.7
    COPIED["e8m0"] = (torch.ones(4).to(torch.float8_e8m0fnu), "float8_e8m0fnu")
if torch.__version__ >= "2.13":  # torch 2.9 has the type, but cannot copy it
    COPIED["e2m1"] = (torch.ones(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2), "float4_e2m1fn_x2")
READ: dict[str, tuple[Tensor, str]] = {
    "expanded": (torch.ones(1).expand(4), "expanded"),
    "expanded_int": (torch.ones(1, dtype=torch.int64).expand(4), "expanded"),
    "csr": (to_csr(torch.eye(4)), "sparse_csr"),
    "conj": (torch.ones(4, dtype=torch.complex64).conj(), "a conjugated or negated view"),
    "wrapper": (Wrapper(torch.ones(4, dtype=torch.int8)), "Wrapper"),
}
AVERAGED = {
    "half": torch.ones(4, dtype=torch.float16),
    "complex": torch.ones(4, dtype=torch.complex64),
    "strided": torch.ones(4, 4)[:, ::2],
    "one_element_expanded": torch.ones(1, 1).expand(1, 1),
    "empty": torch.ones(0, 4),
    "scalar": torch.ones(()),
}


class Frozen(nn.Module):
    """Linear layer and a frozen parameter of any type."""

    def __init__(self, tensor: Tensor) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.base = nn.Parameter(tensor, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", [*COPIED, *READ, *AVERAGED])
def test_tensor_is_averaged_or_copied_or_read_from_the_model(name: str) -> None:
    tensor = ({**COPIED, **READ}.get(name) or (AVERAGED.get(name), ""))[0]
    assert tensor is not None
    assert (can_be_averaged(tensor), can_be_copied(tensor)) == (name in AVERAGED, name not in READ)
    model = Frozen(tensor)
    average = ExponentialMovingAverage(model, momentum=0.5, warm_up=0)
    average.update()
    with average.applied():
        average.averaged()
    average.load_state_dict(average.state_dict())
    assert average.averaged()["base"].shape == tensor.shape


@pytest.mark.parametrize("name", COPIED)
def test_copied_tensor_has_the_value_of_the_last_update(name: str) -> None:
    model = Frozen(COPIED[name][0].clone())
    average = ExponentialMovingAverage(model, momentum=0.5, warm_up=0)
    other = quantize(torch.zeros(4)) if name == "quantized" else torch.zeros_like(model.base)
    with torch.no_grad():
        model.base.copy_(other)
    assert not is_equal(average.averaged()["base"], model.base)
    average.update()
    assert is_equal(average.averaged()["base"], model.base)


def is_equal(one: Tensor, other: Tensor) -> bool:
    if "float4" in str(one.dtype):
        return torch.equal(one.view(torch.uint8), other.view(torch.uint8))
    if one.is_quantized:
        return torch.equal(one.dequantize(), other.dequantize())
    return torch.equal(one.to_dense().float(), other.to_dense().float())


@pytest.mark.parametrize(("tensor", "reason"), [*COPIED.values(), *READ.values()], ids=[*COPIED, *READ])
def test_tensor_that_cannot_be_averaged_is_reported_with_the_reason(tensor: Tensor, reason: str) -> None:
    assert ExponentialMovingAverage(Frozen(tensor)).unaveraged == {"base": reason}


def test_buffers_are_reported_only_if_they_would_be_averaged() -> None:
    model = nn.Sequential(nn.BatchNorm1d(2))
    model.register_buffer("scale", torch.ones(2).to(torch.float8_e4m3fn))
    assert ExponentialMovingAverage(model).unaveraged == {}
    assert ExponentialMovingAverage(model, update_buffers=True).unaveraged == {"scale": "float8_e4m3fn"}


def fit(model: nn.Module, *, overlap: bool = False, epochs: int = 2) -> EMAHook:
    hook = EMAHook(momentum=0.5, warm_up=0, overlap=overlap)
    data = [(torch.ones(2, 4), torch.tensor([0, 1]))] * 2
    trainer = Trainer(
        model=model,
        optimizer=lambda parameters: torch.optim.SGD([p for p in parameters if p.requires_grad], lr=0.1),
        loss_fn=nn.functional.cross_entropy,
        train_loader=data,
        val_loader=data,
        epochs=epochs,
        work_dir=None,
        hooks=[hook],
        default_hooks=False,
    )
    assert trainer.fit().outcome == "finished"
    return hook


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("name", ["e4m3", "quantized", "int", "bool", "sparse", "expanded", "wrapper"])
def test_run_names_the_tensor_once(name: str, overlap: bool, caplog: pytest.LogCaptureFixture) -> None:
    tensor, reason = {**COPIED, **READ}[name]
    fit(Frozen(tensor), overlap=overlap)
    messages = [message for message in caplog.messages if "cannot be averaged" in message]
    assert messages == [f"ema: 1 of 3 tensors cannot be averaged and are copied: base ({reason})."]


def test_long_lists_of_tensors_are_abbreviated(caplog: pytest.LogCaptureFixture) -> None:
    model = Frozen(torch.ones(1))
    model.more = nn.ParameterList(nn.Parameter(torch.ones(1).bool(), requires_grad=False) for _ in range(12))
    with caplog.at_level(logging.WARNING):
        fit(model)
    assert "ema: 12 of 15 tensors" in caplog.text
    assert caplog.text.count("(bool)") == 10
    assert "and 2 more." in caplog.text


def test_layer_that_stays_lazy_is_excluded_from_the_average() -> None:
    model = Frozen(torch.ones(1))
    model.unused = nn.LazyLinear(2)
    average = ExponentialMovingAverage(model)
    assert sorted(average.averaged()) == ["base", "linear.bias", "linear.weight"]
    average.update()
    model.unused(torch.ones(1, 3))
    assert not average.averages_model(model)


def test_run_with_a_layer_that_stays_lazy_averages_the_others() -> None:
    model = Frozen(torch.ones(1))
    model.unused = nn.LazyLinear(2)
    hook = fit(model)
    assert sorted(hook.averaged() or {}) == ["base", "linear.bias", "linear.weight"]
