"""Writes a policy as one C99 file for a microcontroller: no allocation, no library but math.h."""

from __future__ import annotations

from typing import Any

import numpy as np

from t3d.errors import UserError
from t3d.policy.actions import bounds_inside, middle
from t3d.policy.observations import ABSURD
from t3d.policy.snapshots import SCALED_LIMIT, PolicySnapshot
from t3d.policy.spec import Floats, Spec
from t3d.ship.c_program import Program, Step
from t3d.ship.c_texts import ACTIVATIONS, FUNCTION, HELPERS, INSIDE, LIMITING, OBSERVE_PREVIOUS

PER_LINE = 8  # numbers


def c_source(snapshot: PolicySnapshot, spec: Spec, comment: list[str]) -> str:
    """The file; `comment` is what it says about the policy."""
    if spec.images:
        raise UserError("policies of images cannot be exported to C; export them with --format onnx")
    program = traced(snapshot, spec)
    of, sizes = program.buffers()
    is_limited = bool(spec.max_action_change)
    names = {0: "input" if is_limited else "observation", **{value: f"b{buffer}" for value, buffer in of.items()}}
    arrays = [array for step in program.steps for array in step.arrays]
    low, high = bounds_inside(spec)
    span = (spec.action_high - spec.action_low).astype(np.float32)
    tables = {f"w{place}": array for place, array in enumerate(arrays)}
    tables |= {"action_low": low, "action_high": high, "action_span": span}
    if is_limited:
        tables["action_change"] = (spec.max_action_change * (spec.action_high - spec.action_low)).astype(np.float32)
    pieces = [
        _comment([*comment, *_how_to_call(spec, sizes)]),
        "#include <math.h>\n",
        *(_table(name, array) for name, array in tables.items()),
        *_helpers(program.steps, snapshot.architecture.activation),
        *([INSIDE] if is_limited else []),
        f"{_signature(spec)};\n",
        _function(program, names, sizes, spec),
    ]
    return "\n".join(pieces)


def _signature(spec: Spec) -> str:
    previous = f"const float previous_action[{spec.action_size}], " if spec.max_action_change else ""
    return f"int t3d_act(const float observation[{spec.own_size}], {previous}float action[{spec.action_size}])"


def _function(program: Program, names: dict[int, str], sizes: list[int], spec: Spec) -> str:
    """The function that acts."""
    counts = {"inputs": spec.own_size, "outputs": spec.action_size, "absurd": _number(ABSURD)}
    buffers = [f"    float b{place}[{size}];" for place, size in enumerate(sizes)]
    calls = "\n".join(_calls(program.steps, names))
    if spec.max_action_change:
        buffers.append(f"    float input[{spec.observation_size}];")
        calls = OBSERVE_PREVIOUS.format(**counts) + calls
    rounding = "        v = rintf(v);\n" if spec.has_integer_actions else ""
    return FUNCTION.format(
        **counts,
        signature=_signature(spec),
        buffers="\n".join(buffers),
        calls=calls,
        output=names[program.steps[-1].output],
        rounding=rounding,
        limiting=LIMITING if spec.max_action_change else "",
    )


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
    stack = 4 * sum(sizes) + (4 * spec.observation_size if spec.max_action_change else 0) + 200
    given = "an observation or a previous action" if spec.max_action_change else "an observation"
    lines = [
        *_example(spec),
        "",
        f"It returns 0, and leaves the action as it is, if {given} is not finite or beyond {ABSURD:g}.",
        "The observation is not yet normalised; the action is within the environment's bounds.",
        f"It takes about {stack:,} bytes of stack, allocates nothing, and any thread may call it.",
        "Compile it as C99 without -ffast-math, and link with -lm.",
        "",
        *(f"observation[{part.start}..{part.stop - 1}]: {_part(part)}" for part in spec.observation),
    ]
    bounds = zip(spec.action_low.tolist(), spec.action_high.tolist(), strict=True)
    return lines + [f"action[{place}]: {low:g} to {high:g}" for place, (low, high) in enumerate(bounds)]


def _example(spec: Spec) -> list[str]:
    if not spec.max_action_change:
        return [
            f"    float observation[{spec.own_size}], action[{spec.action_size}];",
            "    int ok = t3d_act(observation, action);",
        ]
    first = ", ".join(_number(value) for value in middle(spec).reshape(-1).tolist())
    return [
        f"    float observation[{spec.own_size}], action[{spec.action_size}] = {{{first}}};",
        "    int ok = t3d_act(observation, action, action);",
        "",
        "The second argument is the previous action, here replaced by the next one. It is as above when an episode",
        f"begins; each action then changes by at most {spec.max_action_change:g} of its range per step.",
    ]


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
