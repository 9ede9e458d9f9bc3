"""Vision models written twice. The second is cut otherwise and has one difference on request."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["OtherUnet", "OtherVit", "PlainResNet", "ResNet", "Unet", "Vit", "pixels", "varied"]


def varied(model: nn.Module, seed: int = 0) -> nn.Module:
    """No two layers alike, and no norm that does nothing."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)
        for name, buffer in model.named_buffers():
            if name.endswith("running_mean"):
                buffer.add_(torch.randn(buffer.shape, generator=generator) * 0.2)
            elif name.endswith("running_var"):
                buffer.mul_(1 + torch.rand(buffer.shape, generator=generator))
    return model.eval()


def pixels(size: int = 16) -> Tensor:
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1))


# --- a vision transformer: a convolution and one projection here, patches by hand and q, k, v there ---


class VitAttention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.proj = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*parts)
        return self.proj(mixed.transpose(1, 2).reshape(batch, length, width))


class VitBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        self.attn = VitAttention(width, 4)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Vit(nn.Module):
    def __init__(self, width: int = 24) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.patch = nn.Conv2d(3, width, 4, stride=4)
        self.cls, self.pos = nn.Parameter(torch.randn(1, 1, width)), nn.Parameter(torch.randn(1, 17, width))
        self.blocks = nn.ModuleList(VitBlock(width) for _ in range(3))
        self.norm, self.head = nn.LayerNorm(width, eps=1e-6), nn.Linear(width, 10)
        varied(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], dim=1) + self.pos
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


class OtherVitLayer(nn.Module):
    def __init__(self, like: VitBlock, fault: str) -> None:
        super().__init__()
        width = like.norm1.weight.shape[0]
        self.fault, self.heads = fault, like.attn.heads
        self.ln_a = nn.LayerNorm(width, eps=1e-6)
        self.ln_b = nn.LayerNorm(width, eps=1e-5 if fault == "eps" else 1e-6)
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(width, width) for _ in range(4))
        self.fc1, self.fc2 = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        with torch.no_grad():
            weights, biases = like.attn.qkv.weight.chunk(3), like.attn.qkv.bias.chunk(3)
            for layer, weight, bias in zip((self.to_q, self.to_k, self.to_v), weights, biases, strict=True):
                layer.weight.copy_(weight)
                layer.bias.copy_(bias)
            if fault == "no v bias":
                self.to_v.bias.zero_()
        for mine, theirs in (
            (self.ln_a, like.norm1),
            (self.ln_b, like.norm2),
            (self.to_out, like.attn.proj),
            (self.fc1, like.mlp[0]),
            (self.fc2, like.mlp[2]),
        ):
            mine.load_state_dict(theirs.state_dict())

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.ln_a(x)
        q, k, v = (self._heads(layer(normed)) for layer in (self.to_q, self.to_k, self.to_v))
        size = q.shape[-1] * self.heads if self.fault == "scale" else q.shape[-1]
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(size)
        mixed = torch.einsum("bhqk,bhkd->bhqd", scores.softmax(-2 if self.fault == "axis" else -1), v)
        x = x + self.to_out(mixed.transpose(1, 2).flatten(2))
        hidden = F.gelu(self.fc1(self.ln_b(x)), approximate="tanh" if self.fault == "gelu" else "none")
        return self.fc2(hidden) + (normed if self.fault == "residual" else x)


class OtherVit(nn.Module):
    def __init__(self, like: Vit, fault: str = "", at: int = 1) -> None:
        super().__init__()
        width = like.head.in_features
        self.fault = fault
        self.to_patch = nn.Linear(48, width)
        self.token, self.places = (nn.Parameter(each.detach().clone()) for each in (like.cls, like.pos))
        layers = (OtherVitLayer(block, fault if i == at else "") for i, block in enumerate(like.blocks))
        self.layers = nn.Sequential(*layers)
        self.tail = nn.Sequential(nn.LayerNorm(width, eps=1e-6), nn.Linear(width, 10))
        with torch.no_grad():
            self.to_patch.weight.copy_(like.patch.weight.flatten(1))
            self.to_patch.bias.copy_(like.patch.bias)
        self.tail[0].load_state_dict(like.norm.state_dict())
        self.tail[1].load_state_dict(like.head.state_dict())
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        x = self.to_patch(F.unfold(x, 4, stride=4).transpose(1, 2))
        tokens = self.token.expand(len(x), -1, -1)
        if self.fault == "token last":
            x = torch.cat([x, tokens], dim=1) + self.places
        elif self.fault == "no place":
            x = torch.cat([tokens, x + self.places[:, 1:]], dim=1)
        else:
            x = torch.cat([tokens, x], dim=1) + self.places
        x = self.layers(x)
        return self.tail(x.mean(1) if self.fault == "pooled" else x[:, 0])


# --- a residual net: modules here, functions and bare parameters there ---


class Bottleneck(nn.Module):
    def __init__(self, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, groups=2, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.act = nn.LeakyReLU(0.1)
        self.down = nn.AvgPool2d(3, stride, padding=1) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.bn1(self.conv1(x)))
        return self.act(self.bn2(self.conv2(y)) + self.down(x))


class ResNet(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1), nn.GroupNorm(2, width), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.blocks = nn.Sequential(Bottleneck(width, 1), Bottleneck(width, 2), Bottleneck(width, 1))
        self.head = nn.Linear(width, 5)
        varied(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class PlainBlock(nn.Module):
    """No module in it: parameters and functions."""

    def __init__(self, like: Bottleneck, fault: str) -> None:
        super().__init__()
        self.stride, self.fault = like.conv2.stride[0], fault
        for name in ("conv1", "conv2"):
            self.register_parameter(name, nn.Parameter(getattr(like, name).weight.detach().clone()))
        for name in ("bn1", "bn2"):
            for key, value in getattr(like, name).state_dict().items():
                self.register_buffer(f"{name}_{key}", value.clone())

    def _norm(self, x: Tensor, name: str) -> Tensor:
        mean, var, weight, bias = (
            getattr(self, f"{name}_{key}") for key in ("running_mean", "running_var", "weight", "bias")
        )
        return F.batch_norm(x, mean, var, weight, bias, eps=1e-3 if self.fault == "bn eps" else 1e-5)

    def forward(self, x: Tensor) -> Tensor:
        slope = 0.01 if self.fault == "slope" else 0.1
        y = F.leaky_relu(self._norm(F.conv2d(x, self.conv1), "bn1"), slope)
        if self.fault == "circular":
            y = F.conv2d(F.pad(y, (1, 1, 1, 1), mode="circular"), self.conv2, stride=self.stride, groups=2)
        else:
            y = F.conv2d(y, self.conv2, stride=self.stride, padding=1, groups=2)
        counts = self.fault != "pool padding"
        if self.stride > 1:
            x = F.avg_pool2d(x, 3, self.stride, padding=1, count_include_pad=counts)
        return F.leaky_relu(self._norm(y, "bn2") + x, slope)


class PlainResNet(nn.Module):
    def __init__(self, like: ResNet, fault: str = "", at: int = 1) -> None:
        super().__init__()
        self.fault = fault
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.first.load_state_dict(like.stem[0].state_dict())
        self.norm = nn.GroupNorm(4 if fault == "groups" else 2, 8)
        self.norm.load_state_dict(like.stem[1].state_dict())
        self.body = nn.ModuleList(
            PlainBlock(block, fault if i == at else "") for i, block in enumerate(like.blocks)
        )
        self.out = nn.Linear(8, 5)
        self.out.load_state_dict(like.head.state_dict())
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.first(x))), 2)
        for block in self.body:
            x = block(x)
        return self.out(x.amax((2, 3)) if self.fault == "max" else x.mean((2, 3)))


# --- a U-Net: the skip connections, the way up ---


class Unet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.down1, self.down2 = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1, stride=2)
        self.middle = nn.Sequential(nn.Conv2d(6, 6, 3, padding=1), nn.SiLU())
        self.up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)
        self.join, self.last = nn.Conv2d(12, 6, 3, padding=1), nn.Conv2d(6, 1, 1)
        varied(self)

    def forward(self, x: Tensor) -> Tensor:
        high = F.silu(self.down1(x))
        low = self.middle(F.silu(self.down2(high)))
        return self.last(F.silu(self.join(torch.cat([self.up(low), high], dim=1))))


class OtherUnet(nn.Module):
    def __init__(self, like: Unet, fault: str = "") -> None:
        super().__init__()
        self.fault = fault
        self.enc = nn.ModuleList([nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1, stride=2)])
        self.mid = nn.Conv2d(6, 6, 3, padding=1)
        self.dec = nn.ModuleList([nn.Conv2d(12, 6, 3, padding=1), nn.Conv2d(6, 1, 1)])
        theirs = (like.down1, like.down2, like.middle[0], like.join, like.last)
        for mine, other in zip((*self.enc, self.mid, *self.dec), theirs, strict=True):
            mine.load_state_dict(other.state_dict())
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        high = F.silu(self.enc[0](x))
        low = F.silu(self.enc[1](high))
        middle = self.mid(low)
        low = F.hardswish(middle) if self.fault == "hard" else F.silu(middle)
        up = F.interpolate(low, scale_factor=2, mode="bilinear", align_corners=self.fault == "corners")
        both = [high, up] if self.fault == "order" else [up, high]
        return self.dec[1](F.silu(self.dec[0](torch.cat(both, dim=1))))
