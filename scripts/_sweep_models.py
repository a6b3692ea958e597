"""The models of scripts/sweep: torchvision's, and architectures of different families of timm and Transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

# The smallest member of each family that torchvision lacks (a module of timm), of the 60 whose smallest is smallest.
TIMM = """
cait_xxs24_224 coat_tiny convit_tiny convmixer_768_32 cpubone_nano crossvit_tiny_240 cs3darknet_focus_s csatv2
cspnext_tiny dla46x_c dpn48b edgenext_xx_small efficientformer_l1 efficientformerv2_s0 efficientvim_m1 efficientvit_b0
efficientvit_m0 ese_vovnet19b_slim_dw eva02_tiny_patch14_224 fasternet_t0 fastvit_t8 gcvit_xxtiny ghostnet_050
gmlp_ti16_224 halonet_h1 hgnetv2_b0 hrnet_w18_small iformer_t inception_next_atto lcnetv2_small legacy_seresnet18
legacy_xception levit_128s lowformer_b0 mambaout_femto mobileone_s0 mobilevit_xxs nest_tiny nf_regnet_b0 pit_ti_224
pvt_v2_b0 rdnet_tiny repghostnet_050 repvit_m1 res2next50 resnest14d resnetv2_18 rexnet_100 shvit_s1 skresnet18
starnet_s050 swiftformer_xs tiny_vit_5m_224 tnt_s_legacy_patch16_224 twins_svt_small visformer_tiny
vit_srelpos_small_patch16_224 vit_tiny_r_s16_p8_224 vitamin_small_224 xcit_nano_12_p8_224
"""
_ONE_SIZE = ("crossvit_tiny_240", "efficientformer_l1", "halonet_h1")  # they can't be built for another

# Types of Transformers of different families. On the meta device they have their default size; where values are looked
# at, two layers, and what else keeps them below a GiB.
HF = """
albert bart bert bloom clip convnext deberta-v2 detr electra falcon funnel gemma2 gpt2 hubert layoutlmv3 llama llava
mamba mask2former mixtral resnet roberta sam segformer swin t5 videomae vit wav2vec2 whisper xlnet
"""
_LAYERS = ("num_hidden_layers", "num_layers", "encoder_layers", "decoder_layers", "num_decoder_layers")
_TEXT = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
_PARTS = {"text_config": {**_TEXT, "num_hidden_layers": 2}, "vision_config": {"num_hidden_layers": 2}}
_WHOLE = ("convnext", "resnet", "segformer", "swin")  # their depths are lists
_SMALLER = {
    **dict.fromkeys(("llama", "mixtral", "gemma2"), _TEXT),
    "falcon": {"hidden_size": 64, "num_attention_heads": 4},
    "llava": _PARTS,
    "clip": {name: {"num_hidden_layers": 2} for name in _PARTS},
    "sam": {"vision_config": {"num_hidden_layers": 2, "global_attn_indexes": [1]}},
    "hubert": {"num_hidden_layers": 2},
}

# Beside TorchLens: families that differ in how they call PyTorch.
_TOGETHER = {
    "own": "Functional Attention Repeated Transformed",
    "torchvision": "resnet50 densenet121 shufflenet_v2_x1_0 swin_t vit_b_16 raft_small "
    "fasterrcnn_mobilenet_v3_large_320_fpn",
    "timm": "edgenext_xx_small eva02_tiny_patch14_224 mobilevit_xxs xcit_nano_12_p8_224",
    "hf": "bert gpt2 llama mamba t5",
}


@dataclass(frozen=True)
class Model:
    """A model: its spec, and the options that make its input small."""

    name: str
    spec: str
    small: tuple[str, ...] = ()


def torchvision_models() -> list[Model]:
    from hookcli.sources.catalog import entries

    return [Model(e.name, e.name, tuple(_small(e.name, e.kind))) for e in entries().values()]


def _small(name: str, kind: str) -> Iterator[str]:
    """Options that make a torchvision model's input small, where it is not built for one size."""
    if kind == "detection":
        if not name.startswith("ssd"):
            yield from ("--arg", "min_size=96", "--arg", "max_size=96")
    elif kind == "optical_flow" or name.startswith(("maxvit", "mvit", "s3d")):
        yield from ("--batch-size", "1")
    elif kind == "video":
        yield from ("--input", "2x3x8x64x64")
    elif name.startswith("vit"):
        yield from ("--input", "2x3x56x56" if "14" in name else "2x3x64x64")
        yield from ("--arg", "image_size=56" if "14" in name else "image_size=64")
    elif "inception" not in name:
        yield from ("--input", "2x3x64x64")


def timm_models() -> list[Model]:
    import timm

    def small(name: str) -> tuple[str, ...]:
        if name in _ONE_SIZE:
            return ()
        fixed = timm.get_pretrained_cfg(name).fixed_input_size
        return ("--arg", "img_size=64") if fixed else ("--input", "2x3x64x64")

    return [Model(name, f"timm:{name}", small(name)) for name in TIMM.split()]


def hf_models() -> list[Model]:
    from transformers import CONFIG_MAPPING

    def small(kind: str) -> Iterator[str]:
        if kind in _WHOLE:
            return
        config_class = CONFIG_MAPPING[kind]
        known = {*config_class().to_dict(), *config_class.attribute_map}
        layers = {name: 2 for name in _LAYERS if name in known and isinstance(getattr(config_class(), name), int)}
        for name, value in {**layers, **_SMALLER.get(kind, {})}.items():
            yield from ("--arg", f"{name}={value!r}")

    return [Model(kind, f"hf:{kind}", tuple(small(kind))) for kind in HF.split()]


def own_models() -> list[Model]:
    nets = Path(__file__).with_name("_sweep_nets.py")
    return [Model(name, f"{nets}:{name}", ("--input", "2x3x8x8")) for name in _TOGETHER["own"].split()]


MODELS = {"torchvision": torchvision_models, "timm": timm_models, "hf": hf_models, "own": own_models}


def matching(source: str, match: str) -> list[Model]:
    """A source's models whose names match one of these globs (A,B); "together": those compared with TorchLens."""
    if source == "together":
        return [m for each, names in _TOGETHER.items() for m in matching(each, match) if m.name in names.split()]
    return [m for m in MODELS[source]() if any(fnmatchcase(m.name, glob) for glob in match.split(","))]


# For torch.compile.


def _torchvision(name: str) -> Any:
    from torchvision import models

    return {
        "shufflenet": lambda: models.ShuffleNetV2([2, 1, 1], [8, 16, 16, 16, 32], num_classes=10),
        "vit": lambda: models.VisionTransformer(32, 8, 2, 2, 32, 64, num_classes=10),
        "swin": lambda: models.SwinTransformer([4, 4], 16, [1, 1], [2, 2], [4, 4], stochastic_depth_prob=0.0),
        "densenet": lambda: models.DenseNet(8, (2, 2), 16, 2, num_classes=10),
    }[name]()


def _timm(name: str) -> Any:
    from timm.models.convnext import ConvNeXt
    from timm.models.mlp_mixer import MlpMixer
    from timm.models.resnet import BasicBlock, ResNet

    return {
        "resnet": lambda: ResNet(BasicBlock, (1, 1, 1, 1), channels=(8, 8, 16, 16), stem_width=8, num_classes=10),
        "convnext": lambda: ConvNeXt(depths=(1, 1, 1, 1), dims=(8, 16, 16, 16), num_classes=10),
        "mixer": lambda: MlpMixer(img_size=32, patch_size=8, num_blocks=2, embed_dim=32, num_classes=10),
    }[name]()


def token_models(name: str) -> Any:
    """A model of Transformers that takes tokens, of which it knows 64."""
    import transformers as hf

    small = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    no = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "vocab_size": 64}
    t5 = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2, "dropout_rate": 0.0}
    return {
        "llama": lambda: hf.LlamaForCausalLM(
            hf.LlamaConfig(**small, num_key_value_heads=1, vocab_size=64, use_cache=False)
        ),
        "bert": lambda: hf.BertModel(hf.BertConfig(**small, **no)),
        "t5": lambda: hf.T5EncoderModel(hf.T5Config(**t5, vocab_size=64)),
    }[name]()


COMPILED: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(("shufflenet", "vit", "swin", "densenet"), _torchvision),
    **dict.fromkeys(("resnet", "convnext", "mixer"), _timm),
    **dict.fromkeys(("llama", "bert", "t5"), token_models),
}
"""The models of `scripts/sweep compiled`, small enough for inductor: what builds one, given its name."""
