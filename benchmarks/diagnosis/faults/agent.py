"""Faults of the agent."""

from __future__ import annotations

from functools import partial

from benchmarks.diagnosis.cases import Fault

_Fault = partial(Fault, program="agent")

Q = "q_values = self.policy_net(state).gather(1, action.unsqueeze(1)).squeeze(1)"
LOSS = "loss = F.smooth_l1_loss(q_values, expected)"
BACKWARD = "loss.backward()"
STEP = "self.optimizer.step()"
MAKE = "self.optimizer = torch.optim.AdamW(self.policy_net.parameters(), lr=2e-3, amsgrad=True)"
CALL = "td_errors.append(agent.optimize_model())"
BODY = "x = self.body(x)"
OBSERVE = "return np.concatenate([self.place, self.goal, self.goal - self.place])"
HEAD = "        self.value = nn.Linear(hidden, 1)\n"
POLICY = ("policy_net*", "QNet*", "qnet*", "body*", "value*", "advantage*")

FAULTS = [
    _Fault(
        name="agent: the values are a column, their targets a row",
        edits=[("gather(1, action.unsqueeze(1)).squeeze(1)", "gather(1, action.unsqueeze(1))")],
        rules=("loss-broadcast",),
        lines=(LOSS, BACKWARD, Q.removesuffix(".squeeze(1)")),
    ),
    _Fault(
        name="agent: places in pixels",
        edits=[(OBSERVE, "return 500 * np.concatenate([self.place, self.goal, self.goal - self.place])")],
        rules=("input-scale",),
        lines=(Q, BODY),
        names=("body.0*", "policy_net*", "qnet", "body"),
    ),
    _Fault(
        name="agent: the optimizer has the target network",
        edits=[(MAKE, MAKE.replace("policy_net", "target_net"))],
        rules=("never-updated", "optimizer-of-other-parameters"),
        lines=(STEP, MAKE.replace("policy_net", "target_net")),
        names=POLICY,
    ),
    _Fault(
        name="agent: the errors are kept with their graphs",
        edits=[("return loss.item()", "return loss")],
        rules=("graph-leak",),
        lines=(CALL, "return loss", LOSS),
    ),
    _Fault(
        name="agent: a rate of 2 instead of 2e-3",
        edits=[("lr=2e-3", "lr=2.0")],
        rules=("update-too-large", "diverging", "exploding-gradients", "oscillating", "dead-units"),
        lines=(STEP, LOSS, BACKWARD, BODY),
        names=POLICY,
    ),
    _Fault(
        name="agent: the second layer is dead",
        edits=[(HEAD, "        nn.init.constant_(self.body[2].bias, -5.0)\n" + HEAD)],
        rules=("dead-units",),
        lines=(BODY, "nn.init.constant_(self.body[2].bias, -5.0)"),
        names=("*body*",),
    ),
    _Fault(
        name="agent: the loss has a minus",
        edits=[(LOSS, "loss = -F.smooth_l1_loss(q_values, expected)")],
        rules=("loss-wrong-sign",),
        lines=("loss = -F.smooth_l1_loss(q_values, expected)", BACKWARD),
    ),
    _Fault(
        name="agent: the memory always gives its oldest rows",
        edits=[("return random.sample(self.memory, batch_size)", "return list(self.memory)[:batch_size]")],
        rules=("repeated-samples",),
        lines=("return list(self.memory)[:batch_size]", Q, LOSS, CALL),
        names=POLICY,
    ),
    _Fault(
        name="agent: gradients are zeroed between the backward and the step",
        edits=[
            ("        self.optimizer.zero_grad()\n", ""),
            (
                "        self.optimizer.step()\n",
                "        self.optimizer.zero_grad()\n        self.optimizer.step()\n",
            ),
        ],
        rules=("never-updated", "no-gradient-path"),
        lines=(STEP, BACKWARD, "self.optimizer.zero_grad()"),
        names=POLICY,
    ),
    _Fault(
        name="agent: eight sigmoid layers",
        edits=[
            (
                "            nn.Linear(hidden, hidden),\n            nn.ReLU(),\n        )\n",
                "            nn.Linear(hidden, hidden),\n            nn.ReLU(),\n"
                "            *[m for _ in range(8) for m in (nn.Linear(hidden, hidden), nn.Sigmoid())],\n"
                "        )\n",
            )
        ],
        rules=("vanishing-gradients",),
        lines=(BACKWARD, BODY),
        names=("*body*",),
    ),
    _Fault(
        name="agent: layers begin with twelve times the spread they should have",
        edits=[
            (
                HEAD,
                "        for layer in (self.body[0], self.body[2]):\n"
                "            nn.init.orthogonal_(layer.weight, gain=12.0)\n" + HEAD,
            )
        ],
        rules=("init-scale",),
        lines=("nn.init.orthogonal_(layer.weight, gain=12.0)", BODY, Q),
        names=POLICY,
    ),
    _Fault(
        name="agent: the memory keeps views of rows that are overwritten",
        edits=[("states[i].copy()", "states[i]")],
        rules=("labels-do-not-fit", "not-learning"),  # no rule fits; the nearest names
        lines=("agent.memory.push(states[i], int(actions[i]), reward, next_state, done)", LOSS, Q, CALL),
        names=POLICY,
    ),
]
