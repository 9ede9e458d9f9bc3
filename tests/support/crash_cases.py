"""Crashes as people have them: each case raises, and names what the explanation of it must say.

`CASES` maps a name to a function without arguments. What must be said stands in its decorator: the words of
the cause, and those of the fix.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["CASES", "Calls", "Case"]


@dataclass(frozen=True, slots=True)
class Case:
    """A planted crash, and the words that its explanation needs."""

    run: Callable[[], object]
    cause: tuple[str, ...]
    fix: tuple[str, ...]


CASES: dict[str, Case] = {}


def case(*cause: str, fix: str = "") -> Callable[[Callable[[], object]], Callable[[], object]]:
    def keep(run: Callable[[], object]) -> Callable[[], object]:
        CASES[run.__name__] = Case(run, cause, tuple(fix.split("|")) if fix else ())
        return run

    return keep


class Calls(nn.Module):
    """A model whose forward is the function that it is given."""

    def __init__(self, function: Callable[..., object], **parts: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, *values: object, **named: object) -> object:
        return self.function(self, *values, **named)


# Linear and products


@case("Linear(768→3072) got [2, 64, 512]: last dimension is 512, weight wants 768")
def linear_last_dimension() -> object:
    return nn.Sequential(nn.Linear(512, 512), nn.Linear(768, 3072))(torch.randn(2, 64, 512))


@case("F.linear", "[4, 8]", "[8, 3]", "weight is [in, out]", fix="weight.t()")
def linear_with_a_transposed_weight() -> object:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8, 3))

        def forward(self, x: Tensor) -> Tensor:
            return F.linear(x, self.weight)

    return Own()(torch.randn(4, 8))


@case("Linear(8→3)", "[4, 8, 2]", "dimension 1", fix="transpose")
def linear_features_in_another_dimension() -> object:
    return nn.Linear(8, 3)(torch.randn(4, 8, 2))


@case("Linear(3136→10) got [4, 64, 7, 7]", fix="flatten")
def linear_without_flatten() -> object:
    return nn.Linear(3136, 10)(torch.randn(4, 64, 7, 7))


@case("a @ b", "[2, 3]", "[4, 5]", "3", "4")
def matmul_inner_dimensions() -> object:
    def forward(self: nn.Module, a: Tensor, b: Tensor) -> Tensor:
        return a @ b

    return Calls(forward)(torch.randn(2, 3), torch.randn(4, 5))


@case("q @ k", "[2, 4, 8, 16]", fix="transpose(-2, -1)")
def attention_without_transpose() -> object:
    def forward(self: nn.Module, q: Tensor, k: Tensor) -> Tensor:
        return q @ k

    return Calls(forward)(torch.randn(2, 4, 8, 16), torch.randn(2, 4, 8, 16))


@case("self.q(x) @ self.k(x)", "matrices of 4×8 and 4×8", "8 and 4 differ", fix="transpose")
def matmul_of_what_is_made_in_the_line() -> object:
    def forward(self: nn.Module, x: Tensor) -> Tensor:
        return self.q(x) @ self.k(x)

    return Calls(forward, q=nn.Linear(8, 8), k=nn.Linear(8, 8))(torch.randn(4, 8))


@case("torch.bmm", "batch", "2", "3", "[2, 4, 5]", "[3, 5, 6]")
def bmm_batches() -> object:
    def forward(self: nn.Module, a: Tensor, b: Tensor) -> Tensor:
        return torch.bmm(a, b)

    return Calls(forward)(torch.randn(2, 4, 5), torch.randn(3, 5, 6))


@case("torch.mm", "[2, 3, 4]", "2 dimensions", fix="matmul")
def mm_of_three_dimensions() -> object:
    def forward(self: nn.Module, a: Tensor, b: Tensor) -> Tensor:
        return torch.mm(a, b)

    return Calls(forward)(torch.randn(2, 3, 4), torch.randn(4, 5))


# broadcasting, joining, shaping


@case(
    "x + position", "[2, 12, 32]", "[1, 10, 32]", "dimension 1 is 12 and 10", fix="x[:, :10]|position longer"
)
def add_broadcast() -> object:
    def forward(self: nn.Module, x: Tensor, position: Tensor) -> Tensor:
        return x + position

    return Calls(forward)(torch.randn(2, 12, 32), torch.randn(1, 10, 32))


@case("x * scale", "[4, 8]", "[4]", "dimension 1", fix="unsqueeze(-1)|[:, None]")
def mul_broadcast_of_a_column() -> object:
    def forward(self: nn.Module, x: Tensor, scale: Tensor) -> Tensor:
        return x * scale

    return Calls(forward)(torch.randn(4, 8), torch.randn(4))


@case("torch.cat", "tensor 2", "[2, 5, 7]", "dimension 2", "[2, 3, 6]")
def cat_sizes() -> object:
    def forward(self: nn.Module, *parts: Tensor) -> Tensor:
        return torch.cat(parts, dim=1)

    return Calls(forward)(torch.randn(2, 3, 6), torch.randn(2, 4, 6), torch.randn(2, 5, 7))


@case("torch.cat", "tensor 1", "2 dimensions", "3")
def cat_dimensions() -> object:
    def forward(self: nn.Module, a: Tensor, b: Tensor) -> Tensor:
        return torch.cat([a, b])

    return Calls(forward)(torch.randn(2, 3, 6), torch.randn(3, 6))


@case("torch.stack", "tensor 1", "[4]", "[3]", fix="pad")
def stack_shapes() -> object:
    def forward(self: nn.Module, *rows: Tensor) -> Tensor:
        return torch.stack(rows)

    return Calls(forward)(torch.randn(3), torch.randn(4))


@case("x.view", "[2, 10, 10]", "200", "[2, 96]", "192", fix="view(2, 100)|view(2, -1)")
def view_size() -> object:
    def forward(self: nn.Module, x: Tensor) -> Tensor:
        return x.view(2, 96)

    return Calls(forward)(torch.randn(2, 10, 10))


@case("reshape", "21", "[-1, 4]", fix="multiple of 4")
def reshape_that_does_not_divide() -> object:
    def forward(self: nn.Module, x: Tensor) -> Tensor:
        return x.reshape(-1, 4)

    return Calls(forward)(torch.randn(3, 7))


@case("view", "[2, 4, 3]", "not contiguous", fix="reshape|contiguous()")
def view_of_what_is_not_contiguous() -> object:
    def forward(self: nn.Module, x: Tensor) -> Tensor:
        return x.transpose(1, 2).view(2, 12)

    return Calls(forward)(torch.randn(2, 3, 4))


@case("squeeze", "dimension 3", "[2, 3]", "-2", "1")
def dimension_out_of_range() -> object:
    def forward(self: nn.Module, x: Tensor) -> Tensor:
        return x.squeeze(3)

    return Calls(forward)(torch.randn(2, 3))


@case("Softmax(dim=2)", "dimension 2", "[2, 3]")
def softmax_dimension_out_of_range() -> object:
    return nn.Softmax(dim=2)(torch.randn(2, 3))


@case("3 indices", "2 dimensions", "[2, 3]")
def too_many_indices() -> object:
    def forward(self: nn.Module, x: Tensor) -> Tensor:
        return x[:, 0, 0]

    return Calls(forward)(torch.randn(2, 3))


@case("index 5", "dimension 0", "size 3", "[3, 2]")
def index_out_of_range() -> object:
    def forward(self: nn.Module, x: Tensor) -> Tensor:
        return x[5]

    return Calls(forward)(torch.randn(3, 2))


@case("index 9", "[1]", "dimension 0", "size 4", "0 to 3")
def index_tensor_out_of_range() -> object:
    def forward(self: nn.Module, x: Tensor, rows: Tensor) -> Tensor:
        return x[rows]

    return Calls(forward)(torch.randn(4, 2), torch.tensor([0, 9]))


@case("gather", "index 7", "[1, 0]", "dimension 1", "size 5")
def gather_out_of_range() -> object:
    def forward(self: nn.Module, x: Tensor, at: Tensor) -> Tensor:
        return x.gather(1, at)

    return Calls(forward)(torch.randn(2, 5), torch.tensor([[0, 1], [7, 2]]))


@case("expand", "[3, 4]", "dimension 1", "8")
def expand_size() -> object:
    def forward(self: nn.Module, x: Tensor) -> Tensor:
        return x.expand(3, 8)

    return Calls(forward)(torch.randn(3, 4))


@case("mask", "[3]", "[4, 2]", "dimension 0")
def mask_shape() -> object:
    def forward(self: nn.Module, x: Tensor, mask: Tensor) -> Tensor:
        return x[mask]

    return Calls(forward)(torch.randn(4, 2), torch.tensor([True, False, True]))


@case("permute", "2 dimensions", "[2, 3, 4]", "3")
def permute_dimensions() -> object:
    def forward(self: nn.Module, x: Tensor) -> Tensor:
        return x.permute(1, 0)

    return Calls(forward)(torch.randn(2, 3, 4))


@case("not enough values to unpack", "split", "2", "3")
def unpack_too_few() -> object:
    def forward(self: nn.Module, x: Tensor) -> Tensor:
        a, b, c = x.split(4, dim=-1)
        return a + b + c

    return Calls(forward)(torch.randn(2, 8))


# convolution and norms


@case("Conv2d(3→8, kernel 3×3) got [2, 32, 32, 3]", "channels last", fix="permute(0, 3, 1, 2)")
def conv_of_channels_last() -> object:
    return nn.Conv2d(3, 8, 3)(torch.randn(2, 32, 32, 3))


@case("Conv2d(3→8, kernel 3×3) got [2, 1, 28, 28]", "1 channel", "weight wants 3", fix="repeat(1, 3, 1, 1)")
def conv_channels() -> object:
    return nn.Conv2d(3, 8, 3)(torch.randn(2, 1, 28, 28))


@case("Conv2d(3→8, kernel 7×7) got [2, 3, 4, 4]", "kernel 7×7", "larger than the input 4×4", fix="padding")
def conv_kernel_too_large() -> object:
    return nn.Conv2d(3, 8, 7)(torch.randn(2, 3, 4, 4))


@case("Conv2d(3→8, kernel 3×3) got [32, 32]", "2 dimensions", "3 or 4", fix="[None, None]|unsqueeze")
def conv_of_a_plane() -> object:
    return nn.Conv2d(3, 8, 3)(torch.randn(32, 32))


@case("Conv1d(16→8, kernel 3) got [2, 50, 16]", "dimension 2", fix="transpose(1, 2)")
def conv1d_of_tokens() -> object:
    return nn.Conv1d(16, 8, 3)(torch.randn(2, 50, 16))


@case("MaxPool2d", "[2, 3, 1, 1]", "too small", fix="fewer")
def pool_too_small() -> object:
    return nn.MaxPool2d(2)(torch.randn(2, 3, 1, 1))


@case("BatchNorm2d(64) got [2, 32, 8, 8]", "32 channels", "64")
def batch_norm_features() -> object:
    return nn.BatchNorm2d(64)(torch.randn(2, 32, 8, 8))


@case("BatchNorm1d(8) got [1, 8]", "one value per channel", fix="eval()|drop_last=True")
def batch_norm_of_one_value() -> object:
    return nn.BatchNorm1d(8)(torch.randn(1, 8))


@case("BatchNorm2d(8) got [4, 8]", "2 dimensions", "4", fix="BatchNorm1d")
def batch_norm_dimensions() -> object:
    return nn.BatchNorm2d(8)(torch.randn(4, 8))


@case("LayerNorm(64) got [2, 12, 32]", "last dimension is 32", "64")
def layer_norm_shape() -> object:
    return nn.LayerNorm(64)(torch.randn(2, 12, 32))


@case("GroupNorm(4, 16) got [2, 10, 8]", "10 channels")
def group_norm_channels() -> object:
    return nn.GroupNorm(4, 16)(torch.randn(2, 10, 8))


# indices and losses


@case("Embedding(50257×8)", "index 50257 at [1, 2]", "0 to 50256", "vocab 50257", fix="len(tokenizer)")
def embedding_out_of_range() -> object:
    return nn.Embedding(50257, 8)(torch.tensor([[0, 1, 2], [3, 4, 50257]]))


@case("Embedding(16×4)", "index 16 at [0, 16] (4 of them)", fix="the sequence is longer than 16 positions")
def more_positions_than_there_are() -> object:
    return nn.Embedding(16, 4)(torch.arange(20)[None])


@case("Embedding(10×4)", "index -100 at [3]", fix="-100")
def embedding_of_a_negative_index() -> object:
    return nn.Embedding(10, 4)(torch.tensor([1, 2, 3, -100]))


@case("Embedding(10×4)", "f32[2, 3]", "indices", fix=".long()")
def embedding_of_floats() -> object:
    return nn.Embedding(10, 4)(torch.randn(2, 3))


@case("CrossEntropyLoss", "class 10 at [2]", "10 classes", "0 to 9", fix="num_classes")
def cross_entropy_class() -> object:
    return nn.CrossEntropyLoss()(torch.randn(4, 10), torch.tensor([0, 1, 10, 2]))


@case("F.cross_entropy", "class -1 at [0]", "5 classes", fix="ignore_index=-1")
def cross_entropy_of_a_negative_class() -> object:
    return F.cross_entropy(torch.randn(2, 5), torch.tensor([-1, 3]))


@case("CrossEntropyLoss", "target is i32", "int64", fix=".long()")
def cross_entropy_target_dtype() -> object:
    return nn.CrossEntropyLoss()(torch.randn(4, 10), torch.zeros(4, dtype=torch.int32))


@case("cross_entropy", "[2, 7, 50]", "[2, 7]", fix="flatten(0, 1)|transpose(1, 2)")
def cross_entropy_of_tokens() -> object:
    return F.cross_entropy(torch.randn(2, 7, 50), torch.zeros(2, 7, dtype=torch.long))


@case("cross_entropy", "batch", "8", "4")
def cross_entropy_batches() -> object:
    return F.cross_entropy(torch.randn(8, 10), torch.zeros(4, dtype=torch.long))


@case("MSELoss", "[4, 2]", "[3]")
def mse_shapes() -> object:
    return nn.MSELoss()(torch.randn(4, 2), torch.randn(3))


@case("binary_cross_entropy", "[4, 1]", "[4]", fix="squeeze(-1)|unsqueeze(-1)")
def bce_shapes() -> object:
    return F.binary_cross_entropy_with_logits(torch.randn(4, 1), torch.ones(4))


@case("between 0 and 1", "BCELoss", fix="binary_cross_entropy_with_logits|BCEWithLogitsLoss")
def bce_of_logits() -> object:
    return nn.BCELoss()(torch.tensor([3.0, -1.0]), torch.ones(2))


# attention and recurrence


@case("MultiheadAttention(64, 8 heads)", "[2, 5, 32]", "32", "64")
def attention_width() -> object:
    x = torch.randn(2, 5, 32)
    return nn.MultiheadAttention(64, 8, batch_first=True)(x, x, x)


@case("10", "divisible", "3", fix="")
def attention_heads() -> object:
    return nn.MultiheadAttention(10, 3)


@case("MultiheadAttention(16, 4 heads)", "mask", "[6, 6]", "[5, 5]")
def attention_mask() -> object:
    x = torch.randn(2, 5, 16)
    return nn.MultiheadAttention(16, 4, batch_first=True)(x, x, x, attn_mask=torch.zeros(6, 6))


@case("MultiheadAttention(16, 4 heads)", "key_padding_mask", "[5, 2]", "[2, 5]", fix="transpose")
def attention_padding_mask() -> object:
    x = torch.randn(2, 5, 16)
    mask = torch.zeros(5, 2, dtype=torch.bool)
    return nn.MultiheadAttention(16, 4, batch_first=True)(x, x, x, key_padding_mask=mask)


@case("LSTM(8→16)", "[2, 5, 6]", "last dimension is 6", "8")
def lstm_input_size() -> object:
    return nn.LSTM(8, 16, batch_first=True)(torch.randn(2, 5, 6))


@case("LSTM(8→16)", "hidden", "[1, 4, 16]", "[1, 2, 16]")
def lstm_hidden_shape() -> object:
    state = (torch.zeros(1, 4, 16), torch.zeros(1, 4, 16))
    return nn.LSTM(8, 16, batch_first=True)(torch.randn(2, 5, 8), state)


# dtype and device


@case("Linear(4→2)", "input is f16", "weight is f32", fix=".float()|autocast")
def half_into_float() -> object:
    return nn.Linear(4, 2)(torch.randn(3, 4, dtype=torch.float16))


@case("Linear(4→2)", "input is i64", "weight is f32", fix=".float()")
def integers_into_linear() -> object:
    return nn.Linear(4, 2)(torch.ones(3, 4, dtype=torch.long))


@case("Linear(4→2)", "input is f64", "numpy", fix=".float()")
def numpy_doubles() -> object:
    return nn.Linear(4, 2)(torch.from_numpy(np.ones((3, 4))))


@case("Conv2d(3→8, kernel 3×3)", "input is u8", "f32", fix="/ 255")
def bytes_into_conv() -> object:
    return nn.Conv2d(3, 8, 3)(torch.zeros(1, 3, 8, 8, dtype=torch.uint8))


@case("Linear(4→2)", "bf16", "f32")
def half_weights() -> object:
    return nn.Linear(4, 2).bfloat16()(torch.randn(3, 4))


@case("Linear(4→2)", "input is on meta", "weight is on cpu", fix="make input on cpu")
def input_on_another_device() -> object:
    return nn.Linear(4, 2)(torch.empty(3, 4, device="meta"))


@case("a + b", "a is on cpu", "b is on meta", fix="to_empty()")
def operands_on_two_devices() -> object:
    def forward(self: nn.Module, a: Tensor, b: Tensor) -> Tensor:
        return a + b

    return Calls(forward)(torch.randn(2), torch.randn(2, device="meta"))


# calling modules


@case("forward() of Bilinear", "input2")
def missing_argument() -> object:
    return nn.Bilinear(2, 2, 2)(torch.randn(1, 2))


@case("Linear", "unexpected", "mask", fix="input")
def unexpected_keyword() -> object:
    return nn.Linear(2, 2)(torch.randn(1, 2), mask=None)


@case("Linear", "takes 1", "2 were given", fix="input")
def too_many_arguments() -> object:
    return nn.Linear(2, 2)(torch.randn(1, 2), torch.randn(1, 2))


@case("Unfinished has no forward", fix="def forward(self")
def no_forward() -> object:
    class Unfinished(nn.Module):
        def froward(self, x: Tensor) -> Tensor:
            return x

    return Unfinished()(torch.randn(1))


@case("ModuleList", "container", fix="for ")
def calling_a_list() -> object:
    return nn.ModuleList([nn.Linear(2, 2)])(torch.randn(1, 2))


@case("Sequential", "tuple", "LSTM", fix="")
def a_tuple_into_linear() -> object:
    return nn.Sequential(nn.LSTM(4, 4), nn.Linear(4, 2))(torch.randn(3, 4))


@case("has no attribute 'encodr'", fix="encoder")
def missing_attribute() -> object:
    def forward(self: nn.Module, x: Tensor) -> object:
        return self.encodr(x)

    return Calls(forward, encoder=nn.Linear(2, 2))(torch.randn(1, 2))


class _HalfMade(nn.Module):
    def __init__(self) -> None:
        pass

    def forward(self, x: Tensor) -> Tensor:
        return x


@case("_HalfMade was made without nn.Module's own __init__", fix="super().__init__()")
def no_init() -> object:
    return _HalfMade()(torch.ones(1))


@case("self.layer = nn.Linear(2, 2): cannot assign module", fix="super().__init__()")
def assigned_before_init() -> object:
    class Early(nn.Module):
        def __init__(self) -> None:
            self.layer = nn.Linear(2, 2)

    return Early()


# autograd


@case("f32[2, 3]", "output 0 of Exp", "version 1", "version 0", "written", fix="add_|out of place|clone")
def in_place_write() -> object:
    x = torch.randn(2, 3, requires_grad=True)
    y = x.exp()
    y.add_(1)
    y.sum().backward()
    return y


@case("second time", fix="retain_graph=True|detach")
def backward_twice() -> object:
    loss = (torch.randn(3, requires_grad=True) ** 2).sum()
    loss.backward()
    loss.backward()
    return loss


@case("does not require grad", "no graph", fix="no_grad|requires_grad")
def backward_without_a_graph() -> object:
    loss = nn.Linear(2, 1)(torch.randn(1, 2)).detach().sum()
    loss.backward()
    return loss


@case("scalar", "[3]", fix=".mean()|.sum()")
def backward_of_a_vector() -> object:
    loss = torch.randn(3, requires_grad=True) * 2
    loss.backward()
    return loss


@case("leaf", "requires grad", "mul_", fix="torch.no_grad()")
def leaf_in_place() -> object:
    weight = nn.Parameter(torch.ones(3))
    weight.mul_(2)
    return weight


class _Wrong(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return gradient[:, :1].repeat(1, 5)


@case("_WrongBackward", "[2, 5]", "[2, 3]", "gradient")
def backward_of_a_wrong_shape() -> object:
    loss = _Wrong.apply(torch.randn(2, 3, requires_grad=True)).sum()
    loss.backward()
    return loss


@case("backward hook", "boom")
def a_hook_that_raises() -> object:
    def hook(gradient: Tensor) -> Tensor:
        raise ValueError("boom in a backward hook")

    x = torch.randn(2, requires_grad=True)
    y = x * 2
    y.register_hook(hook)
    y.sum().backward()
    return x


# memory, numpy, state


@case("out of memory", "2.00 GiB", fix="batch")
def out_of_memory() -> object:
    def forward(self: nn.Module, x: Tensor) -> Tensor:
        raise torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 15.78 GiB "
            "of which "
            "1.20 GiB is free. Of the allocated memory 13.90 GiB is allocated by PyTorch"
        )

    return Calls(forward, layer=nn.Linear(64, 64))(torch.randn(4, 64))


@case("numpy", "requires grad", "f32[3]", fix=".detach()")
def numpy_of_what_requires_grad() -> object:
    x = torch.randn(3, requires_grad=True)
    return x.numpy()


@case("Sequential", "2 missing (0.weight", "2 unexpected (module.0.weight", fix='removeprefix("module.")')
def state_of_a_wrapped_model() -> object:
    model = nn.Sequential(nn.Linear(2, 2))
    return model.load_state_dict({f"module.{name}": value for name, value in model.state_dict().items()})


@case("1.weight", "[5, 4]", "[3, 4]", "1")
def state_of_another_size() -> object:
    state = nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 5)).state_dict()
    return nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 3)).load_state_dict(state)


@case("[4]", "4 values", fix="all()|any()")
def truth_of_a_tensor() -> object:
    x = torch.ones(4)
    if x > 0:
        return x
    return None


@case(".item()", "[3]", "3")
def item_of_many() -> object:
    return torch.ones(3).item()
