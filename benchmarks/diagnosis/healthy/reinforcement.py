"""Reinforcement learning: targets that move, losses that need not fall."""

from __future__ import annotations

import copy
import random
from collections import deque

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.diagnosis.healthy.data import mlp
from benchmarks.diagnosis.healthy.registered import healthy


class _Walk:
    """A line of seven fields. The right end pays one, a step costs a little."""

    def __init__(self) -> None:
        self.place = 3

    def reset(self):
        self.place = 3
        return F.one_hot(torch.tensor(self.place), 7).float()

    def step(self, action: int):
        self.place += 1 if action else -1
        done = self.place in (0, 6)
        reward = 1.0 if self.place == 6 else -0.05
        return F.one_hot(torch.tensor(self.place), 7).float(), reward, done


@healthy("DQN with a target network and a replay memory", falls_to=0.6)
def dqn(seed=0, steps=300):
    torch.manual_seed(seed)
    chance = random.Random(seed)
    online = mlp(7, 32, 2)
    target = copy.deepcopy(online)
    optimizer = torch.optim.Adam(online.parameters(), lr=1e-2)
    memory: deque = deque(maxlen=500)
    world, state, failures = _Walk(), _Walk().reset(), deque([1.0] * 12, maxlen=12)
    measures = []
    for step in range(steps + 32):
        with torch.no_grad():
            action = (
                chance.randrange(2)
                if chance.random() < max(0.15, 1 - step / 150)
                else int(online(state).argmax())
            )
        following, reward, done = world.step(action)
        memory.append((state, action, reward, following, done))
        state = world.reset() if done else following
        if done:
            failures.append(float(reward < 0))
        if len(memory) < 32:
            continue
        rows = chance.sample(memory, 32)
        s, n = torch.stack([row[0] for row in rows]), torch.stack([row[3] for row in rows])
        a, r, d = (torch.tensor([float(row[i]) for row in rows]) for i in (1, 2, 4))
        value = online(s).gather(1, a.long().unsqueeze(1)).squeeze(1)
        with torch.no_grad():
            aim = r + 0.95 * (1 - d) * target(n).max(1).values
        loss = F.smooth_l1_loss(value, aim)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            target.load_state_dict(online.state_dict())
        measures.append(sum(failures) / len(failures))
    return measures[:steps], (online, target)


def _play(policy, world, limit: int = 20):
    state, log_probabilities, rewards, entropies, states = world.reset(), [], [], [], []
    for _ in range(limit):
        states.append(state)
        choice = torch.distributions.Categorical(logits=policy(state))
        action = choice.sample()
        log_probabilities.append(choice.log_prob(action))
        entropies.append(choice.entropy())
        state, reward, done = world.step(int(action))
        rewards.append(reward)
        if done:
            break
    returns, total = [], 0.0
    for reward in reversed(rewards):
        total = reward + 0.95 * total
        returns.insert(0, total)
    return torch.stack(log_probabilities), torch.tensor(returns), torch.stack(entropies), torch.stack(states)


@healthy("policy gradient: the loss is no measure of success", falls_to=0.6)
def reinforce(seed=0, steps=150):
    torch.manual_seed(seed)
    policy = mlp(7, 24, 2, activation=nn.Tanh)
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
    world, baseline, measures = _Walk(), 0.0, []
    for _ in range(steps):
        scores, returns, entropy, _ = _play(policy, world)
        loss = -(scores * (returns - baseline)).sum() - 0.01 * entropy.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        baseline += 0.1 * (float(returns[0]) - baseline)
        measures.append(1.0 - float(returns[0]))
    return measures, policy


@healthy("actor and critic with one body", falls_to=0.6)
def actor_critic(seed=0, steps=150):
    torch.manual_seed(seed)
    body, actor, critic = nn.Sequential(nn.Linear(7, 32), nn.Tanh()), nn.Linear(32, 2), nn.Linear(32, 1)
    model = nn.ModuleList([body, actor, critic])
    optimizer = torch.optim.RMSprop(model.parameters(), lr=3e-3)
    world, measures = _Walk(), []
    for _ in range(steps):
        scores, returns, entropy, states = _play(lambda s: actor(body(s)), world)
        value = critic(body(states)).squeeze(-1)
        advantage = (returns - value).detach()
        loss = -(scores * advantage).mean() + 0.5 * F.mse_loss(value, returns) - 0.01 * entropy.mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        measures.append(1.0 - float(returns[0]))
    return measures, model


@healthy("PPO: several passes over the same rows with a clipped ratio", falls_to=0.6)
def ppo(seed=0, steps=160):
    torch.manual_seed(seed)
    policy, value = mlp(7, 24, 2, activation=nn.Tanh), mlp(7, 24, 1, activation=nn.Tanh)
    optimizer = torch.optim.Adam([*policy.parameters(), *value.parameters()], lr=5e-3)
    world, measures = _Walk(), []
    while len(measures) < steps:
        with torch.no_grad():
            games = [_play(policy, world) for _ in range(6)]
        returns = torch.cat([game[1] for game in games])
        states = torch.cat([game[3] for game in games])
        old = torch.cat([game[0] for game in games])
        with torch.no_grad():
            move = torch.cat([game[3] for game in games])
            options = policy(move).log_softmax(-1)
            actions = (options - old.unsqueeze(1)).abs().argmin(1)
        for _ in range(4):
            new = policy(states).log_softmax(-1).gather(1, actions.unsqueeze(1)).squeeze(1)
            guess = value(states).squeeze(1)
            advantage = (returns - guess).detach()
            ratio = (new - old).exp()
            gain = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
            loss = -gain.mean() + 0.5 * F.mse_loss(guess, returns)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            measures.append(1 - sum(float(game[1][0]) for game in games) / len(games))
    return measures, (policy, value)
