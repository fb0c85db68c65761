/* SPDX-License-Identifier: MIT */
/*
 * The functions between the GEMMs, in fp32. Kernels are compiled without a device
 * library, so exp, tanh and erfc are made here; the same source gives the same bits on
 * all machines that fuse where gpu_fma says so.
 */
#ifndef MOEK_GPU_ACTIVATION_H
#define MOEK_GPU_ACTIVATION_H

/* e^x, within 2 ulp; overflows to infinity, underflows to 0; a NaN stays one */
GPU_DEVICE float act_exp(float x)
{
	float shifted, n, r, p;
	int power, half;

	x = x < -110.0f ? -110.0f : x > 100.0f ? 100.0f : x;
	/* adding 1.5 * 2^23 leaves the nearest integer in the low bits */
	shifted = gpu_fma(x, 1.44269504f, 12582912.0f);
	n = shifted - 12582912.0f;
	power = (int)(gpu_bits(shifted) - 0x4b400000u);
	/* ln 2 in two parts: n times the first is exact */
	r = gpu_fma(n, -0.693145752f, x);
	r = gpu_fma(n, -1.42860677e-6f, r);
	p = 1.38888889e-3f;
	p = gpu_fma(p, r, 8.33333333e-3f);
	p = gpu_fma(p, r, 4.16666667e-2f);
	p = gpu_fma(p, r, 1.66666667e-1f);
	p = gpu_fma(p, r, 0.5f);
	p = gpu_fma(p, r, 1.0f);
	p = gpu_fma(p, r, 1.0f);
	/* 2^power in two factors: power is -159 .. 144 */
	half = power >> 1;
	return p * gpu_float((gpu_u32)(half + 127) << 23) *
	       gpu_float((gpu_u32)(power - half + 127) << 23);
}

GPU_DEVICE float act_sigmoid(float x)
{
	return 1.0f / (1.0f + act_exp(-x));
}

GPU_DEVICE float act_tanh(float x)
{
	float size = x < 0.0f ? -x : x, square = x * x, p;

	if (size > 0.3f) {
		p = 1.0f - 2.0f / (act_exp(2.0f * size) + 1.0f);
		return x < 0.0f ? -p : p;
	}
	/* the quotient would cancel: the series, next term under 2e-9 of the value */
	p = -8.86323553e-3f;
	p = gpu_fma(p, square, 2.18694885e-2f);
	p = gpu_fma(p, square, -5.39682540e-2f);
	p = gpu_fma(p, square, 1.33333333e-1f);
	p = gpu_fma(p, square, -3.33333333e-1f);
	return gpu_fma(p * square, x, x);
}

/*
 * erfc(z) of z >= 0 as t exp(-z^2 + P(t)), t = 1 / (1 + z / 2). P was fitted at
 * Chebyshev nodes up to z = 14, where erfc has left fp32: 5e-9 of the value.
 */
GPU_DEVICE float act_erfc(float z)
{
	float t = 1.0f / (1.0f + 0.5f * z), x = gpu_fma(t, 2.28571429f, -1.28571429f);
	float p = -1.29114944e-5f;

	p = gpu_fma(p, x, -2.93395323e-5f);
	p = gpu_fma(p, x, 1.32697707e-4f);
	p = gpu_fma(p, x, 1.35669239e-4f);
	p = gpu_fma(p, x, -8.42741023e-4f);
	p = gpu_fma(p, x, -9.66711845e-5f);
	p = gpu_fma(p, x, 4.80991788e-3f);
	p = gpu_fma(p, x, -2.41031172e-3f);
	p = gpu_fma(p, x, -3.37670007e-2f);
	p = gpu_fma(p, x, 2.22104824e-2f);
	p = gpu_fma(p, x, 5.96937879e-1f);
	p = gpu_fma(p, x, -5.87067675e-1f);
	return t * act_exp(gpu_fma(-z, z, p));
}

/* g / 2 (1 + erf(g / sqrt 2)): through erfc, which does not cancel for negative g */
GPU_DEVICE float act_gelu(float g)
{
	float tail = act_erfc((g < 0.0f ? -g : g) * 0.707106781f);

	return 0.5f * g * (g < 0.0f ? tail : 2.0f - tail);
}

/* (1 + tanh v) / 2 is the sigmoid of 2 v */
GPU_DEVICE float act_gelu_tanh(float g)
{
	float v = 0.797884561f * gpu_fma(0.044715f * g * g, g, g);

	return g * act_sigmoid(2.0f * v);
}

GPU_DEVICE float act_clamp(float x, float limit)
{
	return x > limit ? limit : x < -limit ? -limit : x;
}

/* enum moek_activation of problem.h, gated; limit 0: none */
GPU_DEVICE float gpu_activate(float g, float u, const struct gpu_activation *a)
{
	float limit = a->limit, alpha = a->alpha, beta = a->beta;

	if (limit > 0.0f) {
		if (a->function != GPU_SWIGLU_STEP)
			g = g > limit ? limit : g;
		u = act_clamp(u, limit);
	}
	switch (a->function) {
	case GPU_SILU:
		return g * act_sigmoid(g) * u;
	case GPU_GELU:
		return act_gelu(g) * u;
	case GPU_GELU_TANH:
		return act_gelu_tanh(g) * u;
	case GPU_SWIGLU_OAI:
		return g * act_sigmoid(alpha * g) * (u + beta);
	case GPU_SWIGLU_STEP:
		g = g * act_sigmoid(g);
		return (limit > 0.0f && g > limit ? limit : g) * u;
	default: /* GPU_SITU */
		u = beta > 0.0f ? beta * act_tanh(u / beta) : u;
		return alpha * act_tanh(g / alpha) * act_sigmoid(g) * u;
	}
}

#endif
