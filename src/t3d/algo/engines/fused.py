"""The CPU engine: steps 4 to 15 with gradients derived by hand, in preallocated buffers; no autograd, no allocations.

Why it exists: a third of an eager update on the CPU is not matrix products, and its narrow products are slow.
test_fused_is_td3_update in tests/algo/test_fused.py proves it equal to td3.py, step by step.

Hidden layers are (K, B, size), but outputs are (K, out, B), because BLAS is up to ten times slower when a product's
last axis is narrow. Passes that are never in use together share memory, because a product whose matrices have left
the cache takes a tenth longer.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from t3d.algo.adam import BETA1, BETA2, EPSILON, AdamState
from t3d.algo.critics import AGGREGATES
from t3d.algo.networks import Stack, layers_of
from t3d.algo.td3 import Agent, polyak
from t3d.config import TD3Config
from t3d.policy.architectures import NORM_EPSILON, Architecture
from t3d.types import Batch, Coefficient, Draws, UpdateTrace

DIFFER = ("gamma", "tau", "actor_lr", "critic_lr")  # coefficients of which each member may have its own
relu_backward = torch.ops.aten.threshold_backward.grad_input  # to look it up takes a third of a call


class Norm:
    """Layer normalisation and ReLU of a hidden layer, network by network, because then its values are in the cache."""

    def __init__(self, scale: Tensor, shift: Tensor, z: Tensor, h: Tensor, d_h: Tensor) -> None:
        self.z = z  # (K, B, size), what is normalised
        self.d_scale, self.d_shift = torch.empty_like(scale), torch.empty_like(shift)  # (K, 1, size), or a descent's
        self._each = list(zip(z, h, d_h, scale[:, 0], shift[:, 0], strict=True))
        self._statistics: list[list[Tensor]] = []

    def forward(self) -> None:
        self._statistics.clear()
        for z, h, _, scale, shift in self._each:
            normal, *statistics = torch.native_layer_norm(z, z.shape[-1:], scale, shift, NORM_EPSILON)
            torch.clamp_min(normal, 0, out=h)
            self._statistics.append(statistics)

    def backward(self) -> None:
        """Turns d loss / d its output, before ReLU, into d loss / d z."""
        kept = zip(self._each, self._statistics, self.d_scale, self.d_shift, strict=True)
        for (z, _, g, scale, shift), (mean, rstd), d_scale, d_shift in kept:
            gradients = torch.ops.aten.native_layer_norm_backward(
                g, z, z.shape[-1:], mean, rstd, scale, shift, [True, True, True]
            )
            for target, gradient in zip((g, d_scale, d_shift), gradients, strict=True):
                target.copy_(gradient)


class Pass:
    """K networks on an input x (K, B, in): the forward pass, and the backward pass down to the layers' outputs.

    Memory is for hidden layers, for what a norm turns into them, and for gradients.
    """

    def __init__(self, flat: Tensor, network: Architecture, x: Tensor, *memory: Tensor) -> None:
        (count, batch, _), sizes = x.shape, network.sizes
        *layers, (weight, bias) = layers_of(network, flat)
        hidden, unnormed, self.d_hidden = (carve(each, count, batch, sizes[1:-1]) for each in memory)
        self.inputs = [x, *hidden]  # of each layer; d_hidden is d loss / d hidden layer, before ReLU and norm
        self.output = x.new_empty(count, sizes[-1], batch)
        self.d_output = torch.empty_like(self.output)  # d loss / d output: the caller writes it

        buffers = zip(unnormed, hidden, self.d_hidden, strict=True)
        norms = [
            Norm(norm[0], norm[1], *each) if norm else None for (_, _, *norm), each in zip(layers, buffers, strict=True)
        ]
        self.norms = [norm for norm in norms if norm is not None]
        self._forward = [
            (weight, bias, x, h if norm is None else norm.z, norm)
            for (weight, bias, *_), x, h, norm in zip(layers, self.inputs, hidden, norms, strict=False)
        ]
        self._output = turned(bias), turned(weight), self.inputs[-1].mT
        above = [(g, weight.mT) for g, (weight, *_) in zip(self.d_hidden, layers, strict=True)]
        above.append((self.d_output.mT, turned(weight)))
        self._backward = list(zip(above[1:], self.d_hidden, hidden, norms, strict=True))[::-1]
        self._d_input = layers[0][0] if layers else weight, self.d_hidden[0].mT if layers else self.d_output

    def forward(self) -> Tensor:
        """Computes the output, (K, out, B)."""
        for weight, bias, x, h, norm in self._forward:
            torch.baddbmm(bias, x, weight, out=h)
            if norm is None:
                h.relu_()
            else:
                norm.forward()
        return torch.baddbmm(*self._output, out=self.output)

    def backward(self) -> None:
        for (above, weight), g, h, norm in self._backward:
            torch.bmm(above, weight, out=g)
            relu_backward(g, h, 0, grad_input=g)  # ReLU': zero where h is zero
            if norm is not None:
                norm.backward()

    def d_input(self, columns: slice, out: Tensor) -> Tensor:
        """Computes d loss / d the given columns of x, (K, columns, B); call backward first."""
        weight, above = self._d_input
        return torch.bmm(weight[:, columns], above, out=out)


class Descent:
    """Adam on the networks of a pass, with the gradient of their parameters."""

    def __init__(self, path: Pass, stack: Stack, state: AdamState) -> None:
        self.path = path
        gradient = torch.zeros_like(stack.flat)  # (K, P)
        self._steps = state.steps
        whole = stack.flat, gradient, state.mean, state.square
        members = zip(*(tensor.chunk(stack.members) for tensor in whole), strict=True)
        self._adam, *self._each = [(*([t] for t in rows), list[Tensor](), [state.steps]) for rows in (whole, *members)]
        *layers, (weight, bias) = layers_of(stack.architecture, gradient)
        self._hidden = [
            (x.mT, g, contiguous(weight), weight, bias)
            for x, g, (weight, bias, *_) in zip(path.inputs, path.d_hidden, layers, strict=False)
        ]
        for norm, (_, _, d_scale, d_shift) in zip(path.norms, layers, strict=False):
            norm.d_scale, norm.d_shift = d_scale, d_shift
        self._weight, self._bias = turned(weight), bias.squeeze(1)
        self._turned = contiguous(self._weight)  # (K, out, size)

    def step(self, rate: Coefficient) -> None:
        """Performs adam_step after backward; torch's fused Adam needs only one pass over memory, and takes one rate."""
        for x, g, product, weight, bias in self._hidden:
            weight.copy_(torch.bmm(x, g, out=product))
            torch.sum(g, 1, keepdim=True, out=bias)
        d_output = self.path.d_output
        self._weight.copy_(torch.bmm(d_output, self.path.inputs[-1], out=self._turned))
        torch.sum(d_output, 2, out=self._bias)
        self._steps.add_(1)
        own = zip(self._each, rate.tolist(), strict=True) if isinstance(rate, Tensor) else [(self._adam, rate)]
        for tensors, lr in own:
            torch._fused_adam_(  # as torch.optim.Adam(fused=True) calls it, which takes longer to get there
                *tensors,
                lr=lr, beta1=BETA1, beta2=BETA2, eps=EPSILON, weight_decay=0.0, amsgrad=False, maximize=False,
            )  # fmt: skip


class Fused:
    """td3_update for this agent, which it changes in place; traces are views of its buffers."""

    def __init__(self, agent: Agent, cfg: TD3Config, coefficients: Any) -> None:
        self.agent, self.cfg, self.coefficients = agent, cfg, coefficients  # floats, all but those of DIFFER
        self.maximised = 1 if cfg.actor_objective == "first" else cfg.critics  # whose values the actor maximises
        self._make_buffers()
        actor, critic = agent.actor.architecture, agent.critic.architecture
        members = len(agent.actor.flat)
        # All passes use the same memory; only the two of step 13 are in use together, so the second begins later.
        for_actor = members * cfg.batch_size * sum(actor.sizes[1:-1])
        for_critic = members * cfg.batch_size * sum(critic.sizes[1:-1])
        size = max(for_actor + for_critic * self.maximised, for_critic * cfg.critics)
        memory = [agent.actor.flat.new_empty(size) for _ in range(3)]
        x, x2 = self.x.flatten(0, 1), self.x2.flatten(0, 1)  # (M * C, B, in)
        self.actor_target = Pass(agent.actor_target.flat, actor, self.s2[0], *memory)
        self.critic_target = Pass(agent.critic_target.flat, critic, x2, *memory)
        self.critic = Pass(agent.critic.flat, critic, x, *memory)
        self.actor = Pass(agent.actor.flat, actor, self.s[0], *memory)
        flat, their_x = agent.critic.flat[:: cfg.critics // self.maximised], self.x[:, : self.maximised].flatten(0, 1)
        self.q_pi = Pass(flat, critic, their_x, memory[0][for_actor:], memory[1][for_actor:], memory[2])
        self.q_pi.d_output.fill_(-1 / (cfg.batch_size * self.maximised))  # of step 13's loss, in every update
        # Views are made once, because one costs as much as a small operation.
        self.pi2, self.pi = self.actor_target.output.mT, self.actor.output.mT  # (M, B, action)
        self.q2, self.q, self.d_q = (
            values.view_as(self.td) for values in (self.critic_target.output, self.critic.output, self.critic.d_output)
        )
        self.by_critic = [values.transpose(0, 1) for values in (self.q, self.td, self.d_q)]  # (C, M, B): y broadcasts
        self.critic_descent = Descent(self.critic, agent.critic, agent.critic_adam)
        self.actor_descent = Descent(self.actor, agent.actor, agent.actor_adam)

    def _make_buffers(self) -> None:
        cfg, actor = self.cfg, self.agent.actor
        observation_size, *_, action_size = actor.architecture.sizes
        new = partial(torch.full, fill_value=torch.nan, dtype=actor.flat.dtype)  # a forgotten write shows
        self.y = new((len(actor.flat), cfg.batch_size))  # (M, B)
        self.v2, self.mean_q_pi = torch.empty_like(self.y), torch.empty_like(self.y)
        self.actor_loss = torch.empty_like(self.y[:, 0])  # (M,)
        self.eps = new((*self.y.shape, action_size))
        self.a2 = torch.empty_like(self.eps)
        self.d_action = new((len(actor.flat) * self.maximised, action_size, cfg.batch_size))
        self.td = new((self.y.shape[0], cfg.critics, cfg.batch_size))
        self.loss = torch.empty_like(self.td)
        self.actions = slice(observation_size, observation_size + action_size)
        # The critics' inputs, (M, C, B, observation + action): a copy per critic, as batched products need.
        self.x, self.x2 = (new((*self.td.shape, self.actions.stop)) for _ in range(2))
        # Their columns, (C, M, B, columns): what is copied to them is the same for all critics.
        columns = [observation_size, action_size]
        (self.s, self.a), (self.s2, self.critics_a2) = (
            torch.split(x.transpose(0, 1), columns, dim=-1) for x in (self.x, self.x2)
        )
        # Constants as tensors, because an operation on a Python number converts it to a tensor every time.
        self.one, self.sigma, self.two_over_b = (
            torch.tensor(number, dtype=self.y.dtype)
            for number in (1, self.coefficients.target_noise, 2 / cfg.batch_size)
        )

    @torch.inference_mode()  # 1 to 2 % faster than no_grad; the buffers are ordinary tensors all the same
    def __call__(self, batch: Batch, draws: Draws, update_actor: bool) -> UpdateTrace:
        clip = self.coefficients.target_noise_clip
        # Step 4: a batch of transitions, to where the networks read it.
        self.s.copy_(batch.s)
        self.a.copy_(batch.a)
        self.s2.copy_(batch.s2)
        # Step 5: the target actor's action in the next state.
        self.actor_target.forward().tanh_()  # pi2
        # Step 6: target policy smoothing.
        eps = torch.mul(draws.target_noise, self.sigma, out=self.eps).clamp_(-clip, clip)
        a2 = torch.add(self.pi2, eps, out=self.a2).clamp_(-1, 1)
        self.critics_a2.copy_(a2)
        # Step 7: the target critics' values of it.
        self.critic_target.forward()  # q2
        # Step 8: the smallest of them, which takes no memory, or what algo/critics.py makes of them.
        name, q2, v2 = self.cfg.aggregate, self.q2, self.v2  # (M, C, B) to (M, B)
        torch.amin(q2, 1, out=v2) if name == "min" else v2.copy_(AGGREGATES[name](q2, draws, self.cfg))
        # Step 9: y = r + discount * (1 - terminated) * v2.
        y = torch.sub(self.one, batch.terminated, out=self.y).mul_(batch.discount).mul_(v2).add_(batch.r)
        # Step 10: the critics' values of the action that was taken.
        self.critic.forward()  # q
        # Step 11: mean(weight * td²), and its gradient with respect to q.
        q, td, d_q = self.by_critic
        torch.sub(q, y, out=td)
        loss = torch.mul(self.td, self.td, out=self.loss)
        torch.mul(td, batch.weight, out=d_q).mul_(self.two_over_b)
        # Step 12: backpropagate, one Adam step for all critics.
        self.critic.backward()
        self.critic_descent.step(self.coefficients.critic_lr)

        steps = UpdateTrace(self.pi2, eps, a2, self.q2, v2, y, self.q, self.td, loss, batch.weight)
        return self._update_actor(steps) if update_actor else steps

    def _update_actor(self, steps: UpdateTrace) -> UpdateTrace:
        # Step 13: gradient ascent of the actor on online critics, whose own weights need no gradient.
        pi = self.actor.forward().tanh_()  # (M, action, B)
        self.a[: self.maximised].copy_(self.pi)
        each = self.q_pi.forward().view(-1, self.maximised, self.cfg.batch_size)  # (M, maximised, B)
        self.q_pi.backward()
        d_each = self.q_pi.d_input(self.actions, out=self.d_action)
        d_pi = d_each if self.maximised == 1 else d_each.view(-1, self.maximised, *d_each.shape[1:]).sum(dim=1)
        torch.addcmul(self.one, pi, pi, value=-1, out=self.actor.d_output).mul_(d_pi)  # tanh' = 1 - tanh²
        self.actor.backward()
        self.actor_descent.step(self.coefficients.actor_lr)
        # Step 14: the actor's target follows slowly,
        polyak(self.agent.actor_target, self.agent.actor, self.coefficients.tau)
        # Step 15: and so do the critics' targets.
        polyak(self.agent.critic_target, self.agent.critic, self.coefficients.tau)
        q_pi = each.squeeze(1) if self.maximised == 1 else torch.mean(each, 1, out=self.mean_q_pi)
        actor_loss = torch.mean(q_pi, 1, out=self.actor_loss).neg_()
        return steps._replace(pi=self.pi, q_pi=q_pi, actor_loss=actor_loss)


def carve(memory: Tensor, count: int, batch: int, sizes: tuple[int, ...]) -> list[Tensor]:
    """Splits memory from its start into hidden layers (K, B, size)."""
    pieces, start = [], 0
    for size in sizes:
        stop = start + count * batch * size
        pieces.append(memory[start:stop].view(count, batch, size))
        start = stop
    return pieces


def contiguous(matrices: Tensor) -> Tensor:
    """What a batched product can write to: these matrices, as of one network, or others of their size."""
    return matrices if matrices.is_contiguous() else torch.empty_like(matrices, memory_format=torch.contiguous_format)


def turned(matrices: Tensor) -> Tensor:
    """A transposed view (K, o, i) of (K, i, o); a single row gets a row's strides, else BLAS is three times slower."""
    count, rows, columns = matrices.shape
    return matrices.view(count, columns, rows) if 1 in (rows, columns) else matrices.mT
