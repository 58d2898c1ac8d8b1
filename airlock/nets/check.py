"""Whether a network can be trained per sample: clipping must bound the effect of one record.

Known offenders are refused by type, with the remedy. Anything else that mixes records (a user's own layer, say) is
detected by trial: one record's output must not change when the other records in its batch do. This is an early warning,
not a proof: a network may mix records only occasionally. What training relies on is established by
`training.per_sample`, which can train every network that passes here, one record at a time if necessary.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from airlock.errors import NetError
from airlock.nets.domain import drawn, vocabulary_of

_TOLERANCE = 1e-4


def check(net: nn.Module, name: str, shape: tuple[int, ...], classes: int) -> None:
    """Refuse a network that cannot be trained privately.

    Args:
        net: The network.
        name: What the user called it, for the message.
        shape: The shape of one record.
        classes: How many logits it must return; 0 for a language model, whose one output is a text's loss.

    Raises:
        NetError: It cannot be; the message names the layer, the reason and the remedy.
    """
    for path, layer in net.named_modules():
        _check_layer(path or type(layer).__name__, layer, name)
    _check_parameters(net, name)
    outputs = _try(net, name, shape)
    _check_outputs(outputs, name, max(1, classes))
    check_independence(net, name, shape)


def _check_layer(path: str, layer: nn.Module, name: str) -> None:
    if isinstance(layer, nn.modules.batchnorm._BatchNorm):
        raise NetError(
            f"no BatchNorm in net '{name}'",
            f"'{path}'",
            "BatchNorm mixes records, so clipping would not bound one record's effect.",
            'Use GroupNorm, or pass norm="group".',
        )
    if isinstance(layer, nn.modules.instancenorm._InstanceNorm) and layer.track_running_stats:
        raise NetError(
            f"no running statistics in net '{name}'",
            f"'{path}'",
            "They are averages over private records without any noise.",
            "Pass track_running_stats=False.",
        )
    if isinstance(layer, nn.modules.lazy.LazyModuleMixin) and layer.has_uninitialized_params():
        raise NetError(
            f"initialised layers in net '{name}'",
            f"the lazy layer '{path}'",
            "Its shape would be inferred from private records.",
            "Specify its sizes.",
        )


def _check_parameters(net: nn.Module, name: str) -> None:
    trainable = [(path, p) for path, p in net.named_parameters() if p.requires_grad]
    if not trainable:
        raise NetError(f"at least one trainable parameter in net '{name}'", "none")
    for path, parameter in trainable:
        if not torch.isfinite(parameter).all():
            raise NetError(f"finite initial weights in net '{name}'", f"NaN or infinity in '{path}'")


def _try(net: nn.Module, name: str, shape: tuple[int, ...]) -> Tensor:
    try:
        with torch.no_grad():
            outputs = net.eval()(drawn(net, 3, shape, 3))
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise NetError(
            f"net '{name}' to accept records of shape {' × '.join(map(str, shape))}",
            f"an error from it: {str(error).splitlines()[0]}",
        ) from error
    if not isinstance(outputs, Tensor):
        raise NetError(f"a tensor of logits from net '{name}'", type(outputs).__name__)
    return outputs


def _check_outputs(outputs: Tensor, name: str, classes: int) -> None:
    if tuple(outputs.shape) != (3, classes):
        raise NetError(
            f"{classes} logits per record from net '{name}', one per class",
            f"an output of shape {tuple(outputs.shape)} for 3 records",
            do=f"Give its last layer {classes} outputs.",
        )
    if not torch.isfinite(outputs).all():
        raise NetError(f"finite outputs from net '{name}'", "NaN or infinity")


def check_independence(net: nn.Module, name: str, shape: tuple[int, ...]) -> None:
    """One record's output must not depend on the others in its batch, nor on earlier batches."""
    first, others = drawn(net, 1, shape, 1), drawn(net, 6, shape, 6)
    after = others[3:] if vocabulary_of(net) is not None else others[3:] * 3.0 + 1.0
    net.train()
    for layer in net.modules():
        if isinstance(layer, nn.modules.dropout._DropoutNd):
            layer.eval()
    before = {path: value.detach().clone() for path, value in _state(net)}
    with torch.no_grad():
        a = _alike(net, torch.cat([first, others[:3]]))[0]
        b = _alike(net, torch.cat([first, after]))[0]
    if not torch.allclose(a, b, rtol=_TOLERANCE, atol=_TOLERANCE):
        raise NetError(
            f"outputs of net '{name}' that depend on their own record alone",
            "an output that changes with the other records of the batch",
            "Clipping would not bound one record's effect.",
            "Remove the layer that computes over the batch.",
        )
    for path, value in _state(net):
        if not torch.equal(value, before[path]):
            raise NetError(
                f"no state in net '{name}' that training changes other than its parameters",
                f"'{path}', which a forward pass writes",
                "It would release information about private records without noise.",
                "Remove it, or freeze it.",
            )


def _alike(net: nn.Module, x: Tensor) -> Tensor:
    """Its outputs, with the same random numbers each time: dropout may be a function and no layer."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        found: Tensor = net(x)
    return found


def _state(net: nn.Module) -> list[tuple[str, Tensor]]:
    """Everything that a forward pass could write to: parameters, frozen or not, and buffers."""
    return [*net.named_parameters(), *net.named_buffers()]


def alone(body: nn.Module, name: str, shape: tuple[int, ...]) -> Tensor:
    """The output of the user's front end for one record; refused if it fails, mixes records or returns NaN."""
    chance = torch.Generator().manual_seed(0)
    first, others = torch.rand(1, *shape, generator=chance), torch.rand(2, 3, *shape, generator=chance)
    try:
        with torch.no_grad():
            outputs = [body(torch.cat([first, other])) for other in (others[0], 3 * others[1] + 1)]
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise NetError(
            f"front end '{name}' to accept records of shape {' × '.join(map(str, shape))}",
            f"an error from it: {str(error).splitlines()[0]}",
        ) from error
    a, b = (output[0] for output in outputs)
    if not torch.isfinite(a).all():
        raise NetError(f"finite features from front end '{name}'", "NaN or infinity")
    if not torch.allclose(a, b, rtol=_TOLERANCE, atol=_TOLERANCE):
        raise NetError(
            f"features of front end '{name}' that depend on their own record alone",
            "features that change with the other records of the batch",
            "Noise for one record would not cover its effect on the others.",
            "Remove the layer that computes over the batch.",
        )
    assert isinstance(a, Tensor)
    return a
