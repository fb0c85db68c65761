/* SPDX-License-Identifier: MIT */
#include "core/safetensors.h"
#include "kit.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *folder;

static void set_up(void)
{
	folder = kit_folder();
}

static int32_t open_bytes(const void *bytes, size_t count,
                          struct moek_safetensors **file_out,
                          struct moek_error *error_out)
{
	const char *path = kit_path(folder, "t.safetensors");

	kit_write(path, bytes, count);
	return moek_safetensors_open(path, file_out, error_out);
}

/** A file of @length (the first 8 bytes), @header and @data_bytes bytes of data. */
static int32_t open_parts(uint64_t length, const char *header, size_t header_bytes,
                          size_t data_bytes, struct moek_safetensors **file_out,
                          struct moek_error *error_out)
{
	uint8_t *bytes = calloc(8 + header_bytes + data_bytes, 1);
	int32_t status;

	for (unsigned i = 0; i < 8; i++)
		bytes[i] = (uint8_t)(length >> 8 * i);
	memcpy(bytes + 8, header, header_bytes);
	for (size_t i = 0; i < data_bytes; i++)
		bytes[8 + header_bytes + i] = (uint8_t)(i + 1);
	status = open_bytes(bytes, 8 + header_bytes + data_bytes, file_out, error_out);
	free(bytes);
	return status;
}

/* One row of the verdict table of the container format; T is a plain good tensor. */
#define R(dtype, shape, offsets)                                                       \
	"{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}"
#define T "{\"a\":" R("\"F32\"", "[2,2]", "[0,16]") "}"
#define ONE(dtype, shape, offsets) "{\"a\":" R(dtype, shape, offsets) "}"
#define TWO(dtype, shape, offsets)                                                     \
	"{\"a\":" R("\"F32\"", "[2,2]", "[0,16]") ",\"b\":" R(dtype, shape, offsets) "}"
#define OK NULL

static const struct verdict {
	unsigned row;
	const char *header;
	size_t data_bytes;
	const char *says; /* NULL: it opens */
} verdicts[] = {
	{ 2, "", 0, "line 1: bad JSON" },
	{ 5, "{\"\xff\":1}", 0, "bad JSON" },
	{ 6, "\xef\xbb\xbf" T, 16, "bad JSON" },
	{ 6, "hello", 0, "bad JSON" },
	{ 6, "\v" T, 16, "bad JSON" },
	{ 6, T "\xc2\xa0", 16, "bad JSON" },
	{ 6, "{'a':1}", 0, "bad JSON" },
	{ 6, "/**/" T, 16, "bad JSON" },
	{ 6, ONE("\"F32\"", "[NaN]", "[0,16]"), 16, "bad JSON" },
	{ 6, "{\"a\":" R("\"F32\"", "[2,2]", "[0,16]") ",}", 16, "bad JSON" },
	{ 7, "[]", 0, "not a JSON object" },
	{ 7, "null", 0, "not a JSON object" },
	{ 7, "3", 0, "not a JSON object" },
	{ 8, " \t\r\n" T " \t\r\n", 16, OK },
	{ 9, T "x", 16, "end of file expected" },
	{ 9, T "{}", 16, "end of file expected" },
	{ 10, TWO("\"F32\"", "[4]", "[8,24]"), 24,
	  "tensor b: data begins at 8, expected 16" },
	{ 10, TWO("\"F32\"", "[4]", "[0,16]"), 16, "data begins at 0, expected 16" },
	{ 11, TWO("\"F32\"", "[4]", "[20,36]"), 36,
	  "tensor b: data begins at 20, expected 16" },
	{ 11, ONE("\"F32\"", "[1]", "[4,8]"), 8,
	  "tensor a: data begins at 4, expected 0" },
	{ 12, T, 17, "trailing bytes: the tensors take 16 bytes, the file has 17" },
	{ 12, T, 15, "truncated: the tensors take 16 bytes, the file has 15" },
	{ 12, T, 0, "truncated: the tensors take 16 bytes, the file has 0" },
	{ 13, TWO("\"F32\"", "[1]", "[16,12]"), 16, "ends at 12, before its begin 16" },
	{ 14, ONE("\"F32\"", "[4]", "[-16,0]"), 0, "data_offsets is not" },
	{ 14, ONE("\"F32\"", "[4]", "[0.0,16]"), 16, "data_offsets is not" },
	{ 14, ONE("\"F32\"", "[4]", "[\"0\",16]"), 16, "data_offsets is not" },
	{ 14, ONE("\"F32\"", "[2.0]", "[0,8]"), 8, "shape is not" },
	{ 14, ONE("\"F32\"", "[2e0]", "[0,8]"), 8, "shape is not" },
	{ 14, ONE("\"F32\"", "[-2]", "[0,8]"), 8, "shape is not" },
	{ 14, ONE("\"F32\"", "[-0]", "[0,0]"), 0, "-0 is not accepted" },
	{ 14, ONE("\"F32\"", "[02]", "[0,8]"), 8, "bad JSON" },
	{ 14, ONE("\"F32\"", "[\"2\"]", "[0,8]"), 8, "shape is not" },
	{ 14, ONE("\"F32\"", "[null]", "[0,8]"), 8, "shape is not" },
	{ 14, ONE("\"F32\"", "null", "[0,8]"), 8, "shape is not" },
	{ 14, ONE("\"F32\"", "[18446744073709551616]", "[0,8]"), 8, "too big integer" },
	{ 15, ONE("\"F32\"", "[2,3]", "[0,16]"), 16,
	  "span 16 bytes, dtype and shape need 24" },
	{ 16, ONE("\"F128\"", "[2,2]", "[0,16]"), 16, "tensor a: unknown dtype" },
	{ 16, ONE("\"f32\"", "[2,2]", "[0,16]"), 16, "tensor a: unknown dtype" },
	{ 16, ONE("17", "[2,2]", "[0,16]"), 16, "dtype is missing or not a string" },
	{ 17, ONE("\"F32\"", "[4294967296,4294967296]", "[0,16]"), 16, "overflows" },
	{ 17, ONE("\"F32\"", "[2,9223372036854775807]", "[0,16]"), 16, "overflows" },
	{ 17, ONE("\"F32\"", "[1152921504606846976]", "[0,16]"), 16, "overflows" },
	/* jansson's integers end at 2^63: refused, where the reference reads on */
	{ 18, ONE("\"F32\"", "[0,18446744073709551615]", "[0,0]"), 0,
	  "too big integer" },
	{ 18, ONE("\"F32\"", "[0,9223372036854775807]", "[0,0]"), 0, OK },
	{ 19, ONE("\"F32\"", "[9223372036854775807,9223372036854775807,0]", "[0,0]"), 0,
	  "overflows" },
	{ 20, ONE("\"F32\"", "[]", "[0,4]"), 4, OK },
	{ 20, ONE("\"F32\"", "[0,5]", "[0,0]"), 0, OK },
	{ 20, TWO("\"F32\"", "[0]", "[16,16]"), 16, OK },
	{ 20, TWO("\"F32\"", "[0]", "[0,0]"), 16, OK },
	{ 21, TWO("\"F32\"", "[0]", "[8,8]"), 16, "data begins at 8, expected 16" },
	{ 21, TWO("\"F32\"", "[0]", "[20,20]"), 16, "data begins at 20, expected 16" },
	{ 22, "{\"a\":{\"shape\":[4],\"data_offsets\":[0,16]}}", 16,
	  "dtype is missing" },
	{ 22, "{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,16]}}", 16,
	  "shape is not" },
	{ 22, "{\"a\":{\"dtype\":\"F32\",\"shape\":[4]}}", 16, "data_offsets is not" },
	{ 23,
	  "{\"a\":{\"x\":[1],\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
	  1, OK },
	/* stricter than the reference: no key twice, not even one that is ignored */
	{ 23,
	  "{\"a\":{\"x\":1,\"x\":1,\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,"
	  "1]}}",
	  1, "duplicate object key" },
	{ 24,
	  "{\"a\":" R("\"U8\"", "[1]", "[0,1]") ",\"a\":" R("\"U8\"", "[1]",
	                                                    "[0,1]") "}",
	  1, "duplicate object key" },
	{ 24,
	  "{\"a\":" R("\"U8\"", "[1]", "[0,1]") ",\"\\u0061\":" R("\"U8\"", "[1]",
	                                                          "[0,1]") "}",
	  1, "duplicate object key" },
	{ 25,
	  "{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,"
	  "1]}}",
	  1, "duplicate object key" },
	{ 25, "{\"__metadata__\":{},\"__metadata__\":{}}", 0, "duplicate object key" },
	{ 26, "{\"__metadata__\":null}", 0, OK },
	{ 26, "{\"__metadata__\":{}}", 0, OK },
	{ 26, "{\"__metadata__\":{\"format\":\"pt\"}}", 0, OK },
	{ 26, "{\"__metadata__\":{\"a\":\"x\",\"a\":\"y\"}}", 0,
	  "duplicate object key" },
	{ 27, "{\"__metadata__\":{\"a\":1}}", 0, "__metadata__.a is not a string" },
	{ 27, "{\"__metadata__\":{\"a\":{}}}", 0, "__metadata__.a is not a string" },
	{ 27, "{\"__metadata__\":" R("\"U8\"", "[1]", "[0,1]") "}", 1,
	  "is not a string" },
	{ 27, "{\"__metadata__\":\"x\"}", 0, "__metadata__ is not an object" },
	{ 28, ONE("\"U8\"", "[1]", "[0]"), 1, "data_offsets is not" },
	{ 28, ONE("\"U8\"", "[1]", "[0,1,1]"), 1, "data_offsets is not" },
	{ 28, ONE("\"U8\"", "[1]", "{\"0\":0,\"1\":1}"), 1, "data_offsets is not" },
	{ 29, "{\"a\":[\"F32\",[1],[0,4]]}", 4, "its record is not an object" },
	{ 29, ONE("{\"F32\":null}", "[1]", "[0,4]"), 4,
	  "dtype is missing or not a string" },
	{ 30, "{\"\":" R("\"U8\"", "[1]", "[0,1]") "}", 1, OK },
	{ 30, "{\"../../etc/passwd\":" R("\"U8\"", "[1]", "[0,1]") "}", 1, OK },
	{ 30, "{\"\\ud83d\\ude00\":" R("\"U8\"", "[1]", "[0,1]") "}", 1, OK },
	/* jansson has no keys with NUL: refused, where the reference reads on */
	{ 30, "{\"a\\u0000b\":" R("\"U8\"", "[1]", "[0,1]") "}", 1,
	  "NUL byte in object key" },
	{ 31, "{\"\\ud800\":" R("\"U8\"", "[1]", "[0,1]") "}", 1, "invalid Unicode" },
	{ 31, "{\"\x01\":" R("\"U8\"", "[1]", "[0,1]") "}", 1, "control character" },
	{ 34, ONE("\"F4\"", "[1,4]", "[0,2]"), 2, OK },
	{ 34, ONE("\"F6_E2M3\"", "[4]", "[0,3]"), 3, OK },
	{ 34, ONE("\"F8_E8M0\"", "[3]", "[0,3]"), 3, OK },
	{ 35, ONE("\"F4\"", "[1,3]", "[0,2]"), 2, "do not fill whole bytes" },
	{ 35, ONE("\"F6_E3M2\"", "[3]", "[0,3]"), 3, "do not fill whole bytes" },
	{ 35, ONE("\"F4\"", "[]", "[0,1]"), 1, "do not fill whole bytes" },
	{ 36,
	  "{\"a\":" R("\"U8\"", "[3]", "[0,3]") ",\"b\":" R("\"F32\"", "[1]",
	                                                    "[3,7]") "}",
	  7, OK },
	{ 36,
	  "{\"b\":" R("\"F32\"", "[1]", "[3,7]") ",\"a\":" R("\"U8\"", "[3]",
	                                                     "[0,3]") "} ",
	  7, OK },
	{ 37, ONE("\"BOOL\"", "[2]", "[0,2]"), 2, OK },
	{ 39, "{}", 0, OK },
	{ 39, "{}", 4, "trailing bytes" },
	{ 40, ONE("\"U8\"", "[2305843009213693951]", "[0,2305843009213693951]"), 0,
	  "truncated" },
	{ 40,
	  "{\"a\":" R(
		  "\"U8\"", "[2305843009213693951]",
		  "[0,2305843009213693951]") ",\"b\":" R("\"U8\"",
	                                                 "[2305843009213693951]",
	                                                 "[2305843009213693951,"
	                                                 "4611686018427387902]") "}",
	  0, "truncated" },
};

START_TEST(gives_the_verdict_of_the_table)
{
	const struct verdict *v = &verdicts[_i];
	struct moek_safetensors *file = NULL;
	struct moek_error error = { .text = "" };
	size_t bytes = strlen(v->header);
	int32_t status = open_parts(bytes, v->header, bytes, v->data_bytes, &file,
	                            &error);

	if (v->says == NULL) {
		ck_assert_msg(status == MOEK_OK, "row %u: %s: %s", v->row, v->header,
		              error.text);
		moek_safetensors_close(file);
		return;
	}
	ck_assert_msg(status == MOEK_BAD_FILE, "row %u: %s: opened", v->row, v->header);
	ck_assert_ptr_null(file);
	ck_assert_msg(strstr(error.text, v->says) != NULL, "row %u: %s", v->row,
	              error.text);
	ck_assert_msg(strstr(error.text, "t.safetensors: ") != NULL, "%s", error.text);
}
END_TEST

/* Headers that are plain are read without the JSON library; an escape asks for it. */
START_TEST(both_readers_of_headers_say_the_same)
{
	static const char *const headers[] = {
		"{\"__metadata__\":{\"a\":\"b\"},\"t.1\":{\"dtype\":\"BF16\",\"shape\":"
		"[2,3],"
		"\"data_offsets\":[4,16]},\"u\":{\"shape\":[],\"data_offsets\":[0,4],"
		"\"dtype\":"
		"\"F32\"}, \"w\" : { \"dtype\" : \"U8\" , \"shape\" : [ 0 , 7 ] , "
		"\"data_offsets\" : [ 16 , 16 ] } }",
		"{\"__metadata__\":{\"a\":\"\\u0062\"},\"t.1\":{\"dtype\":\"BF16\","
		"\"shape\":[2,3"
		"],\"data_offsets\":[4,16]},\"u\":{\"shape\":[],\"data_offsets\":[0,4],"
		"\"dtype\""
		":\"F32\"}, \"\\u0077\" : { \"dtype\" : \"U8\" , \"shape\" : [ 0 , 7 ] "
		", "
		"\"data_offsets\" : [ 16 , 16 ] } }",
	};
	struct seen {
		char name[8], dtype[8];
		uint64_t bytes, rank, shape[8];
		uint8_t data[16];
	} seen[2][3];
	struct moek_error error = { .text = "" };

	memset(seen, 0, sizeof(seen));
	for (int i = 0; i < 2; i++) {
		size_t bytes = strlen(headers[i]);
		struct moek_safetensors *file = NULL;

		ck_assert_msg(open_parts(bytes, headers[i], bytes, 16, &file, &error) ==
		                      MOEK_OK,
		              "%s", error.text);
		ck_assert_uint_eq(moek_safetensors_count(file), 3);
		for (uint64_t n = 0; n < 3; n++) {
			const char *name = moek_safetensors_name(file, n, NULL);
			struct seen *one = &seen[i][n];
			struct moek_tensor tensor;

			moek_safetensors_tensor(file, name, &tensor, &error);
			snprintf(one->name, sizeof(one->name), "%s", name);
			snprintf(one->dtype, sizeof(one->dtype), "%s", tensor.dtype);
			one->bytes = tensor.bytes;
			one->rank = tensor.rank;
			memcpy(one->shape, tensor.shape,
			       tensor.rank * sizeof(uint64_t));
			memcpy(one->data, tensor.data, tensor.bytes);
		}
		moek_safetensors_close(file);
	}
	ck_assert_str_eq(seen[0][0].name, "t.1");
	ck_assert_uint_eq(seen[0][0].shape[1], 3);
	ck_assert_uint_eq(seen[0][0].data[0], 5);
	ck_assert_mem_eq(seen[0], seen[1], sizeof(seen[0]));
}
END_TEST

START_TEST(a_header_length_that_lies_is_an_error) /* rows 1, 3, 4 */
{
	static const struct {
		uint64_t length;
		const char *says;
	} lies[] = {
		{ 1000, "truncated: the header takes 1000 bytes, the file has 16" },
		{ 100000000, "truncated: the header takes 100000000 bytes" },
		{ 100000001, "header too large: 100000001 bytes" },
		{ UINT64_C(1) << 63, "header too large: 9223372036854775808 bytes" },
		{ UINT64_MAX, "header too large: 18446744073709551615 bytes" },
	};
	struct moek_safetensors *file = NULL;
	struct moek_error error;

	for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
		ck_assert_int_eq(open_parts(lies[i].length, "{}", 2, 14, &file, &error),
		                 MOEK_BAD_FILE);
		ck_assert_msg(strstr(error.text, lies[i].says) != NULL, "%s",
		              error.text);
	}
	ck_assert_int_eq(open_bytes("", 0, &file, &error), MOEK_BAD_FILE);
	ck_assert_ptr_nonnull(strstr(error.text, "truncated: 0 bytes"));
	ck_assert_int_eq(open_bytes("\2\0\0\0\0\0\0", 7, &file, &error), MOEK_BAD_FILE);
	ck_assert_ptr_nonnull(strstr(error.text, "truncated: 7 bytes"));
}
END_TEST

START_TEST(nul_padding_is_not_blank) /* row 9 */
{
	struct moek_safetensors *file = NULL;
	struct moek_error error;

	ck_assert_int_eq(open_parts(6, "{}\0\0\0\0", 6, 0, &file, &error),
	                 MOEK_BAD_FILE);
	ck_assert_ptr_nonnull(strstr(error.text, "bad JSON"));
}
END_TEST

START_TEST(deep_nesting_is_an_error_not_a_crash) /* rows 32, 33 */
{
	static char header[100200];
	struct moek_safetensors *file = NULL;
	struct moek_error error;
	size_t used;

	memset(header, '[', 100000);
	ck_assert_int_eq(open_parts(100000, header, 100000, 0, &file, &error),
	                 MOEK_BAD_FILE);
	ck_assert_ptr_nonnull(strstr(error.text, "nested more than 128 deep"));
	for (int depth = 120; depth <= 130; depth += 10) {
		used = (size_t)sprintf(header, "{\"a\":{\"x\":");
		memset(header + used, '[', (size_t)depth);
		memset(header + used + depth, ']', (size_t)depth);
		used += 2 * (size_t)depth;
		used += (size_t)sprintf(header + used,
		                        ",\"dtype\":\"U8\",\"shape\":[0],"
		                        "\"data_offsets\":[0,0]}}");
		ck_assert_int_eq(open_parts(used, header, used, 0, &file, &error),
		                 depth == 120 ? MOEK_OK : MOEK_BAD_FILE);
		if (depth == 120)
			moek_safetensors_close(file);
	}
}
END_TEST

START_TEST(many_dimensions_are_an_error_only_when_used) /* row 38 */
{
	static char header[20000];
	struct moek_safetensors *file = NULL;
	struct moek_tensor tensor;
	struct moek_error error;
	size_t used = (size_t)sprintf(header, "{\"a\":{\"dtype\":\"U8\",\"shape\":[1");

	for (int i = 1; i < 5000; i++)
		used += (size_t)sprintf(header + used, ",1");
	used += (size_t)sprintf(header + used, "],\"data_offsets\":[0,1]},\"b\":" R(
						       "\"U8\"", "[1]", "[1,2]") "}");
	ck_assert_int_eq(open_parts(used, header, used, 2, &file, &error), MOEK_OK);
	ck_assert_int_eq(moek_safetensors_tensor(file, "b", &tensor, &error), MOEK_OK);
	ck_assert_int_eq(moek_safetensors_tensor(file, "a", &tensor, &error),
	                 MOEK_BAD_FILE);
	ck_assert_ptr_nonnull(
		strstr(error.text, "tensor a: 5000 dimensions, at most 8"));
	moek_safetensors_close(file);
}
END_TEST

START_TEST(reads_the_golden_file) /* V-ST-1 */
{
	static const char header[] =
		"{\"w\":{\"dtype\":\"BF16\",\"shape\":[2,2],\"data_offsets\":[0,8]},"
		"\"s\":{\"dtype\":\"F8_E8M0\",\"shape\":[3],\"data_offsets\":[8,11]}}  "
		"   ";
	static const uint8_t data[] = { 0x80, 0x3f, 0x00, 0xc0, 0x00, 0x3f,
		                        0x49, 0x40, 0x7f, 0x00, 0x80 };
	uint8_t bytes[139] = { 0x78 };
	struct moek_safetensors *file = NULL;
	struct moek_tensor tensor;
	struct moek_error error;
	uint64_t length;

	ck_assert_uint_eq(sizeof(header) - 1, 120);
	memcpy(bytes + 8, header, 120);
	memcpy(bytes + 128, data, 11);
	ck_assert_int_eq(open_bytes(bytes, sizeof(bytes), &file, &error), MOEK_OK);
	ck_assert_uint_eq(moek_safetensors_count(file), 2);
	ck_assert_str_eq(moek_safetensors_name(file, 0, &length), "w");
	ck_assert_str_eq(moek_safetensors_name(file, 1, &length), "s");
	ck_assert_uint_eq(length, 1);
	ck_assert_ptr_null(moek_safetensors_name(file, 2, &length));

	ck_assert_int_eq(moek_safetensors_tensor(file, "w", &tensor, &error), MOEK_OK);
	ck_assert_uint_eq(tensor.type, MOEK_BF16);
	ck_assert_str_eq(tensor.dtype, "BF16");
	ck_assert_uint_eq(tensor.rank, 2);
	ck_assert_uint_eq(tensor.shape[0], 2);
	ck_assert_uint_eq(tensor.shape[1], 2);
	ck_assert_uint_eq(tensor.bytes, 8);
	ck_assert_mem_eq(tensor.data, data, 8);
	ck_assert_int_eq(moek_safetensors_tensor(file, "s", &tensor, &error), MOEK_OK);
	ck_assert_uint_eq(tensor.type, MOEK_E8M0);
	ck_assert_mem_eq(tensor.data, data + 8, 3);
	moek_safetensors_close(file);

	/* V-ST-2: the smallest file that the reference writes */
	ck_assert_int_eq(open_bytes("\10\0\0\0\0\0\0\0{}      ", 16, &file, &error),
	                 MOEK_OK);
	ck_assert_uint_eq(moek_safetensors_count(file), 0);
	moek_safetensors_close(file);
}
END_TEST

START_TEST(a_missing_tensor_is_named_with_its_nearest)
{
	struct kit_file made = { 0 };
	struct moek_safetensors *file = NULL;
	struct moek_tensor tensor;
	struct moek_error error;

	kit_add(&made, "model.layers.0.mlp.gate.weight", "BF16", "2,2", NULL);
	kit_add(&made, "lm_head.weight", "BF16", "2", NULL);
	kit_add(&made, "model.layers.1.mlp.gate.weight\\u001b", "BF16", "2", NULL);
	kit_save(&made, kit_path(folder, "t.safetensors"));
	ck_assert_int_eq(
		moek_safetensors_open(kit_path(folder, "t.safetensors"), &file, &error),
		MOEK_OK);
	ck_assert_int_eq(moek_safetensors_tensor(file, "model.layers.0.mlp.gate.bias",
	                                         &tensor, &error),
	                 MOEK_BAD_FILE);
	ck_assert_ptr_nonnull(strstr(error.text,
	                             "no tensor model.layers.0.mlp.gate.bias; "
	                             "nearest: model.layers.0.mlp.gate.weight, "
	                             "model.layers.1.mlp.gate.weight\\x1b"));
	ck_assert_ptr_null(strstr(error.text, "lm_head"));
	moek_safetensors_close(file);
}
END_TEST

START_TEST(the_index_finds_each_of_many_names)
{
	enum { MANY = 100000 };
	struct moek_name *names = calloc(MANY, sizeof(*names));
	struct moek_index index = { 0 };
	char *text = malloc(MANY * 32);

	ck_assert_uint_eq(moek_index_find(&index, "x", 1), MOEK_INDEX_NONE);
	for (uint32_t i = 0; i < MANY; i++) {
		names[i].text = text + i * 32;
		names[i].bytes = (size_t)sprintf(text + i * 32, "layers.%u.experts.%u",
		                                 i / 1000, i % 1000);
	}
	ck_assert_int_eq(moek_index_build(&index, names, MANY, NULL), MOEK_OK);
	for (uint32_t i = 0; i < MANY; i++)
		ck_assert_uint_eq(
			moek_index_find(&index, names[i].text, names[i].bytes), i);
	ck_assert_uint_eq(moek_index_find(&index, names[7].text, names[7].bytes - 1),
	                  MOEK_INDEX_NONE);
	moek_index_end(&index);
	free(names);
	free(text);
}
END_TEST

START_TEST(a_long_name_is_cut_and_escaped)
{
	char name[1000];

	memset(name, 'x', sizeof(name));
	name[1] = '\n';
	ck_assert_uint_lt(strlen(moek_quote(name, sizeof(name)).text),
	                  sizeof(struct moek_quoted));
	ck_assert_int_eq(strncmp(moek_quote(name, sizeof(name)).text, "x\\x0axx", 7),
	                 0);
	ck_assert_ptr_nonnull(strstr(moek_quote(name, sizeof(name)).text, "..."));
	memset(name, 1, sizeof(name));
	ck_assert_uint_lt(strlen(moek_quote(name, sizeof(name)).text),
	                  sizeof(struct moek_quoted));
}
END_TEST

START_TEST(no_file_is_an_error_with_its_cause)
{
	struct moek_safetensors *file = NULL;
	struct moek_error error;

	ck_assert_int_eq(moek_safetensors_open(kit_path(folder, "none"), &file, &error),
	                 MOEK_BAD_FILE);
	ck_assert_ptr_nonnull(strstr(error.text, "No such file"));
	ck_assert_int_eq(moek_safetensors_open(folder, &file, &error), MOEK_BAD_FILE);
	ck_assert_ptr_nonnull(strstr(error.text, "not a regular file"));
	ck_assert_int_eq(moek_safetensors_open(NULL, &file, &error), MOEK_BAD_ARGUMENT);
	moek_safetensors_close(NULL);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("safetensors");
	TCase *tests = tcase_create("safetensors");
	SRunner *runner = srunner_create(suite);
	int failed;

	suite_add_tcase(suite, tests);
	tcase_add_checked_fixture(tests, set_up, kit_clean);
	tcase_add_loop_test(tests, gives_the_verdict_of_the_table, 0,
	                    (int)(sizeof(verdicts) / sizeof(verdicts[0])));
	tcase_add_test(tests, both_readers_of_headers_say_the_same);
	tcase_add_test(tests, a_header_length_that_lies_is_an_error);
	tcase_add_test(tests, nul_padding_is_not_blank);
	tcase_add_test(tests, deep_nesting_is_an_error_not_a_crash);
	tcase_add_test(tests, many_dimensions_are_an_error_only_when_used);
	tcase_add_test(tests, reads_the_golden_file);
	tcase_add_test(tests, a_missing_tensor_is_named_with_its_nearest);
	tcase_add_test(tests, the_index_finds_each_of_many_names);
	tcase_add_test(tests, a_long_name_is_cut_and_escaped);
	tcase_add_test(tests, no_file_is_an_error_with_its_cause);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
