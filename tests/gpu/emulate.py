# SPDX-License-Identifier: MIT
"""Runs AMD kernels for emuhip.c on the instruction emulator of tinygrad's tests.

usage: emulate.py ARENA, with TINYGRAD set to a checkout of tinygrad's repository.

Reads one request a line on stdin and answers each with one line on stdout:
  find NAME IMAGE BYTES                  -> ok BYTES_OF_ARGUMENTS
  run NAME IMAGE BYTES GX GY GZ BX BY BZ LDS ARGUMENTS BYTES -> ok LAUNCHES_SO_FAR
Addresses are in the arena, a file that emuhip.c maps where this maps it. Code is mapped
apart, as the ELF's segments say. EMULATE_LOG: a file that gets the name of each kernel run.
"""

import ctypes
import faulthandler
import importlib.util
import mmap
import os
import struct
import sys
import types

ARENA_AT = 0x200000000000
MAP_FIXED_NOREPLACE = 0x100000
ARCHS = {0x41: "rdna3", 0x46: "rdna3", 0x47: "rdna3", 0x44: "rdna3", 0x4C: "cdna", 0x4F: "cdna"}


def map_arena(path):
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int,
                          ctypes.c_int, ctypes.c_long]
    file = os.open(path, os.O_RDWR)
    at = libc.mmap(ARENA_AT, os.fstat(file).st_size, mmap.PROT_READ | mmap.PROT_WRITE,
                   mmap.MAP_SHARED | MAP_FIXED_NOREPLACE, file, 0)
    os.unlink(path)
    if at != ARENA_AT:
        sys.exit(f"cannot map {path} at {ARENA_AT:#x}")


class CodeObject:
    """A code object as a loader lays it out: segments in memory, symbols by name."""

    def __init__(self, data):
        self.data = data
        program, sections = struct.unpack_from("<QQ", data, 32)
        (self.flags,) = struct.unpack_from("<I", data, 48)
        size, count, section_size, section_count = struct.unpack_from("<HHHH", data, 54)
        segments = [struct.unpack_from("<IIQQQQQQ", data, program + i * size) for i in range(count)]
        headers = [struct.unpack_from("<IIQQQQIIQQ", data, sections + i * section_size)
                   for i in range(section_count)]
        loads = [s for s in segments if s[0] == 1]
        self.memory = mmap.mmap(-1, (max(s[3] + s[6] for s in loads) + 0x2000) & ~0xFFF)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        for _, _, offset, address, _, bytes_, _, _ in loads:
            self.memory[address:address + bytes_] = data[offset:offset + bytes_]
        self.symbols = {}
        for header in headers:
            if header[1] == 4 and header[5] != 0:
                raise ValueError("code object with relocations")
            if header[1] == 11:
                self.read_symbols(header, headers[header[6]])
        self.arch = ARCHS[self.flags & 0xFF]

    def read_symbols(self, table, strings):
        for at in range(table[4], table[4] + table[5], 24):
            name, _, _, _, value, _ = struct.unpack_from("<IBBHQQ", self.data, at)
            start = strings[4] + name
            end = self.data.index(b"\0", start)
            self.symbols[self.data[start:end].decode()] = value

    def descriptor(self, name):
        """The kernel descriptor, 64 bytes at NAME.kd."""
        at = self.symbols[name + ".kd"]
        lds, private, arguments, _, entry = struct.unpack_from("<IIIIq", self.memory, at)
        _, _, resources = struct.unpack_from("<III", self.memory, at + 44)
        properties, preload = struct.unpack_from("<HH", self.memory, at + 56)
        return types.SimpleNamespace(entry=self.base + at + entry, lds=lds, private=private,
                                     arguments=arguments, resources=resources,
                                     properties=properties, preload=preload)


def user_registers(kernel, arguments):
    """The scalar registers that are set when a wave begins, in the order of their bits."""
    if kernel.properties & ~8 & 0x7F or kernel.preload & 0x7F:
        raise ValueError(f"kernel asks for more than its arguments: {kernel.properties:#x}")
    registers = [arguments & 0xFFFFFFFF, arguments >> 32] if kernel.properties & 8 else []
    return registers + [0] * ((kernel.resources >> 1 & 31) - len(registers))


# What v_mfma_scale_f32_16x16x128_f8f6f4 does, after plugins/gpu/mfma.h: lanes 16 g + r hold row
# r of A and column r of B; as FP4 columns 32 g .. 32 g + 31, as FP8 16 g .. 16 g + 15 and the
# same 64 further on; the scale of columns 32 b .. 32 b + 31 is the byte of lane 16 b + r that
# op_sel (low bit) and op_sel_hi (high bit) choose, the first of each for A, the second for B.
# The emulator knows FP8 alone, and one scale for all columns.
SCALED_MFMA = """
def _scaled_mfma(inst, ctx):
  exec_mask, vdst = ctx.rexec(), ctx.inst_field(type(inst).vdst)
  if "16X16X128" not in _op_name(inst): raise RuntimeError("a scaled MFMA of another shape")
  def number(value): return UOp.const(value, dtypes.int)
  def operand(name, format, scale, byte):
    if format not in (0, 4): raise RuntimeError(f"a scaled MFMA of format {format}")
    return ctx.inst_field(getattr(type(inst), name)), format == 4, ctx.inst_field(getattr(type(inst), scale)), byte
  low, high = _iattr(inst, "opsel"), _iattr(inst, "opsel_hi")
  operands = (operand("src0", int(inst.cbsz), "scale_src0", low & 1 | (high & 1) << 1),
              operand("src1", int(inst.blgp), "scale_src1", low >> 1 & 1 | high & 2))
  # of A, then of B: 16 x 128 elements, 16 x 4 scales, as bits of fp32
  tmp = UOp.placeholder((2 * 16 * 132,), dtypes.uint32, slot=0, addrspace=AddrSpace.LOCAL)
  lane = ctx.range()
  row, group = lane % number(16), lane // number(16)
  stores = []
  for which, (source, fp4, scale, byte) in enumerate(operands):
    base = which * 16 * 132
    for i in range(32):
      raw = ctx.rvgpr_dyn(source - _c(256 - (i // 8 if fp4 else i // 4)), lane)
      if fp4:
        code = (raw >> _c(4 * (i % 8))) & _c(15)
        exponent, mantissa = (code >> _c(1)) & _c(3), code & _c(1)
        bits = ((code >> _c(3)) << _c(31)) | exponent.eq(_c(0)).where(
          mantissa.eq(_c(0)).where(_c(0), _c(0x3f000000)), ((exponent + _c(126)) << _c(23)) | (mantissa << _c(22)))
        column = group * number(32) + number(i)
      else:
        bits = _FUNCS["fp8_to_f32"](raw >> _c(8 * (i % 4))).bitcast(dtypes.uint32)
        column = group * number(16) + number(i % 16 + i // 16 * 64)
      stores.append(tmp.index(number(base) + row * number(132) + column).store(bits))
    code = (ctx.rsrc_dyn(scale, lane, 32) >> _c(8 * byte)) & _c(255)
    bits = code.eq(_c(0)).where(_c(0x400000), code.eq(_c(255)).where(_c(0x7fc00000), code << _c(23)))
    stores.append(tmp.index(number(base + 128) + row * number(132) + group).store(bits))
  read = UOp.group(*stores).end(lane)
  seen = tmp.after(read)
  src2 = ctx.inst_field(type(inst).src2)
  src2_is_vgpr = src2 >= _c(256)
  scalar = ctx.rsgpr_dyn(src2, src2_is_vgpr.ne(True)).bitcast(dtypes.float32)
  use_acc = bool(_iattr(inst, "acc_cd"))
  reader, writer = (ctx.raccvgpr_dyn, ctx.waccvgpr_dyn) if use_acc else (ctx.rvgpr_dyn, ctx.wvgpr_dyn)
  lane = ctx.range()
  column, group = lane % number(16), lane // number(16)
  stores = []
  for out in range(4):
    a = (group * number(4) + number(out)) * number(132)
    b = number(16 * 132) + column * number(132)
    def at(base, k): return seen.index(base + number(k)).bitcast(dtypes.float32)
    total = src2_is_vgpr.where(reader(src2 - _c(256 - out), lane, src2_is_vgpr).bitcast(dtypes.float32), scalar)
    for block in range(4):
      dot = at(a, 32 * block) * at(b, 32 * block)
      for k in range(32 * block + 1, 32 * block + 32): dot = dot + at(a, k) * at(b, k)
      total = total + dot * at(a, 128 + block) * at(b, 128 + block)
    stores.append(writer(vdst + _c(out), lane, total.bitcast(dtypes.uint32), exec_mask))
  return UOp.sink(read, UOp.group(*stores).end(lane), *ctx.inc_pc())

"""
# Mistakes of the snapshot of 2026-08-22 that our kernels meet, as text to find and to put.
# v_fma_mix_f32 reads a source as fp32 or as fp16, by a bit of op_sel_hi for each; the emulator
# reads an inline constant, such as 1.0, as fp16 always.
# Lanes that are switched off read LDS all the same, wherever their address may point.
# An fp16 operand of a matrix operation counts as 0 when subnormal, as 65536 when infinite.
SOURCE = "ctx.rsrc_dyn(ctx.inst_field(type(inst).src{0}), lane, {1}, literal=literal, do_cast=do_cast)"
FOR_MIX = "16 if 'MIX' not in op_name or _iattr(inst, '{0}', 3) & {1} else 32"
LDS = "if 'OFFSET' not in pcode: addr = addr + offset\n      return "
F16_BITS = """return exp.eq(_c(31)).where((sign << _c(31)) | _c(0x7f800000) | (mant << _c(13)), exp.eq(_c(0)).where(
      (sign << _c(31)) | (mant.cast(dtypes.float32) * UOp.const(2.0**-24, dtypes.float32)).bitcast(dtypes.uint32), f32_bits))"""
CORRECTIONS = [
    (SOURCE.format(0, 16), SOURCE.format(0, FOR_MIX.format("opsel_hi", 1))),
    (SOURCE.format(1, 16), SOURCE.format(1, FOR_MIX.format("opsel_hi", 2))),
    (SOURCE.format(2, 16), SOURCE.format(2, FOR_MIX.format("opsel_hi2", 1))),
    ("return exp.eq(_c(0)).where(_c(0), f32_bits)", F16_BITS),
    ("def _compile_mfma(inst", SCALED_MFMA + "def _compile_mfma(inst"),
    ("  return _compile_mfma(inst, ctx)", "  return (_scaled_mfma if isinstance(inst, irc.VOP3PX2) else _compile_mfma)(inst, ctx)"),
    (LDS + "addr", LDS + "_lane_active(exec_mask, lane).where(addr, _c(0))"),
]


def load_emulator(checkout):
    """run_asm() of the emulator, corrected."""
    sys.path.insert(0, checkout)
    # the folder `test` has no __init__.py, and Python has a package of that name
    package = types.ModuleType("test")
    package.__path__ = [os.path.join(checkout, "test")]
    sys.modules["test"] = package
    spec = importlib.util.find_spec("test.mockgpu.amd.emu")
    with open(spec.origin, encoding="utf-8") as file:
        source = file.read()
    for was, now in CORRECTIONS:
        if source.count(was) != 1:
            sys.exit(f"{spec.origin} is not the emulator this was written for: no line {was}")
        source = source.replace(was, now)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    exec(compile(source, spec.origin, "exec"), module.__dict__)
    return module.run_asm


class Emulator:
    def __init__(self, run_asm):
        self.run_asm = run_asm
        self.objects = {}
        self.launches = 0
        self.log = open(os.environ["EMULATE_LOG"], "a") if "EMULATE_LOG" in os.environ else None

    def code(self, address, size):
        if address not in self.objects:
            self.objects[address] = CodeObject(ctypes.string_at(address, size))
        return self.objects[address]

    def find(self, name, address, size):
        return self.code(address, size).descriptor(name).arguments

    def run(self, name, address, size, *rest):
        grid, block = rest[0:3], rest[3:6]
        dynamic, arguments, argument_bytes = rest[6:9]
        code = self.code(address, size)
        kernel = code.descriptor(name)
        if argument_bytes != kernel.arguments:
            raise ValueError(f"{argument_bytes} bytes of arguments, not {kernel.arguments}")
        blocks = (kernel.lds + dynamic + 511) // 512  # the ELF leaves these bits to the loader
        resources = kernel.resources & ~(0x1FF << 15) | blocks << 15
        failed = self.run_asm(kernel.entry, 0, *grid, *block, arguments, resources, kernel.private,
                              code.arch, user_registers(kernel, arguments))
        if failed:
            raise ValueError(f"the emulator gave {failed}")
        self.launches += 1
        if self.log:
            print(name, file=self.log, flush=True)
        return self.launches


def main(arena):
    faulthandler.enable()
    map_arena(arena)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the emulator prints is no answer
    emulator = Emulator(load_emulator(os.environ["TINYGRAD"]))
    for line in sys.stdin:
        request, name, *numbers = line.split()
        try:
            answer = f"ok {getattr(emulator, request)(name, *map(int, numbers))}"
        except Exception as error:  # any: the other side waits for one line
            answer = f"{type(error).__name__}: {error}".replace("\n", " ")[:500]
        print(answer, file=answers, flush=True)


main(sys.argv[1])
