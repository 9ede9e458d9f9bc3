"""Double DQN on a toy world: a replay buffer of numpy rows, a target network, a dueling head."""

from __future__ import annotations

import random
from collections import deque, namedtuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

GAMMA = 0.9
TAU = 0.05
EPS_START, EPS_END, EPS_DECAY = 1.0, 0.05, 60
BATCH_SIZE = 64
NUM_ENVS = 16

Transition = namedtuple("Transition", ("state", "action", "reward", "next_state", "done"))


class Chase:
    """A point in the plane runs after a goal. Five actions: stay, or push to one of four sides."""

    pushes = np.array([[0, 0], [1, 0], [-1, 0], [0, 1], [0, -1]], dtype=np.float32)

    def __init__(self, rng):
        self.rng = rng
        self.left = int(rng.integers(5, 40))
        self.reset()

    def reset(self):
        self.place = self.rng.uniform(-1, 1, 2).astype(np.float32)
        self.goal = self.rng.uniform(-1, 1, 2).astype(np.float32)
        return self.observe()

    def observe(self):
        return np.concatenate([self.place, self.goal, self.goal - self.place])

    def step(self, action):
        before = np.linalg.norm(self.goal - self.place)
        self.place = np.clip(self.place + 0.2 * self.pushes[action], -1, 1)
        after = np.linalg.norm(self.goal - self.place)
        self.left -= 1
        done = self.left == 0
        reward = float(5 * (before - after) + (1.0 if after < 0.15 else 0.0))
        return self.observe(), reward, done, after

    def restart(self):
        self.left = 40
        return self.reset()


class ReplayMemory:
    def __init__(self, capacity):
        self.memory = deque(maxlen=capacity)

    def push(self, *args):
        self.memory.append(Transition(*args))

    def sample(self, batch_size):
        return random.sample(self.memory, batch_size)

    def __len__(self):
        return len(self.memory)


class QNet(nn.Module):
    def __init__(self, n_observations=6, n_actions=5, hidden=64):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(n_observations, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
        )
        self.value = nn.Linear(hidden, 1)
        self.advantage = nn.Linear(hidden, n_actions)

    def forward(self, x):
        x = self.body(x)
        value, advantage = self.value(x), self.advantage(x)
        return value + advantage - advantage.mean(dim=1, keepdim=True)


class DQNAgent:
    def __init__(self, rng):
        self.rng = rng
        self.policy_net = QNet()
        self.target_net = QNet()
        self.target_net.load_state_dict(self.policy_net.state_dict())
        self.target_net.requires_grad_(False)
        self.optimizer = torch.optim.AdamW(self.policy_net.parameters(), lr=2e-3, amsgrad=True)
        self.memory = ReplayMemory(5000)
        self.steps_done = 0

    def select_actions(self, states):
        eps = EPS_END + (EPS_START - EPS_END) * np.exp(-self.steps_done / EPS_DECAY)
        self.steps_done += 1
        with torch.no_grad():
            greedy = self.policy_net(torch.from_numpy(states)).argmax(dim=1).numpy()
        explore = self.rng.random(len(states)) < eps
        return np.where(explore, self.rng.integers(0, 5, len(states)), greedy)

    def optimize_model(self):
        batch = Transition(*zip(*self.memory.sample(BATCH_SIZE), strict=True))
        state = torch.from_numpy(np.stack(batch.state))
        next_state = torch.from_numpy(np.stack(batch.next_state))
        action = torch.tensor(batch.action)
        reward = torch.tensor(batch.reward)
        done = torch.tensor(batch.done, dtype=torch.float32)

        q_values = self.policy_net(state).gather(1, action.unsqueeze(1)).squeeze(1)
        with torch.no_grad():
            best = self.policy_net(next_state).argmax(dim=1, keepdim=True)
            next_values = self.target_net(next_state).gather(1, best).squeeze(1)
            expected = reward + GAMMA * next_values * (1 - done)
        loss = F.smooth_l1_loss(q_values, expected)

        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_value_(self.policy_net.parameters(), 100)
        self.optimizer.step()
        return loss.item()

    def update_target(self):
        with torch.no_grad():
            for old, new in zip(self.target_net.parameters(), self.policy_net.parameters(), strict=True):
                old.mul_(1 - TAU).add_(new, alpha=TAU)


def main(seed: int = 0, steps: int = 250):
    """Returns the mean distance to the goal, step by step."""
    torch.manual_seed(seed)
    random.seed(seed)
    rng = np.random.default_rng(seed)
    envs = [Chase(rng) for _ in range(NUM_ENVS)]
    agent = DQNAgent(rng)
    states = np.stack([env.observe() for env in envs])
    distances, td_errors = [], []
    while len(distances) < steps:
        actions = agent.select_actions(states)
        far = []
        for i, env in enumerate(envs):
            next_state, reward, done, distance = env.step(actions[i])
            agent.memory.push(states[i].copy(), int(actions[i]), reward, next_state, done)
            states[i] = env.restart() if done else next_state
            far.append(distance)
        distances.append(float(np.mean(far)))
        if len(agent.memory) >= 4 * BATCH_SIZE:
            td_errors.append(agent.optimize_model())
            agent.update_target()
        if len(distances) % 50 == 0:
            print(f"step {len(distances)}  distance {np.mean(distances[-50:]):.3f}")
    return distances, (agent.policy_net, agent.target_net)
