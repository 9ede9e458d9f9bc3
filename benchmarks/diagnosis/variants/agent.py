"""Sound changes of the agent."""

from __future__ import annotations

from functools import partial

from benchmarks.diagnosis.cases import Healthy

_Variant = partial(Healthy, program="agent")

ADAM = "torch.optim.AdamW(self.policy_net.parameters(), lr=2e-3, amsgrad=True)"

VARIANTS = [
    _Variant(
        name="agent: the target network is copied whole every tenth step",
        edits=[
            (
                "            agent.update_target()\n",
                "            if len(td_errors) % 10 == 0:\n"
                "                agent.target_net.load_state_dict(agent.policy_net.state_dict())\n",
            )
        ],
    ),
    _Variant(
        name="agent: RMSprop and squared errors, gradients clipped to one",
        edits=[
            (ADAM, "torch.optim.RMSprop(self.policy_net.parameters(), lr=1e-3)"),
            ("F.smooth_l1_loss(q_values, expected)", "F.mse_loss(q_values, expected)"),
            (
                "clip_grad_value_(self.policy_net.parameters(), 100)",
                "clip_grad_norm_(self.policy_net.parameters(), 1.0)",
            ),
        ],
    ),
    _Variant(
        name="agent: plain DQN without a dueling head, the target in training mode and with gradients off",
        edits=[
            (
                "        return value + advantage - advantage.mean(dim=1, keepdim=True)\n",
                "        return value + advantage\n",
            ),
            ("best = self.policy_net(next_state)", "best = self.target_net(next_state)"),
        ],
    ),
    _Variant(
        name="agent: two updates for each step of the world",
        edits=[
            (
                "            td_errors.append(agent.optimize_model())\n",
                "            td_errors.append(agent.optimize_model())\n"
                "            td_errors.append(agent.optimize_model())\n",
            )
        ],
    ),
    _Variant(
        name="agent: tanh units, orthogonal weights, and heads that begin small",
        edits=[
            (
                "            nn.Linear(n_observations, hidden),\n            nn.ReLU(),\n",
                "            nn.Linear(n_observations, hidden),\n            nn.Tanh(),\n",
            ),
            (
                "        self.advantage = nn.Linear(hidden, n_actions)\n",
                "        self.advantage = nn.Linear(hidden, n_actions)\n"
                "        nn.init.orthogonal_(self.body[0].weight)\n"
                "        nn.init.orthogonal_(self.advantage.weight, gain=0.01)\n",
            ),
        ],
    ),
]
