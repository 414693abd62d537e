"""Writes a policy as one C99 file for a microcontroller: no allocation, no library but math.h."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from t3d.errors import UserError
from t3d.policy.acting import SCALED_LIMIT, PolicySnapshot
from t3d.policy.architectures import Operations
from t3d.policy.observations import ABSURD
from t3d.policy.spec import Floats, Spec, bounds_inside, middle

PER_LINE = 8  # numbers
NEXT_BUFFER = {"b0": "b1", "b1": "b2", "b2": "b1"}  # of what is computed from this one
ACTIVATIONS = {  # as in policy/architectures.py
    "relu": "v > 0.0f ? v : 0.0f",
    "elu": "v > 0.0f ? v : expm1f(v)",
    "gelu": "0.5f * v * (1.0f + tanhf(0.797884583f * (v + 0.044715f * v * v * v)))",
    "silu": "0.5f * v * (1.0f + tanhf(0.5f * v))",
    "tanh": "tanhf(v)",
}
HELPERS = {
    # Eight sums, added at the end: they round less than one (of a trained Pendulum policy we measured differences of
    # 1.1e-6 of the range instead of 3.7e-6), and compilers make vectors of them.
    "linear": """\
static void linear(const float *x, int inputs, const float *weight, const float *bias, float *y, int outputs)
{
    for (int j = 0; j < outputs; j++, weight += inputs) {
        float sum[8] = {0.0f};
        int i = 0;
        for (; i + 8 <= inputs; i += 8)
            for (int k = 0; k < 8; k++) sum[k] += weight[i + k] * x[i + k];
        for (int k = 0; i < inputs; i++, k++) sum[k] += weight[i] * x[i];
        y[j] = bias[j] + (((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7])));
    }
}
""",
    "layer_norm": """\
static void layer_norm(const float *x, int size, const float *scale, const float *shift, float *y)
{
    float mean = 0.0f, variance = 0.0f;
    for (int i = 0; i < size; i++) mean += x[i];
    mean /= (float)size;
    for (int i = 0; i < size; i++) variance += (x[i] - mean) * (x[i] - mean);
    const float deviation = sqrtf(variance / (float)size + 1e-5f);
    for (int i = 0; i < size; i++) y[i] = (x[i] - mean) / deviation * scale[i] + shift[i];
}
""",
    "avg_l1_norm": """\
static void avg_l1_norm(const float *x, int size, float *y)
{
    float mean = 0.0f;
    for (int i = 0; i < size; i++) mean += fabsf(x[i]);
    mean /= (float)size;
    for (int i = 0; i < size; i++) y[i] = x[i] / (mean < 1e-8f ? 1e-8f : mean);
}
""",
    "join": """\
static void join(const float *x, const float *other, int size, int more, float *y)
{
    for (int i = 0; i < size; i++) y[i] = x[i];
    for (int i = 0; i < more; i++) y[size + i] = other[i];
}
""",
    "elu": """\
static void elu(const float *x, int size, float *y)
{
    for (int i = 0; i < size; i++) y[i] = x[i] > 0.0f ? x[i] : expm1f(x[i]);
}
""",
    "activate": """\
static void activate(const float *x, int size, float *y)
{
    for (int i = 0; i < size; i++) {
        const float v = x[i];
        y[i] = ACTIVATION;
    }
}
""",
    "add": """\
static void add(const float *x, const float *other, int size, float *y)
{
    for (int i = 0; i < size; i++) y[i] = x[i] + other[i];
}
""",
    "scale": """\
static void scale(const float *x, int size, const float *mean, const float *std, float *y)
{
    for (int i = 0; i < size; i++) {
        const float v = (x[i] - mean[i]) / std[i];
        y[i] = v < -LIMIT ? -LIMIT : v > LIMIT ? LIMIT : v;
    }
}
""",
}
FUNCTION = """\
static float inside(float v, float low, float high)
{{
    return v < low ? low : v > high ? high : v;
}}

int t3d_act(const float observation[{inputs}], {previous}float action[{outputs}])
{{
{buffers}
    for (int i = 0; i < {inputs}; i++)
        if (!(fabsf(observation[i]) <= {absurd})) return 0;
{calls}
    for (int i = 0; i < {outputs}; i++) {{
        float v = action_low[i] + (tanhf({output}[i]) + 1.0f) / 2.0f * action_span[i];
{rounding}        v = inside(v, action_low[i], action_high[i]);
{limiting}        action[i] = v;
    }}
    return 1;
}}
"""
# If changes of actions are limited. `action` may be the same array as `previous_action`.
OBSERVE_PREVIOUS = """\
    for (int i = 0; i < {outputs}; i++)
        if (!(fabsf(previous_action[i]) <= {absurd})) return 0;
    for (int i = 0; i < {inputs}; i++) input[i] = observation[i];
    for (int i = 0; i < {outputs}; i++) {{
        const float previous = inside(previous_action[i], action_low[i], action_high[i]);
        input[{inputs} + i] = 2.0f * ((previous - action_low[i]) / action_span[i]) - 1.0f;
    }}
"""
LIMITING = """\
        const float previous = inside(previous_action[i], action_low[i], action_high[i]);
        v = inside(v, previous - action_change[i], previous + action_change[i]);
"""


class Value(NamedTuple):
    """A vector in a buffer of the program."""

    program: Program
    buffer: str
    width: int

    def __add__(self, other: Value) -> Value:  # type: ignore[override]
        return self.program.call("add", [self, other], self)


class Program:
    """Calls of the helpers, in order, which forward passes add instead of computing.

    Three buffers are enough: b0 holds what a layer makes of the observation, to which residual blocks add, and whatever
    follows takes turns in b1 and b2, where it is read once, by the next call. An embedding waits in b2 for what is then
    made of the observation again, and joins it in b1.
    """

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.helpers: set[str] = set()
        self.tables: dict[str, Floats] = {}
        self.sizes: dict[str, int] = {}

    def call(self, helper: str, inputs: list[Value], output: Value, *tables: Floats) -> Value:
        """Adds a call of a helper and returns its output."""
        names = [f"w{len(self.tables) + count}" for count in range(len(tables))]
        self.tables |= dict(zip(names, tables, strict=True))
        self.helpers.add(helper)
        self.sizes[output.buffer] = max(output.width, self.sizes.get(output.buffer, 0))
        words = [*(given.buffer for given in inputs), inputs[0].width, *names, output.buffer]
        words[len(inputs) + 1 : len(inputs) + 1] = [inputs[1].width] if helper == "join" else []
        words += [output.width] if helper == "linear" else []
        self.calls.append(f"    {helper}({', '.join(map(str, words))});")
        return output

    def forward(self, snapshot: PolicySnapshot, spec: Spec) -> Value:
        """Adds the calls from the observation to the actions before their tanh, and returns these."""

        def after(x: Value, width: int) -> Value:
            return Value(self, NEXT_BUFFER.get(x.buffer, "b0"), width)

        def linear(x: Value, weight: Floats, bias: Floats) -> Value:
            return self.call("linear", [x], after(x, weight.shape[1]), weight.T, bias[0])

        def layer_norm(x: Value, scale: Floats, shift: Floats) -> Value:
            return self.call("layer_norm", [x], after(x, x.width), scale[0], shift[0])

        def activate(x: Value) -> Value:
            return self.call("activate", [x], x)

        def normalise(x: Value) -> Value:
            return self.call("avg_l1_norm", [x], x)

        def join(pieces: Sequence[Value]) -> Value:
            return self.call("join", [*pieces], Value(self, "b1", sum(piece.width for piece in pieces)))

        not_here = [None] * 4  # networks of images are not written in C
        others: list[Any] = [None, join, *not_here, lambda x: self.call("elu", [x], x), normalise]
        network, size = snapshot.architecture, spec.observation_size
        x = Value(self, "input" if spec.max_action_change else "observation", size)
        if spec.max_action_change:
            self.sizes["input"] = size  # the observation is copied there, with the previous action
        if snapshot.scaling is not None:
            scaling = snapshot.scaling
            x = self.call("scale", [x], Value(self, "input", size), scaling.mean[0], scaling.std[0])
        parameters = [stack[0] for stack in network.parameters(snapshot.flat[:1])]
        output: Value = network.forward(parameters, x, Operations(linear, layer_norm, activate, *others))
        return output


def c_source(snapshot: PolicySnapshot, spec: Spec, comment: list[str]) -> str:
    """The file; `comment` is what it says about the policy."""
    if spec.images:
        raise UserError("policies of images cannot be exported to C; export them with --format onnx")
    program, is_limited = Program(), bool(spec.max_action_change)
    output = program.forward(snapshot, spec)
    span = spec.action_high - spec.action_low
    tables = {**program.tables, **dict(zip(("action_low", "action_high"), bounds_inside(spec), strict=True))}
    tables["action_span"] = span.astype(np.float32)
    if is_limited:
        tables["action_change"] = (spec.max_action_change * span).astype(np.float32)
    helpers = "\n".join(text for name, text in HELPERS.items() if name in program.helpers)
    helpers = helpers.replace("ACTIVATION", ACTIVATIONS[snapshot.architecture.activation])
    counts = {"inputs": spec.own_size, "outputs": spec.action_size, "absurd": _number(ABSURD)}
    function = FUNCTION.format(
        **counts,
        previous=f"const float previous_action[{spec.action_size}], " if is_limited else "",
        buffers="\n".join(f"    float {name}[{size}];" for name, size in program.sizes.items()),
        calls=(OBSERVE_PREVIOUS.format(**counts) if is_limited else "") + "\n".join(program.calls),
        output=output.buffer,
        rounding="        v = rintf(v);\n" if spec.has_integer_actions else "",
        limiting=LIMITING if is_limited else "",
    )
    pieces = [
        _comment([*comment, *_how_to_call(spec, program.sizes)]),
        "#include <math.h>\n",
        *(_table(name, array) for name, array in tables.items()),
        helpers.replace("LIMIT", _number(SCALED_LIMIT)),
        function,
    ]
    return "\n".join(pieces)


def _how_to_call(spec: Spec, sizes: dict[str, int]) -> list[str]:
    change, stack = spec.max_action_change, 4 * sum(sizes.values()) + 200
    first = f" = {{{', '.join(map(_number, middle(spec).reshape(-1).tolist()))}}}" if change else ""
    inputs = "an observation or a previous action" if change else "an observation"
    lines = [
        f"    float observation[{spec.own_size}], action[{spec.action_size}]{first};",
        f"    int ok = t3d_act(observation, {'action, ' if change else ''}action);",
        "",
        f"It returns 0, and leaves the action as it is, if {inputs} is not finite or beyond {ABSURD:g}.",
        "The observation is not yet normalised; the action is within the environment's bounds.",
        f"It takes about {stack:,} bytes of stack, allocates nothing, and any thread may call it.",
        "Compile it as C99 without -ffast-math, and link with -lm.",
        "",
    ]
    if change:
        lines[3:3] = [
            "The second argument is the previous action, here replaced by the next one. It is as above when an episode",
            f"begins; each action then changes by at most {change:g} of its range per step.",
            "",
        ]
    for part in spec.observation:
        choice = part.first_choice
        content = f" of shape {part.shape}" if choice is None else f", one-hot from choice {choice}"
        content += f", one vector for each of its {len(part.counts)} numbers: {part.counts} long" if part.counts else ""
        lines.append(f"observation[{part.start}..{part.stop - 1}]: {part.name}{content}")
    bounds = zip(spec.action_low.tolist(), spec.action_high.tolist(), strict=True)
    return lines + [f"action[{index}]: {low:g} to {high:g}" for index, (low, high) in enumerate(bounds)]


def _comment(lines: list[str]) -> str:
    """A block comment; what is not plain text cannot end it."""
    plain = [" ".join(line.encode("ascii", "backslashreplace").decode().split("\n")) for line in lines]
    inside = [line.replace("*/", "* /").replace("/*", "/ *").replace("??", "? ?").rstrip("\\") for line in plain]
    return "/*\n" + "".join(f" * {line}".rstrip() + "\n" for line in inside) + " */\n"


def _table(name: str, array: Floats) -> str:
    numbers = [_number(value) for value in array.reshape(-1).tolist()]
    lines = [", ".join(numbers[start : start + PER_LINE]) for start in range(0, len(numbers), PER_LINE)]
    return f"static const float {name}[{len(numbers)}] = {{\n    " + ",\n    ".join(lines) + "\n};\n"


def _number(value: float) -> str:
    text = f"{value:.9g}"
    return f"{text}f" if "." in text or "e" in text else f"{text}.0f"
