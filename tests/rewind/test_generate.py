"""`back` in the middle of `generate()`: the caches among the arguments are put back."""

from __future__ import annotations

import pytest
import torch

from zoo import console_on

LINES = [
    "break model.layers.1.mlp",
    *["continue", "back 7", "back model.layers.0", "restart", "continue"] * 3,
    "delete",
    "continue",
]


@pytest.mark.parametrize("is_inference", [False, True])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_the_tokens_are_the_same(cache: str, is_inference: bool) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=50,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    tokens = torch.randint(3, 50, (1, 5))

    def generate() -> tuple[torch.Tensor, torch.Tensor]:
        torch.manual_seed(7)
        with torch.inference_mode(is_inference):
            made = model.generate(
                tokens,
                max_new_tokens=6,
                do_sample=True,
                cache_implementation=cache,
                pad_token_id=0,
                eos_token_id=None,
            )
        return made, torch.get_rng_state()

    expected = generate()
    console, seen = console_on(model, LINES)
    with console:
        found = generate()
    assert torch.equal(expected[0], found[0]) and torch.equal(expected[1], found[1])
    assert seen.text.count("came back to the same bits") == 6 and "not the same" not in seen.text
    assert not seen.bugs and "✗" not in seen.text
