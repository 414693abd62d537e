"""The C code of exported policies: what c_source.py fills in and puts together."""

from __future__ import annotations

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
{signature}
{{
{buffers}
    for (int i = 0; i < {inputs}; i++)
        if (!(fabsf(observation[i]) <= {absurd})) return 0;
{calls}
    for (int i = 0; i < {outputs}; i++) {{
        float v = action_low[i] + (tanhf({output}[i]) + 1.0f) / 2.0f * action_span[i];
{rounding}        if (v < action_low[i]) v = action_low[i];
        if (v > action_high[i]) v = action_high[i];
{limiting}        action[i] = v;
    }}
    return 1;
}}
"""
# If changes of actions are limited. `action` may be the same array as `previous_action`.
INSIDE = """\
static float inside(float v, float low, float high)
{
    return v < low ? low : v > high ? high : v;
}
"""
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
