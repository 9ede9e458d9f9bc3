"""Faults of the small GPT."""

from __future__ import annotations

from functools import partial

from benchmarks.diagnosis.cases import Fault

_Fault = partial(Fault, program="gpt")

CRITERION = "loss = F.cross_entropy(logits.view(-1, VOCABULARY), targets.reshape(-1))"
BACKWARD = "loss.backward()"
STEP = "optimizer.step()"
CALL = "_, loss = model(x, y)"
MASK = 'scores = scores.masked_fill(~self.mask[:time, :time], float("-inf"))'
SCHEDULER = "scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)"

FAULTS = [
    _Fault(
        name="gpt: no causal mask",
        edits=[(f"        {MASK}\n", "")],
        rules=("causality-leak",),
        lines=(CALL,),
        names=("@", "h.*"),
    ),
    _Fault(
        name="gpt: mask inverted",
        edits=[
            ("torch.tril(torch.ones(BLOCK, BLOCK)).bool()", "torch.triu(torch.ones(BLOCK, BLOCK)).bool()")
        ],
        rules=("mask-inverted", "causality-leak"),
        lines=(CALL, MASK),
        names=("@", "h.*"),
    ),
    _Fault(
        name="gpt: labels not shifted",
        edits=[("return chunk[:, :-1], chunk[:, 1:]", "return chunk[:, :-1], chunk[:, :-1]")],
        rules=("labels-not-shifted",),
        lines=(CALL, CRITERION, BACKWARD),
        names=("@", "lm_head*"),
    ),
    _Fault(
        name="gpt: labels shifted twice",
        edits=[
            (
                "logits.view(-1, VOCABULARY), targets.reshape(-1)",
                "logits[:, :-1].reshape(-1, VOCABULARY), targets[:, 1:].reshape(-1)",
            )
        ],
        rules=("labels-shifted-twice",),
        lines=(
            CALL,
            "loss = F.cross_entropy(logits[:, :-1].reshape(-1, VOCABULARY), targets[:, 1:].reshape(-1))",
            BACKWARD,
        ),
        names=("@", "lm_head*"),
    ),
    _Fault(
        name="gpt: no positions and no mask",
        edits=[
            ("x = self.wte(tokens) + self.wpe(positions)", "x = self.wte(tokens)"),
            (f"        {MASK}\n", ""),
        ],
        rules=("order-ignored", "causality-leak", "no-gradient-path"),
        lines=(CALL,),
        names=("@", "wpe*", "h.*"),
    ),
    _Fault(
        name="gpt: position table never used",
        edits=[("x = self.wte(tokens) + self.wpe(positions)", "x = self.wte(tokens)")],
        rules=("no-gradient-path", "order-ignored"),
        names=("wpe*",),
    ),
    _Fault(
        name="gpt: all positions are zero",
        edits=[
            ("positions = torch.arange(tokens.shape[1])", "positions = torch.zeros(tokens.shape[1]).long()"),
            (f"        {MASK}\n", ""),
        ],
        rules=("order-ignored", "causality-leak"),
        lines=(CALL,),
        names=("@", "wpe*", "h.*"),
    ),
    _Fault(
        name="gpt: tied weights came apart",
        edits=[
            (
                "self.lm_head.weight = self.wte.weight",
                "self.lm_head.weight = nn.Parameter(self.wte.weight.clone())",
            )
        ],
        rules=("tied-weights-apart",),
        names=("lm_head*", "wte*"),
    ),
    _Fault(
        name="gpt: weight decay on everything",
        edits=[('"weight_decay": 0.0', '"weight_decay": 0.1')],
        rules=("weight-decay-on-norms",),
        lines=(STEP,),
        names=("*ln*", "*bias"),
    ),
    _Fault(
        name="gpt: learning rate far too large",
        edits=[("rate: float = 3e-3", "rate: float = 3.0")],
        rules=("update-too-large",),
        lines=(STEP,),
        names=("*",),
    ),
    _Fault(
        name="gpt: warm-up ends in a jump",
        edits=[
            ("return (step + 1) / warmup\n", "return (step + 1) / warmup / 100\n"),
            ("rate: float = 3e-3", "rate: float = 0.3"),
        ],
        rules=("warm-up-cliff",),
        lines=(STEP, SCHEDULER, "scheduler.step()"),
        names=("*",),
    ),
    _Fault(
        name="gpt: warm-up in whole numbers",
        edits=[
            ("return (step + 1) / warmup\n", "return step // warmup\n"),
            ("warmup = steps // 10", "warmup = steps // 2"),
        ],
        rules=("learning-rate-zero",),
        lines=(STEP, SCHEDULER, "scheduler.step()"),
        names=("*",),
    ),
    _Fault(
        name="gpt: scheduler never stepped",
        edits=[("        scheduler.step()\n", "")],
        rules=("scheduler-never-stepped",),
        lines=(STEP, SCHEDULER),
        names=("*",),
    ),
    _Fault(
        name="gpt: loss is maximised",
        edits=[("        loss.backward()\n", "        (-loss).backward()\n")],
        rules=("loss-wrong-sign",),
        lines=("(-loss).backward()", CRITERION, CALL),
    ),
    _Fault(
        name="gpt: whole rows masked",
        edits=[
            ("torch.tril(torch.ones(BLOCK, BLOCK)).bool()", "torch.tril(torch.ones(BLOCK, BLOCK), -1).bool()")
        ],
        rules=("non-finite",),
        lines=(MASK, "y = scores.softmax(dim=-1) @ v", CALL, CRITERION, BACKWARD),
        names=("h.0*",),
    ),
    _Fault(
        name="gpt: weights in bfloat16 with a small rate",
        edits=[
            ("    model = GPT()\n", "    model = GPT().bfloat16()\n"),
            ("rate: float = 3e-3", "rate: float = 2e-5"),
        ],
        rules=("update-lost-to-rounding",),
        lines=(STEP,),
        names=("*",),
    ),
    _Fault(
        name="gpt: softmax over the wrong dimension",
        edits=[("y = scores.softmax(dim=-1) @ v", "y = scores.softmax(dim=0) @ v")],
        rules=("softmax-over-batch", "non-finite"),
        lines=("y = scores.softmax(dim=0) @ v", CALL),
        names=("h.*",),
    ),
    _Fault(
        name="gpt: attention output detached",
        edits=[("x = x + self.attn(self.ln1(x))", "x = x + self.attn(self.ln1(x)).detach()")],
        rules=("no-gradient-path",),
        lines=("x = x + self.attn(self.ln1(x)).detach()",),
        names=("h.*.attn*", "h.*.ln1*"),
    ),
    _Fault(
        name="gpt: four micro-batches, the loss not divided",
        edits=[
            (
                "        x, y = get_batch(train_text)\n"
                "        _, loss = model(x, y)\n"
                "        optimizer.zero_grad(set_to_none=True)\n"
                "        loss.backward()\n",
                "        optimizer.zero_grad(set_to_none=True)\n"
                "        for _ in range(4):\n"
                "            x, y = get_batch(train_text, 4)\n"
                "            _, loss = model(x, y)\n"
                "            loss.backward()\n",
            ),
        ],
        rules=("accumulation-undivided",),
        lines=(BACKWARD, CRITERION, STEP),
        names=("*",),
    ),
    _Fault(
        name="gpt: always the same batch",
        edits=[
            (
                "starts = torch.randint(0, len(text) - BLOCK - 1, (size,))",
                "starts = torch.randint(0, len(text) - BLOCK - 1, (size,), "
                "generator=torch.Generator().manual_seed(3))",
            )
        ],
        rules=("repeated-samples",),
        lines=(CALL, CRITERION, BACKWARD),
        names=("@",),
    ),
]
