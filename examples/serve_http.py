"""Plays an episode with a policy that t3d serve serves, over HTTP: python serve_http.py 127.0.0.1:8701."""

import http.client
import json
import sys
import time

import gymnasium as gym

server = http.client.HTTPConnection(sys.argv[1], timeout=10)


def ask(method, path, body=None):
    server.request(method, path, body and json.dumps(body), {"content-type": "application/json"})
    response = server.getresponse()
    answer = json.load(response)
    if response.status != 200:
        raise SystemExit(f"the server says: {answer['error']}")
    return answer


env = gym.make(ask("GET", "/info")["environment"]["id"])
observation, _ = env.reset(seed=0)
total, steps, ended, waited = 0.0, 0, False, 0.0
while not ended:
    started = time.perf_counter()
    action = ask("POST", "/act", {"observation": observation.tolist()})["action"]
    waited += time.perf_counter() - started
    observation, reward, terminated, truncated, _ = env.step(env.action_space.dtype.type(action))
    total, steps, ended = total + float(reward), steps + 1, terminated or truncated
print(f"return {total:.1f} in {steps} steps, {1000 * waited / steps:.2f} ms an action")
