/* SPDX-License-Identifier: MIT */
/* One expert layer, int4 weights from memory, on the best backend that is installed. */
#include <moek/moek.h>
#include <stdio.h>
#include <string.h>

static uint32_t gate_up[4][64][8], down[4][64][4]; /* 4 experts, 8 codes in a word */
static uint16_t gate_up_scales[4][64][2], down_scales[4][64]; /* bf16 */
static uint16_t input[64], output[64];                        /* bf16 */
static const int32_t ids[2] = { 0, 3 };
static const float weights[2] = { 0.75f, 0.25f };

int main(void)
{
	struct moek_problem problem = { .struct_size = MOEK_INIT(PROBLEM) };
	struct moek_stack first = { .struct_size = MOEK_INIT(STACK),
		                    .layout = MOEK_LAYOUT_PACKED,
		                    .codes = gate_up,
		                    .codes_bytes = sizeof(gate_up),
		                    .scales = gate_up_scales,
		                    .scales_bytes = sizeof(gate_up_scales),
		                    .gate_order = MOEK_GATE_FIRST };
	struct moek_stack second = { .struct_size = MOEK_INIT(STACK),
		                     .layout = MOEK_LAYOUT_PACKED,
		                     .codes = down,
		                     .codes_bytes = sizeof(down),
		                     .scales = down_scales,
		                     .scales_bytes = sizeof(down_scales) };
	struct moek_source source = { .struct_size = MOEK_INIT(SOURCE) };
	struct moek_forward forward = { .struct_size = MOEK_INIT(FORWARD),
		                        .input = { input, 1, 64, 64, MOEK_BF16, 0 },
		                        .output = { output, 1, 64, 64, MOEK_BF16, 0 },
		                        .topk_ids = ids,
		                        .topk_weights = weights };
	struct moek_registry *registry = NULL;
	struct moek_choice *choice = NULL;
	struct moek_layer *layer = NULL;
	struct moek_error error;
	int failed;

	memset(gate_up, 0x99, sizeof(gate_up)); /* code 9 is 1 times the scale */
	memset(down, 0x99, sizeof(down));
	memset(gate_up_scales, 0x3c, sizeof(gate_up_scales)); /* 0.0115 */
	memset(down_scales, 0x3c, sizeof(down_scales));
	memset(input, 0x3f, sizeof(input)); /* 0.746 */

	failed = moek_registry_open(NULL, &registry, &error) ||
	         moek_problem_parse(
			 "weight=int4,group_size=32,scale=bf16,experts=4,top_k=2,"
			 "hidden=64,intermediate=32,max_tokens=1,shards=1,gated=1,"
			 "activation=silu,input_type=bf16,output_type=bf16",
			 &problem, &error) ||
	         moek_choose(registry, &problem, "auto", "minimal", &choice, &error) ||
	         moek_tensors_source(&problem, &first, &second, &source, &error) ||
	         moek_layer_create(choice, &source, NULL, &layer, &error) ||
	         moek_workspace_create(&layer, 1, NULL, 0, &forward.workspace,
	                               &error) ||
	         moek_layer_forward(layer, &forward, &error);
	if (failed)
		fprintf(stderr, "%s\n", error.text);
	else
		printf("%s gives bf16 0x%04x\n", moek_choice_winner(choice), output[0]);

	moek_workspace_destroy(forward.workspace);
	moek_layer_destroy(layer);
	moek_source_close(&source);
	moek_choice_destroy(choice);
	moek_registry_close(registry);
	return failed != 0;
}
