// SPDX-License-Identifier: MIT
// A backend in C++: bf16 experts, SiLU, on the host; and, when `fault` names a hook, what
// that hook throws.
#include <moek/experts.hpp>
#include <moek/formats.h>

#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

struct Mine : moek::plugin {
	std::string fault;

	explicit Mine(const moek_host *host) : moek::plugin(host)
	{
		const char *named = option("fault");

		fault = named != nullptr ? named : "";
		may_throw("open");
	}

	void may_throw(const char *hook) const
	{
		if (fault == hook)
			throw std::runtime_error(std::string("thrown by ") + hook);
		if (fault == std::string("number_") + hook)
			throw 42;
		if (fault == std::string("memory_") + hook)
			throw std::bad_alloc();
	}
};

class Layer {
	const Mine &plugin_;
	uint64_t hidden_, intermediate_, top_k_;
	uint16_t *weights_;

	uint64_t matrix() const { return hidden_ * intermediate_; }

	float product(const uint16_t *weights, const uint16_t *input, uint64_t columns) const
	{
		float sum = 0;

		for (uint64_t i = 0; i < columns; i++)
			sum += moek_bf16_to_f32(weights[i]) * moek_bf16_to_f32(input[i]);
		return sum;
	}

	void run_slot(const moek_batch &batch, uint64_t slot) const
	{
		int32_t local = batch.topk_ids[slot];
		auto input = static_cast<const uint16_t *>(batch.input.data) +
		             slot / top_k_ * hidden_;
		auto output = static_cast<float *>(batch.output.data) + slot * hidden_;

		if (local < 0)
			return;
		plugin_.may_throw("worker");
		const uint16_t *gate = weights_ + uint64_t(local) * 3 * matrix();
		const uint16_t *up = gate + matrix(), *down = up + matrix();
		std::vector<uint16_t> activated(intermediate_);

		for (uint64_t r = 0; r < intermediate_; r++) {
			float g = product(gate + r * hidden_, input, hidden_);
			float u = product(up + r * hidden_, input, hidden_);

			activated[r] = moek_bf16_from_f32(g / (1 + std::exp(-g)) * u);
		}
		for (uint64_t r = 0; r < hidden_; r++)
			output[r] = product(down + r * intermediate_, activated.data(),
			                    intermediate_);
	}

public:
	using plugin_type = Mine;

	static int32_t supports_device(const Mine &p, const moek_device &device,
	                               moek_verdict &no)
	{
		p.may_throw("supports_device");
		return device.kind == MOEK_HOST
		               ? 1
		               : moek_refuse(&no, MOEK_RULE_DEVICE_KIND, device.kind);
	}
	static int32_t supports_quant_scheme(const Mine &p, const moek_problem &problem,
	                                     moek_verdict &no)
	{
		const uint64_t bf16 = MOEK_BF16, a16 = MOEK_A16;

		p.may_throw("supports_quant_scheme");
		for (const moek_scheme *scheme : { &problem.gate_up, &problem.down })
			if (scheme->weight != MOEK_BF16) {
				no.projection = scheme == &problem.down ? MOEK_DOWN
				                                        : MOEK_GATE_UP;
				return moek_refuse_values(&no, MOEK_RULE_WEIGHT,
				                          scheme->weight, &bf16, 1);
			}
		if (problem.activations != MOEK_A16)
			return moek_refuse_values(&no, MOEK_RULE_ACTIVATIONS,
			                          problem.activations, &a16, 1);
		if (problem.input_type != MOEK_BF16)
			return moek_refuse_values(&no, MOEK_RULE_INPUT_TYPE,
			                          problem.input_type, &bf16, 1);
		return 1;
	}
	static int32_t supports_activation(const Mine &p, const moek_problem &problem,
	                                   moek_verdict &no)
	{
		const uint64_t silu = MOEK_SILU;

		p.may_throw("supports_activation");
		return problem.activation == MOEK_SILU
		               ? 1
		               : moek_refuse_values(&no, MOEK_RULE_ACTIVATION,
		                                    problem.activation, &silu, 1);
	}
	static int32_t supports_parallel(const Mine &p, const moek_problem &, moek_verdict &)
	{
		p.may_throw("supports_parallel");
		return 1;
	}
	static int32_t supports_shape(const Mine &p, const moek_problem &problem,
	                              moek_verdict &no)
	{
		uint64_t align;

		p.may_throw("supports_shape");
		return prepared_size(p, problem, align) != 0
		               ? 1
		               : moek_refuse(&no, MOEK_RULE_INDEX_RANGE,
		                             problem.experts_local);
	}
	static void problem_size(const Mine &p, const moek_problem &problem, moek_sizes &sizes)
	{
		p.may_throw("problem_size");
		sizes.struct_size = MOEK_SIZES_SIZE_1_0;
		sizes.hidden = problem.hidden;
		sizes.intermediate = problem.intermediate;
		sizes.gate_up_columns = 2 * problem.intermediate;
	}
	static int32_t workspace_shapes(const Mine &p, const moek_problem &, uint64_t, uint32_t,
	                                moek_buffer *, uint32_t)
	{
		p.may_throw("workspace_shapes");
		return 0;
	}
	static uint32_t finalize(const Mine &p, const moek_problem &, uint64_t)
	{
		p.may_throw("finalize");
		return MOEK_SLOTS;
	}
	static void numerics(const Mine &p, const moek_problem &problem, moek_numerics &n)
	{
		p.may_throw("numerics");
		n = moek_numerics{};
		n.struct_size = MOEK_NUMERICS_SIZE_1_0;
		n.accumulator = MOEK_F32;
		n.terms = problem.hidden + problem.intermediate + problem.top_k + 16;
		n.roundings = 1;
		n.repeatable = 1;
		std::strcpy(n.text, "loops in C++, fp32 sums in column order");
	}
	static uint64_t prepared_size(const Mine &p, const moek_problem &problem,
	                              uint64_t &align)
	{
		int overflow = 0;
		uint64_t elements = moek_size_multiply(problem.hidden, problem.intermediate,
		                                       &overflow);

		p.may_throw("prepared_size");
		align = 64;
		elements = moek_size_multiply(elements, 6, &overflow);
		elements = moek_size_multiply(elements, problem.experts_local, &overflow);
		return overflow ? 0 : elements;
	}

	Layer(Mine &p, const moek_device &, const moek_problem &problem, void *weights)
	    : plugin_(p), hidden_(problem.hidden), intermediate_(problem.intermediate),
	      top_k_(problem.top_k), weights_(static_cast<uint16_t *>(weights))
	{
		p.may_throw("create");
	}
	int32_t load_expert(uint64_t local, const moek_expert &expert)
	{
		uint16_t *to = weights_ + local * 3 * matrix();

		plugin_.may_throw("load_expert");
		for (const moek_matrix *m : { &expert.gate, &expert.up, &expert.down }) {
			std::memcpy(to, m->codes, matrix() * 2);
			to += matrix();
		}
		return MOEK_OK;
	}
	int32_t finish()
	{
		plugin_.may_throw("finish");
		return MOEK_OK;
	}
	int32_t forward(const moek_batch &batch)
	{
		plugin_.may_throw("forward");
		moek::parallel_for(batch, batch.input.rows * top_k_,
		                   [&](uint64_t slot, uint32_t) { run_slot(batch, slot); });
		return MOEK_OK;
	}
};

const moek_experts bf16 = moek::table<Layer>::make("bf16", MOEK_GENERIC, MOEK_DETERMINISTIC);
const moek_experts *const all[] = { &bf16, nullptr };
const char *const options[] = { "fault", nullptr };

} // namespace

MOEK_PLUGIN_EXPORT moek_plugin moek_plugin_v1 =
	moek::descriptor<Mine>("cxx", "1", all, options);

MOEK_PLUGIN_NOTE("id=cxx\nversion=1\nclass=generic\ndevices=host\nformats=bf16\n");
