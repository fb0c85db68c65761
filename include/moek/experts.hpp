/* SPDX-License-Identifier: MIT */
/**
 * A plugin in C++17: a class for what open() makes, a class for a layer, and no exception
 * that gets out. std::bad_alloc becomes MOEK_NO_MEMORY; another one is logged with its
 * text and becomes MOEK_PLUGIN, or a refusal by MOEK_RULE_EXCEPTION where a question was
 * asked. The file exports the same C symbol as any plugin, and is linked with a version
 * script, { global: moek_plugin_v1; local: *; }; as templates of the C++ library are
 * visible whatever -fvisibility says. See plugins/README.md.
 *
 *     struct Mine : moek::plugin { using moek::plugin::plugin; };
 *     struct Layer { using plugin_type = Mine; ... };   // as moek::table says
 *     static const moek_experts mine = moek::table<Layer>::make("mine", MOEK_NATIVE, 0);
 *     static const moek_experts *const all[] = { &mine, nullptr };
 *     MOEK_PLUGIN_EXPORT moek_plugin moek_plugin_v1 =
 *             moek::descriptor<Mine>("my_plugin", "1", all, nullptr);
 */
#ifndef MOEK_EXPERTS_HPP
#define MOEK_EXPERTS_HPP

#include <moek/experts.h>

#include <atomic>
#include <cstdio>
#include <exception>
#include <new>

namespace moek {

/** What open() makes. A plugin's own class derives from it and takes the host. */
class plugin {
public:
	explicit plugin(const moek_host *host) noexcept : host_(host) {}
	virtual ~plugin() = default;
	plugin(const plugin &) = delete;
	plugin &operator=(const plugin &) = delete;

	const moek_host *host() const noexcept { return host_; }
	/** One line; level as moek_host says. */
	void log(uint32_t level, const char *text) const noexcept
	{
		host_->log(host_->self, level, text);
	}
	/** Value of a declared option, or nullptr. */
	const char *option(const char *key) const noexcept
	{
		return host_->option(host_->self, key);
	}

private:
	const moek_host *host_;
};

/** Run @run; what leaves it by an exception is told to @host as @hook's, and is a status. */
template <class Run>
int32_t guarded(const moek_host *host, const char *hook, Run &&run) noexcept
{
	char text[256];

	try {
		return run();
	} catch (const std::bad_alloc &) {
		return MOEK_NO_MEMORY;
	} catch (const std::exception &error) {
		std::snprintf(text, sizeof(text), "%s: exception: %s", hook, error.what());
	} catch (...) {
		std::snprintf(text, sizeof(text), "%s: exception of an unknown type", hook);
	}
	host->log(host->self, 3, text);
	return MOEK_PLUGIN;
}

/** The same for a question: an exception is a no, with its text as the note. */
template <class Run>
int32_t asked(moek_verdict *no_out, Run &&run) noexcept
{
	char text[sizeof(no_out->note)];

	try {
		return run();
	} catch (const std::exception &error) {
		std::snprintf(text, sizeof(text), "exception: %s", error.what());
	} catch (...) {
		std::snprintf(text, sizeof(text), "exception of an unknown type");
	}
	moek_refuse(no_out, MOEK_RULE_EXCEPTION, 0);
	return moek_refuse_note(no_out, text);
}

/**
 * body(i, worker) for every i below @tasks, on the workers of @batch. The first exception
 * of a body ends the others early and is thrown again here: workers are the core's, or the
 * host's, and must not meet it.
 */
template <class Body>
void parallel_for(const moek_batch &batch, uint64_t tasks, Body &&body)
{
	struct shared {
		Body &body;
		std::atomic<bool> failed;
		std::exception_ptr error;
	} shared{ body, { false }, nullptr };

	batch.workers->parallel_for(
		batch.workers->self, tasks,
		[](void *arg, uint64_t i, uint32_t worker) {
			struct shared &all = *static_cast<struct shared *>(arg);

			if (all.failed.load(std::memory_order_relaxed))
				return;
			try {
				all.body(i, worker);
			} catch (...) {
				if (!all.failed.exchange(true))
					all.error = std::current_exception();
			}
		},
		&shared);
	if (shared.failed)
		std::rethrow_exception(shared.error);
}

/**
 * The table of one backend, whose layers are a class:
 *
 *   using plugin_type = ...;          derived from moek::plugin
 *   static int32_t supports_device(const plugin_type &, const moek_device &, moek_verdict &);
 *   static int32_t supports_quant_scheme, supports_activation, supports_parallel,
 *                  supports_shape(const plugin_type &, const moek_problem &, moek_verdict &);
 *   static void problem_size(const plugin_type &, const moek_problem &, moek_sizes &);
 *   static int32_t workspace_shapes(const plugin_type &, const moek_problem &,
 *                  uint64_t max_tokens, uint32_t workers, moek_buffer *, uint32_t capacity);
 *   static uint32_t finalize(const plugin_type &, const moek_problem &, uint64_t tokens);
 *   static void numerics(const plugin_type &, const moek_problem &, moek_numerics &);
 *   static uint64_t prepared_size(const plugin_type &, const moek_problem &, uint64_t &align);
 *   Layer(plugin_type &, const moek_device &, const moek_problem &, void *weights);
 *   int32_t load_expert(uint64_t local, const moek_expert &);
 *   int32_t finish();
 *   int32_t forward(const moek_batch &);
 *
 * each with the meaning that struct moek_experts gives it. An exception of a plan
 * (problem_size ... prepared_size) is logged, and the plan is 0.
 */
template <class Layer> class table {
	using Plugin = typename Layer::plugin_type;

	struct box {
		Plugin &plugin;
		Layer layer;

		box(Plugin &p, const moek_device &device, const moek_problem &problem,
		    void *weights)
		    : plugin(p), layer(p, device, problem, weights)
		{
		}
	};

	static Plugin &of(void *plugin) noexcept { return *static_cast<Plugin *>(plugin); }
	static box &in(void *layer) noexcept { return *static_cast<box *>(layer); }

	template <int32_t (*question)(const Plugin &, const moek_problem &, moek_verdict &)>
	static int32_t ask(void *plugin, const moek_problem *problem,
	                   moek_verdict *no_out) noexcept
	{
		return asked(no_out, [&] { return question(of(plugin), *problem, *no_out); });
	}

	static int32_t ask_device(void *plugin, const moek_device *device,
	                          moek_verdict *no_out) noexcept
	{
		return asked(no_out, [&] {
			return Layer::supports_device(of(plugin), *device, *no_out);
		});
	}

	/** @plan's number; 0 when it throws. */
	template <class Plan>
	static uint64_t planned(void *plugin, const char *hook, Plan &&plan) noexcept
	{
		uint64_t number = 0;

		guarded(of(plugin).host(), hook, [&] {
			number = plan();
			return int32_t(MOEK_OK);
		});
		return number;
	}

	static void problem_size(void *plugin, const moek_problem *problem,
	                         moek_sizes *sizes_out) noexcept
	{
		planned(plugin, "problem_size", [&] {
			Layer::problem_size(of(plugin), *problem, *sizes_out);
			return uint64_t(0);
		});
	}

	static int32_t workspace_shapes(void *plugin, const moek_problem *problem,
	                                uint64_t max_tokens, uint32_t workers,
	                                moek_buffer *buffers_out, uint32_t capacity) noexcept
	{
		return guarded(of(plugin).host(), "workspace_shapes", [&] {
			return Layer::workspace_shapes(of(plugin), *problem, max_tokens,
			                               workers, buffers_out, capacity);
		});
	}

	static uint32_t finalize(void *plugin, const moek_problem *problem,
	                         uint64_t tokens) noexcept
	{
		return uint32_t(planned(plugin, "finalize", [&] {
			return uint64_t(Layer::finalize(of(plugin), *problem, tokens));
		}));
	}

	static void numerics(void *plugin, const moek_problem *problem,
	                     moek_numerics *numerics_out) noexcept
	{
		planned(plugin, "numerics", [&] {
			Layer::numerics(of(plugin), *problem, *numerics_out);
			return uint64_t(0);
		});
	}

	static uint64_t prepared_size(void *plugin, const moek_problem *problem,
	                              uint64_t *align_out) noexcept
	{
		return planned(plugin, "prepared_size", [&] {
			return Layer::prepared_size(of(plugin), *problem, *align_out);
		});
	}

	static int32_t create(void *plugin, const moek_device *device,
	                      const moek_problem *problem, void *weights,
	                      void **layer_out) noexcept
	{
		return guarded(of(plugin).host(), "create", [&] {
			*layer_out = new box(of(plugin), *device, *problem, weights);
			return int32_t(MOEK_OK);
		});
	}

	static int32_t load_expert(void *layer, uint64_t local,
	                           const moek_expert *expert) noexcept
	{
		return guarded(in(layer).plugin.host(), "load_expert",
		               [&] { return in(layer).layer.load_expert(local, *expert); });
	}

	static int32_t finish(void *layer) noexcept
	{
		return guarded(in(layer).plugin.host(), "finish",
		               [&] { return in(layer).layer.finish(); });
	}

	static int32_t forward(void *layer, const moek_batch *batch) noexcept
	{
		return guarded(in(layer).plugin.host(), "forward",
		               [&] { return in(layer).layer.forward(*batch); });
	}

	static void destroy(void *layer) noexcept { delete &in(layer); }

public:
	static constexpr moek_experts make(const char *name, uint32_t rank_class,
	                                   uint64_t understands) noexcept
	{
		return moek_experts{ MOEK_EXPERTS_SIZE_1_0,
			             rank_class,
			             name,
			             understands,
			             ask_device,
			             ask<Layer::supports_quant_scheme>,
			             ask<Layer::supports_activation>,
			             ask<Layer::supports_parallel>,
			             ask<Layer::supports_shape>,
			             problem_size,
			             workspace_shapes,
			             finalize,
			             numerics,
			             prepared_size,
			             create,
			             load_expert,
			             finish,
			             forward,
			             nullptr,
			             destroy };
	}
};

template <class Plugin> int32_t open(const moek_host *host, void **plugin_out) noexcept
{
	return guarded(host, "open", [&] {
		*plugin_out = new Plugin(host);
		return int32_t(MOEK_OK);
	});
}

template <class Plugin> void close(void *plugin) noexcept
{
	delete static_cast<Plugin *>(plugin);
}

/** Of a plugin for the host; @options NULL-ended, or nullptr. */
template <class Plugin>
constexpr moek_plugin descriptor(const char *name, const char *version,
                                 const moek_experts *const *experts,
                                 const char *const *options) noexcept
{
	return moek_plugin{ MOEK_PLUGIN_SIZE_1_0,
		            MOEK_ABI_MAJOR,
		            MOEK_ABI_MINOR,
		            name,
		            version,
		            options,
		            experts,
		            open<Plugin>,
		            close<Plugin>,
		            nullptr,
		            nullptr,
		            nullptr,
		            nullptr,
		            nullptr };
}

} // namespace moek

#endif
