# SPDX-License-Identifier: MIT
"""Read a folder that `moek convert` wrote with other people's code.

usage: read_back.py CONVERTED ROWS

CONVERTED is in a compressed-tensors format; ROWS is CONVERTED converted to fp32 rows. The
packages compressed-tensors and safetensors from PyPI must take config.json and every
tensor, and decompress each expert to the values in ROWS, rounded once to the type of the
scales, to the bit.
"""

import json
import pathlib
import sys

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationConfig
from safetensors.torch import load_file


def tensors(folder):
    found = {}
    for path in sorted(pathlib.Path(folder).glob("*.safetensors")):
        found.update(load_file(path))
    return found


def main(converted, rows):
    config = json.loads((pathlib.Path(converted) / "config.json").read_text())
    quantization = QuantizationConfig.model_validate(config["quantization_config"])
    scheme = quantization.config_groups["group_0"]
    compressor = BaseCompressor.get_value_from_registry(quantization.format)
    packed, plain = tensors(converted), tensors(rows)
    end = ".weight_packed"
    modules = [name[: -len(end)] for name in packed if name.endswith(end)]
    for module in modules:
        state = {
            name[len(module) + 1 :]: tensor
            for name, tensor in packed.items()
            if name.startswith(module + ".")
        }
        theirs = compressor.decompress(state, scheme)["weight"]
        ours = plain[module + ".weight"].to(theirs.dtype)
        if not torch.equal(theirs, ours):
            wrong = (theirs != ours).sum().item()
            sys.exit(f"{module}: {wrong} of {ours.numel()} weights differ")
    ignored = [name for name in quantization.ignore if name + ".weight" not in packed]
    if not modules or ignored:
        sys.exit(f"{len(modules)} modules; ignored, but not there: {ignored}")
    print(f"{len(modules)} modules equal")


main(*sys.argv[1:])
