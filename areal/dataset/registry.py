"""The dataset table: one line per loader, sorted. The suffix of a name is what its rows are for: `_rl`, `_sft`,
`_preference`.

Not a place for code: `areal.dataset.loading.load_dataset` resolves a name, calls the loader and checks what it returns.
"""

from __future__ import annotations

from typing import Final

DATASETS: Final[dict[str, str]] = {
    "arithmetic_rl": "areal.dataset.arithmetic:get_arithmetic_rl_dataset",
    "arithmetic_sft": "areal.dataset.arithmetic:get_arithmetic_sft_dataset",
    "clevr_count_70k_rl": "areal.dataset.clevr_count_70k:get_clevr_count_70k_rl_dataset",
    "clevr_count_70k_sft": "areal.dataset.clevr_count_70k:get_clevr_count_70k_sft_dataset",
    "code_rl": "areal.dataset.code:get_code_rl_dataset",
    "geometry3k_rl": "areal.dataset.geometry3k:get_geometry3k_rl_dataset",
    "geometry3k_sft": "areal.dataset.geometry3k:get_geometry3k_sft_dataset",
    "gsm8k_rl": "areal.dataset.gsm8k:get_gsm8k_rl_dataset",
    "gsm8k_sft": "areal.dataset.gsm8k:get_gsm8k_sft_dataset",
    "hhrlhf_preference": "areal.dataset.hhrlhf:get_hhrlhf_preference_dataset",
    "jsonl_preference": "areal.dataset.jsonl:get_jsonl_preference_dataset",
    "jsonl_rl": "areal.dataset.jsonl:get_jsonl_rl_dataset",
    "jsonl_sft": "areal.dataset.jsonl:get_jsonl_sft_dataset",
    "virl39k_rl": "areal.dataset.virl39k:get_virl39k_rl_dataset",
    "virl39k_sft": "areal.dataset.virl39k:get_virl39k_sft_dataset",
}
