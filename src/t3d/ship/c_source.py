"""Writes a policy as one C99 file for a microcontroller: no allocation, no library but math.h."""

from __future__ import annotations

from typing import Any

import numpy as np

from t3d.errors import UserError
from t3d.ship.bounds import bounds_inside
from t3d.ship.c_program import Program, Step
from t3d.snapshots import SCALED_LIMIT, PolicySnapshot
from t3d.types import Floats, Spec
from t3d.world.spaces import ABSURD

PER_LINE = 8  # numbers
ACTIVATIONS = {  # as in architectures.py
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
int t3d_act(const float observation[{inputs}], float action[{outputs}])
{{
{buffers}
    for (int i = 0; i < {inputs}; i++)
        if (!(fabsf(observation[i]) <= {absurd})) return 0;
{calls}
    for (int i = 0; i < {outputs}; i++) {{
        float v = action_low[i] + (tanhf({output}[i]) + 1.0f) / 2.0f * action_span[i];
{rounding}        if (v < action_low[i]) v = action_low[i];
        if (v > action_high[i]) v = action_high[i];
        action[i] = v;
    }}
    return 1;
}}
"""


def c_source(snapshot: PolicySnapshot, spec: Spec, comment: list[str]) -> str:
    """The file; `comment` is what it says about the policy."""
    if spec.images:
        raise UserError("policies of images cannot be exported to C; export them with --format onnx")
    program = traced(snapshot, spec)
    of, sizes = program.buffers()
    names = {0: "observation", **{value: f"b{buffer}" for value, buffer in of.items()}}
    arrays = [array for step in program.steps for array in step.arrays]
    low, high = bounds_inside(spec)
    span = (spec.action_high - spec.action_low).astype(np.float32)
    tables = {f"w{place}": array for place, array in enumerate(arrays)}
    tables |= {"action_low": low, "action_high": high, "action_span": span}
    is_whole = np.dtype(spec.action_dtype).kind in "iu"
    function = FUNCTION.format(
        inputs=spec.observation_size,
        outputs=spec.action_size,
        buffers="\n".join(f"    float b{place}[{size}];" for place, size in enumerate(sizes)),
        absurd=_number(ABSURD),
        calls="\n".join(_calls(program.steps, names)),
        output=names[program.steps[-1].output],
        rounding="        v = rintf(v);\n" if is_whole else "",
    )
    pieces = [
        _comment([*comment, *_how_to_call(spec, sizes)]),
        "#include <math.h>\n",
        *(_table(name, array) for name, array in tables.items()),
        *_helpers(program.steps, snapshot.architecture.activation),
        f"int t3d_act(const float observation[{spec.observation_size}], float action[{spec.action_size}]);\n",
        function,
    ]
    return "\n".join(pieces)


def traced(snapshot: PolicySnapshot, spec: Spec) -> Program:
    """The steps from the observation to the actions before their tanh."""
    network, program = snapshot.architecture, Program(spec.observation_size)
    x = program.observation
    if snapshot.scaling is not None:
        x = program.step("scale", [x], x.width, snapshot.scaling.mean[0], snapshot.scaling.std[0])
    network.forward([one[0] for one in network.parameters(snapshot.flat[:1])], x, program.operations())
    return program


def _calls(steps: list[Step], names: dict[int, str]) -> list[str]:
    lines, place, widths = [], 0, {one.output: one.width for one in steps}
    for one in steps:
        tables = [f"w{place + count}" for count in range(len(one.arrays))]
        place += len(tables)
        inputs, output = [names[number] for number in one.inputs], names[one.output]
        width = widths.get(one.inputs[0], one.arrays[0].shape[-1] if one.arrays else one.width)
        after = [output, str(one.width)] if one.name == "linear" else [output]
        lines.append(f"    {one.name}({', '.join([*inputs, str(width), *tables, *after])});")
    return lines


def _helpers(steps: list[Step], activation: str) -> list[str]:
    used = {one.name for one in steps}
    replaced = {"ACTIVATION": ACTIVATIONS[activation], "LIMIT": _number(SCALED_LIMIT)}
    found = [text for name, text in HELPERS.items() if name in used]
    for word, by in replaced.items():
        found = [text.replace(word, by) for text in found]
    return found


def _how_to_call(spec: Spec, sizes: list[int]) -> list[str]:
    lines = [
        f"    float observation[{spec.observation_size}], action[{spec.action_size}];",
        "    int ok = t3d_act(observation, action);",
        "",
        f"It returns 0, and leaves the action as it is, if an observation is not finite or beyond {ABSURD:g}.",
        "The observation is not yet normalised; the action is within the environment's bounds.",
        f"It takes about {4 * sum(sizes) + 200:,} bytes of stack, allocates nothing, and any thread may call it.",
        "Compile it as C99 without -ffast-math, and link with -lm.",
        "",
        *(f"observation[{part.start}..{part.stop - 1}]: {_part(part)}" for part in spec.observation),
    ]
    bounds = zip(spec.action_low.tolist(), spec.action_high.tolist(), strict=True)
    return lines + [f"action[{place}]: {low:g} to {high:g}" for place, (low, high) in enumerate(bounds)]


def _part(part: Any) -> str:
    choice = part.first_choice
    return f"{part.name} of shape {part.shape}" if choice is None else f"{part.name}, one-hot from choice {choice}"


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
