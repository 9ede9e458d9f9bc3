"""stable-baselines3: PPO on CartPole: rollouts without gradients, then updates."""

import torch
from stable_baselines3 import PPO

torch.set_num_threads(1)
agent = PPO("MlpPolicy", "CartPole-v1", n_steps=32, batch_size=16, n_epochs=2, seed=0, device="cpu")
agent.learn(96)
print(f"{sum(p.sum().item() for p in agent.policy.parameters()):.9f}")
