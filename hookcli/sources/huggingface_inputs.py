"""Inputs that suit a configuration of Transformers: token ids of its vocabulary, pictures of its size, sound."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hookcli.sources.base import Arguments, InputSpec
from hookcli.sources.catalog import entries

_TOKENS = 128  # of a text, where the model takes as many
_SIDE = 224
_SAMPLES = 16000  # a second of sound
_FRAMES = 100  # of features of sound, where the model is not built for one number
_REPEATED = ("ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForConditionalGeneration")
"""Ends of the names of classes whose labels are token ids at every position."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """The inputs of a model class by name, and its labels.

    `names` has the keywords of `specs`, then the forward's other parameters; `specs` is None if an input that the class
    requires is of an unknown kind. `targets` are labels with zeros (or the token ids again) by name.
    """

    names: tuple[str, ...]
    specs: tuple[InputSpec, ...] | None
    targets: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, model_class: type[nn.Module], config: object) -> Inputs:
        parameters = inspect.signature(model_class.forward).parameters
        inputs: dict[str, InputSpec | None] = {}
        for name in _needed(model_class, config, parameters):
            inputs[name] = None
            with suppress(ValueError, TypeError, AttributeError, KeyError):  # a configuration of an unknown kind
                inputs[name] = _spec(name, model_class, config)
        specs = tuple(spec for spec in inputs.values() if spec)
        names = (*inputs, *(n for n in list(parameters)[1:] if n not in inputs))
        return cls(names, specs if len(specs) == len(inputs) else None, tuple(_labels(model_class, parameters)))

    def arrange(self, tensors: Sequence[Tensor]) -> Arguments:
        return dict(zip(self.names, tensors, strict=False))

    def arrange_training(self, tensors: Sequence[Tensor]) -> Arguments:
        """The tensors by name, with labels: class 0, or for language models the token ids."""
        named: dict[str, object] = dict(zip(self.names, tensors, strict=False))
        first = tensors[0]
        tokens = named.get("decoder_input_ids", named.get("input_ids", first))
        shapes = {"item": first.shape[:1], "position": first.shape[:2]}
        for name, kind in self.targets:
            zeros = torch.zeros(shapes.get(kind, ()), dtype=torch.int64, device=first.device)
            named[name] = tokens if kind == "tokens" else zeros
        return named


def _labels(model_class: type, parameters: Mapping[str, inspect.Parameter]) -> Iterator[tuple[str, str]]:
    """Names of labels with their kind: one for each item, or each position, or the tokens themselves."""
    name = model_class.__name__
    if name.endswith("ForQuestionAnswering") and "start_positions" in parameters:
        yield from (("start_positions", "item"), ("end_positions", "item"))
    if "labels" in parameters:
        if name.endswith(_REPEATED) and ("input_ids" in parameters or "decoder_input_ids" in parameters):
            yield "labels", "tokens"
        elif name.endswith("ForTokenClassification"):
            yield "labels", "position"
        elif name.endswith("Classification"):
            yield "labels", "item"


def _needed(model_class: Any, config: Any, parameters: Mapping[str, inspect.Parameter]) -> Iterator[str]:
    """The names of the inputs that a forward needs, the main one first."""
    main = model_class.main_input_name if model_class.main_input_name in parameters else list(parameters)[1]
    names = [main]
    towers = [part for part in ("text_config", "vision_config", "audio_config") if getattr(config, part, None)]
    whole = getattr(config, "image_token_id", getattr(config, "image_token_index", None)) is None
    if "text_config" in towers and len(towers) > 1 and whole:  # as in CLIP; others read pictures out of the tokens
        names += [n for n in ("input_ids", "pixel_values", "input_features", "input_values") if n in parameters]
    if config.is_encoder_decoder:
        names += [n for n in ("decoder_input_ids",) if n in parameters]
    names += [n for n, p in list(parameters.items())[1:] if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    yield from dict.fromkeys(names)


def _spec(name: str, model_class: object, config: Any) -> InputSpec | None:
    if name.endswith("input_ids"):
        text = config.get_text_config()
        vocabulary = getattr(text, "vocab_size", None)
        limits = [getattr(text, n, None) for n in ("max_position_embeddings", "n_positions", "max_target_positions")]
        most = min((limit for limit in limits if isinstance(limit, int) and limit > 0), default=_TOKENS)
        # RoBERTa's positions begin after the padding's.
        shape = (1, min(_TOKENS, most if most >= _TOKENS else max(1, most - 2)))
        return InputSpec(shape, torch.int64, vocabulary) if isinstance(vocabulary, int) else None
    if name in ("pixel_values", "pixel_values_videos"):
        return _pictures(getattr(config, "vision_config", None) or config, model_class)
    if name in ("input_features", "input_values"):
        return _sound(name, getattr(config, "audio_config", None) or config)
    if name == "past_values":
        return InputSpec((1, config.context_length, getattr(config, "num_input_channels", 1)))
    return None


def _first(config: object, *names: str) -> Any:
    """The first of these attributes that the configuration has; None for none."""
    return next((value for name in names if (value := getattr(config, name, None)) is not None), None)


def _pictures(config: Any, model_class: object) -> InputSpec:
    backbone = getattr(config, "backbone_config", None)
    size = _first(config, "image_size", "img_size", "crop_size") or _first(backbone, "image_size") or _SIDE
    if isinstance(size, dict):
        size = (size["height"], size["width"])
    sides = (size, size) if isinstance(size, int) else tuple(size)
    modalities = getattr(model_class, "input_modalities", ())
    entry = entries("hf").get(config.model_type)
    of_videos = (entry is not None and "video-classification" in (entry.tasks or {})) or (
        "video" in ((modalities,) if isinstance(modalities, str) else modalities)
    )
    frames = _first(config, "num_frames", "frames_per_clip") if of_videos else None
    channels = _first(config, "num_channels", "in_channels", "in_chans") or 3
    return InputSpec((1, *([frames] if frames else []), channels, *sides[-2:]))


def _sound(name: str, config: object) -> InputSpec | None:
    """A second of sound, or features of it, in the order of dimensions that the type has."""
    if name == "input_values":
        if mels := _first(config, "num_mel_bins"):
            return InputSpec((1, _first(config, "max_length") or _FRAMES, mels))
        channels = _first(config, "audio_channels")
        return InputSpec((1, channels, _SAMPLES) if channels else (1, _SAMPLES))
    if channels := _first(config, "input_feat_per_channel"):
        return InputSpec((1, _FRAMES, channels * (_first(config, "input_channels") or 1)))
    if width := _first(config, "feature_projection_input_dim"):
        return InputSpec((1, _FRAMES, width))
    mels, positions = _first(config, "num_mel_bins"), _first(config, "max_source_positions")
    if mels and positions:  # Whisper's encoder halves the frames
        return InputSpec((1, mels, 2 * positions))
    return InputSpec((1, 1, _first(config, "spec_size") * 4, mels)) if mels and _first(config, "spec_size") else None
