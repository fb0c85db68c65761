# SPDX-License-Identifier: MIT
"""A foreign host: libmoek through ctypes, its symbols kept to itself (RTLD_LOCAL).

usage: host.py LIBMOEK. Runs the layer of examples/minimal.c and reads the report as JSON.
"""

import ctypes as c
import json
import os
import sys

PROBLEM_BYTES, TEXT, JSON_VIEW, PACKED, BF16 = 184, 1, 2, 2, 3


class Error(c.Structure):
    _fields_ = [("struct_size", c.c_uint32), ("status", c.c_int32), ("rule", c.c_uint32),
                ("reserved", c.c_uint32), ("text", c.c_char * 2032)]


class Stack(c.Structure):
    _fields_ = [("struct_size", c.c_uint32), ("layout", c.c_uint32), ("codes", c.c_void_p),
                ("codes_bytes", c.c_uint64), ("scales", c.c_void_p), ("scales_bytes", c.c_uint64),
                ("zeros", c.c_void_p), ("zeros_bytes", c.c_uint64), ("bias", c.c_void_p),
                ("bias_bytes", c.c_uint64), ("bias_type", c.c_uint32), ("gate_order", c.c_uint32)]


class Source(c.Structure):
    _fields_ = [("struct_size", c.c_uint32), ("reserved", c.c_uint32), ("self", c.c_void_p),
                ("scratch_bytes", c.c_uint64), ("expert", c.c_void_p), ("close", c.c_void_p)]


class Rows(c.Structure):
    _fields_ = [("data", c.c_void_p), ("rows", c.c_uint64), ("columns", c.c_uint64),
                ("row_stride", c.c_uint64), ("type", c.c_uint32), ("space", c.c_uint32)]


class Forward(c.Structure):
    _fields_ = [("struct_size", c.c_uint32), ("reserved", c.c_uint32), ("input", Rows),
                ("output", Rows), ("topk_ids", c.c_void_p), ("topk_weights", c.c_void_p),
                ("stream", c.c_void_p), ("workspace", c.c_void_p), ("trace", c.c_void_p)]


def main(path):
    moek = c.CDLL(path, mode=os.RTLD_LOCAL | os.RTLD_NOW)
    moek.moek_choice_report.restype = c.c_void_p
    moek.moek_choice_winner.restype = c.c_char_p
    moek.moek_type_name.restype = c.c_char_p
    error = Error()

    def need(status):
        if status != 0:
            sys.exit(error.text.decode())

    if moek.moek_type_name(BF16) != b"bf16":
        sys.exit("the number of bf16 is not what this script thinks")
    codes, down = (c.c_uint8 * 8192)(*[0x99] * 8192), (c.c_uint8 * 4096)(*[0x99] * 4096)
    scales, down_scales = (c.c_uint8 * 1024)(*[0x3C] * 1024), (c.c_uint8 * 512)(*[0x3C] * 512)
    rows, output = (c.c_uint8 * 128)(*[0x3F] * 128), (c.c_uint16 * 64)()
    ids, weights = (c.c_int32 * 2)(0, 3), (c.c_float * 2)(0.75, 0.25)
    first = Stack(c.sizeof(Stack), PACKED, c.addressof(codes), 8192, c.addressof(scales), 1024,
                  gate_order=1)
    second = Stack(c.sizeof(Stack), PACKED, c.addressof(down), 4096, c.addressof(down_scales), 512)
    source = Source(c.sizeof(Source))
    problem = (c.c_uint32 * (PROBLEM_BYTES // 4))(PROBLEM_BYTES)
    registry, choice, layer, workspace = (c.c_void_p() for _ in range(4))
    text = (b"weight=int4,group_size=32,scale=bf16,experts=4,top_k=2,hidden=64,intermediate=32,"
            b"max_tokens=1,shards=1,gated=1,activation=silu,input_type=bf16,output_type=bf16")
    need(moek.moek_registry_open(None, c.byref(registry), c.byref(error)))
    need(moek.moek_problem_parse(text, problem, c.byref(error)))
    need(moek.moek_choose(registry, problem, b"auto", b"host.py", c.byref(choice), c.byref(error)))
    need(moek.moek_tensors_source(problem, c.byref(first), c.byref(second), c.byref(source),
                                  c.byref(error)))
    need(moek.moek_layer_create(choice, c.byref(source), None, c.byref(layer), c.byref(error)))
    need(moek.moek_workspace_create(c.byref(layer), c.c_uint64(1), None, c.c_uint64(0),
                                    c.byref(workspace), c.byref(error)))
    forward = Forward(c.sizeof(Forward), 0, Rows(c.addressof(rows), 1, 64, 0, BF16, 0),
                      Rows(c.addressof(output), 1, 64, 0, BF16, 0), c.addressof(ids),
                      c.addressof(weights), None, workspace)
    need(moek.moek_layer_forward(layer, c.byref(forward), c.byref(error)))
    report = moek.moek_choice_report(choice, JSON_VIEW)
    winner = json.loads(c.string_at(report))["winner"]
    moek.moek_free(c.c_void_p(report))
    print(f"{moek.moek_choice_winner(choice).decode()} gives bf16 0x{output[0]:04x}, by its report "
          f"{winner}")
    moek.moek_workspace_destroy(workspace)
    moek.moek_layer_destroy(layer)
    moek.moek_source_close(c.byref(source))
    moek.moek_choice_destroy(choice)
    moek.moek_registry_close(registry)


main(*sys.argv[1:])
