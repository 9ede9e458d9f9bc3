"""Sound changes of the masked language model."""

from __future__ import annotations

from functools import partial

from benchmarks.diagnosis.cases import Healthy

_Variant = partial(Healthy, program="bert")

HIDE = "        input_ids[chosen] = MASK\n"
ATTEND = (
    "        scores = q @ k.transpose(-1, -2) / math.sqrt(q.size(-1)) + bias\n"
    "        context = scores.softmax(dim=-1) @ v\n"
)

VARIANTS = [
    _Variant(
        name="bert: of the chosen words a tenth is kept and a tenth is another word",
        edits=[
            (
                HIDE,
                "        dice = torch.rand(input_ids.shape)\n"
                "        input_ids[chosen & (dice < 0.8)] = MASK\n"
                "        other = torch.randint(SPECIAL, self.config.vocab_size, input_ids.shape)\n"
                "        swapped = chosen & (dice >= 0.8) & (dice < 0.9)\n"
                "        input_ids[swapped] = other[swapped]\n",
            )
        ],
    ),
    _Variant(
        name="bert: a decoder of its own, dropout, fused attention",
        edits=[
            ("        self.decoder.weight = self.word.weight\n", ""),
            ("dropout: float = 0.0", "dropout: float = 0.1"),
            (ATTEND, "        context = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)\n"),
        ],
    ),
    _Variant(
        name="bert: bfloat16, smooth labels, and the loss of the hidden places alone",
        edits=[
            (
                "        loss, _ = self.model(**batch)\n",
                '        with torch.autocast("cpu", dtype=torch.bfloat16):\n'
                "            loss, _ = self.model(**batch)\n",
            ),
            (
                "        loss = F.cross_entropy(logits.view(-1, logits.size(-1)), labels.view(-1), "
                "ignore_index=-100)\n",
                "        hidden = labels != -100\n"
                "        loss = F.cross_entropy(logits[hidden].float(), labels[hidden], "
                "label_smoothing=0.05)\n",
            ),
        ],
    ),
    _Variant(
        name="bert: rows are packed as long as the longest of the batch, with fixed sine positions",
        edits=[
            ("(len(rows), self.config.max_len), PAD)", "(len(rows), max(map(len, rows))), PAD)"),
            (
                "        self.decoder.weight = self.word.weight\n",
                "        self.decoder.weight = self.word.weight\n"
                "        angles = torch.arange(config.max_len)[:, None] "
                "/ 30 ** torch.arange(0, 1, 2 / config.hidden)\n"
                "        self.position.weight.data = 0.3 * torch.cat([angles.sin(), angles.cos()], dim=1)\n"
                "        self.position.weight.requires_grad_(False)\n",
            ),
        ],
    ),
]
