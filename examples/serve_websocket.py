"""Plays an episode with a policy that t3d serve serves, over a WebSocket: python serve_websocket.py 127.0.0.1:8701."""

import json
import sys
import urllib.request

import gymnasium as gym
import numpy as np
from websockets.sync.client import connect

address = sys.argv[1]
with urllib.request.urlopen(f"http://{address}/info") as response:
    info = json.load(response)
env = gym.make(info["environment"]["id"])
observation, _ = env.reset(seed=0)
total, ended = 0.0, False
with connect(f"ws://{address}/ws", proxy=None) as server:
    while not ended:
        server.send(observation.astype("<f4").tobytes())
        answer = server.recv()
        if isinstance(answer, str):  # a sentence instead of an action
            raise SystemExit(f"the server says: {json.loads(answer)['error']}")
        action = np.frombuffer(answer, info["action"]["type"]).reshape(info["action"]["shape"])
        observation, reward, terminated, truncated, _ = env.step(action)
        total, ended = total + float(reward), terminated or truncated
print(f"return {total:.1f}")
