"""Tiny models of transformers from their configurations alone, and inputs for them.

A configuration is made with its defaults, and its fields are shrunk by their names, as deep as they are nested.
"""

from __future__ import annotations

import copy
import inspect
from typing import Any

import torch

__all__ = ["inputs_for", "tiny_config"]

VOCABULARY = 256


def _words(size: int, names: str) -> dict[str, int]:
    return dict.fromkeys(names.split(), size)


#: Sizes by the names of fields that no shape inside a layer depends on.
_COUNTS: dict[str, int] = {
    **_words(
        2,
        """num_hidden_layers num_layers n_layer n_layers depth encoder_layers decoder_layers num_encoder_layers
        num_decoder_layers vision_layers text_layers num_blocks num_block_layers decoder_num_hidden_layers
        encoder_num_hidden_layers num_recurrent_layers resampler_depth""",
    ),
    **_words(
        4,
        """num_experts num_local_experts n_routed_experts moe_num_experts num_routed_experts n_experts""",
    ),
    **_words(2, "num_experts_per_tok moe_topk moe_k top_k num_experts_per_token moe_top_k experts_per_token"),
    **_words(8, "num_queries num_query_tokens num_denoising"),
    **_words(1, "n_group topk_group num_expert_group moe_layer_start_index first_k_dense_replace"),
    **_words(
        VOCABULARY,
        """vocab_size text_vocab_size vocab_size_per_layer_input audio_vocab_size padded_vocab_size decoder_vocab_size
        image_vocab_size semantic_vocab_size""",
    ),
    **_words(
        128,
        """max_position_embeddings n_positions max_seq_len max_source_positions max_target_positions n_ctx seq_length
        original_max_position_embeddings max_sequence_length""",
    ),
}

#: Sizes by the names of the other fields.
_SHAPES: dict[str, int] = {
    **_words(
        64,
        """hidden_size d_model n_embd embed_dim dim hidden_dim model_dim projection_dim encoder_hidden_dim
        decoder_hidden_size embedding_size word_embed_proj_dim out_hidden_size text_hidden_size width audio_embed_dim
        vision_hidden_size d_embed cross_attention_dim encoder_hidden_size resampler_hidden_size lru_width
        intermediate_size ffn_dim d_ff n_inner encoder_ffn_dim decoder_ffn_dim moe_intermediate_size ffn_hidden_size
        shared_expert_intermediate_size decoder_intermediate_size encoder_intermediate_size mlp_dim
        intermediate_size_mlp feed_forward_hidden_size dim_feedforward resampler_intermediate_size
        shared_intermediate_size expert_ffn_hidden_size moe_ffn_hidden_size backbone_hidden_size""",
    ),
    **_words(
        4,
        """num_attention_heads n_head num_heads encoder_attention_heads decoder_attention_heads attention_heads
        decoder_num_attention_heads encoder_num_attention_heads n_heads resampler_n_heads linear_num_value_heads
        linear_num_key_heads linear_num_heads num_key_value_heads num_kv_heads n_kv_heads
        decoder_num_key_value_heads index_n_heads num_codebooks""",
    ),
    **_words(
        16,
        """head_dim attention_head_dim kv_channels v_head_dim linear_key_head_dim linear_value_head_dim linear_head_dim
        global_head_dim qk_nope_head_dim qk_rope_head_dim mamba_head_dim mamba_headdim mamba_d_head resampler_head_dim
        swa_head_dim index_head_dim kv_lora_rank q_lora_rank o_lora_rank sliding_window attention_window_size
        window_length attention_window chunk_size mamba_d_state state_size ssm_state_size hidden_size_per_layer_input
        num_mel_bins""",
    ),
    **_words(8, "mamba_n_heads mamba_num_heads time_step_rank mamba_dt_rank laurel_rank index_topk patch_size"),
    "qk_head_dim": 32,
    "mamba_expand": 2,
    "image_size": 32,
    "num_channels": 3,
    "in_channels": 3,
}

#: What published configurations have where the default is None.
_ABSENT: dict[str, int] = {
    "vocab_size": VOCABULARY,
    "n_routed_experts": 4,
    "num_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "moe_topk": 2,
    "n_group": 1,
    "topk_group": 1,
}

#: Fields that are lists with one entry a layer.
_PER_LAYER = {"layer_types", "layers_block_type", "block_types", "mlp_layer_types", "no_rope_layers", "layer_type"}

#: Tokens, which must be in the vocabulary.
_TOKENS = ("_token_id", "_token_index", "_id")


def tiny_config(config_class: type, *, shapes: bool = True, sections: bool = False) -> Any:
    """A configuration of a model that runs within a second.

    Args:
        config_class: The class of the configuration.
        shapes: Whether the layers become small too; without, there are only fewer of them.
        sections: Whether the model's rotary embedding has sections for time, height and width.
    """
    config = config_class()
    sizes = _COUNTS | _SHAPES if shapes else _COUNTS
    _shrink(config, sizes, sections)
    try:
        return config_class.from_dict(config.to_dict())
    except Exception:  # noqa: BLE001 - some configurations cannot be read again; what was changed in place serves
        return config


def _shrink(config: Any, sizes: dict[str, int], sections: bool) -> None:
    layers = _kinds_of_layers(config, 2)
    for name, value in list(vars(config).items()):
        if hasattr(value, "to_dict") and hasattr(value, "model_type"):
            _shrink(value, sizes, sections)
        elif name.startswith("_") or isinstance(value, bool):
            continue
        elif name in _PER_LAYER and isinstance(value, (list, tuple)):
            _set(config, name, list(value[:layers]))
        elif isinstance(value, int):
            size = sizes.get(name)
            if size is not None and value > 0:
                _set(config, name, min(value, layers if size == 2 and "layer" in name else size))
            elif name.endswith(_TOKENS) and value >= VOCABULARY:
                _set(config, name, _token(name))
        elif isinstance(value, (list, tuple)) and name.endswith("_token_id"):
            _set(config, name, [min(each, VOCABULARY - 1) for each in value if isinstance(each, int)])
    _fill(config, sections)


def _fill(config: Any, sections: bool) -> None:
    """Set what a configuration of a published model has, and the default one lacks."""
    fields = vars(config)
    if "vocab_size" in fields and getattr(config, "pad_token_id", None) is None:
        _set(config, "pad_token_id", 0)
    width = next((fields[name] for name in ("hidden_size", "d_model") if isinstance(fields.get(name), int)), None)
    heads = fields.get("num_attention_heads")
    if "head_dim" in fields and fields["head_dim"] is None and width and isinstance(heads, int):
        _set(config, "head_dim", width // heads)
    if width and {"expand", "num_heads", "head_dim"} <= fields.keys():  # of a scan
        _set(config, "num_heads", fields["expand"] * width // fields["head_dim"])
    if width and isinstance(heads, int) and "attention_hidden_size" in fields:
        _set(config, "attention_hidden_size", 2 * width)
        _set(config, "attention_head_dim", 2 * width // heads)
    if type(config).__name__.startswith("Lfm2") and fields.get("layer_types", ()) is None:
        _set(config, "layer_types", ["conv", "full_attention"])
    for name, value in _ABSENT.items():
        if name in fields and fields[name] is None:
            _set(config, name, value)
    head = fields.get("head_dim") or (width // heads if width and isinstance(heads, int) and heads else None)
    parameters = fields.get("rope_parameters")
    if isinstance(head, int) and isinstance(parameters, dict):
        for each in [parameters, *(value for value in parameters.values() if isinstance(value, dict))]:
            part = each.get("partial_rotary_factor", fields.get("partial_rotary_factor")) or 1.0
            half = int(head * part) // 2
            if each.get("mrope_section") or (sections and "rope_type" in each):
                each["mrope_section"] = [half * 3 // 8, half * 3 // 8, half - 2 * (half * 3 // 8)]
            for name in ("short_factor", "long_factor"):
                if isinstance(each.get(name), list):
                    each[name] = each[name][:half]


def _kinds_of_layers(config: Any, layers: int) -> int:
    """How many layers show every kind that the configuration has, 8 at most."""
    most = layers
    for name in _PER_LAYER:
        kinds = getattr(config, name, None)
        if isinstance(kinds, (list, tuple)) and kinds:
            first = max(list(kinds).index(each) for each in set(kinds)) + 1
            if "hybrid" in kinds:  # its weights are those of the first one
                first = 1 + next((at for at in range(first, len(kinds)) if kinds[at] == "hybrid"), first - 1)
            most = max(most, first)
    return min(most, 10)


def _set(config: Any, name: str, value: Any) -> None:
    try:
        setattr(config, name, value)
    except (AttributeError, NotImplementedError, ValueError):
        pass


_KNOWN_TOKENS: dict[str, int] = {}


def _token(name: str) -> int:
    """A token of the vocabulary; the same name gets the same one."""
    return _KNOWN_TOKENS.setdefault(name, VOCABULARY - 1 - len(_KNOWN_TOKENS) % 64)


# ---------------------------------------------------------------------------------------------------------------------


def inputs_for(model: Any) -> dict[str, Any]:
    """What to call a model with, by the parameters of its forward.

    Raises:
        LookupError: It needs something that is not known here.
    """
    config = model.config
    parameters = inspect.signature(type(model).forward).parameters
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    vocabulary = min(_first(text, "vocab_size", default=VOCABULARY), VOCABULARY)
    tokens = torch.randint(3, max(vocabulary - 70, 8), (2, 12))
    image = _image(config)
    known: dict[str, Any] = {
        "input_ids": tokens,
        "decoder_input_ids": tokens[:, :7],
        "pixel_values": image,
        "input_values": torch.randn(1, 16000) * 0.1,
        "input_features": torch.randn(2, _first(config, "num_mel_bins", "feature_size", default=16), 64),
        "inputs_embeds": torch.randn(2, 12, _first(text, "hidden_size", "d_model", default=64)),
        "attention_mask": torch.ones(2, 12, dtype=torch.long),
        "grid_thw": torch.tensor([[1, 4, 4]]),
        "image_grid_thw": torch.tensor([[1, 4, 4]]),
        "hidden_states": torch.randn(2, 12, _first(config, "hidden_size", "d_model", default=64)),
        "past_values": torch.randn(2, 64),
        "bbox": torch.zeros(2, 12, 4, dtype=torch.long),
    }
    if "grid_thw" in parameters:
        patch = _first(config, "patch_size", "spatial_patch_size", default=14)
        size = _first(config, "in_channels", "num_channels", "in_chans", default=3) * patch * patch
        known["hidden_states"] = torch.randn(16, size * _first(config, "temporal_patch_size", default=1))
    given: dict[str, Any] = {}
    main = getattr(model, "main_input_name", "input_ids")
    for name, parameter in parameters.items():
        required = parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_KEYWORD,
            parameter.VAR_POSITIONAL,
        )
        if name == "self":
            continue
        if name == main or required:
            if name not in known:
                raise LookupError(f"nothing here makes {name}")
            given[name] = known[name]
    if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in parameters:
        given["decoder_input_ids"] = known["decoder_input_ids"]
    if "input_ids" in parameters and "input_ids" not in given and main == "pixel_values":
        given["input_ids"] = tokens[:1]
    if not given and "input_ids" in parameters:
        given["input_ids"] = tokens
    if "use_cache" in parameters:
        given["use_cache"] = False
    if not given:
        raise LookupError(f"it does not take {main}")
    return copy.copy(given)


def _image(config: Any) -> torch.Tensor:
    vision = getattr(config, "vision_config", None) or config
    size = _first(vision, "image_size", "img_size", default=64)
    if isinstance(size, (list, tuple)):
        height, width = size[-2:]
    else:
        height = width = size
    channels = _first(vision, "num_channels", "in_channels", "in_chans", default=3)
    return torch.randn(1, channels, height, width)


def _first(config: Any, *names: str, default: Any) -> Any:
    for name in names:
        value = getattr(config, name, None)
        if value is not None:
            return value
    return default
