"""Writes runtime/ckpt/hf_defaults.def: the values that the configuration classes of
transformers give to keys which a config.json lacks (needs transformers 5).

    python3 tests/hf/defaults.py >runtime/ckpt/hf_defaults.def
"""
import dataclasses
import json

import transformers

KEYS = """hidden_size intermediate_size moe_intermediate_size shared_expert_intermediate_size
    num_hidden_layers num_attention_heads num_key_value_heads head_dim vocab_size
    num_experts num_local_experts n_routed_experts n_shared_experts num_experts_per_tok
    rms_norm_eps hidden_act max_position_embeddings tie_word_embeddings pad_token_id
    attention_bias qkv_bias mlp_bias clip_qkv sliding_window use_sliding_window
    attention_dropout router_jitter_noise router_aux_loss_coef norm_topk_prob
    decoder_sparse_step mlp_only_layers first_k_dense_replace kv_lora_rank q_lora_rank
    qk_nope_head_dim qk_rope_head_dim v_head_dim n_group topk_group topk_method
    routed_scaling_factor rope_interleave""".split()
FAMILIES = ["Mixtral", "Qwen2Moe", "Qwen3Moe", "Olmoe", "DeepseekV2", "DeepseekV3", "Llama"]


def defaults(cls):
    """Of the class, before its constructor derives one value from another."""
    own = {f.name: f.default for f in dataclasses.fields(cls)
           if f.default is not dataclasses.MISSING}
    made = cls()
    out = {k: own[k] for k in KEYS if isinstance(own.get(k), (int, float, str, bool))}
    if hasattr(made, "mlp_only_layers"):
        out["mlp_only_layers"] = made.mlp_only_layers
    out["rope_theta"] = made.rope_parameters["rope_theta"]
    return out


print("/* hf_defaults.def: the values of keys that a config.json of this model_type\n"
      f" * lacks, in JSON; written by tests/hf/defaults.py from transformers\n * {transformers.__version__}. */")
for name in FAMILIES:
    cls = getattr(transformers, name + "Config")
    text = json.dumps(defaults(cls)).replace('"', '\\"')
    print(f'DEFAULTS("{cls.model_type}", "{text}")')
