"""Modules of PyTorch, torchvision and transformers with random weights, and their inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

#: A module and its inputs.
Case = tuple[nn.Module, tuple[Any, ...]]

IMAGE = (1, 3, 160, 160)


def _images(module: nn.Module, *shape: int) -> Case:
    return module, (torch.randn(shape or IMAGE),)


def _same(module: nn.Module, count: int, *shape: int, **named: Any) -> Case:
    """A module that takes one tensor several times."""

    class Repeated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, x: Any) -> Any:
            return self.inner(*[x] * count, **named)

    return Repeated(), (torch.randn(shape),)


def _mlp(dtype: torch.dtype = torch.float32) -> Case:
    layers = [nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)]
    return nn.Sequential(*layers).to(dtype), (torch.randn(32, 256).to(dtype),)


def _convolutions() -> nn.Module:
    layers: list[nn.Module] = []
    for width, channels in ((3, 32), (32, 64), (64, 64)):
        layers += [nn.Conv2d(width, channels, 3, 2, 1), nn.BatchNorm2d(channels), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def _quantized() -> Case:
    """Convolutions quantized by PT2E."""
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    quantizer = x86.X86InductorQuantizer()
    quantizer.set_global(x86.get_default_x86_inductor_quantization_config())
    x = torch.randn(1, 3, 96, 96)
    program = torch.export.export(_convolutions().eval(), (x,)).module()
    prepared = prepare_pt2e(program, quantizer)
    prepared(x)
    converted = convert_pt2e(prepared)
    converted.eval = lambda: converted  # which exported modules refuse
    return converted, (x,)


def _upsampling() -> Case:
    layers = [nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Conv2d(16, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.SiLU()]
    layers += [nn.ConvTranspose2d(32, 16, 2, 2), nn.Upsample(scale_factor=2, mode="bilinear")]
    return nn.Sequential(*layers, nn.Conv2d(16, 1, 1)), (torch.randn(1, 3, 96, 96),)


MODULES: dict[str, Callable[[], Case]] = {
    "nn.Linear": lambda: _images(nn.Linear(256, 256), 8, 256),
    "nn mlp": _mlp,
    "nn mlp f16": lambda: _mlp(torch.float16),
    "nn mlp bf16": lambda: _mlp(torch.bfloat16),
    "nn convolutions": lambda: _images(_convolutions(), 1, 3, 96, 96),
    "nn convolutions PT2E": _quantized,
    "nn upsampling": _upsampling,
    "nn.Conv1d": lambda: _images(nn.Conv1d(64, 64, 5, padding=2), 4, 64, 256),
    "nn.Conv3d": lambda: _images(nn.Conv3d(8, 16, 3), 1, 8, 12, 24, 24),
    "nn.Softmax": lambda: _images(nn.Softmax(-1), 8, 1000),
    "nn.MultiheadAttention": lambda: _same(
        nn.MultiheadAttention(128, 4, batch_first=True), 3, 2, 32, 128
    ),
    "nn.MultiheadAttention mask": lambda: _same(
        nn.MultiheadAttention(128, 4, batch_first=True),
        3,
        *(2, 32, 128),
        attn_mask=nn.Transformer.generate_square_subsequent_mask(32),
    ),
    "nn.TransformerEncoderLayer": lambda: _images(
        nn.TransformerEncoderLayer(128, 4, 256, batch_first=True), 2, 32, 128
    ),
    "nn.TransformerDecoderLayer": lambda: _same(
        nn.TransformerDecoderLayer(128, 4, 256, batch_first=True), 2, 2, 32, 128
    ),
    "nn.LSTM": lambda: _images(nn.LSTM(64, 128, 2, batch_first=True), 2, 32, 64),
    "nn.LSTM two ways": lambda: _images(nn.LSTM(64, 64, bidirectional=True), 32, 2, 64),
    "nn.GRU": lambda: _images(nn.GRU(64, 128, batch_first=True), 2, 32, 64),
    "nn.RNN": lambda: _images(nn.RNN(64, 128, batch_first=True), 2, 32, 64),
}


def _vision(name: str, *shape: int, dtype: torch.dtype = torch.float32) -> Case:
    from torchvision.models import get_model

    options = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    module, (image,) = _images(get_model(name, weights=None, **options), *shape)
    return module.to(dtype), (image.to(dtype),)


def _segmentation(name: str) -> Case:
    from torchvision.models import get_model

    return _images(get_model(name, weights=None, weights_backbone=None), 1, 3, 128, 128)


for _name in (
    *("resnet18", "mobilenet_v2", "mobilenet_v3_small", "efficientnet_b0", "squeezenet1_1"),
    *("shufflenet_v2_x0_5", "mnasnet0_5", "regnet_y_400mf", "googlenet", "vgg11", "densenet121"),
):
    MODULES[f"torchvision {_name}"] = lambda name=_name: _vision(name)
for _name in ("vit_b_32", "swin_t", "convnext_tiny"):
    MODULES[f"torchvision {_name}"] = lambda name=_name: _vision(name, 1, 3, 224, 224)
MODULES["torchvision lraspp_mobilenet_v3_large"] = lambda: _segmentation(
    "lraspp_mobilenet_v3_large"
)
MODULES["torchvision r3d_18"] = lambda: _vision("r3d_18", 1, 3, 4, 64, 64)
MODULES["torchvision resnet18 bf16"] = lambda: _vision("resnet18", dtype=torch.bfloat16)

_SIZES = dict(
    vocab_size=1000,
    hidden_size=256,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=512,
)
#: Other names of the same sizes.
_GPT2 = dict(vocab_size=1000, n_embd=256, n_layer=2, n_head=4, n_positions=128)
_WHISPER = dict(
    vocab_size=1000,
    d_model=128,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=256,
    decoder_ffn_dim=256,
    max_source_positions=100,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
    decoder_start_token_id=1,
)


class _Plain(nn.Module):
    """A model of transformers that returns its first result as a tensor."""

    def __init__(self, module: nn.Module, **named: Any) -> None:
        super().__init__()
        self.module, self.named = module, named

    def forward(self, *inputs: Any) -> Any:
        return self.module(*inputs, return_dict=False, **self.named)[0]


def _text(name: str, dtype: torch.dtype = torch.float32, **sizes: Any) -> Case:
    """A model that reads tokens; ``sizes`` are of its configuration."""
    import transformers

    base = name.removesuffix("Model").removesuffix("Encoder").removesuffix("Text")
    sizes = sizes or _SIZES
    config = getattr(transformers, f"{base}{'Text' if 'Text' in name else ''}Config")(**sizes)
    module = getattr(transformers, name)(config).to(dtype)
    causal = ("GPT2", "Llama", "Mistral", "Qwen2", "OPT", "Phi", "Gemma", "GPTNeoX")
    named = {"use_cache": False} if base in causal else {}
    return _Plain(module, **named), (torch.randint(3, 1000, (1, 64)),)


def _whisper() -> Case:
    import transformers

    model = transformers.WhisperModel(transformers.WhisperConfig(**_WHISPER))

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, features: Any, tokens: Any) -> Any:
            return self.model(features, decoder_input_ids=tokens, use_cache=False)[0]

    return Whole(), (torch.randn(1, 80, 200), torch.randint(3, 1000, (1, 16)))


def _patches() -> Case:
    import transformers

    config = transformers.ViTConfig(**{**_SIZES, "image_size": 96})
    return _Plain(transformers.ViTModel(config)), (torch.randn(1, 3, 96, 96),)


def _audio() -> Case:
    import transformers

    config = transformers.Wav2Vec2Config(**_SIZES)
    return _Plain(transformers.Wav2Vec2Model(config)), (torch.randn(1, 4000),)


_OPT = {**_SIZES, "ffn_dim": 512, "word_embed_proj_dim": 256}
_T5 = dict(vocab_size=1000, d_model=256, d_kv=64, d_ff=512, num_layers=2, num_heads=4)
_DISTILBERT = dict(vocab_size=1000, dim=256, n_layers=2, n_heads=4, hidden_dim=512)
MODULES |= {
    "transformers BERT": lambda: _text("BertModel"),
    "transformers BERT f16": lambda: _text("BertModel", torch.float16),
    "transformers DistilBERT": lambda: _text("DistilBertModel", **_DISTILBERT),
    "transformers RoBERTa": lambda: _text("RobertaModel"),
    "transformers ALBERT": lambda: _text("AlbertModel"),
    "transformers ELECTRA": lambda: _text("ElectraModel"),
    "transformers GPT-2": lambda: _text("GPT2Model", **_GPT2),
    "transformers GPT-2 bf16": lambda: _text("GPT2Model", torch.bfloat16, **_GPT2),
    "transformers Llama": lambda: _text("LlamaModel"),
    "transformers Llama bf16": lambda: _text("LlamaModel", torch.bfloat16),
    "transformers Mistral": lambda: _text("MistralModel", **_SIZES, num_key_value_heads=2),
    "transformers Qwen2": lambda: _text("Qwen2Model", **_SIZES, num_key_value_heads=2),
    "transformers Phi": lambda: _text("PhiModel"),
    "transformers GPT-NeoX": lambda: _text("GPTNeoXModel"),
    "transformers OPT": lambda: _text("OPTModel", **_OPT),
    "transformers T5 encoder": lambda: _text("T5EncoderModel", **_T5),
    "transformers CLIP text": lambda: _text("CLIPTextModel"),
    "transformers ViT": _patches,
    "transformers wav2vec 2.0": _audio,
    "transformers Whisper": _whisper,
}
